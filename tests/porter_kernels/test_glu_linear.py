"""glu_linear keeps gate and up alone, and has the bits of glu and linear called one after the other."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from porter_kernels.glu import glu, glu_linear, linear, packed_glu, packed_glu_linear

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Call = Callable[..., Tensor]


def _draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE).requires_grad_()


def _gradients(call: Call, leaves: list[Tensor], needed: tuple[bool, ...]) -> list[Tensor | None]:
    for leaf, need in zip(leaves, needed, strict=True):
        leaf.grad = None
        leaf.requires_grad_(need)
    out = call(*leaves)
    out.backward(_draw(*out.shape, seed=9).detach().transpose(0, 1).contiguous().transpose(0, 1))
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def _same(one: list[Tensor | None], other: list[Tensor | None]) -> bool:
    return all(
        (a is None) == (b is None) and (a is None or b is None or torch.equal(a, b))
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("act", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("rows", "width", "out"), [(1, 1, 1), (7, 33, 5), (3, 1030, 17)])
def test_bits_of_every_gradient(act: str, bias: bool, rows: int, width: int, out: int) -> None:
    leaves = [_draw(rows, 2, width, seed=0), _draw(rows, 2, width, seed=1), _draw(out, width, seed=2)]
    leaves += [_draw(out, seed=3)] if bias else []
    for needed in product([True, False], repeat=len(leaves)):
        if any(needed):
            fused = _gradients(lambda *given: glu_linear(*given, act=act), leaves, needed)
            apart = _gradients(lambda g, u, *rest: F.linear(glu(g, u, act=act), *rest), leaves, needed)
            assert _same(fused, apart), needed


@pytest.mark.parametrize("layout", ["halves", "halves_up_first", "interleaved"])
def test_bits_of_a_packed_projection(layout: str) -> None:
    leaves = [_draw(5, 2, 66, seed=0), _draw(7, 33, seed=1)]
    for needed in ((True, True), (True, False), (False, True)):
        fused = _gradients(lambda x, w: packed_glu_linear(x, w, act="silu", layout=layout), leaves, needed)
        apart = _gradients(lambda x, w: F.linear(packed_glu(x, act="silu", layout=layout), w), leaves, needed)
        assert _same(fused, apart), needed


def test_the_product_is_not_kept() -> None:
    gate, up, weight = _draw(6, 40, seed=0), _draw(6, 40, seed=1), _draw(8, 40, seed=2)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        glu_linear(gate, up, weight, act="silu")
    assert sorted(each.data_ptr() for each in kept) == sorted(each.data_ptr() for each in (gate, up, weight))


def test_without_gradients_nothing_is_kept_and_twice_backward_is_the_same() -> None:
    gate, up, weight = _draw(6, 40, seed=0), _draw(6, 40, seed=1), _draw(8, 40, seed=2)
    with torch.no_grad():
        found = glu_linear(gate, up, weight, act="silu")
        assert found.grad_fn is None and torch.equal(found, F.linear(glu(gate, up, act="silu"), weight))
    loss = glu_linear(gate, up, weight, act="silu").square().sum()
    loss.backward(retain_graph=True)
    assert weight.grad is not None and gate.grad is not None
    once = weight.grad.clone(), gate.grad.clone()
    weight.grad = gate.grad = up.grad = None
    loss.backward()
    assert torch.equal(weight.grad, once[0]) and torch.equal(gate.grad, once[1])
    with pytest.raises(RuntimeError, match="glu_linear: asked for a gradient that can be differentiated again"):
        torch.autograd.grad(glu_linear(gate, up, weight, act="silu").sum(), gate, create_graph=True)


@pytest.mark.parametrize("packed", [False, True], ids="packed={}".format)
def test_without_gradients_and_traced_it_is_two_calls(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, up, weight = _draw(6, 40, seed=0), _draw(6, 40, seed=1), _draw(8, 40, seed=2)
    whole = torch.cat((gate, up), dim=-1).detach().requires_grad_()

    def call() -> Tensor:
        return packed_glu_linear(whole, weight, act="silu") if packed else glu_linear(gate, up, weight, act="silu")

    truth = call().detach()
    monkeypatch.delattr(linear, "_apply")
    with torch.no_grad():
        assert torch.equal(call(), truth)
    assert torch.equal(torch.compile(call, fullgraph=True, backend="aot_eager")(), truth)


def test_what_does_not_fit_is_refused() -> None:
    gate, up, weight = _draw(6, 40, seed=0), _draw(6, 40, seed=1), _draw(8, 40, seed=2)
    with pytest.raises(ValueError, match=r"glu: up is torch.float32 \[6, 39\]"):
        glu_linear(gate, up[:, :39], weight, act="silu")
    with pytest.raises(ValueError, match="act is 'swish'"):
        glu_linear(gate, up, weight, act="swish")
