"""What clean ports, and ports with a wrong backward pass, measure in the gradients stage, as CSV.

The evidence for rho_grad in porter/comparison/verdicts.py. A row is a model in one dtype: how many gradients there are,
their median and largest ρ, the largest error of the reference itself, and the first gradient that does not pass.

    python benchmarks/measure_gradients.py --ops reference > benchmarks/results/gradients.csv
    python benchmarks/measure_gradients.py gemma-3-270m::demo --tokens 48 --ops reference --rows
    PYTHONPATH=. python benchmarks/measure_gradients.py --faults --ops reference --tokens 24 --rows

A model is name:size:weights.
"""

import argparse
import csv
import sys
from collections.abc import Iterator
from unittest.mock import patch

from porter.comparison.diff import diff
from porter.comparison.report import DiffReport
from porter.models.build import plan_build
from porter.models.ops import Ops, OpsName, make_ops
from porter.specs import builtin_spec_names

HEAD = ("model", "weights", "ops", "device", "tokens", "dtype", "fault", "verdict", "gradients", "median rho",
        "largest rho", "at", "largest e_ref", "first")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=[f"{name}:tiny:random:stress" for name in builtin_spec_names()])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--ops", default="triton")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--faults", action="store_true", help="Ports with wrong ops, of the tests, in their families.")
    parser.add_argument("--rows", action="store_true", help="Without the head, to add to a file.")
    options = parser.parse_args()
    out = csv.writer(sys.stdout, lineterminator="\n")
    if not options.rows:
        out.writerow(HEAD)
    reports = (
        fault_reports(options) if options.faults else (("", each, measure(each, options)) for each in options.models)
    )
    for fault, model, report in reports:
        for stage in report.stages:
            ran = (report.name, model.split(":", 2)[2], options.ops, options.device, report.prompts[0].length)
            out.writerow([*ran, stage.dtype, fault, *summary(report, stage.dtype)])
        sys.stdout.flush()


def measure(model: str, options: argparse.Namespace) -> DiffReport:
    """The gradients of one port."""
    name, size, weights = model.split(":", 2)
    build = plan_build(
        name, size=size or None, weights=weights, overrides=(), dtype=options.dtype, ops=options.ops,
        device=options.device, prompt=None, tokens=options.tokens,
    )  # fmt: skip
    return diff(build, stages=["gradients"])


def fault_reports(options: argparse.Namespace) -> Iterator[tuple[str, str, DiffReport]]:
    """Each fault of the tests' ops, in the family it is planted in."""
    from tests.comparison.test_gradient_faults import OPS

    for name, fault in OPS.items():

        def planted(ops: OpsName, change=fault.change) -> Ops:  # type: ignore[no-untyped-def]
            return change(make_ops(ops))  # type: ignore[no-any-return]

        model = f"{fault.family}:tiny:random:stress"
        with patch("porter.comparison.run_stages.make_ops", planted):
            yield name, model, measure(model, options)


def summary(report: DiffReport, dtype: str) -> list[object]:
    """What a report says of the gradients in one dtype."""
    nodes = [node for node in report.nodes if node.dtype == dtype]
    locals_ = sorted(((node.local, node.name) for node in nodes if node.local), key=lambda pair: pair[0].rho)
    median, (largest, at) = locals_[len(locals_) // 2][0], locals_[-1]
    stage = next(stage for stage in report.stages if stage.dtype == dtype)
    e_ref = max(local.e_ref for local, _ in locals_)
    ratios = (f"{median.rho:.3f}", f"{largest.rho:.4g}", at, f"{e_ref:.1e}")
    return [stage.status, stage.compared, *ratios, stage.first or ""]


main()
