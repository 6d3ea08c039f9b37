"""Which modules are the layers of a user's module: those that hold the layers' weights and take the residual stream."""

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from porter.errors import PreflightError, UsageError
from porter.references.user_module.channels import ALIKE, apart
from porter.references.user_module.code import users_code
from porter.references.user_module.map_file import Layers
from porter.references.user_module.parameters import Held, common_path
from porter.references.user_module.passes import floating

Given = Mapping[str, tuple[list[Tensor], list[Tensor]]]  # path -> floating tensors of its first call: given, gave


def layers_of(
    name: str, module: nn.Module, held: Sequence[Mapping[str, Held]], ids_BT: Tensor, streams: Sequence[Tensor]
) -> Layers:
    """The line `layers` of a map.

    Args:
        held: of each layer, where its weights are.
        streams: what the reference gives its first layer and its second, [1, T, D]: they choose between tensors.

    Raises:
        PreflightError: the module does not hold a layer's weights.
        UsageError: no module for each layer is given the residual stream and gives it on.
    """
    whole = [common_path(each.path for each in layer.values() if not each.name.startswith("?")) for layer in held]
    for index, layer in enumerate(held):
        if not layer:
            raise PreflightError(
                f"none of the weights of layer {index} is in {name}",
                "the checkpoint's values, whole, in any order of rows, transposed or fused",
                "Load the same weights into the module.",
            )
    shared = common_path(whole) if len(whole) > 1 else common_path([whole[0].rpartition(".")[0]])
    calls = _calls(name, module, ids_BT)
    for depth in range(1, max(path.count(".") + 2 for path in whole) + 1):
        paths = [_cut(path, shared, depth) for path in whole]
        if len(set(paths)) < len(paths):
            continue
        if all(_streams(calls.get(path), streams[0]) for path in paths):
            given, gave = calls[paths[min(1, len(paths) - 1)]][0], calls[paths[0]][1]
            after = streams[1] if len(paths) > 1 else streams[0]
            return Layers(at=_pattern(paths), input=_parts(given, after), output=_parts(gave, streams[1]))
    raise UsageError(
        f"{name} has no module for each layer that is given the residual stream, {list(streams[0].shape)}",
        f"a module a layer, as {whole[0] or 'layers.0'} might be, called with the stream",
        "Put what a layer computes into a module of its own.",
    )


def _calls(name: str, module: nn.Module, ids_BT: Tensor) -> Given:
    """What every module is given and gives in its first call of a forward pass."""
    given: dict[str, tuple[list[Tensor], list[Tensor]]] = {}

    def note(path: str) -> Any:
        def see(_module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
            given.setdefault(path, (floating((args, kwargs)), floating(out)))

        return see

    with ExitStack() as stack, torch.no_grad(), users_code(name, "cannot be run"):
        for path, each in module.named_modules():
            stack.callback(each.register_forward_hook(note(path), with_kwargs=True).remove)
        module(ids_BT)
    return given


def _cut(path: str, shared: str, depth: int) -> str:
    """The path up to `depth` names below the shared one."""
    first = shared.count(".") + 1 if shared else 0
    return ".".join(path.split(".")[: first + depth])


def _streams(call: tuple[list[Tensor], list[Tensor]] | None, stream: Tensor) -> bool:
    """Whether a module is given what may be the stream, and gives it."""
    return call is not None and all(any(_alike(each, stream) for each in side) for side in call)


def _alike(value: Tensor, stream: Tensor) -> bool:
    return value.numel() == stream.numel() and value.shape[-1] == stream.shape[-1]


def _parts(tensors: Sequence[Tensor], stream: Tensor) -> tuple[int, ...]:
    """Which of the tensors is the stream by its values, or which two are it together; else the first of its shape."""
    shaped = [at for at, each in enumerate(tensors) if _alike(each, stream)]
    for places in (*((at,) for at in shaped), *combinations(shaped, 2)):
        whole = sum(tensors[at].reshape(stream.shape) for at in places)
        if isinstance(whole, Tensor) and apart(whole, stream) < ALIKE:
            return places
    return (shaped[0],)


def _pattern(paths: Sequence[str]) -> str | tuple[str, ...]:
    """The paths as one with {i}, or all of them."""
    for found in re.finditer(r"(?<![^.])0(?![^.])", paths[0]):
        pattern = f"{paths[0][: found.start()]}{{i}}{paths[0][found.end() :]}"
        if all(path == pattern.replace("{i}", str(index)) for index, path in enumerate(paths)):
            return pattern
    return tuple(paths)
