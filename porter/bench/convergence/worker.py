"""Trainings in a process of their own, so that no patch is near a plain model:

    python -m porter.bench.convergence.worker CHECKPOINT OUT --side golden --side plain --dtype float32

writes OUT/golden-float32.pt and OUT/plain-float32.pt.
"""

import argparse
from pathlib import Path

import torch

from porter.bench.convergence.faults import FAULTS
from porter.bench.convergence.training import Course, Trajectory, train

SIDES = ("golden", "plain", "patched")


def main() -> None:
    """Trains, and writes the trajectories."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--side", choices=SIDES, required=True, action="append", dest="sides")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), required=True, action="append", dest="dtypes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=Course.steps)
    parser.add_argument("--batch", type=int, default=Course.batch)
    parser.add_argument("--length", type=int, default=Course.length)
    parser.add_argument("--fault", choices=tuple(FAULTS), help="a mistake that is made in the kernels")
    given = parser.parse_args()
    if given.fault is not None:
        FAULTS[given.fault]()
    course, device = Course(given.steps, given.batch, given.length), torch.device(given.device)
    for side in given.sides:
        for dtype in given.dtypes:
            kind = getattr(torch, dtype)
            found = train(given.checkpoint, kind, device, course, patched=side == "patched", golden=side == "golden")
            torch.save(vars(found), given.out / f"{side}-{dtype}.pt")


def read(out: Path, side: str, dtype: str) -> Trajectory:
    """A trajectory that a process has written."""
    return Trajectory(**torch.load(out / f"{side}-{dtype}.pt", weights_only=True))


if __name__ == "__main__":
    main()
