"""Taps: read, written, and noted while a module runs."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from porter.references.user_module.tap import Tap, watching

TAPS = {
    "a.b": Tap("a.b"), "a.b:input": Tap("a.b", side="input"), "a.0:input2": Tap("a.0", side="input", index=2),
    "a:output1": Tap("a", index=1), "a@add": Tap("a", "add"), "a@add#3": Tap("a", "add", 3), "@add": Tap("", "add"),
    "rope#1:output1": Tap("rope", call=1, index=1), "a@matmul#1:input1": Tap("a", "matmul", 1, "input", 1), "": Tap(""),
}  # fmt: skip


@pytest.mark.parametrize("text", TAPS)
def test_a_tap_is_read_and_written(text: str) -> None:
    assert Tap.read(text) == TAPS[text] and str(TAPS[text]) == text


@pytest.mark.parametrize("text", ["a b", "a:in", "a@", "a#x", "a:input:output", "a@add@add", "a/b"])
def test_what_is_no_tap_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no place in a module"):
        Tap.read(text)


@dataclass
class Out:
    first: Tensor
    second: Tensor


class Inner(nn.Module):
    def forward(self, x: Tensor, *, scale: Tensor) -> Out:
        y = x + scale
        y += 1  # in place: what was noted of the first sum must stay
        return Out(y, F.silu(x * scale))


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.same = Inner(), nn.Identity()
        self.alias = self.same

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        out = self.inner(x, scale=x)
        out = self.inner(out.first, scale=out.second)
        return {"y": self.same(out.first + out.second)}


def noted(**given: object) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    model, x = Outer(), torch.ones(2)
    with watching(model, lambda tap, value: found.update({str(tap): value.clone()}), **given):  # type: ignore[arg-type]
        model(x)
    assert not model._forward_hooks and not model.inner._forward_pre_hooks
    return found


def test_modules_and_functions_are_told_by_name_and_call() -> None:
    found = noted(functions=True)
    assert found[":input"].tolist() == [1, 1] and found["inner:input1"].tolist() == [1, 1]
    assert found["inner@add"].tolist() == [2, 2]  # before the addition in place, which is a call of its own
    assert found["inner@add_"].tolist() == [3, 3] and found["inner@add_:input"].tolist() == [2, 2]
    assert found["inner"].tolist() == [3, 3] and found["inner#1:input"].tolist() == [3, 3]
    silu = F.silu(torch.ones(2)).tolist()
    assert found["inner:output1"].tolist() == found["inner@silu"].tolist() == found["inner#1:input1"].tolist() == silu
    assert found["inner@add#1"].tolist() == [3 + silu[0]] * 2 and "inner@add#2" not in found
    assert found["@add:input1"].tolist() == found["inner#1:output1"].tolist()
    assert found["same"].tolist() == found[""].tolist() and "alias" not in found
    assert not any("clone" in tap for tap in found)  # what the watcher does is no call of the module's


def test_only_the_paths_that_are_asked_for() -> None:
    assert {tap.partition(":")[0] for tap in noted(paths=frozenset(["same"]))} == {"same"}
    assert not any("@" in tap for tap in noted())


def test_hooks_are_gone_after_an_error() -> None:
    model = Outer()
    with pytest.raises(TypeError), watching(model, lambda tap, value: None, functions=True):
        model("no tensor")
    assert not model._forward_hooks and not model.inner._forward_hooks
