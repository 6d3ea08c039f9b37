"""Forward passes of a user's module in which layers are fed, or do nothing.

A layer is run within the module's own forward pass, so that it gets the arguments it always gets: the layers before it
do nothing, a hook puts what it is to be fed in place of the residual stream it is given, and the pass ends behind it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from porter.errors import UsageError
from porter.models.matmul import quick_matmul
from porter.references.user_module.code import users_code


class Enough(BaseException):
    """Ends a forward pass of which enough was seen; no Exception, as a user's code may catch those."""


@dataclass(frozen=True)
class Stream:
    """Where the residual stream [1, T, D] is among the floating tensors a layer is given, and among those it gives.

    Several places: the stream is their sum, as where a layer leaves its last addition to the next one's norm. What is
    fed then goes to the first of them, and the others are zero.
    """

    input: tuple[int, ...] = (0,)
    output: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class _Call:
    """One layer's call in the module's own forward pass.

    Attributes:
        given: the first part of the stream, in the module's own axes; whole: the sum, [1, T, D].
        out: what it gave, without the tensors of the stream.
    """

    given: Tensor
    whole: Tensor
    out: Any


class Passes:
    """A module with the modules of its layers.

    Attributes:
        name, source: of the module and its map, for messages.
        paths: of the layers, for messages.
    """

    def __init__(
        self, name: str, source: str, module: nn.Module, layers: Sequence[tuple[str, nn.Module]], stream: Stream,
        *, width: int, dtype: torch.dtype, device: torch.device,
    ) -> None:  # fmt: skip
        self.name, self.source, self.module, self.stream = name, source, module, stream
        self.paths, self.layers = [path for path, _ in layers], [layer for _, layer in layers]
        self.width, self.dtype, self.device = width, dtype, device
        self._calls: list[_Call] = []

    def start(self, ids_BT: Tensor) -> Tensor:
        """Takes a prompt: one forward pass, in which each layer is seen; the logits.

        Raises:
            ArtifactError: the module cannot be run.
            UsageError: its layers are not called once each, in order, with a residual stream.
        """
        self._ids_BT = ids_BT.to(self.device)
        given: dict[int, list[Tensor]] = {}
        outs: dict[int, Any] = {}
        calls: list[int] = []

        def before(index: int) -> Callable[[nn.Module, Any, Any], None]:
            def note(_module: nn.Module, args: Any, kwargs: Any) -> None:
                calls.append(index)
                given[index] = self._parts(index, floating((args, kwargs)), self.stream.input, "is given")

            return note

        def after(index: int) -> Callable[[nn.Module, Any, Any], None]:
            def note(_module: nn.Module, _args: Any, out: Any) -> None:
                self._parts(index, floating(out), self.stream.output, "gives")
                outs[index] = replaced(out, dict.fromkeys(self.stream.output, torch.empty(0)))

            return note

        with ExitStack() as stack:
            for index, layer in enumerate(self.layers):
                stack.callback(layer.register_forward_pre_hook(before(index), with_kwargs=True).remove)
                stack.callback(layer.register_forward_hook(after(index)).remove)
            out = self._forward(self._ids_BT)
        if calls != list(range(len(self.layers))):
            said = f"calls its layers in the order {calls}" if calls else "calls none of its layers as modules"
            raise UsageError(
                f"{self.name} {said}",
                f"{len(self.layers)} layers, each called once, in order: layer(x), not layer.forward(x)",
                f"Correct `layers` in {self.source}.",
            )
        self._calls = [
            _Call(parts[0], self._sum(parts), outs[index]) for index, parts in sorted(given.items())
        ]  # fmt: skip
        return logits_of(out, self.name)

    @property
    def embedded(self) -> Tensor:
        """[1, T, D]: what the module gives its first layer."""
        return self._calls[0].whole

    def run_layer(self, index: int, x_BTD: Tensor) -> Tensor:
        """[1, T, D]: what a layer gives when it is fed `x_BTD`."""
        found: list[Tensor] = []

        def feed(_module: nn.Module, args: Any, kwargs: Any) -> Any:
            x = self._as_given(x_BTD, self._calls[index].given)
            return replaced((args, kwargs), _placed(self.stream.input, x))

        def keep(_module: nn.Module, _args: Any, out: Any) -> None:
            tensors = floating(out)
            found.append(self._sum([tensors[at] for at in self.stream.output]))
            raise Enough

        layer = self.layers[index]
        with self._bypassed(index), ExitStack() as stack:
            stack.callback(layer.register_forward_pre_hook(feed, with_kwargs=True).remove)
            stack.callback(layer.register_forward_hook(keep).remove)
            self._forward(self._ids_BT)
        return found[0]

    def run_head(self, x_BTD: Tensor) -> Tensor:
        """[1, t, V]: the logits, when the last layer gave `x_BTD`, [1, t, D]."""
        ids_BT = self._ids_BT[:1, : x_BTD.shape[1]]
        with self._bypassed(len(self.layers), x_BTD):
            return logits_of(self._forward(ids_BT), self.name)

    def _forward(self, ids_BT: Tensor) -> Any:
        """What the module gives for ids; None when the pass was ended before."""
        with torch.no_grad(), quick_matmul(self.dtype, self.device), users_code(self.name, "cannot be run"):
            try:
                return self.module(ids_BT)
            except Enough:
                return None

    @contextmanager
    def _bypassed(self, first: int, x_BTD: Tensor | None = None) -> Iterator[None]:
        """Within it the layers before `first` give what they are given, or the last of them `x_BTD`."""

        def stand_in(index: int) -> Callable[..., Any]:
            def forward(*args: Any, **kwargs: Any) -> Any:
                x = floating((args, kwargs))[self.stream.input[0]]
                if x_BTD is not None and index == first - 1:
                    x = self._as_given(x_BTD, x)
                return replaced(self._calls[index].out, _placed(self.stream.output, x))

            return forward

        before = [layer.__dict__.get("forward") for layer in self.layers[:first]]
        try:
            for index, layer in enumerate(self.layers[:first]):
                layer.forward = stand_in(index)
            yield
        finally:
            for layer, own in zip(self.layers[:first], before, strict=True):
                layer.__dict__.pop("forward", None)
                if own is not None:
                    layer.forward = own

    def _parts(self, index: int, tensors: list[Tensor], places: tuple[int, ...], does: str) -> list[Tensor]:
        """The parts of the stream that a layer is given, or gives; the first layer may be given no more than one."""
        T = self._ids_BT.shape[1]
        found = [tensors[at].detach() for at in places if at < len(tensors)]
        fits = [each.shape[-1:] == (self.width,) and each.numel() == T * self.width for each in found]
        if fits and all(fits) and (len(found) == len(places) or index == 0):
            return found
        raise UsageError(
            f"{self.paths[index]} {does} {[list(each.shape) for each in tensors] or 'no tensor'}",
            f"the residual stream, [1, {T}, {self.width}]",
            f"Correct `layers` in {self.source}: at, or input and output where the stream is not the first tensor.",
        )

    @staticmethod
    def _sum(parts: list[Tensor]) -> Tensor:
        """[1, T, D] of the parts of a stream of one row, whatever their other axes: [T, D], [T, 1, D]."""
        whole = parts[0]
        for part in parts[1:]:
            whole = whole + part
        return whole.reshape(1, -1, whole.shape[-1]).detach()

    def _as_given(self, x_BTD: Tensor, given: Tensor) -> Tensor:
        """[1, t, D] in the axes, dtype and place of the stream that a layer is given."""
        x_BTD = x_BTD.to(given.device, given.dtype)
        if given.ndim == 2:
            return x_BTD[0]
        return x_BTD.transpose(0, 1) if given.shape[0] != 1 else x_BTD


def floating(value: Any) -> list[Tensor]:
    """The floating tensors of arguments or results, in order."""
    return [each for each in tree_leaves(value) if isinstance(each, Tensor) and each.is_floating_point()]


def replaced(value: Any, tensors: Mapping[int, Tensor]) -> Any:
    """Arguments or results with some of their floating tensors replaced, those that are there."""
    leaves, structure = tree_flatten(value)
    places = [at for at, each in enumerate(leaves) if isinstance(each, Tensor) and each.is_floating_point()]
    for index, tensor in tensors.items():
        if index < len(places):
            leaves[places[index]] = tensor
    return tree_unflatten(leaves, structure)


def _placed(places: tuple[int, ...], x: Tensor) -> dict[int, Tensor]:
    """A stream in its places: all of it in the first."""
    return {at: x if at == places[0] else torch.zeros_like(x) for at in places}


def logits_of(out: Any, name: str) -> Tensor:
    """[1, T, V], among what a module gives: .logits, or the first floating tensor.

    Raises:
        UsageError: there is none.
    """
    found = getattr(out, "logits", None)
    tensors = [found] if isinstance(found, Tensor) else floating(out)
    if not tensors:
        raise UsageError(f"{name} gives a {type(out).__name__} without tensors", "logits [1, T, V]", "Return logits.")
    return tensors[0].reshape(1, -1, tensors[0].shape[-1]).detach()
