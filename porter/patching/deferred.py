"""Logits that are a promise: what a patched model's output head gives in training, in place of logits.

What HF's forward does to them (times a factor, divided by one, a softcap) is noted down; the loss takes hidden states,
weight and notes to the fused kernel. Whoever looks at the logits after all (a metric, a trainer's entropy) gets them,
computed then.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Step = tuple[str, float]  # ("times", factor) or ("tanh", 0)
ScaleAndCap = tuple[float, float | None]
_Number = float  # under a name that no method has


def _looking(function: Callable[..., Any]) -> Callable[..., Any]:
    """An operator of DeferredLogits for which the logits are computed."""
    return lambda deferred, *others: function(deferred.logits(), *others)


def _version(head: nn.Module) -> int | None:
    """How often a head's weight was written to; None of one that is sharded, which other tensors stand for."""
    weight = head.weight
    return weight._version if type(weight) is nn.Parameter else None


class DeferredLogits:
    """Logits that are computed when something looks at them.

    No dataclass: FSDP looks for tensors in what a forward returns, dataclasses too, and casts them.

    Attributes:
        head: of the model; called with `loss` it gives the loss, without the logits.
        hidden: [..., H], what the head was given.
        autocast: the dtype that torch.autocast had when the head was called; None: it was off.
        steps: what was done to the logits since.
    """

    def __init__(
        self, head: nn.Module, hidden: Tensor, autocast: torch.dtype | None = None, steps: tuple[Step, ...] = ()
    ) -> None:
        self.head, self.hidden, self.autocast, self.steps = head, hidden, autocast, steps
        self._found: Tensor | None = None
        self._version = None if torch.compiler.is_compiling() else _version(head)

    @property
    def shape(self) -> torch.Size:
        """[..., V]"""
        weight: Any = self.head.weight
        return torch.Size((*self.hidden.shape[:-1], weight.shape[0]))

    @property
    def dtype(self) -> torch.dtype:
        return self.autocast or self.hidden.dtype

    @property
    def device(self) -> torch.device:
        return self.hidden.device

    def logits(self) -> Tensor:
        """The logits, with their graph, whether or not who looks first wants one; computed once."""
        if self._found is None:
            if self._version is not None and _version(self.head) not in (self._version, None):
                raise RuntimeError(
                    "logits that nobody has looked at yet, of a head whose weight has changed since the forward pass. "
                    "Look at them before optimizer.step(): out.logits[...]"
                )
            device = self.device.type
            own = {"deferred": False} if getattr(self.head, "defers", False) else {}  # else it was unpatched since
            with torch.enable_grad(), torch.autocast(device, self.autocast, enabled=self.autocast is not None):
                value: Tensor = self.head(self.hidden, **own)
                for what, factor in self.steps:
                    value = value * factor if what == "times" else value.tanh()
            self._found = value
        return self._found

    def scale_and_cap(self) -> ScaleAndCap | None:
        """(scale, cap): logits are scale * x, or cap * tanh(scale * x / cap); None: they are something else."""
        kinds = [what for what, _ in self.steps]
        if "tanh" not in kinds:
            return math.prod([factor for _, factor in self.steps]), None
        if kinds.count("tanh") > 1:
            return None
        at = kinds.index("tanh")
        before, after = (math.prod([f for _, f in part]) for part in (self.steps[:at], self.steps[at + 1 :]))
        return (before * after, after) if after > 0 else None

    def __mul__(self, other: Any) -> Any:
        noted = self._then(other, lambda factor: ("times", factor))
        return self.logits() * other if noted is None else noted

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        noted = self._then(other, lambda factor: ("times", 1 / factor))
        return self.logits() / other if noted is None else noted

    __rtruediv__ = _looking(lambda logits, other: other / logits)
    __add__ = __radd__ = _looking(operator.add)
    __sub__ = _looking(operator.sub)
    __rsub__ = _looking(lambda logits, other: other - logits)
    __matmul__ = _looking(operator.matmul)
    __pow__ = _looking(operator.pow)
    __neg__, __abs__ = _looking(operator.neg), _looking(operator.abs)
    __lt__, __le__, __gt__, __ge__ = map(_looking, (operator.lt, operator.le, operator.gt, operator.ge))
    __eq__, __ne__ = _looking(operator.eq), _looking(operator.ne)
    __hash__ = object.__hash__

    def float(self) -> "DeferredLogits":
        """Itself: the loss computes in float32."""
        return self

    def tanh(self) -> "DeferredLogits":
        """tanh of the logits, noted down."""
        return self._with(("tanh", 0.0))

    def _then(self, other: Any, step: Callable[[_Number], Step]) -> "DeferredLogits | None":
        """Itself with one step more; None: not by a number that the notes can hold."""
        if isinstance(other, bool) or not isinstance(other, (int, _Number)) or not other:
            return None
        return self._with(step(_Number(other)))

    def _with(self, step: Step) -> "DeferredLogits":
        return DeferredLogits(self.head, self.hidden, self.autocast, (*self.steps, step))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.logits(), name)

    __getitem__ = _looking(operator.getitem)

    def __len__(self) -> int:
        return len(self.logits())

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """torch.tanh is noted down; for every other function the logits are computed."""
        if function is torch.tanh and isinstance(args[0], DeferredLogits) and not kwargs:
            return args[0].tanh()
        return function(*map(redeemed, args), **{name: redeemed(value) for name, value in (kwargs or {}).items()})


def redeemed(value: Any) -> Any:
    if isinstance(value, DeferredLogits):
        return value.logits()
    return type(value)(map(redeemed, value)) if type(value) in (list, tuple) else value
