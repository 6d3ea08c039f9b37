"""Loss and gradients of a model sharded with FSDP2 over the ranks, plain and patched, beside those of one device.

    torchrun --nproc-per-node 2 benchmarks/gpu_fsdp2.py --device cuda --out benchmarks/results/fsdp2_h200
    torchrun --nproc-per-node 2 benchmarks/gpu_fsdp2.py --device cpu --out /tmp/fsdp2      (gloo, tiny models)

On a machine that downloads nothing, carry .whl, whose wheels porter needs there, and run
    python3 -m pip install -q --no-index --no-deps .whl/*.whl; export PYTHONPATH=$PWD:$PWD/kernels
    torchrun --nproc-per-node 2 benchmarks/gpu_fsdp2.py --commit COMMIT --out $OUT/fsdp2_h200

Each layer is sharded, the root, and in some rows the head by itself. A rank takes its share of the batch, whose mean
the averaged gradients are of. Golden is HuggingFace's model in float64 on one device with the whole batch; an error is
relative to it, of the loss, of all gradients as one vector, and of the worst parameter; rho is the error over that of
the plain model on one device in the same dtype, and is judged as a diff judges gradients. In rows of dtype mixed,
float32 weights are cast to bfloat16 when they are gathered, and gradients are summed in float32; one device holds
bfloat16. Writes OUT.csv from rank 0. Exit 1 when a row fails.
"""

import argparse
import csv
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import porter
from porter.bench.environment import describe_environment
from porter.comparison.verdicts import FLOORS, THRESHOLDS
from porter.models.build import plan_build
from porter.references.float64 import Float64
from porter.references.pinned import find_layers, load_pinned

MODELS = ("llama:tiny", "gemma2:tiny", "phi:tiny")  # untied; tied, with a softcap; untied, with a bias on the head
STORED = {"float32": "float32", "bfloat16": "bfloat16", "mixed": "bfloat16"}  # dtype of a row -> of the checkpoint


@dataclass(frozen=True)
class Step:
    """What a training step gives: the mean loss, and all gradients, whole."""

    loss: Tensor
    gradients: dict[str, Tensor]


@dataclass(frozen=True)
class Row:
    """A way to shard a model, and its errors over those of one device.

    Attributes:
        head: root: sharded with the root's parameters; alone: by itself.
        e_one: relative error of all gradients on one device.
        worst: the parameter with the largest ratio.
    """

    model: str
    dtype: str
    side: str
    head: str
    e_loss: float
    rho_loss: float
    e_one: float
    e_gradients: float
    rho_gradients: float
    worst: str
    rho_worst: float
    status: str


def main() -> int:
    """Runs every row on all ranks; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[*MODELS], help="family:size")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--dtype", action="append", choices=[*STORED], help="default: all on a GPU, float32 on a CPU")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4, help="rows over all ranks, which each take as many")
    parser.add_argument("--commit", help="to record where there is no git")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank) if given.device == "cuda" else torch.device("cpu")
    if given.device == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if given.device == "cuda" else "gloo")
    mesh = init_device_mesh(given.device, (dist.get_world_size(),))
    rows = []
    for name in given.models:
        for dtype in given.dtype or (STORED if given.device == "cuda" else ["float32"]):
            for row in compare(name, dtype, mesh, device, given):
                rows.append(row)
                if rank == 0:
                    print(row, flush=True)
    if rank == 0:
        write(given, rows)
    dist.barrier()
    dist.destroy_process_group()
    return int(any(row.status == "FAIL" for row in rows))


def compare(name: str, dtype: str, mesh: DeviceMesh, device: torch.device, given: argparse.Namespace) -> Iterator[Row]:
    """The rows of a model in a dtype; every rank computes golden and one device, and so the same verdicts."""
    family, _, size = name.partition(":")
    stored = STORED[dtype]
    build = plan_build(
        family, size=size, weights="random:stress", overrides=(), dtype=stored, ops="reference", device="cpu",
        prompt=None, tokens=None,
    )  # fmt: skip
    if dist.get_rank() == 0:
        build.checkpoint()  # made once, then read by all
    dist.barrier()
    folder, generator = build.checkpoint(), torch.Generator().manual_seed(0)
    ids_BT = torch.randint(build.blueprint.dims.vocab, (given.batch, given.tokens), generator=generator).to(device)
    with Float64():
        golden = train_step(load(folder, torch.float64, device), ids_BT)
    one = train_step(load(folder, getattr(torch, stored), device), ids_BT)
    mine_BT = ids_BT.chunk(dist.get_world_size())[dist.get_rank()]
    for side in ("plain", "patched"):
        for head in ("root",) if build.blueprint.head.tied else ("root", "alone"):
            model = load(folder, torch.float32 if dtype == "mixed" else getattr(torch, stored), device)
            if side == "patched":
                porter.patch(model)
            shard(model, build.blueprint.dims.layers, mesh, mixed=dtype == "mixed", head_alone=head == "alone")
            found = train_step(model, mine_BT)
            dist.all_reduce(found.loss)
            found = Step(found.loss / dist.get_world_size(), found.gradients)
            yield judge(found, one, golden, stored, model=name, dtype=dtype, side=side, head=head)


def load(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """HuggingFace's model, in training mode; no dropout in the families that are run here."""
    return load_pinned(folder, dtype, device).train()


def shard(model: Any, num_layers: int, mesh: DeviceMesh, *, mixed: bool, head_alone: bool) -> None:
    """Layers, the head where asked, then the root."""
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if mixed else MixedPrecisionPolicy()
    head = [model.get_output_embeddings()] if head_alone else []
    for module in [*find_layers(model, num_layers)[1], *head, model]:
        fully_shard(module, mesh=mesh, mp_policy=policy)


def train_step(model: Any, ids_BT: Tensor) -> Step:
    """Forward and backward; gradients gathered whole, on every rank."""
    loss = model(input_ids=ids_BT, labels=ids_BT, use_cache=False).loss
    loss.backward()
    gradients = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, f"{name} has no gradient"
        gradients[name] = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return Step(loss.detach(), gradients)


def judge(found: Step, one: Step, golden: Step, stored: str, **which: str) -> Row:
    """A row."""
    floor, (good, bad) = FLOORS[stored], THRESHOLDS["gradients"][stored]["rho_grad"]
    e_loss, e_loss_one = (float((side.loss.double() - golden.loss).abs() / golden.loss.abs()) for side in (found, one))
    e_gradients, e_one = (error(side.gradients, golden.gradients) for side in (found, one))
    ratios = {
        name: error({name: found.gradients[name]}, {name: wide})
        / max(error({name: one.gradients[name]}, {name: wide}), floor)
        for name, wide in golden.gradients.items()
        if wide.any()
    }
    worst = max(ratios, key=lambda name: ratios[name])
    rho_loss, rho_gradients = e_loss / max(e_loss_one, floor), e_gradients / max(e_one, floor)
    rho = max(rho_loss, rho_gradients, ratios[worst])
    status = "PASS" if rho <= good else "WARN" if rho <= bad else "FAIL"
    return Row(
        **which, e_loss=e_loss, rho_loss=rho_loss, e_one=e_one, e_gradients=e_gradients, rho_gradients=rho_gradients,
        worst=worst, rho_worst=ratios[worst], status=status,
    )  # fmt: skip


def error(gradients: dict[str, Tensor], golden: dict[str, Tensor]) -> float:
    """Relative, of all as one vector."""
    square = sum(float((gradients[name].double() - wide).square().sum()) for name, wide in golden.items())
    return (square / sum(float(wide.square().sum()) for wide in golden.values())) ** 0.5


def write(given: argparse.Namespace, rows: list[Row]) -> None:
    """The table, with where it ran."""
    where = describe_environment([], given.commit)
    kept = {name: where[name] for name in ("gpu", "driver", "torch", "triton", "transformers", "commit")}
    with given.out.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, [*asdict(rows[0]), "ranks", *kept], lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(row) | {"ranks": dist.get_world_size()} | kept for row in rows)


if __name__ == "__main__":
    sys.exit(main())
