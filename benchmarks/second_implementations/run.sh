#!/usr/bin/env bash
# mlx-lm and keras-hub on jax, judged through the recorder on real SmolLM2-135M and Gemma-3-270M weights: the four pages
# of the gallery, and for each axis that one of them has otherwise a second dump in which it is put right.
#   bash benchmarks/second_implementations/run.sh WORK      where porter is installed; an hour on two idle cores
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work=$1 here=benchmarks/second_implementations
mkdir -p "$work"
python=$work/venv/bin/python
[ -x "$python" ] || { python3 -m venv "$work/venv" && "$work/venv/bin/pip" install -q -r $here/requirements.txt; }

for size in smollm2-135m gemma-3-270m; do
  hf=$work/hf-$size
  [ -d "$hf" ] || porter capture "$size" --weights demo --dtype float32 --side reference --out "$hf"
  folder=$(porter build "$size" --weights demo --dtype float32 >&2; "${PORTER_PYTHON:-python3}" -c '
import json, sys
print(json.load(open(f"builds/{sys.argv[1]}/build.json"))["folder"])' "$size")
  record() { # NAME SCRIPT FLAG...
    local name=$1 script=$2
    shift 2
    [ -d "$work/$name" ] || "$python" "$here/$script" "$folder" --like "$hf" --dtype float32 --out "$work/$name" "$@"
    porter diff "$size" --weights demo --port "dump:$work/$name" --out "$work/reports" --html "$work/$name.html" || true
  }
  record "mlx-lm-$size" record_mlx.py
  record "keras-hub-$size" record_keras.py
  case $size in
    smollm2-135m)
      record "mlx-lm-$size-theta" record_mlx.py --config rope_theta=100000
      record "keras-hub-$size-eps" record_keras.py --eps 1e-5
      ;;
    gemma-3-270m) record "mlx-lm-$size-scale" record_mlx.py --embed-scale float32 ;;
  esac
  cp "$work/mlx-lm-$size.html" "$work/keras-hub-$size.html" diff_reports/gallery/
done
