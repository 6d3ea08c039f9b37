"""Several heads: each is linear_cross_entropy of its own shifted target, with one chunk of logits over all of them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from porter_kernels.linear_cross_entropy import (
    linear_cross_entropy,
    linear_cross_entropy_reference,
    multi_head_linear_cross_entropy,
)
from porter_kernels.linear_cross_entropy import passes as passes_module
from tests.porter_kernels.linear_cross_entropy_budget import (
    DEVICE,
    Case,
    assert_within_budget,
    draw,
    run_case,
)

M, B, T, H, V = 3, 2, 9, 6, 21


def draw_heads(generator: torch.Generator, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    cases = [draw(generator, N=B * T, H=H, V=V, dtype=dtype) for _ in range(M)]
    return {
        "hidden": [case.hidden.view(B, T, H).requires_grad_() for case in cases],
        "weight": [case.weight.requires_grad_() for case in cases],
        "bias": [case.bias.requires_grad_() for case in cases],
        "target": cases[0].target.view(B, T),
    }


def shifted(target: Tensor, by: int, fill: float = -100) -> Tensor:
    out = torch.full_like(target, fill)
    out[:, :-by] = target[:, by:]
    return out


@pytest.mark.parametrize(
    ("ahead", "reduction", "dtype"),
    [(1, "mean", torch.bfloat16), (2, "none", torch.bfloat16), (2, "mean", torch.float16)],
    ids=str,
)
def test_own_heads_are_calls_of_their_own(
    ahead: int, reduction: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    heads = draw_heads(generator, dtype)
    token_weight = torch.rand(B, T, generator=generator).to(DEVICE) + 0.5
    options = {"reduction": reduction, "label_smoothing": 0.1, "chunk_rows": 16}
    losses = multi_head_linear_cross_entropy(
        heads["hidden"], heads["weight"], heads["target"], bias=heads["bias"], ahead=ahead, token_weight=token_weight,
        **options,
    )  # fmt: skip
    assert losses.shape == ((M,) if reduction == "mean" else (M, B, T))
    upstream = torch.randn(losses.shape, generator=generator).to(DEVICE)
    leaves = [x for name in ("hidden", "weight", "bias") for x in heads[name]]
    together = iter(torch.autograd.grad(losses, leaves, upstream))
    alone = []
    for i in range(M):
        loss = linear_cross_entropy(
            heads["hidden"][i], heads["weight"][i], shifted(heads["target"], ahead + i), bias=heads["bias"][i],
            token_weight=shifted(token_weight, ahead + i, 0.0), **options,
        )  # fmt: skip
        assert torch.equal(loss, losses[i])
        own = (heads["hidden"][i], heads["weight"][i], heads["bias"][i])
        alone.append(torch.autograd.grad(loss, own, upstream[i]))
    for gradients in zip(*alone, strict=True):
        assert all(torch.equal(a, next(together)) for a in gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("weights", [False, True], ids="weights={}".format)
def test_a_shared_head_is_one_call_over_all_rows(weights: bool, dtype: torch.dtype, generator: torch.Generator) -> None:
    """Each row's factor, 1 over what its head's mean divides by, times its head's upstream gradient, as one case."""
    heads = draw_heads(generator, dtype)
    token_weight = torch.rand(B, T, generator=generator).to(DEVICE) + 0.5 if weights else None
    class_weight = torch.rand(V, generator=generator).to(DEVICE) + 0.5 if weights else None
    weight = heads["weight"][0]
    losses = multi_head_linear_cross_entropy(
        heads["hidden"], weight, heads["target"], class_weight=class_weight, token_weight=token_weight, chunk_rows=24
    )
    upstream = torch.tensor([1.0, 0.8, -0.64], device=DEVICE)
    *d_hidden, d_weight = torch.autograd.grad(losses, [*heads["hidden"], weight], upstream)

    targets = torch.stack([shifted(heads["target"], 1 + i) for i in range(M)])
    factors = (targets != -100).float()
    if weights:
        factors = factors * torch.stack([shifted(token_weight, 1 + i, 0.0) for i in range(M)])
    mass = factors if class_weight is None else factors * class_weight[targets.clamp(0)]
    rows = (factors / mass.sum((1, 2), keepdim=True)).flatten()
    case = Case(torch.stack(heads["hidden"]).detach().view(-1, H), weight, targets.flatten())
    case = case.but(token_weight=rows, class_weight=class_weight, reduction="none")
    case = Case(**vars(case) | {"upstream": upstream.repeat_interleave(B * T)})
    per_row = run_case(linear_cross_entropy, case)["loss"].view(M, -1)
    torch.testing.assert_close(losses.detach(), per_row.sum(1), rtol=1e-5, atol=1e-6)
    gradients = {"hidden": torch.stack(d_hidden).view(-1, H), "weight": d_weight}
    assert_within_budget(gradients, case)


def test_a_single_head_is_a_call(generator: torch.Generator) -> None:
    heads = draw_heads(generator)
    (hidden, *_), (weight, *_) = heads["hidden"], heads["weight"]
    alone = linear_cross_entropy(hidden, weight, shifted(heads["target"], 1))
    assert torch.equal(multi_head_linear_cross_entropy([hidden], [weight], heads["target"])[0], alone)


def test_hidden_states_may_be_shared(generator: torch.Generator) -> None:
    heads = draw_heads(generator)
    hidden = heads["hidden"][0]
    losses = multi_head_linear_cross_entropy(hidden, heads["weight"], heads["target"])
    (d_hidden,) = torch.autograd.grad(losses.sum(), hidden)
    golden = sum(
        linear_cross_entropy_reference(hidden.double(), heads["weight"][i].double(), shifted(heads["target"], 1 + i))
        for i in range(M)
    )
    (truth,) = torch.autograd.grad(golden, hidden)
    torch.testing.assert_close(d_hidden, truth, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shared", [True, False], ids="shared={}".format)
@pytest.mark.parametrize(
    "options",
    [
        *({"reduction": "sum"}, {"num_items": 5}, {"z_loss": 0.1}, {"reduction": "none"}),
        *({"softcap": 2.0}, {"logit_scale": 0.5}, {"label_smoothing": 0.2}, {"class_weight": True}),
    ],
    ids=str,
)
def test_options(options: dict[str, Any], shared: bool, generator: torch.Generator) -> None:
    heads = draw_heads(generator)
    weight = heads["weight"][0] if shared else heads["weight"]
    if "class_weight" in options:
        options = {"class_weight": torch.linspace(0.5, 1.5, V, device=DEVICE)}
    with torch.no_grad():
        losses, stats = multi_head_linear_cross_entropy(
            heads["hidden"], weight, heads["target"], stats=True, chunk_rows=64, **options
        )
        for i in range(M):
            loss, own = linear_cross_entropy(
                heads["hidden"][i], weight if shared else weight[i], shifted(heads["target"], 1 + i), stats=True,
                **options,
            )  # fmt: skip
            torch.testing.assert_close(losses[i], loss, rtol=1e-5, atol=1e-6)
            for a, b in zip(stats[i], own, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shared", [True, False], ids="shared={}".format)
def test_another_index_is_ignored(shared: bool, generator: torch.Generator) -> None:
    heads = draw_heads(generator)
    weight = heads["weight"][0] if shared else heads["weight"]
    losses = multi_head_linear_cross_entropy(heads["hidden"], weight, heads["target"])
    other = heads["target"].masked_fill(heads["target"] == -100, V + 4)
    assert torch.equal(multi_head_linear_cross_entropy(heads["hidden"], weight, other, ignore_index=V + 4), losses)


@pytest.mark.parametrize("label", [-1, V])
def test_a_label_that_is_no_class_is_seen(label: int, generator: torch.Generator) -> None:
    heads, class_weight = draw_heads(generator), torch.ones(V, device=DEVICE)
    heads["target"][1, 4] = label
    losses = multi_head_linear_cross_entropy(
        heads["hidden"], heads["weight"][0], heads["target"], class_weight=class_weight
    )
    assert losses.isnan().all()


@pytest.mark.parametrize(("weights", "biases"), [("aba", "xyx"), ("aaa", "xyx"), ("aaa", "xxx")])
def test_some_heads_share(weights: str, biases: str, generator: torch.Generator) -> None:
    heads = draw_heads(generator)
    weight, bias = (
        [heads[name]["abxy".index(c) % 2] for c in of] for name, of in (("weight", weights), ("bias", biases))
    )
    losses = multi_head_linear_cross_entropy(heads["hidden"], weight, heads["target"], bias=bias)
    for i in range(M):
        target = shifted(heads["target"], 1 + i)
        alone = linear_cross_entropy(heads["hidden"][i], weight[i], target, bias=bias[i])
        torch.testing.assert_close(losses[i], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shared", [True, False], ids="shared={}".format)
def test_one_chunk_of_logits_over_all_heads(
    shared: bool, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive, most = 0, 0
    walk = passes_module.walk

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal alive, most
        alive += 1
        most = max(most, alive)
        gradients = walk(*arguments, **options)
        alive -= 1
        return gradients

    monkeypatch.setattr(passes_module, "walk", counted)  # holds one chunk; frees it when it returns
    heads = draw_heads(generator)
    weight = heads["weight"][0] if shared else heads["weight"]
    multi_head_linear_cross_entropy(heads["hidden"], weight, heads["target"]).sum().backward()
    assert (alive, most) == (0, 1)


def test_what_does_not_match_is_refused(generator: torch.Generator) -> None:
    heads = draw_heads(generator)
    for hidden, weight in ((heads["hidden"][:2], heads["weight"]), (heads["hidden"][0], heads["weight"][0])):
        with pytest.raises(ValueError, match=r"sequences have lengths .* expected one length.*Pass a list"):
            multi_head_linear_cross_entropy(hidden, weight, heads["target"])
    with pytest.raises(TypeError, match="weight is a Linear module"):
        multi_head_linear_cross_entropy(heads["hidden"], torch.nn.Linear(H, V), heads["target"])
