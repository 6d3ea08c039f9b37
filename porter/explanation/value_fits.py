"""Changes of code that are read off the values of a node: a constant factor, a sum of other parts, another order."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from porter.explanation.code_changes import At, CodeChange, Edit, Node, Sum, permuted, scaled, weighted_sum
from porter.explanation.numbers import fit_number
from porter.explanation.orders import inverse, name_order
from porter.explanation.transforms import Place, places, used, where_used
from porter.references.user_module.channels import find_channels
from porter.specs.blueprint import Blueprint

_EXPLAINS = 0.2  # of the difference that may be left, or the factor is not the cause
_AS_GOOD = 1.01  # of what the best number leaves, a rounder one may leave
_FITS, _FITS_ROUNDED = 1e-3, 3e-2  # of a sum that may be left, in float32 and below
_LEAST = 1e-30
CONSTANT, SUM = "times a constant", "a residual left out or scaled"  # what is excluded where it does not help
_DIGITS = (1, 2, 3, 4, 6, 8)
Nodes = Mapping[str, Tensor]


class ValueFits:
    """The changes that the values of one node call for.

    Args:
        unit, node: layers.3, and its node that fails first.
        source, target: the unit's nodes as the spec has them, and as they should be.
        given_BTD: what the unit is given; None: the embedding.
        mending: the spec is the port's.
    """

    def __init__(
        self, blueprint: Blueprint, unit: str, node: str, *, source: Nodes, target: Nodes, given_BTD: Tensor | None,
        mending: bool,
    ) -> None:  # fmt: skip
        self.blueprint, self.unit, self.node, self.mending = blueprint, unit, node, mending
        self.source, self.target, self.given_BTD = source, target, given_BTD
        layer = int(unit.removeprefix("layers.")) if unit.startswith("layers.") else None
        self.block = None if layer is None else blueprint.blocks[layer]
        self.places = {} if layer is None else places(blueprint, layer)
        self.uses = {} if layer is None else where_used(blueprint, layer)

    def factors(self) -> Iterator[CodeChange]:
        """The node times a constant, the roundest that fits first."""
        source, target = self.source[self.node].double(), self.target[self.node].double()
        factor = float((source * target).sum() / source.square().sum().clamp_min(_LEAST))
        left, before = float((target - factor * source).norm()), float((target - source).norm())
        if not math.isfinite(left) or not left < _EXPLAINS * before or self.node == "resid_mid":
            return
        for number in _rounder(factor):
            if float((target - number * source).norm()) > _AS_GOOD * left:
                continue
            edit = self._edit(partial(scaled, number))
            if edit is not None:
                told = 1 / number if self.mending and number else number
                wrong = f"{told:.6g} times as large"
                yield self._change(self.node, "as it was computed", wrong, (edit,), CONSTANT)

    def sums(self) -> Iterator[CodeChange]:
        """What a layer gives as another sum of the stream and its branches: a residual left out, scaled, doubled."""
        if self.block is None or self.given_BTD is None or self.block.attn.after_norm or self.block.mlp.after_norm:
            return
        parts = self._parts()
        if self.node not in ("resid_mid", "resid_post") or len(parts) < 2:
            return
        columns_NP = torch.stack([part.double().flatten() for part in parts.values()], dim=1)
        target_N = self.target[self.node].double().flatten()
        found_P = torch.linalg.lstsq(columns_NP, target_N[:, None]).solution[:, 0]
        left = float((columns_NP @ found_P - target_N).norm() / target_N.norm().clamp_min(_LEAST))
        if not left < (_FITS if self.source[self.node].dtype == torch.float32 else _FITS_ROUNDED):
            return
        plain = (1.0,) * len(parts)
        best = float((columns_NP @ found_P - target_N).norm())
        for factors in dict.fromkeys(_rounded_sums(found_P.tolist())):
            left = float((columns_NP @ torch.tensor(factors).to(columns_NP) - target_N).norm())
            if left > _AS_GOOD * best:
                continue
            if factors != plain or self.mending:  # a spec's own sum is known to be another
                right, wrong = _sum_text(parts, plain), _sum_text(parts, factors)
                sides = (wrong, "another sum") if self.mending else (right, wrong)
                edits = (self._sum(tuple(parts), factors),)
                yield self._change(self.node, *sides, edits, SUM)

    def hidden_factors(self, run: Callable[[CodeChange], Nodes]) -> Iterator[CodeChange]:
        """A constant on a value that is not seen, and that the node does not simply grow with.

        Args:
            run: the unit's nodes with a change.
        """
        target = self.target[self.node].double()
        for node, modules in self.uses.items():

            def change(number: float, node: str = node, modules: tuple[str, ...] = modules) -> CodeChange:
                told = 1 / number if self.mending else number
                edits = used(modules, partial(scaled, number))
                wrong = f"{told:.6g} times as large"
                return self._change(f"{node}, as it is used,", "as it was computed", wrong, edits, CONSTANT)

            def error(number: float, change: Callable[[float], CodeChange] = change) -> Tensor | None:
                found = run(change(number)).get(self.node)
                return None if found is None else (found.double() - target).flatten()

            number = fit_number(1.0, error)
            yield from (change(each) for each in _rounder(number)) if number is not None else ()

    def orders(self) -> Iterator[CodeChange]:
        """Channels that are all there, in other places: of the node, or of one before it that it is made of."""
        for place in self.places.values():
            node = place.node
            if node not in self.target or node not in self.source or place.rows is not None:
                continue
            source_TF, target_TF = (each[node][0].flatten(1) for each in (self.source, self.target))
            order = find_channels(target_TF, source_TF) if source_TF.shape == target_TF.shape else None
            if order is None or torch.equal(order, torch.arange(len(order))) or len(set(order.tolist())) < len(order):
                continue
            edits = (place.edit(partial(permuted, order)),)
            name = name_order(inverse(order) if self.mending else order, place.heads)
            yield self._change(node, "in the reference’s order", name, edits, "channels in another order")

    def _edit(self, act: partial[Tensor]) -> Edit | None:
        place: Place | None = self.places.get(self.node)
        if place is not None:
            return place.edit(act)
        if self.node == "final.norm":
            return At("final_norm", "out", act)
        if self.node in ("embed.out", "logits", "resid_post"):
            return Node(self.node, lambda nodes, given: act(nodes[self.node]))
        return None

    def _parts(self) -> dict[str, Tensor]:
        """What the failing sum may be made of, by what it is called."""
        assert self.block is not None and self.given_BTD is not None
        scale = self.block.residual_scale
        branch = {"attention": ("attn.post_norm", "attn.out"), "feed-forward": ("mlp.post_norm", "mlp.out", "moe.out")}
        parts = {"the layer’s input": self.given_BTD.to(self.source[self.node])}
        for name, nodes in branch.items():
            found = next((self.source[node] for node in nodes if node in self.source), None)
            if found is not None and (name == "attention" or self.node == "resid_post"):
                parts[name] = found * scale
        return parts

    def _sum(self, names: tuple[str, ...], factors: tuple[float, ...]) -> Edit:
        if self.node == "resid_mid":
            return Sum("attn_add", *factors)

        def add(nodes: dict[str, Tensor], given_BTD: Tensor | None) -> Tensor:
            fresh = ValueFits(self.blueprint, self.unit, self.node, source=nodes, target={}, given_BTD=given_BTD,
                              mending=self.mending)._parts()  # fmt: skip
            return weighted_sum([fresh[name] for name in names], factors)

        return Node("resid_post", add)

    def _change(self, node: str, right: str, wrong: str, edits: tuple[Edit, ...], kind: str) -> CodeChange:
        path = f"{self.unit}.{node}" if self.block is not None else node
        sides = (wrong, right) if self.mending else (right, wrong)
        return CodeChange(path, *sides, edits, kind, self.mending)


def _rounder(number: float) -> Iterator[float]:
    yield from dict.fromkeys(float(f"{number:.{digits}g}") for digits in _DIGITS)
    yield number


def _rounded_sums(found: list[float]) -> Iterator[tuple[float, ...]]:
    for digits in (0, 1, 2, 3, 5, 7):
        yield tuple(round(each, digits) + 0.0 for each in found)


def _sum_text(parts: Mapping[str, Tensor], factors: tuple[float, ...]) -> str:
    """The sum that is computed, and what it lacks."""
    terms = [name if factor == 1.0 else f"{factor:.6g} × {name}"
             for name, factor in zip(parts, factors, strict=True) if factor]  # fmt: skip
    lacks = [name for name, factor in zip(parts, factors, strict=True) if not factor]
    return (" + ".join(terms) or "zero") + (f": {' and '.join(lacks)} left out" if lacks else "")
