"""Where a reference's node lies in a tensor of a port: channel by channel, and the layout that this order is.

Two channels are the same when their values at all tokens are: relative error below ALIKE, far above what float32 rounds
and far below what two channels of one model have in common.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from porter.references.user_module.layout import Heads, Layout, Style, channels, rope_order, to_reference

ALIKE = 1e-3
_PROBES = 3  # channels that are looked for before all of them are
_LEAST = 1e-30


def axes_of(value: Tensor, length: int) -> str | None:
    """The axes of a tensor by the one that is `length` tokens: BTD, BHTK, TD, …; None where that is not clear."""
    if not value.is_floating_point() or not 2 <= value.ndim <= 4 or list(value.shape).count(length) != 1:
        return None
    token = list(value.shape).index(length)
    letters = {token: "T"}
    others = [axis for axis in range(value.ndim) if axis != token]
    if value.ndim > 2 and any(value.shape[axis] == 1 for axis in others):
        letters[others.pop(next(at for at, axis in enumerate(others) if value.shape[axis] == 1))] = "B"
    if len(others) not in (1, 2):
        return None
    letters.update(zip(others, "D" if len(others) == 1 else "HK", strict=True))
    return "".join(letters[axis] for axis in range(value.ndim))


def fit(node: Tensor, value: Tensor, heads: Heads | None, style: Style | None) -> Layout | None:
    """The layout under which a port's tensor is the reference's node, [1, T, …]; None where there is none.

    Args:
        style: of the reference's RoPE in that layer; None where it has none.
    """
    for layout in _plausible(node, value, heads, style):
        if matches(node, value, layout, heads):
            return layout
    return None


def matches(node: Tensor, value: Tensor, layout: Layout, heads: Heads | None) -> bool:
    """Whether a port's tensor, its layout undone, is the reference's node."""
    try:
        found = to_reference(value, layout, heads)
    except (ValueError, IndexError, RuntimeError):  # of another shape than the layout is for
        return False
    if found.shape[:2] != node.shape[:2] or found.numel() != node.numel():
        return False
    return apart(found.reshape(node.shape), node) < ALIKE


def apart(value: Tensor, truth: Tensor) -> float:
    """The relative error of a tensor as a whole."""
    size = float(truth.double().norm())
    return float((value.double() - truth.double()).norm()) / max(size, _LEAST)


def _plausible(node: Tensor, value: Tensor, heads: Heads | None, style: Style | None) -> Iterator[Layout]:
    axes = axes_of(value, node.shape[1])
    if axes is None:
        return
    declared: dict[str, Any] = {} if axes in ("BTD", "BTHK") else {"axes": axes}
    value_TC, node_TF = channels(value, axes)[0], node[0].flatten(1)
    if value_TC.shape == node_TF.shape:
        yield Layout.model_validate(declared)
    repeat, left = divmod(value_TC.shape[1], node_TF.shape[1])
    if heads is not None and repeat > 1 and not left:  # copies of a channel cannot be told apart below
        for rope in (None, *_other(style)):
            yield Layout.model_validate({**declared, "repeat": repeat, "rope": rope})
    places_F = find_channels(node_TF, value_TC)
    if places_F is not None:
        for layout in read_order(places_F.cpu(), value_TC.shape[1], heads, style):
            yield Layout.model_validate({**declared, **layout})


def find_channels(node_TF: Tensor, value_TC: Tensor) -> Tensor | None:
    """[F]: for each channel of the node the channel of the value that is the same; None where one has none."""
    width = node_TF.shape[1]
    if value_TC.shape[1] < width:
        return None
    value_TC = value_TC.float()
    probes = torch.linspace(0, width - 1, _PROBES).long()
    found = _nearest(node_TF[:, probes].float(), value_TC)
    return None if found is None else _nearest(node_TF.float(), value_TC)


def _nearest(node_TF: Tensor, value_TC: Tensor) -> Tensor | None:
    cosine_FC = (node_TF / node_TF.norm(dim=0).clamp_min(_LEAST)).T @ (
        value_TC / value_TC.norm(dim=0).clamp_min(_LEAST)
    )
    best_F = cosine_FC.max(dim=1).indices
    error_F = (value_TC[:, best_F] - node_TF).norm(dim=0) / node_TF.norm(dim=0).clamp_min(_LEAST)
    return best_F if bool((error_F < ALIKE).all()) else None


def read_order(places_F: Tensor, width: int, heads: Heads | None, style: Style | None) -> Iterator[dict[str, Any]]:
    """The declarations that put channels where they were found, of `width` channels; there may be none."""
    if heads is None:
        yield from _strided(places_F, width)
        yield from _parts(places_F, 1, width)
        return
    for rope in (None, *(_other(style) if heads.rotated > 1 else ())):
        order_K = torch.arange(heads.width) if rope is None else rope_order(rope, heads)
        first_H = places_F.view(heads.count, heads.width) - order_K
        if bool((first_H == first_H[:, :1]).all()):
            for found in _heads(first_H[:, 0], width, heads):
                yield {**found, **({"rope": rope} if rope else {})}


def _other(style: Style | None) -> tuple[Style, ...]:
    return () if style is None else ("interleaved",) if style == "half" else ("half",)


def _heads(first_H: Tensor, width: int, heads: Heads) -> Iterator[dict[str, Any]]:
    """The same for heads that each begin at `first_H` and lie in one piece."""
    yield from _parts(first_H, heads.width, width)
    ranks = first_H.argsort()
    sorted_H = first_H[ranks]
    if heads.count > 1 and bool((sorted_H.diff() == heads.width).all()):
        yield {**_cut(int(sorted_H[0]), heads.count * heads.width, width), "heads": ranks.tolist()}


def _parts(first: Tensor, size: int, width: int) -> Iterator[dict[str, Any]]:
    """Pieces of `size` channels that follow each other, in one part or in groups of a part each."""
    steps = first.diff()
    if bool((steps == size).all()):
        yield _cut(int(first[0]), len(first) * size, width)
        return
    breaks = (steps != size).nonzero().flatten() + 1
    each = int(breaks[0])
    if len(first) % each:
        return
    starts = first[::each]
    groups, step = len(starts), int(starts[1] - starts[0])
    inside = (first.view(groups, each) - starts[:, None] == torch.arange(each) * size).all()
    if bool(inside) and bool((starts.diff() == step).all()) and step * groups == width and 0 <= int(starts[0]) < step:
        yield {"groups": groups, **_cut(int(starts[0]), each * size, step)}


def _strided(places_F: Tensor, width: int) -> Iterator[dict[str, Any]]:
    step = int(places_F[1] - places_F[0]) if len(places_F) > 1 else 1
    if step > 1 and bool((places_F.diff() == step).all()):
        first, last = int(places_F[0]), int(places_F[-1])
        end = "" if last + step >= width else str(last + 1)
        yield {"slice": f"{first or ''}:{end}:{step}"}


def _cut(first: int, length: int, width: int) -> dict[str, Any]:
    return {} if first == 0 and length == width else {"slice": f"{first}:{first + length}"}
