"""The spec against the names and shapes of its checkpoint: which change of it gives every tensor its place.

Comes before anything is run: a spec with a parameter too many, or with another width, has no numbers to compare.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from pathlib import Path

from porter.errors import SpecError, WeightError
from porter.explanation.candidates import CLOSEST
from porter.explanation.search import Search
from porter.explanation.steps import Change, Step, Tried
from porter.explanation.trial import Judged
from porter.specs.alternatives import Alternative, alternatives, other_dims
from porter.specs.axes import first_of_each_kind
from porter.specs.blueprint import Blueprint
from porter.specs.ledger import misfits
from porter.weights.reader import open_weights
from porter.weights.safetensors_files import open_checkpoint

Shapes = Mapping[str, tuple[int, ...]]


def explain_misfits(search: Search, folder: Path) -> None:
    """Adds a step to the search, if the checkpoint does not fill the parameters of its spec."""
    shapes = {name: info.shape for name, info in open_checkpoint(folder).tensors.items()}
    wrong = _misfits(search.resolved.blueprint, shapes, folder)
    if wrong:
        search.take(_Misfit(search, shapes, folder, wrong).explain())


def _misfits(blueprint: Blueprint, shapes: Shapes, folder: Path) -> tuple[str, ...]:
    """What does not fit; a stored head that is tied and has other values is one too."""
    try:
        found = misfits(blueprint, shapes)
        if not found:
            open_weights(blueprint, folder)
    except WeightError as error:
        return (error.wrong,)
    except SpecError as error:  # a parameter that no rule places
        return (error.wrong, *shapes)
    return found


class _Misfit:
    """Tensors and parameters that do not fit, and the changes that are tried."""

    def __init__(self, search: Search, shapes: Shapes, folder: Path, wrong: tuple[str, ...]) -> None:
        self.search, self.shapes, self.folder, self.wrong = search, shapes, folder, wrong
        self.seen = {search.resolved.blueprint.hash}
        self.axes: dict[str, None] = {}
        self.tried = 0
        self.failed: list[Tried] = []
        self.equals: list[Change] = []

    def explain(self) -> Step:
        """What makes all fit: one change, else two."""
        self._try_each((single,) for single in self._singles())
        if not self.equals:
            self._try_each(self._pairs())
        count = len(self.wrong)
        return Step(
            unit="weights", by="preflight", before=_judged(self.wrong[0], count),
            after=_judged(self.wrong[0], 0) if self.equals else None, equals=tuple(self.equals), failing=count,
            left=0 if self.equals else count, axes=tuple(self.axes), tried=self.tried,
            closest=min(self.failed, key=lambda each: each.residual, default=None),
        )  # fmt: skip

    def _singles(self) -> Iterator[Alternative]:
        resolved = self.search.resolved
        yield from alternatives(resolved, None, "embed")
        for layer in first_of_each_kind(resolved.blueprint):
            yield from alternatives(resolved, layer, "layer")
        yield from alternatives(resolved, None, "head")
        yield from other_dims(resolved, {size for shape in self.shapes.values() for size in shape})
        yield from _other_sources(resolved.blueprint, self.wrong)

    def _pairs(self) -> Iterator[Change]:
        """Each change that leaves less unfit, of the few that leave least, with one of another axis."""
        helped = sorted(
            (each for each in self.failed if each.residual < len(self.wrong)), key=lambda each: each.residual
        )
        singles = [each.change[0] for each in self.failed]
        for one in (each.change[0] for each in helped[:CLOSEST]):
            yield from ((one, other) for other in singles if one.path != other.path)

    def _try_each(self, changes: Iterable[Change]) -> None:
        for change in list(changes):
            overrides = [*self.search.kept, *(each.override for each in change)]
            try:
                blueprint = self.search.build.changed(overrides).blueprint
            except SpecError:
                continue
            if blueprint.hash in self.seen:
                continue
            self.seen.add(blueprint.hash)
            self.tried += 1
            self.axes |= dict.fromkeys(each.path for each in change)
            left = _misfits(blueprint, self.shapes, self.folder)
            if left:
                self.failed.append(Tried(change, len(left)))
            else:
                self.equals.append(change)


def _other_sources(blueprint: Blueprint, wrong: Iterable[str]) -> Iterator[Alternative]:
    """For rules that read one tensor twice, each that none reads; the one that is called most like the rule first."""
    weights = blueprint.weights
    prefix = weights.layer.replace("{i}", "0") + "."
    free = [name.removeprefix(prefix).rpartition(".")[0] for name in wrong if name.startswith(prefix)]
    used = Counter(rule.src for rule in weights.block.values())
    twice = {name: rule.src[0] for name, rule in weights.block.items() if used[rule.src] > 1}
    pairs = [(name, module) for name in twice for module in dict.fromkeys(free)]
    for name, module in sorted(pairs, key=lambda pair: -SequenceMatcher(None, *pair).ratio()):
        yield Alternative(f"weights.block.{name}.src", twice[name], module)


def _judged(name: str, count: int) -> Judged:
    return Judged(name, fails=count > 0, exact=count == 0, rho=None, residual=float(count))
