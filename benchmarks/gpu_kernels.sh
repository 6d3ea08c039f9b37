#!/usr/bin/env bash
# On a GPU machine: porter's kernels beside their peers, until the time is up. Results stay in STATE, where the next call
# goes on, and are copied to OUT. A peer that takes the process or the GPU with it costs one try; a peer that does so
# twice at a case is left out of it.
#   bash benchmarks/gpu_kernels.sh STATE OUT SECONDS [options of porter bench kernels]
set -uo pipefail
state=$1 out=$2 seconds=$3
shift 3
export PYTHONPATH=$PWD:$PWD/kernels${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
mkdir -p "$state" "$out"
trap 'cp "$state"/kernels* "$out"/' EXIT
end=$((SECONDS + seconds))
nvidia-smi --query-gpu=name,driver_version,clocks.sm,power.limit,temperature.gpu --format=csv,noheader
for _ in 1 2 3 4 5 6; do
  left=$((end - SECONDS))
  [ "$left" -gt 20 ] || break
  timeout "$left" python3 -m porter bench kernels --out "$state" --resume "$state/kernels.json" \
    --stop-after $((left - 20)) "$@"
  status=$?
  [ "$status" -eq 4 ] || [ "$status" -gt 128 ] || exit "$status"
  echo "exit $status: going on in a new process" >&2
done
