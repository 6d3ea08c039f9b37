"""One of three processes that share the vocabulary; test_vocab_parallel.py starts them and reads what rank 0 writes.

Runs every check in a group of all three and some in one of the first two. On GPUs, which they share where there are
fewer than three; without one, interpreted.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import tests.conftest  # noqa: F401  lets Triton interpret, rightly in bfloat16, before an op is imported
from porter_kernels import launch
from porter_kernels.accuracy import excess
from porter_kernels.cross_entropy import rows
from porter_kernels.linear_cross_entropy import linear_cross_entropy, vocab_parallel_linear_cross_entropy
from tests.porter_kernels.interpreter_speed import patch_once_a_launch
from tests.porter_kernels.linear_cross_entropy_budget import (
    DEVICE,
    Case,
    assert_within_budget,
    draw,
    run_case,
    run_in_float64,
)

V = 37
SIZES = {2: (20, 17), 3: (9, 18, 10)}  # unequal; where a chunk of columns has 16, also in chunks


def generate() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def draw_weighted() -> Case:
    generator = generate()
    case = draw(generator, N=10, dtype=torch.bfloat16, label_smoothing=0.1, z_loss=1e-2, softcap=5.0)
    class_weight, token_weight = (torch.rand(n, generator=generator).to(DEVICE) + 0.5 for n in (V, 10))
    return case.but(class_weight=class_weight, token_weight=token_weight)


def draw_unreduced(dtype: torch.dtype) -> Case:
    case = draw(generate(), N=9, dtype=dtype, reduction="none")
    return Case(**vars(case) | {"upstream": torch.linspace(-2, 2, 9, device=DEVICE)})


def draw_low() -> Case:
    """Exponentials of these logits are 0 unless their maximum is taken off, also where a slice is filled up."""
    case = draw(generate(), N=9)
    return Case(**vars(case) | {"bias": case.bias - 200})


CASES: dict[str, Callable[[], Case]] = {
    "float32": lambda: draw(generate()),
    "bfloat16 in chunks": lambda: draw(generate(), dtype=torch.bfloat16).walked(chunk_rows=12),
    "float16": lambda: draw(generate(), N=7, dtype=torch.float16, bias=False),
    "everything weighted": draw_weighted,
    "unreduced": lambda: draw_unreduced(torch.bfloat16),
    "ignored rows kept": lambda: draw(generate(), N=9, reduction="sum").walked(drop_ignored=False),
    "an upstream gradient": lambda: Case(**vars(draw(generate(), N=9)) | {"upstream": torch.tensor(3.0).to(DEVICE)}),
    "far below 0": draw_low,
    "no rows that count": lambda: draw(generate(), N=4, ignored=2.0, reduction="sum"),
}


def run_shard(case: Case, group: Any) -> dict[str, Tensor]:
    """Loss and gradients of this rank, its share of weight and bias."""
    sizes, rank = SIZES[dist.get_world_size(group)], dist.get_rank(group)

    def op(hidden: Tensor, weight: Tensor, target: Tensor, *, bias: Tensor | None = None, **options: Any) -> Tensor:
        bias_shard = None if bias is None else bias.split(sizes)[rank]
        loss = vocab_parallel_linear_cross_entropy(
            hidden, weight.split(sizes)[rank], target, bias_shard=bias_shard, group=group,
            shard_sizes=sizes if case.only else None, **options,
        )  # fmt: skip
        assert isinstance(loss, Tensor)
        return loss

    result = run_case(op, case)
    shares = {name: result[name].split(sizes)[rank] for name in ("weight", "bias") if name in result}
    return result | shares


def gather(result: dict[str, Tensor], group: Any) -> list[dict[str, Tensor]]:
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, {name: x.cpu() for name, x in result.items()}, group=group)
    return everyone


def check_case(case: Case, group: Any) -> None:
    everyone = gather(run_shard(case, group), group)
    for name in ("loss", "hidden"):
        assert all(torch.equal(everyone[0][name], other[name]) for other in everyone), f"ranks differ in {name}"
    whole = {name: x.to(DEVICE) for name, x in everyone[0].items()}
    for name in ("weight", "bias"):
        if name in whole:
            whole[name] = torch.cat([other[name] for other in everyone]).to(DEVICE)
    if dist.get_rank(group) == 0:
        assert_within_budget(whole, case)
        assert_within_budget(run_case(linear_cross_entropy, case), case)


def check_statistics(group: Any) -> None:
    case, sizes, rank = draw(generate()), SIZES[dist.get_world_size(group)], dist.get_rank(group)
    case.hidden[0] = 3 * case.weight[case.target[0].clamp(0)]
    with torch.no_grad():
        _, stats = vocab_parallel_linear_cross_entropy(
            case.hidden, case.weight.split(sizes)[rank], case.target, group=group, stats=True
        )
        _, golden = linear_cross_entropy(case.hidden, case.weight, case.target, stats=True)
    assert golden.correct.any()
    for name, a, b in zip(golden._fields, stats, golden, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


def check_frozen(group: Any) -> None:
    """A frozen head still sends d_hidden; frozen hidden states exchange none."""
    case, sizes, rank = draw(generate(), bias=False), SIZES[dist.get_world_size(group)], dist.get_rank(group)
    golden = run_shard(case, group)
    for trainable in (0, 1):
        # A slice as in `golden`: what cuBLAS computes with depends on an address.
        leaves = [case.hidden.clone(), case.weight.clone().split(sizes)[rank].detach()]
        leaves[trainable].requires_grad_()
        vocab_parallel_linear_cross_entropy(*leaves, case.target, group=group).backward()
        found, wanted = leaves[trainable].grad, golden[("hidden", "weight")[trainable]]
        if launch.INTERPRETING:
            assert torch.equal(found, wanted)
        else:  # an H200's libraries sum in another order: 5e-8 of 0.1
            torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)
        assert leaves[1 - trainable].grad is None


def check_rounding(group: Any) -> None:
    """d_hidden is rounded once: logits of 0 over 32 classes have gradients that are exact in bfloat16."""
    sizes = {2: (20, 12), 3: (9, 15, 8)}[dist.get_world_size(group)]
    weight = torch.randn(32, 12, generator=generate()).to(DEVICE, torch.bfloat16)
    hidden = weight.new_zeros(6, 12).requires_grad_()
    case = Case(hidden, weight, torch.arange(6, device=DEVICE), options={"reduction": "sum"})
    vocab_parallel_linear_cross_entropy(
        hidden, weight.split(sizes)[dist.get_rank(group)], case.target, group=group, reduction="sum"
    ).backward()
    assert excess(hidden.grad, run_in_float64(case)["hidden"], 32, weight.abs().max().double()) <= 1


def check_refusals(group: Any) -> None:
    case, sizes, rank = draw(generate()), SIZES[dist.get_world_size(group)], dist.get_rank(group)
    shard = case.weight.split(sizes)[rank]
    for wrong in ((V,), [n + 1 for n in sizes]):
        try:
            vocab_parallel_linear_cross_entropy(case.hidden, shard, case.target, group=group, shard_sizes=wrong)
        except ValueError as error:
            assert "expected" in str(error) and "Pass the sizes of all ranks" in str(error)
        else:
            raise AssertionError("shard_sizes that do not fit were taken")


CHECKS: dict[str, Callable[[Any], None]] = {
    **{name: lambda group, case=case: check_case(case(), group) for name, case in CASES.items()},  # type: ignore[misc]
    "statistics": check_statistics,
    "frozen inputs": check_frozen,
    "rounded once": check_rounding,
    "refusals": check_refusals,
}
IN_TWO = ("float32", "everything weighted", "statistics")
RUNS = [(name, 3) for name in CHECKS] + [(name, 2) for name in IN_TWO]


def main(rank: int, folder: Path) -> None:
    if DEVICE == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    backend = "nccl" if torch.cuda.device_count() >= 3 else "gloo"  # NCCL wants a GPU for each
    dist.init_process_group(backend, init_method=f"file://{folder / 'store'}", rank=rank, world_size=3)
    torch.use_deterministic_algorithms(True)  # fresh memory is NaN
    if launch.INTERPRETING:
        patch_once_a_launch(pytest.MonkeyPatch())
    for name in ("block_v", "block_v_capped"):
        rows.TUNABLES[name] = 16  # several chunks of columns in a slice, and not in all
    failures = {}
    groups = {2: dist.new_group([0, 1]), 3: dist.group.WORLD}
    for name, P in RUNS:
        if rank < P:
            try:
                CHECKS[name](groups[P])
                failures[f"{name} over {P}"] = ""
            except Exception:
                failures[f"{name} over {P}"] = traceback.format_exc()
    everyone: list[Any] = [None] * 3
    dist.all_gather_object(everyone, failures)
    if rank == 0:
        joined = {name: "".join(other.get(name, "") for other in everyone) for name in failures}
        (folder / "failures.json").write_text(json.dumps(joined))
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)  # at a usual end gloo's threads, if still there, abort the process
