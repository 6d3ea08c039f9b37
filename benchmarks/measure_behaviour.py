"""What clean ports measure in the behaviour stage, as CSV: the evidence for BEHAVIOUR in porter/comparison/verdicts.py.

    python benchmarks/measure_behaviour.py --ops reference > benchmarks/results/behaviour.csv
    python benchmarks/measure_behaviour.py gemma-3-270m::demo smollm2-135m::demo --ops reference

A model is name:size:weights.
"""

import argparse
import csv
import sys

from porter.comparison.diff import diff
from porter.models.build import plan_build
from porter.specs import builtin_spec_names

HEAD = ("model", "weights", "ops", "device", "dtype", "check", "status", "measured", "limit", "detail", "where")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=[f"{name}:tiny:random:stress" for name in builtin_spec_names()])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--ops", default="triton")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int)
    options = parser.parse_args()
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(HEAD)
    for model in options.models:
        name, size, weights = model.split(":", 2)
        build = plan_build(
            name, size=size or None, weights=weights, overrides=(), dtype=options.dtype, ops=options.ops,
            device=options.device, prompt=None, tokens=options.tokens,
        )  # fmt: skip
        for check in diff(build).behaviour:
            measured = (check.status, f"{check.measured:.4g}", check.limit, check.detail, check.where)
            out.writerow([build.name, weights, options.ops, options.device, check.dtype, check.name, *measured])
        sys.stdout.flush()


main()
