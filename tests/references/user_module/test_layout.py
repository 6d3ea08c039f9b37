"""Layouts undone, and found again from the data alone."""

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from porter.references.user_module.channels import axes_of, find_channels, fit, read_order
from porter.references.user_module.layout import Heads, Layout, rope_order, to_reference

T, H, K, F = 7, 6, 8, 30
HEADS = Heads(count=H, width=K, rotated=K)
GENERATOR = torch.Generator().manual_seed(0)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR)


Q = random(1, T, H, K)  # a node with heads, as the reference has it
X = random(1, T, F)  # one without
OTHER = random(1, T, 2 * K)


def pairs(x: Tensor, rotated: int = K) -> Tensor:
    """Halves as neighbouring channels, by another way than porter's."""
    turned, rest = x[..., :rotated], x[..., rotated:]
    left, right = turned.chunk(2, -1)
    return torch.cat((torch.stack((left, right), -1).flatten(-2), rest), -1)


def halves(x: Tensor) -> Tensor:
    return torch.cat((x[..., ::2], x[..., 1::2]), -1)


ORDER = [2, 0, 1, 5, 3, 4]
GROUPED = torch.cat([torch.cat((Q[:, :, 3 * g : 3 * g + 3].flatten(2), OTHER), -1) for g in range(2)], -1)
LAYOUTS_OF_HEADS = {  # port's tensor, what is declared
    "as it is": (Q, {}),
    "flat": (Q.flatten(2), {}),
    "heads first": (Q.transpose(1, 2), {"axes": "BHTK"}),
    "turned for a product": (Q.permute(0, 2, 3, 1), {"axes": "BHKT"}),
    "no batch": (Q[0].transpose(0, 1), {"axes": "HTK"}),
    "tokens first": (Q.transpose(0, 1), {"axes": "TBHK"}),
    "a part": (torch.cat((OTHER, Q.flatten(2), OTHER), -1), {"slice": f"{2 * K}:{2 * K + H * K}"}),
    "groups": (GROUPED, {"groups": 2, "slice": f"0:{3 * K}"}),
    "other heads": (Q[:, :, ORDER], {"heads": ORDER}),
    "repeated": (Q.repeat_interleave(3, dim=2), {"repeat": 3}),
    "pairs": (pairs(Q), {"rope": "interleaved"}),
    "pairs, a part, heads": (torch.cat((pairs(Q[:, :, ORDER]).flatten(2), OTHER), -1),
                             {"slice": f"0:{H * K}", "heads": ORDER, "rope": "interleaved"}),
    "pairs, heads first": (pairs(Q).transpose(1, 2), {"axes": "BHTK", "rope": "interleaved"}),
}  # fmt: skip
LAYOUTS_OF_CHANNELS = {
    "as it is": (X, {}),
    "no batch": (X[0], {"axes": "TD"}),
    "tokens first": (X.transpose(0, 1), {"axes": "TBD"}),
    "a part": (torch.cat((OTHER, X), -1), {"slice": f"{2 * K}:{2 * K + F}"}),
    "every second": (torch.stack((X, random(1, T, F)), -1).flatten(-2), {"slice": ":60:2"}),
    "every second but the first": (torch.stack((random(1, T, F), X), -1).flatten(-2), {"slice": "1::2"}),
    "groups": (torch.cat((X[..., :15], OTHER, X[..., 15:], OTHER), -1), {"groups": 2, "slice": "0:15"}),
}


@pytest.mark.parametrize("case", LAYOUTS_OF_HEADS)
def test_a_layout_of_heads_is_undone_and_found(case: str) -> None:
    value, declared = LAYOUTS_OF_HEADS[case]
    assert torch.equal(to_reference(value, Layout.model_validate(declared), HEADS), Q)
    noise = 1e-6 * random(*value.shape)  # two runs in float32 are not equal to the bit
    assert fit(Q, value + noise, HEADS, "half") == Layout.model_validate(declared)


@pytest.mark.parametrize("case", LAYOUTS_OF_CHANNELS)
def test_a_layout_of_channels_is_undone_and_found(case: str) -> None:
    value, declared = LAYOUTS_OF_CHANNELS[case]
    assert torch.equal(to_reference(value, Layout.model_validate(declared), None), X)
    found = fit(X, value, None, None)
    assert found is not None and torch.equal(to_reference(value, found, None), X)
    assert found.declared().keys() == declared.keys()


def test_rope_of_either_style_and_of_a_part_of_a_head() -> None:
    assert fit(pairs(Q), Q, HEADS, "interleaved") == Layout(rope="half")
    assert torch.equal(to_reference(halves(Q), Layout(rope="half"), HEADS), Q)
    some = Heads(H, K, rotated=4)
    assert torch.equal(to_reference(pairs(Q, 4), Layout(rope="interleaved"), some), Q)
    assert rope_order("interleaved", some).tolist() == [0, 2, 1, 3, 4, 5, 6, 7]
    assert fit(Q, pairs(Q), HEADS, None) is None  # without RoPE there are no pairs to stand otherwise


def test_what_no_line_can_say_is_not_proposed() -> None:
    shuffled = Q.flatten(2)[..., torch.randperm(H * K, generator=GENERATOR)]
    assert find_channels(Q[0].flatten(1), shuffled[0]) is not None
    assert fit(Q, shuffled, HEADS, "half") is None
    assert fit(Q, random(1, T, H, K), HEADS, "half") is None
    assert fit(Q, -Q, HEADS, "half") is None and fit(Q, 1.01 * Q, HEADS, "half") is None
    one_off = Q.clone()
    one_off[..., 3, 2] *= 1.01
    assert fit(Q, one_off, HEADS, "half") is None
    assert fit(X, X[..., :-1], None, None) is None and list(read_order(torch.tensor([3, 1, 2]), 4, None, None)) == []


def test_axes_are_told_by_the_number_of_tokens() -> None:
    assert axes_of(random(1, 7, 6, 8), 7) == "BTHK" and axes_of(random(1, 6, 7, 8), 7) == "BHTK"
    assert axes_of(random(7, 1, 5), 7) == "TBD" and axes_of(random(7, 5), 7) == "TD"
    assert axes_of(random(6, 7, 8), 7) == "HTK"
    assert axes_of(random(1, 6, 7, 7), 7) is None and axes_of(random(1, 5, 6, 8), 7) is None  # scores; no tokens
    assert axes_of(torch.zeros(1, 7, 5, dtype=torch.long), 7) is None and axes_of(random(7), 7) is None


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"axes": "BTX"}, "axes 'BTX' are neither"), ({"axes": "BHT"}, "axes 'BHT' are neither"),
        ({"slice": "3"}, "'3' is no slice"), ({"heads": [0, 2]}, "heads [0, 2] is no order of 0 to 1"),
        ({"groups": 0}, "greater than or equal to 1"), ({"rope": "pairs"}, "'half' or 'interleaved'"),
    ],
    ids=str,
)  # fmt: skip
def test_a_layout_that_is_none_is_refused(declared: dict, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Layout.model_validate(declared)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("value", "declared", "message"),
    [
        (Q, {"axes": "BTD"}, "the axes BTD are 3, and the tensor is"), (X[0], {}, "declare axes: TD"),
        (X, {"groups": 4}, "30 channels are not 4 groups"), (Q, {"heads": [1, 0]}, "2 heads are declared"),
    ],
    ids=str,
)  # fmt: skip
def test_a_layout_that_a_tensor_does_not_have_is_refused(value: Tensor, declared: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        to_reference(value, Layout.model_validate(declared), HEADS if value is Q else None)
    if "heads" in declared:
        with pytest.raises(ValueError, match="the node has no heads"):
            to_reference(X, Layout.model_validate(declared), None)
