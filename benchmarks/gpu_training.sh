#!/usr/bin/env bash
# On a GPU machine: memory and training steps, until the time is up. Results stay in STATE, where the next call goes on,
# and are copied to OUT. PART is memory, offload or train; further options go to that command.
#   bash benchmarks/gpu_training.sh STATE OUT SECONDS COMMIT PART [options]
set -uo pipefail
state=$1 out=$2 seconds=$3 commit=$4 part=$5
shift 5
export PYTHONPATH=$PWD:$PWD/kernels${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
mkdir -p "$state" "$out"
trap 'cp "$state"/* "$out"/' EXIT
end=$((SECONDS + seconds))
nvidia-smi --query-gpu=name,driver_version,clocks.sm,power.limit,temperature.gpu --format=csv,noheader
for _ in 1 2 3 4; do
  left=$((end - SECONDS))
  [ "$left" -gt 30 ] || break
  case $part in
    memory) timeout "$left" python3 benchmarks/measure_memory.py --out "$state" --commit "$commit" "$@" ;;
    offload)
      CUBLAS_WORKSPACE_CONFIG=:4096:8 timeout "$left" python3 benchmarks/measure_offload.py --patch \
        --out "$state/offload.json" --commit "$commit" "$@"
      ;;
    train)
      # A case takes up to three minutes where two of its trainers compile.
      timeout "$left" python3 -m porter bench train --out "$state" --resume "$state/train.json" --commit "$commit" \
        --stop-after $((left > 200 ? left - 180 : 20)) "$@"
      ;;
    *) echo "no part is called $part: memory, offload or train" >&2 && exit 2 ;;
  esac
  status=$?
  [ "$status" -eq 124 ] || [ "$status" -gt 128 ] || [ "$part" = train -a "$status" -eq 1 ] || exit "$status"
  echo "exit $status: going on in a new process" >&2
done
