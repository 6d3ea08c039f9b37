"""HF's feed-forward branches on porter's kernels: act(gate(x)) * up(x) in one launch, or an activation alone.

The projections are called as the modules that they are, so adapters, hooks and quantised linears on them go on to work.
"""

import sys
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from porter.patching.swap import Plain, fuse
from porter_kernels.glu import activation, glu, glu_linear, packed_glu, packed_glu_linear

_Layout = Literal["halves", "halves_up_first", "interleaved"]


class FusedGlu(Plain):
    """down(act(gate(x)) * up(x)); the names are those of the module's own children."""

    fused_act: str
    fused_gate: str
    fused_up: str
    fused_inner: str | None
    fused_down: str

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] to the same."""
        gate, up = getattr(self, self.fused_gate)(x), getattr(self, self.fused_up)(x)
        down = getattr(self, self.fused_down)
        if self.fused_inner is None and _is_bare(down, gate):
            return glu_linear(gate, up, down.weight, down.bias, act=self.fused_act)
        hidden = glu(gate, up, act=self.fused_act)
        if self.fused_inner is not None:
            hidden = getattr(self, self.fused_inner)(hidden)
        found: Tensor = down(hidden)
        return found


class FusedPackedGlu(Plain):
    """down(act(gate) * up), gate and up being one projection's output."""

    fused_act: str
    fused_gate_up: str
    fused_layout: _Layout
    fused_down: str

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] to the same."""
        packed, down = getattr(self, self.fused_gate_up)(x), getattr(self, self.fused_down)
        if _is_bare(down, packed):
            return packed_glu_linear(packed, down.weight, down.bias, act=self.fused_act, layout=self.fused_layout)
        found: Tensor = down(packed_glu(packed, act=self.fused_act, layout=self.fused_layout))
        return found


def _is_bare(linear: nn.Module, x: Tensor) -> bool:
    """Whether a projection is what its weight says and nothing more: no adapter, no hook, no cast by autocast."""
    if type(linear) is not nn.Linear or linear.weight.dtype != x.dtype or torch.is_autocast_enabled(x.device.type):
        return False
    hooks = (linear._forward_hooks, linear._forward_pre_hooks, linear._backward_hooks, linear._backward_pre_hooks)
    return not any(hooks) and "forward" not in vars(linear)


class FusedActivation(Plain):
    """act(x)."""

    fused_act: str

    def forward(self, x: Tensor) -> Tensor:
        """Shape and dtype of x."""
        return activation(x, act=self.fused_act)


def fuse_glu(module: nn.Module, act: str, *, gate: str, up: str, down: str, inner_norm: str | None = None) -> None:
    """Puts the kernel in a branch's place whose gate and up are two projections; names are of its children."""
    fuse(module, FusedGlu, fused_act=act, fused_gate=gate, fused_up=up, fused_inner=inner_norm, fused_down=down)


def fuse_packed_glu(module: nn.Module, act: str, *, gate_up: str, down: str, layout: _Layout) -> None:
    """The same for one projection of both."""
    fuse(module, FusedPackedGlu, fused_act=act, fused_gate_up=gate_up, fused_layout=layout, fused_down=down)


def fuse_activation(module: nn.Module, act: str) -> None:
    """Puts the kernel in an activation's place."""
    fuse(module, FusedActivation, fused_act=act)


def activations_of(module: nn.Module) -> list[nn.Module]:
    """What may be an activation among a module's children: no tensors, no children, no dropout and no norm."""
    return [
        child
        for child in module.children()
        if not [*child.parameters(), *child.buffers(), *child.children()]
        and not isinstance(child, (nn.Dropout, nn.Identity))
        and "Norm" not in type(child).__name__
    ]


def is_shared(activation: nn.Module, branch: nn.Module, modules: Iterable[nn.Module]) -> bool:
    """Whether an activation is another module's too, or stands in a table of its file, which all models read."""
    tables = (each for each in vars(sys.modules[type(branch).__module__]).values() if isinstance(each, dict))
    if any(activation is each for table in tables for each in table.values()):
        return True
    return sum(activation in module.children() for module in modules) > 1


def dropouts_of(module: nn.Module) -> list[nn.Dropout]:
    """The dropouts among a module's children that drop something."""
    return [child for child in module.children() if isinstance(child, nn.Dropout) and child.p > 0]
