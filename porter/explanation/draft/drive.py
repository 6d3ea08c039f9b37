"""Drives a spec's difference from HF to zero: at the first node that differs, one change of an axis, then two at once.

Changes are other values of the axes that act there, what known families have in their place (a value, a whole part such
as norm or rope, a pattern over layers), and numbers of the config whose key sounds like the axis.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any, get_args

from porter.errors import PorterError
from porter.explanation.draft.lists import tell_apart
from porter.explanation.draft.pool import Keys, Pool
from porter.explanation.draft.probe import Place, Probe
from porter.explanation.draft.sketch import Change, Sketch, as_map, evaluated, keys_read
from porter.specs.alternatives import alternatives
from porter.specs.blueprint import Blueprint
from porter.specs.expressions import is_expression
from porter.specs.located import read_value
from porter.specs.overrides import keys_of
from porter.specs.resolve import Resolved
from porter.specs.rules import WeightRule
from porter.specs.tree import Map

_CLOSEST = 5  # single changes that are tried with each other one
_MOST = 24  # changes in a row
_ENOUGH = 600  # specs that are run from one parent
_READ = 4000  # and that are read: most pairs are no spec, or one that was run
Move = tuple[Change, ...]


@dataclass
class Drive:
    """The search.

    Attributes:
        fixed: axes that tensors decide; they stay.
        stuck: where it could not go on; None: every unit is bit-equal.
    """

    sketch: Sketch
    pool: Pool
    probe: Probe
    fixed: frozenset[Keys]
    stuck: Place | None = None
    tried: int = 0
    read: int = 0

    def run(self) -> None:
        """Changes the sketch until nothing differs, or nothing helps."""
        for _ in range(_MOST):
            resolved = self.sketch.resolve()
            place = self.stuck = self.probe.first_difference(resolved.blueprint)
            if place is None:
                return
            move = self._best(resolved, place)
            if move is None:
                return
            self.sketch = self.sketch.with_change(*move)

    def further_than(self, other: "Drive") -> bool:
        """Whether more of HF's nodes agree."""
        mine, theirs = (each.stuck.position if each.stuck else 10**9 for each in (self, other))
        return mine > theirs

    def _best(self, resolved: Resolved, place: Place) -> Move | None:
        index = place.position // 100
        singles = [(change,) for change in self._singles(resolved, place)]
        together = [*self._splits(resolved), *self._attentions()] if place.node.startswith("attn.") else []
        scored = self._score([*singles, *together], index, resolved.blueprint)
        found = self._choose(scored, place)
        if found is None and place.unit.startswith("layers."):
            cases = self._of_some_layers([move[0] for move in singles], resolved, int(place.unit[7:]))
            found = self._choose(self._score(cases, index, resolved.blueprint), place)
        if found is None:
            near = [each for each in scored if each[1] is not None and each[1].position >= place.position]
            closest = sorted(near, key=lambda each: each[1].residual if each[1] else 0.0)
            few = [move for move, _ in closest[:_CLOSEST]]
            pairs = self._pairs(few, [*singles, *together])
            found = self._choose(self._score(pairs, index, resolved.blueprint), place)
        return found

    def _pairs(self, few: list[Move], all_: list[Move]) -> Iterator[Move]:
        for count, one in enumerate(few):
            for other in all_:
                if other not in few[: count + 1] and not any(_overlap(a.keys, b.keys) for a in one for b in other):
                    yield (*one, *other)

    def _splits(self, resolved: Resolved) -> Iterator[Move]:
        """Every order of a fused q, k and v, repeated as often as any rule may."""
        table = self.sketch.family().tree["weights"]["block"]
        rule = table.get("attn.qkv")
        if "attn.qkv" not in resolved.blueprint.weights.block or not isinstance(rule, Map):
            return
        groups = get_args(WeightRule.model_fields["groups"].annotation)
        for order, group in product(permutations("qkv"), groups):
            value = as_map({**rule, "order": list(order), "groups": group})
            yield (Change(("weights", "block", "attn.qkv"), value, "by the tensors; order and groups by HF's bits"),)

    def _attentions(self) -> Iterator[Move]:
        """What a family does about positions and scores, all of it together."""
        for family in self.pool.families:
            block = family.tree["block"]
            why = f"as in {family.name}; HF's bits agree with it"
            moves = [Change(("block", key), block.get(key), why) for key in ("rope", "alibi")]
            for key, value in block["attn"].items():
                if not self._is_fixed(("block", "attn", key)) and key != "qk_norm":
                    moves.append(Change(("block", "attn", key), value, why))
            yield tuple(moves)

    def _score(self, moves: Iterable[Move], index: int, base: Blueprint) -> list[tuple[Move, Place | None]]:
        """Each move that runs, with where the unit differs after it."""
        found: list[tuple[Move, Place | None]] = []
        seen = {base.hash}
        shapes = _shapes(base)
        for move in moves:
            if self.tried >= _ENOUGH or self.read >= _READ:
                break
            self.read += 1
            try:
                blueprint = self.sketch.with_change(*move).resolve().blueprint
            except PorterError:
                continue
            if blueprint.hash in seen or _shapes(blueprint) != shapes:
                continue
            seen.add(blueprint.hash)
            self.tried += 1
            found.append((move, self.probe.difference_in(index, blueprint)))
        return found

    def _choose(self, scored: list[tuple[Move, Place | None]], place: Place) -> Move | None:
        """The move that comes furthest over all units, of those that pass the node."""
        best: tuple[int, int, int] | None = None
        chosen: Move | None = None
        passing = [(move, at) for move, at in scored if at is None or at.position > place.position]
        passing.sort(key=lambda each: -(each[1].position if each[1] else 10**9))
        furthest = passing[0][1].position if passing and passing[0][1] else 10**9
        for count, (move, at) in enumerate(passing):
            if (at.position if at else 10**9) < furthest:
                break
            blueprint = self.sketch.with_change(*move).resolve().blueprint
            whole = self.probe.first_difference(blueprint)
            rank = (whole.position if whole else 10**9, self._reads(move), -count)
            if rank[0] > place.position and (best is None or rank > best):
                best, chosen = rank, move
        return chosen

    def _reads(self, move: Move) -> int:
        """How many of its values read a config key that is there: they say why."""
        names = self.sketch.names()
        config = self.sketch.config
        return sum(
            any(config.get(key.split(".")[0]) is not None for key in keys_read(change.value, names))
            for change in move
            if is_expression(change.value)
        )

    def _singles(self, resolved: Resolved, place: Place) -> Iterator[Change]:
        layer = int(place.unit.partition(".")[2]) if place.unit.startswith("layers.") else None
        section = "layer" if layer is not None else place.unit
        sections = {"layer": ("norm", "block"), "embed": ("embed", "norm"), "head": ("head", "norm", "final_norm")}[
            section
        ]
        names = self.sketch.names()
        known: set[tuple[Keys, str]] = set()
        for change in (
            *self._patterns(section),
            *self._of_families(sections, names),
            *(self._widths() if section == "layer" else ()),
            *self._others(resolved, layer, section),
        ):
            mark = (change.keys, repr(change.value))
            if mark not in known and not self._is_fixed(change.keys):
                known.add(mark)
                yield change

    def _is_fixed(self, keys: Keys) -> bool:
        plain = ("block", *keys[4:]) if keys[0] == "patterns" and len(keys) > 4 else keys
        return plain in self.fixed

    def _of_families(self, sections: tuple[str, ...], names: dict[str, Any]) -> Iterator[Change]:
        for keys, values in self.pool.values.items():
            if keys[0] in sections:
                for value in values:
                    if not is_expression(value) or evaluated(value, names) is not None:
                        yield Change(keys, value, "as in a known family; HF's bits agree with it")
        for keys, maps in self.pool.maps.items():
            if keys[0] in sections:
                yield from (Change(keys, value, "as in a known family; HF's bits agree with it") for value in maps)

    def _patterns(self, section: str) -> Iterator[Change]:
        if section != "layer":
            return
        for name, pattern in self.pool.patterns:
            for key, items in self.sketch.config.items():
                if isinstance(items, list) and f"cfg.{key}" in str(pattern.get("by")) and items:
                    by, cases = tell_apart(key, items, self.sketch.config)
                    if set(cases) <= set(pattern["cases"]):
                        own = {**pattern, "by": by}
                        yield Change(("patterns", name), own, f"cfg.{key} tells layers apart as in a known family")
            yield Change(("patterns", name), pattern, "the layers differ as in a known family; HF's bits agree")
        for name in self.sketch.family().tree.get("patterns") or {}:
            yield Change(("patterns", name), None, "HF's layers are alike")

    def _of_some_layers(self, singles: list[Change], resolved: Resolved, layer: int) -> Iterator[Move]:
        """The changes of `block`, for the layers alone that a list of the config takes to be of this layer's kind."""
        for name, lists in self._kinds(resolved).items():
            by, cases, start = lists
            case = cases[layer]
            for change in singles:
                if change.keys[0] == "block":
                    inner = Change(
                        ("patterns", name, "cases", case, *change.keys[1:]),
                        change.value,
                        f"of the layers that {by} calls {case}; HF's bits agree",
                    )
                    yield (*start, inner)

    def _kinds(self, resolved: Resolved) -> dict[str, tuple[str, list[str], Move]]:
        """Ways to tell layers apart: pattern -> (what says it, the case of each layer, the change that adds it)."""
        count = resolved.blueprint.dims.layers
        found: dict[str, tuple[str, list[str], Move]] = {}
        for name, cases in resolved.cases.items():
            found[name] = (f"patterns.{name}", list(cases), ())
        for key, value in self.sketch.config.items():
            if not isinstance(value, list) or len(value) != count or len(set(map(str, value))) < 2:
                continue
            by, taken = tell_apart(key, value, self.sketch.config)
            name = key if key != "layer_types" else "kind"
            if name in found or any(list(cases) == taken for _, cases, _ in found.values()):
                continue
            pattern = {"by": by, "cases": {each: {} for each in dict.fromkeys(taken)}}
            found[name] = (f"cfg.{key}", taken, (Change(("patterns", name), pattern, f"cfg.{key} tells layers apart"),))
        return found

    def _others(self, resolved: Resolved, layer: int | None, section: Any) -> Iterator[Change]:
        for each in alternatives(resolved, layer, section):
            if each.path.startswith("layers["):
                continue
            value = each.other if is_expression(each.other) else read_value(each.other, "draft")
            yield Change(tuple(keys_of(each.path)), self._named(value, each.path), "HF's bits agree with it alone")

    def _widths(self) -> Iterator[Change]:
        """Widths and factors that configs have under keys of their own."""
        for key, held in self.sketch.config.items():
            if type(held) is int and "rot" in key:
                yield Change(("block", "rope", "dim"), f"=cfg.{key}", "HF's bits agree with it")
            if type(held) in (int, float) and held and "scal" in key:
                for text in (f"=cfg.{key} ** -0.5", f"=cfg.{key}", f"=1 / cfg.{key}"):
                    yield Change(("block", "attn", "scale"), text, "HF's bits agree with it")

    def _named(self, value: Any, path: str) -> Any:
        """A number or word as the config key that holds it, where one key with a like name does."""
        if value is None or isinstance(value, bool | list):
            return value
        words = [word[:4] for word in path.rpartition(".")[2].split("_") if len(word) > 2]
        keys = [
            key
            for key, held in self.sketch.config.items()
            if type(held) is type(value) and held == value and any(word in key for word in words)
        ]
        if not keys and isinstance(value, float) and value not in (0.0, 1.0):
            keys = [key for key, held in self.sketch.config.items() if held == value and isinstance(held, float)]
        return f"=cfg.{keys[0]}" if len(keys) == 1 else value


def _overlap(one: Keys, other: Keys) -> bool:
    """Whether the second of two changes would undo the first: of the same axis, or of the map it is in."""
    return one[: len(other)] == other


def _shapes(blueprint: Blueprint) -> dict[str, tuple[int, ...]]:
    return {name: parameter.shape for name, parameter in blueprint.parameters().items()}
