#!/usr/bin/env bash
# On a GPU machine: what right ports are from HuggingFace eager, at every node (benchmarks/measure_floors.py). The tiny
# families take three minutes at most; what was not done by then, flex at the end of all, is done by the next call. With
# GEMMA_GGUF, or a folder with the parts that make it, the real Gemma too, first, in another three.
#   bash benchmarks/gpu_floors.sh STATE OUT [GEMMA_GGUF]
# Rows stay in STATE, where the next call goes on, and are copied to OUT with their summaries.
set -uo pipefail
state=$1 out=$2 gemma=${3:-}
export PYTHONPATH=$PWD:$PWD/kernels${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
mkdir -p "$state" "$out"
trap 'cp "$state"/floors* "$out"/' EXIT
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
status=0
measure() { # CSV SECONDS OPTIONS: begins no comparison in the last 20 seconds, and stops one that hangs
  timeout --signal=INT --kill-after=10 "$2" python3 benchmarks/measure_floors.py --device cuda --resume --out "$state/$1" \
    --seconds $(($2 - 20)) "${@:3}" || status=1
}
if [ -n "$gemma" ]; then
  if [ -d "$gemma" ]; then
    cat "$gemma"/*.gguf.part* >"$state/gemma-3-270m.gguf" || exit 1
    gemma=$state/gemma-3-270m.gguf
  fi
  measure floors_gemma_gpu.csv 180 --families none --real "gemma-3-270m=$gemma"
fi
measure floors_gpu.csv 180 --real none
exit $status
