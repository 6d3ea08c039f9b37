"""A port whose forward pass is right and whose backward pass is wrong fails at the gradient where it acts."""

import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from porter.models.attention import Attention
from porter.models.layers import Embedding, Head, Layer
from porter.models.ops import Ops, make_ops
from porter.specs.rope import Rope
from porter.specs.schema import Norm
from tests.comparison.gradient_runs import failing, run


def with_gradient_of(value: Tensor, other: Tensor) -> Tensor:
    """The one in the forward pass, the other in the backward pass."""
    return other + (value - other).detach()


class Scaled(torch.autograd.Function):
    """The identity, whose backward multiplies by 1.01."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient * 1.01


class Swapped(torch.autograd.Function):
    """The identity of two, whose backward gives each the gradient of the other."""

    @staticmethod
    def forward(ctx: object, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        return one.view_as(one), other.view_as(other)

    @staticmethod
    def backward(ctx: object, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        return other, one


def wrong_activation(ops: Ops) -> Ops:
    """The exact GELU's derivative; the gradient of `up` is right."""

    def glu(gate: Tensor, up: Tensor, act: str) -> Tensor:
        wrong = ops.glu(gate, up.detach(), act="gelu")
        return ops.glu(gate.detach(), up, act=act) + (wrong - wrong.detach())

    return replace(ops, glu=glu)


def without_the_one(ops: Ops) -> Ops:
    def norm(x: Tensor, w: Tensor | None, b: Tensor | None, spec: Norm) -> Tensor:
        return with_gradient_of(ops.norm(x, w, b, spec), ops.norm(x, w, b, spec.model_copy(update={"offset": 0})))

    return replace(ops, norm=norm)


def scaled_weight(ops: Ops) -> Ops:
    """Of heads alone: those of q and k."""
    return replace(
        ops, norm=lambda x, w, b, spec: ops.norm(x, Scaled.apply(w) if x.ndim == 4 else w, b, spec)
    )  # fmt: skip


def swapped_glu(ops: Ops) -> Ops:
    return replace(ops, glu=lambda gate, up, act: ops.glu(*Swapped.apply(gate, up), act=act))


def rope_turned_forward(ops: Ops) -> Ops:
    """The backward pass rotates by the angle, not by minus the angle."""

    def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, spec: Rope) -> tuple[Tensor, Tensor]:
        right, wrong = ops.rope(q, k, cos, sin, spec), ops.rope(q, k, cos, -sin, spec)
        return with_gradient_of(right[0], wrong[0]), with_gradient_of(right[1], wrong[1])

    return replace(ops, rope=rope)


@dataclass(frozen=True)
class Fault:
    """What is wrong with the ops, and the gradients of the last layer that fail; `first` of all of them."""

    family: str
    change: Callable[[Ops], Ops]
    first: str
    only: frozenset[str] = frozenset()  # where no other fails


OPS = {
    "the derivative of another activation": Fault("gemma3", wrong_activation, "layers.5.mlp.gate.weight"),
    "a norm's +1 is missing": Fault("gemma", without_the_one, "final.resid_pre"),
    "a weight's gradient is 1.01 times too large": Fault(
        "gemma3", scaled_weight, "layers.5.attn.k_norm.weight",
        frozenset(f"layers.{i}.attn.{each}_norm.weight" for i in range(6) for each in "qk"),
    ),
    "gate and up have each other's gradient": Fault("llama", swapped_glu, "layers.2.mlp.up.weight"),
    "rotary turns the wrong way": Fault("qwen2", rope_turned_forward, "layers.3.attn.k.weight"),
}  # fmt: skip


@pytest.mark.parametrize("ops", ["reference", "triton"])
@pytest.mark.parametrize("name", OPS)
def test_an_op_with_a_wrong_backward_fails_where_it_acts(name: str, ops: str) -> None:
    fault = OPS[name]
    found = failing(run(fault.family, ops=fault.change(make_ops(ops))))  # type: ignore[arg-type]
    assert found[0] == fault.first, found
    assert not fault.only or fault.only == {*found}, found


SOURCE = {
    "the residual stream is cut before attention's sum": (
        "llama", Layer.forward, "self.attn_add(x_BTD,", "self.attn_add(x_BTD.detach(),", "layers.2.resid_pre"
    ),
    "the residual stream is cut before the feed-forward's sum": (
        "llama", Layer.forward, "= x_BTD + mlp_BTD", "= x_BTD.detach() + mlp_BTD", "layers.2.resid_mid"
    ),
    "keys are cut off": ("gemma3", Attention._attend, "self.repeat_k(k_BGSK)", "self.repeat_k(k_BGSK.detach())",
                         "layers.5.attn.k_norm.weight"),
    "the weights of attention are cut off": (
        "gpt2", Attention._attend, "= weights_BHTS @", "= weights_BHTS.detach() @", "layers.2.attn.qkv.weight"
    ),
    "the factor of the embedding is lost": (
        "gemma", Embedding.forward, "x_BTD = x_BTD * scale.to(device=x_BTD.device, dtype=x_BTD.dtype)",
        "x_BTD = x_BTD + ((scale - 1) * x_BTD).detach()", "embed.weight#lookup",
    ),
    "the gradient of the logits' cap is lost": (
        "gemma2", Head.forward, "self.ops.softcap(logits_BTV, self.spec.softcap)",
        "logits_BTV + (self.ops.softcap(logits_BTV, self.spec.softcap) - logits_BTV).detach()", "embed.weight#head",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCE)
def test_a_unit_with_a_wrong_backward_fails_where_it_acts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family, function, old, new, first = SOURCE[name]
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, source
    scope = dict(vars(sys.modules[function.__module__]))
    exec(source.replace(old, new), scope)
    owner = scope[function.__qualname__.split(".")[0]]
    monkeypatch.setattr(owner, function.__name__, scope[function.__name__])
    found = run(family)
    assert failing(found)[0] == first, failing(found)
    if name == "keys are cut off":
        lost = next(node for node in found if node.name == "grad:layers.5.attn.k.weight")
        assert lost.reason == "no gradient in the port, one in the reference"
