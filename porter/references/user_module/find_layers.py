"""Which modules are the layers of a user's module: those that hold the layers' weights and take the residual stream."""

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from porter.errors import PreflightError, UsageError
from porter.references.user_module.code import users_code
from porter.references.user_module.map_file import Layers
from porter.references.user_module.parameters import Held, common_path
from porter.references.user_module.passes import floating

Given = Mapping[str, tuple[list[Tensor], list[Tensor]]]  # path -> floating tensors of its first call: given, gave


def layers_of(name: str, module: nn.Module, held: Sequence[Mapping[str, Held]], ids_BT: Tensor, width: int) -> Layers:
    """The line `layers` of a map.

    Args:
        held: of each layer, where its weights are.

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
        ends = [_stream(calls.get(path), ids_BT.numel() * width, width) for path in paths]
        if None not in ends and len(set(ends)) == 1 and ends[0] is not None:
            return Layers(at=_pattern(paths), input=ends[0][0], output=ends[0][1])
    raise UsageError(
        f"{name} has no module for each layer that is given the residual stream, {list(ids_BT.shape)} × {width}",
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


def _stream(call: tuple[list[Tensor], list[Tensor]] | None, size: int, width: int) -> tuple[int, int] | None:
    """Which tensors of a call are the stream, given and given back."""
    if call is None:
        return None
    places = [
        next((at for at, each in enumerate(side) if each.numel() == size and each.shape[-1] == width), None)
        for side in call
    ]
    return None if places[0] is None or places[1] is None else (places[0], places[1])


def _pattern(paths: Sequence[str]) -> str | tuple[str, ...]:
    """The paths as one with {i}, or all of them."""
    for found in re.finditer(r"(?<![^.])0(?![^.])", paths[0]):
        pattern = f"{paths[0][: found.start()]}{{i}}{paths[0][found.end() :]}"
        if all(path == pattern.replace("{i}", str(index)) for index, path in enumerate(paths)):
            return pattern
    return tuple(paths)
