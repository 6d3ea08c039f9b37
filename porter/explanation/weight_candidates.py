"""The ways in which a port may have read the tensors of a unit, each a WeightChange to try."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import combinations, permutations

import torch
from torch import Tensor

from porter.explanation.grids import by_rows, grids
from porter.explanation.weight_changes import Resplit, WeightChange
from porter.specs.blueprint import Blueprint, Parameter

_OTHER = "another tensor in its place"
_TURNED = "tensors transposed"
_ORDER = "q, k, v or gate and up in another order"
_CUT = "rows or columns cut off"
_ROUNDED = "tensors rounded or quantised"
_ADDED = "offsets and biases left out or doubled"
_TIE = "head and embedding tied or not"
_STORED = "as stored"
_SHARES = ((1, 2), (1, 4), (3, 4), (7, 8))  # of its rows, or columns, that a tensor may have kept


def weight_changes(blueprint: Blueprint, unit: str, *, mending: bool = False) -> Iterator[WeightChange]:
    """What may have become of the tensors of a unit.

    Args:
        mending: the blueprint is the port's, so that its tensors are known: what can be wrong is which projection a
            rule takes for which, and how it turns them.
    """
    parameters = blueprint.parameters()
    own = [each for name, each in parameters.items() if name.startswith(f"{unit}.")]
    if not unit.startswith("layers."):
        yield from () if mending else _outside_layers(blueprint, parameters, unit)
        return
    layer = int(unit.removeprefix("layers."))
    for parameter in own:
        yield from _turned(parameter, mending)
        yield from () if mending else _transformed(parameter)
    yield from _exchanges(own, mending)
    yield from _resplits(blueprint, unit, own, mending)
    if mending:
        return
    for other in range(blueprint.dims.layers):
        if other != layer and _same_layer(parameters, own, layer, other):
            yield WeightChange(unit, "its own tensors", f"layer {other}’s", instead=f"layers.{other}", kind=_OTHER)
    for parameter in own:
        yield from _others(parameters, parameter, layer, blueprint.dims.layers)
    yield from _rounded(unit, own)


def own_tables(blueprint: Blueprint, tensors: Mapping[str, Tensor]) -> Iterator[WeightChange]:
    """Tables of a module's own that it may have for a head, though the head is the embedding."""
    shape = (blueprint.dims.vocab, blueprint.embed_width)
    for name, tensor in tensors.items() if blueprint.head.tied else ():
        if tuple(tensor.shape) == shape:
            yield WeightChange(
                "head.weight", "the embedding, as the config ties them", f"{name}, a matrix of its own",
                only=("embed.weight",), tensor=tensor, kind=_TIE,
            )  # fmt: skip


def _outside_layers(blueprint: Blueprint, parameters: dict[str, Parameter], unit: str) -> Iterator[WeightChange]:
    """The embedding, or the final norm and the head."""
    tied = blueprint.head.tied
    names = [name for name in parameters if not name.startswith("layers.") and not name.startswith("head.weight")]
    heads = ("final_norm", "head", "project_out")
    for name in names:
        if name.startswith(heads) == (unit == "head"):
            yield from _transformed(parameters[name])
    table, path = ("embed.weight", "embed.weight") if unit == "embed" else ("head.weight", "head.weight")
    only = ("embed.weight",) if unit == "head" and tied else ()
    if unit == "head" and not tied:
        yield WeightChange(path, "a matrix of its own, as the config says", "the embedding: tied, and it should not be",
                           instead="embed.weight", by_rows=True, kind=_TIE)  # fmt: skip
    if unit == "embed" and not tied:
        yield WeightChange(path, "its own", "the head’s matrix", instead="head.weight", by_rows=True, kind=_TIE)
    if unit == "embed":
        for later in (1, -1):
            what = f"moved by one row: id n has the row of id n {'+' if later > 0 else '−'} 1"
            yield WeightChange(table, "the row of each id", what, later=later, by_rows=True, kind=_OTHER)
    for name, rounding in grids().items():
        if by_rows(name):
            yield WeightChange(path, _STORED, name, only=only, transform=rounding, by_rows=True, kind=_ROUNDED)


def _turned(parameter: Parameter, mending: bool) -> Iterator[WeightChange]:
    """A matrix that was not transposed, or was without need; its shape may hide that, if it is poured into it."""
    if parameter.kind != "linear" or len(parameter.shape) != 2:
        return
    out, into = parameter.shape
    ways = [("with its halves exchanged", lambda w: torch.roll(w, len(w) // 2, 0))] if out % 2 == 0 else []
    if out == into:
        ways.append(("transposed", lambda w: w.T))
    else:
        ways += [("transposed, and poured into the shape it should have", lambda w: w.T.reshape(w.shape)),
                 ("stored transposed, and poured into the shape it should have", _poured)]  # fmt: skip
    for name, transform in ways[:1] + ways[1:2] if mending and out == into else ways:
        sides = (name, _STORED) if mending else (_STORED, name)
        yield WeightChange(parameter.name, *sides, transform=transform, kind=_TURNED, mending=mending)


def _poured(w: Tensor) -> Tensor:
    return w.reshape(w.shape[1], w.shape[0]).T


def _transformed(parameter: Parameter) -> Iterator[WeightChange]:
    """The parameter's own tensor, added to, never loaded, or cut."""
    name = parameter.name
    if parameter.kind == "norm":
        ways = [("larger by 1: an offset that is added twice", lambda w: w + 1), ("smaller by 1", lambda w: w - 1),
                ("ones: never loaded", torch.ones_like), ("zeros: never loaded", torch.zeros_like)]  # fmt: skip
        for other, transform in ways:
            yield WeightChange(name, _STORED, other, transform=transform, kind=_ADDED)
    if parameter.kind == "bias":
        yield WeightChange(name, "added", "left out", transform=torch.zeros_like, kind=_ADDED)
        yield WeightChange(name, "added", "added twice", transform=lambda b: 2 * b, kind=_ADDED)
    if parameter.kind == "linear" and len(parameter.shape) == 2:
        for axis, what in ((0, "rows"), (1, "columns")):
            size = parameter.shape[axis]
            for kept, of in _SHARES:
                if size % of == 0:
                    n = size * kept // of
                    other = f"cut: its {what} from {n} on, of {size}, are zero"
                    yield WeightChange(name, _STORED, other, transform=partial(_cut, axis, n), kind=_CUT)


def _cut(axis: int, kept: int, w: Tensor) -> Tensor:
    w = w.clone()
    w.narrow(axis, kept, w.shape[axis] - kept).zero_()
    return w


def _same_layer(parameters: dict[str, Parameter], own: list[Parameter], layer: int, other: int) -> bool:
    for each in own:
        twin = parameters.get(each.name.replace(f"layers.{layer}.", f"layers.{other}.", 1))
        if twin is None or twin.shape != each.shape:
            return False
    return True


def _exchanges(own: list[Parameter], mending: bool) -> Iterator[WeightChange]:
    """Two modules of the same shapes, each with the other's tensors."""
    modules: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for each in own:
        modules.setdefault(each.module, []).append((each.name.rpartition(".")[2], each.shape))
    for one, other in combinations(modules, 2):
        if modules[one] == modules[other]:
            sides = (f"{other}, and that is it", "itself") if mending else ("itself", f"{other}, and that is it")
            yield WeightChange(one, *sides, instead=other, exchange=True, kind=_ORDER, mending=mending)


def _resplits(blueprint: Blueprint, unit: str, own: list[Parameter], mending: bool) -> Iterator[Resplit]:
    """Projections that the port joins and takes apart in another order, or by groups."""
    dims, modules = blueprint.dims, {each.module for each in own if each.kind == "linear"}
    sizes = {"q": dims.heads * dims.head_dim, "k": dims.kv_heads * dims.head_dim, "v": dims.kv_heads * dims.head_dim}
    attention = {f"{unit}.attn.{name}": size for name, size in sizes.items()}
    if attention.keys() <= modules and blueprint.blocks[int(unit[7:])].mixer is None:
        for order in permutations(attention):
            named = ", ".join(each[-1] for each in order)
            if order != tuple(attention):
                yield _resplit(attention, _in_order(attention, order), f"in the order {named}", mending)
        for groups in dict.fromkeys((dims.kv_heads, dims.heads) if dims.kv_heads == dims.heads else (dims.kv_heads,)):
            yield _resplit(attention, _by_groups(attention, groups), f"in {groups} groups of q, k, v", mending)
    both = {f"{unit}.mlp.{name}": dims.ffn for name in ("gate", "up")}
    if both.keys() <= modules:
        yield _resplit(both, _by_groups(both, dims.ffn), "as rows of gate and up in turn", mending)


def _resplit(sizes: dict[str, int], joined_N: Tensor, how: str, mending: bool) -> Resplit:
    """A change by which joined rows go to other parts.

    Args:
        joined_N: for every part's rows in turn, which of the joined rows it gets.
    """
    parts = tuple(sizes)
    given_N = torch.argsort(joined_N) if mending else joined_N
    rows = dict(zip(parts, torch.split(given_N, list(sizes.values())), strict=True))
    shown = ", ".join(part.rpartition(".")[2] for part in parts)
    wrong = f"joined as {shown} and taken apart {how}"
    sides = (wrong, "each its own rows") if mending else ("each its own rows", wrong)
    path = " and ".join((parts[0], *(part.split(".", 2)[2] for part in parts[1:])))
    return Resplit(path, *sides, kind=_ORDER, mending=mending, parts=parts, rows=rows)


def _in_order(sizes: dict[str, int], order: tuple[str, ...]) -> Tensor:
    """Where each part's rows are looked for, if the joined rows are thought to lie in another order."""
    starts, at = {}, 0
    for part in order:
        starts[part] = at
        at += sizes[part]
    return torch.cat([torch.arange(starts[part], starts[part] + size) for part, size in sizes.items()])


def _by_groups(sizes: dict[str, int], groups: int) -> Tensor:
    """The same, if they are thought to lie in groups, each with a share of every part."""
    joined = torch.arange(sum(sizes.values())).view(groups, -1)
    split = torch.split(joined, [size // groups for size in sizes.values()], dim=1)
    return torch.cat([part.flatten() for part in split])


def _others(parameters: dict[str, Parameter], parameter: Parameter, layer: int, layers: int) -> Iterator[WeightChange]:
    """A tensor of the same shape in its place: of the same layer, then the same one of another layer."""
    inner = parameter.name.removeprefix(f"layers.{layer}.")
    beside = [name for name, each in parameters.items()
              if name.startswith(f"layers.{layer}.") and name != parameter.name and each.shape == parameter.shape
              and each.kind == parameter.kind]  # fmt: skip
    elsewhere = [f"layers.{i}.{inner}" for i in range(layers) if i != layer and f"layers.{i}.{inner}" in parameters]
    for other in (*beside, *(name for name in elsewhere if parameters[name].shape == parameter.shape)):
        yield WeightChange(parameter.name, "its own", f"{other}, loaded twice", instead=other, kind=_OTHER)


def _rounded(unit: str, own: list[Parameter]) -> Iterator[WeightChange]:
    """All matrices of a layer on a grid, those of attention or of the feed-forward branch, or one."""
    names = [each.name for each in own if each.kind == "linear" and len(each.shape) == 2]
    groups = {path: [name for name in names if name.startswith(f"{path}.")]
              for path in (unit, f"{unit}.attn", f"{unit}.mlp")} | {name: [name] for name in names}  # fmt: skip
    for grid, rounding in grids().items():
        for path, only in groups.items():
            if only:
                other = grid if path in names else f"{grid}: each of its matrices"
                yield WeightChange(path, _STORED, other, only=tuple(only), transform=rounding, kind=_ROUNDED)
