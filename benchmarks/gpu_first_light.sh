#!/usr/bin/env bash
# On a GPU machine: are the fused ops right, first alone, then in the real Gemma? Results land in $1.
#   bash benchmarks/gpu_first_light.sh OUT GEMMA_GGUF
set -uo pipefail
out=$1 gguf=$2
export PYTHONPATH=$PWD:$PWD/kernels${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
porter() { python3 -m porter "$@"; }
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
python3 -c 'import torch, triton, transformers; print("torch", torch.__version__, "triton", triton.__version__, "transformers", transformers.__version__)'
status=0
porter build gemma-3-270m --weights "$gguf" || exit 1
for dtype in bfloat16 float16; do
  porter diff gemma-3-270m --device cuda --ops triton --dtype $dtype --out "$out/$dtype" --timings || status=1
done
porter diff gemma-3-270m --device cuda --ops reference --out "$out/executor" || status=1
porter diff gemma-3-270m --device cuda --ops triton --set block.mlp.act=gelu --out "$out/gelu" && status=1
timeout 240 python3 -m pytest -q -x -p no:cacheprovider tests/porter_kernels || status=1
exit $status
