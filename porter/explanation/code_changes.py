"""What the code of a port may do to a node's value: turn it, shift it, scale it, add it otherwise, take another layer.

A change is a set of edits of a unit in plain torch, made where the value passes from one module to the next. A unit
that is run with them tells whether the port's code does so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

Act = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class At:
    """The value that a module is given, or gives, in another form.

    Attributes:
        module: its path in the layer, attn.v.
        node: that was seen before the module was given it, and is changed with it.
        rows: of a fused projection, which of its output features are meant; None: all.
    """

    module: str
    side: Literal["in", "out"]
    act: Act
    node: str | None = None
    rows: Tensor | None = field(default=None, compare=False)

    def install(self, unit: nn.Module) -> None:
        module = unit.get_submodule(self.module)
        if self.side == "in":
            module.register_forward_pre_hook(lambda _, given: (self._changed(given[0]), *given[1:]))
        else:
            module.register_forward_hook(lambda _, given, out: self._changed(out))

    def _changed(self, value: Tensor) -> Tensor:
        if self.rows is None:
            return self.act(value)
        value = value.clone()
        value[..., self.rows] = self.act(value[..., self.rows])
        return value


@dataclass(frozen=True)
class Skipped:
    """A module gives what it is given, or is called on its own output: `times` calls in all."""

    module: str
    times: int

    def install(self, unit: nn.Module) -> None:
        module = unit.get_submodule(self.module)
        forward = module.forward
        module.register_forward_hook(lambda _, given, out: given[0] if self.times == 0 else forward(out))


@dataclass(frozen=True)
class Again:
    """What some modules are given goes through another once more."""

    module: str
    given_to: tuple[str, ...]

    def install(self, unit: nn.Module) -> None:
        forward = unit.get_submodule(self.module).forward
        for name in (each for each in self.given_to if each in dict(unit.named_modules())):
            unit.get_submodule(name).register_forward_pre_hook(lambda _, given: (forward(given[0]), *given[1:]))


@dataclass(frozen=True)
class Sum:
    """The residual stream times one number, plus the branch times another."""

    module: str
    stream: float
    branch: float

    def install(self, unit: nn.Module) -> None:
        unit.get_submodule(self.module).register_forward_hook(lambda _, given, out: self._sum(*given))

    def _sum(self, stream_BTD: Tensor, branch_BTD: Tensor) -> Tensor:
        return weighted_sum((stream_BTD, branch_BTD), (self.stream, self.branch))


@dataclass(frozen=True)
class Node:
    """The last node of a unit, made of its nodes."""

    name: str
    make: Callable[[dict[str, Tensor], Tensor | None], Tensor]


@dataclass(frozen=True)
class Rotation:
    """Queries and keys rotated otherwise.

    Attributes:
        shift: keys are rotated as tokens that stand so much later.
        only: which of them is rotated; None: both.
        last: where a part of a head rotates, it is the last channels.
    """

    shift: int = 0
    only: Literal["q", "k"] | None = None
    last: bool = False


@dataclass(frozen=True)
class Sight:
    """A token sees keys up to so many tokens after it; -1: not itself."""

    ahead: int


@dataclass(frozen=True)
class Instead:
    """Another layer is run."""

    layer: int


Edit = At | Skipped | Again | Sum | Node | Rotation | Sight | Instead


@dataclass(frozen=True)
class CodeChange:
    """One thing that the code of a port does otherwise.

    Attributes:
        path: the node, layers.3.attn.v.
        value, other: as in an Alternative: of a spec, what it has and what it should; of a foreign port, what the
            reference has and what the port does, in words.
        edits: make the reference's spec compute what the port did; of a spec, what it should.
        kind: what is said to be excluded where it does not help.
        mending: of a spec.
    """

    path: str
    value: str
    other: str
    edits: tuple[Edit, ...] = field(compare=False)
    kind: str
    mending: bool = False

    @property
    def override(self) -> str:
        """What the port's code does, in a sentence."""
        return f"{self.path}: {self.value if self.mending else self.other}"

    @property
    def patch(self) -> str:
        """Where to mend it."""
        right, wrong = (self.other, self.value) if self.mending else (self.value, self.other)
        return f"where {self.path} is computed: {right}, not {wrong}"

    def acts_in(self, unit: str) -> bool:
        return unit == unit_of(self.path)

    def moved(self, one: int, other: int) -> "CodeChange | None":
        """The same in another layer; None where it can be in this one alone."""
        if any(isinstance(each, Instead) for each in self.edits):
            return None
        return replace(self, path=in_layer(self.path, one, other))


def in_layer(text: str, one: int, other: int) -> str:
    """A path of one layer, of another."""
    return f"layers.{other}" + text.removeprefix(f"layers.{one}") if text.startswith(f"layers.{one}.") else text


def unit_of(path: str) -> str:
    """layers.3 of layers.3.attn.v; outside layers embed or head."""
    if path.startswith("layers."):
        return ".".join(path.split(".")[:2])
    return "head" if path.startswith(("final", "logits", "head", "project_out")) else "embed"


# --- what is done to a value


def permuted(order: Tensor, value: Tensor) -> Tensor:
    """The last axis in another order."""
    return value[..., order.to(value.device)]


def heads_permuted(order: Tensor, value_BHSK: Tensor) -> Tensor:
    """Heads [B, H, S, K] in another order."""
    return value_BHSK[:, order.to(value_BHSK.device)]


def shifted(by: int, wraps: bool, value: Tensor) -> Tensor:
    """Each token has what the one `by` before it should; the first have zeros, or what the last should."""
    moved = torch.roll(value, by, 1)
    if not wraps:
        moved[:, slice(0, by) if by > 0 else slice(by, None)] = 0
    return moved


def scaled(factor: float, value: Tensor) -> Tensor:
    """Times a constant."""
    return value * factor


def weighted_sum(parts: Sequence[Tensor], factors: Sequence[float]) -> Tensor:
    """The parts, each times its factor; 1 multiplies nothing, 0 leaves out."""
    terms = [part if factor == 1.0 else part * factor for part, factor in zip(parts, factors, strict=True) if factor]
    total = torch.zeros_like(parts[0]) if not terms else terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def heads_over_tokens(heads: int, value_BTD: Tensor) -> Tensor:
    """[B, H, T, K] in memory, read as [B, T, H * K]: a transpose that is missing after attention."""
    B, T, D = value_BTD.shape
    return value_BTD.view(B, T, heads, D // heads).transpose(1, 2).reshape(B, T, D)


def tokens_over_heads(heads: int, value_BTD: Tensor) -> Tensor:
    """[B, T, H * K] in memory, read as [B, H, T, K]: one that is missing before it."""
    B, T, D = value_BTD.shape
    return value_BTD.reshape(B, heads, T, D // heads).transpose(1, 2).reshape(B, T, D)
