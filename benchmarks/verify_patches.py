"""Every family's HuggingFace model at its tiny size, patched, by the comparator: forward, gradients, loss; a row each.

python benchmarks/verify_patches.py            # make patched; two minutes of CPU time; exit 1 when one does not pass
"""

import sys

import porter.patching  # noqa: F401  # before transformers, so that Triton's interpreter is chosen
from porter.models.build import plan_build
from porter.patching.plan import OPS
from porter.patching.verify import verify_patch
from porter.specs.tree import builtin_spec_names

TOKENS = 96


def main() -> int:
    """Prints the rows; the exit code."""
    failed = 0
    for family in builtin_spec_names():
        build = plan_build(
            family, size="tiny", weights="random:stress", overrides=(), dtype="float32", ops="reference", device="cpu",
            prompt=None, tokens=None,
        )  # fmt: skip
        report = verify_patch(build, frozenset(OPS), tokens=TOKENS)
        failed += report.verdict != "PASS"
        print(
            f"{family:22} {report.verdict}" + ("" if report.verdict == "PASS" else f"  {report.sentence}"), flush=True
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
