"""The smallest modules of a decoder that hold parameters: linear maps, norms, tables."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from porter.models.ops import Ops
from porter.specs.blueprint import norms, projections
from porter.specs.rules import WeightRule, Weights
from porter.specs.schema import Block, Dims, Norm


class Linear(nn.Module):
    """y = x W^T + b. Weights stored [in, out] stay so and are multiplied as GPT-2's Conv1D does.

    With a separate bias x W^T is rounded before it is added.
    """

    def __init__(
        self, out_features: int, in_features: int, bias: bool, stored_in_out: bool, *, separate_bias: bool = False
    ) -> None:
        super().__init__()
        shape = (in_features, out_features) if stored_in_out else (out_features, in_features)
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.stored_in_out, self.separate_bias = stored_in_out, separate_bias

    def forward(self, x: Tensor) -> Tensor:
        if self.separate_bias and self.bias is not None:
            return x @ (self.weight if self.stored_in_out else self.weight.T) + self.bias
        if not self.stored_in_out:
            return F.linear(x, self.weight, self.bias)
        x_ND = x.view(-1, x.shape[-1])
        y_NF = x_ND @ self.weight if self.bias is None else torch.addmm(self.bias, x_ND, self.weight)
        return y_NF.view(*x.shape[:-1], -1)


class ChunkedLinear(nn.Module):
    """y = x W^T + b, a chunk of output features at a time, each let go of before the next is read."""

    def __init__(self, chunks: Callable[[], Iterator[tuple[Tensor, Tensor | None]]]) -> None:
        super().__init__()
        self.chunks = chunks

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([F.linear(x, weight, bias) for weight, bias in self.chunks()], dim=-1)


class Normalize(nn.Module):
    """The norm that `spec` describes."""

    def __init__(self, spec: Norm, shape: tuple[int, ...], ops: Ops) -> None:
        super().__init__()
        self.spec, self.ops = spec, ops
        self.weight = nn.Parameter(torch.empty(shape)) if spec.affine else None
        self.bias = nn.Parameter(torch.empty(shape)) if spec.bias else None

    def forward(self, x: Tensor) -> Tensor:
        return self.ops.norm(x, self.weight, self.bias, self.spec)


class Add(nn.Module):
    """The residual stream and a branch: a module, so that hooks can see, and change, what is added."""

    def forward(self, stream_BTD: Tensor, branch_BTD: Tensor) -> Tensor:
        return stream_BTD + branch_BTD


class RepeatHeads(nn.Module):
    """Each key or value head as often as query heads share it: [B, G, S, K] to [B, G * times, S, K]."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def forward(self, x_BGSK: Tensor) -> Tensor:
        if self.times == 1:
            return x_BGSK
        B, G, S, K = x_BGSK.shape
        return x_BGSK[:, :, None].expand(B, G, self.times, S, K).reshape(B, G * self.times, S, K)


class Table(nn.Module):
    """Rows that are looked up by index."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))


class Vector(nn.Module):
    """One number for each head or expert."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count))


def make_norms(scope: str, block: Block, dims: Dims, norm: Norm, ops: Ops) -> list[tuple[str, nn.Module]]:
    """The norms of one branch, by their names below `scope`."""
    return [
        (name.removeprefix(f"{scope}."), Normalize(spec, shape, ops))
        for name, (spec, shape) in norms(block, norm, dims).items()
        if name.startswith(f"{scope}.")
    ]


def make_projections(scope: str, block: Block, dims: Dims, rules: Weights) -> list[tuple[str, nn.Module]]:
    """The projections of one branch, by their names below `scope`."""
    separate = block.linear_bias == "separate"
    return [
        (
            name.removeprefix(f"{scope}."),
            Linear(out, into, bias, rules.block[name].transpose, separate_bias=separate),
        )
        for name, (out, into, bias) in projections(block, dims, rules).items()
        if name.startswith(f"{scope}.")
    ]


def split_gate_up(fused: Tensor, rule: WeightRule) -> tuple[Tensor, Tensor]:
    """gate and up of a fused projection's output [..., 2 * F], views of it: halves, or every other column."""
    halves = (fused[..., 0::2], fused[..., 1::2]) if rule.groups == "rows" else fused.chunk(2, dim=-1)
    parts = dict(zip(rule.order, halves, strict=True))
    return parts["gate"], parts["up"]
