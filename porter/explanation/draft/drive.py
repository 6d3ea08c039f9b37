"""Drives a spec's difference from HF to zero: at the first node that differs, one change of an axis, then two at once.

Changes are other values of the axes that act there, what known families have in their place (a value, a whole part such
as norm or rope, a pattern over layers), and numbers of the config whose key sounds like the axis. Where none brings the
node to HF's bits, one that comes much closer is taken for now: a rotation first, then what it is rounded to.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from porter.errors import PorterError
from porter.explanation.draft.combos import Move, embeds, gates, mixers, norms, rotations, routers, splits
from porter.explanation.draft.kinds import of_some_layers, patterns
from porter.explanation.draft.pool import Keys, Pool
from porter.explanation.draft.probe import Place, Probe
from porter.explanation.draft.sketch import Change, Sketch, as_map, evaluated, keys_read, numbers_of, put
from porter.specs.alternatives import alternatives
from porter.specs.blueprint import Blueprint
from porter.specs.expressions import is_expression
from porter.specs.located import read_value
from porter.specs.overrides import keys_of
from porter.specs.resolve import Resolved
from porter.specs.tree import Map

_CLOSEST = 5  # single changes that are tried with each other one
_MOST = 24  # changes in a row
_ENOUGH = 900  # specs that are run from one parent
_READ = 4000  # and that are read: most pairs are no spec, or one that was run
_CLOSER = 30  # times nearer: worth a step, though the bits are not HF's yet
_OF_EXPERTS = ("moe.", "mlp.", "resid_post")


@dataclass
class Drive:
    """The search.

    Attributes:
        fixed: axes that tensors decide, with their values; they stay.
        stuck: where it could not go on; None: every unit is bit-equal.
    """

    sketch: Sketch
    pool: Pool
    probe: Probe
    fixed: Mapping[Keys, Any]
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
        mine, theirs = (
            (each.stuck.position, -each.stuck.residual) if each.stuck else (10**9, 0.0) for each in (self, other)
        )
        return mine > theirs

    def _best(self, resolved: Resolved, place: Place) -> Move | None:
        index = place.position // 100
        singles = [(change,) for change in self._singles(resolved, place)]
        together = [*self._together(resolved, place)]
        scored = self._score([*singles, *together], index, resolved.blueprint)
        found = self._choose(scored, place)
        if found is None and place.unit.startswith("layers."):
            cases = of_some_layers(self.sketch, [move[0] for move in singles], resolved, int(place.unit[7:]))
            found = self._choose(self._score(cases, index, resolved.blueprint), place)
        if found is None:
            found = self._closer(scored, place)
        if found is None:
            near = [each for each in scored if each[1] is not None and each[1].position >= place.position]
            closest = sorted(near, key=lambda each: each[1].residual if each[1] else 0.0)
            few = [move for move, _ in closest[:_CLOSEST]]
            scored = self._score(self._pairs(few, [*singles, *together]), index, resolved.blueprint)
            found = self._choose(scored, place) or self._closer(scored, place)
        return found

    def _closer(self, scored: list[tuple[Move, Place | None]], place: Place) -> Move | None:
        """The move that leaves the least of the difference where it stands, if that is much less than now."""
        there = [(at.residual, count) for count, (_, at) in enumerate(scored) if at and at.position == place.position]
        best = min(there, default=None)
        return scored[best[1]][0] if best is not None and best[0] * _CLOSER < place.residual else None

    def _pairs(self, few: list[Move], all_: list[Move]) -> Iterator[Move]:
        for count, one in enumerate(few):
            for other in all_:
                if other not in few[: count + 1] and not any(_overlap(a.keys, b.keys) for a in one for b in other):
                    yield (*one, *other)

    def _together(self, resolved: Resolved, place: Place) -> Iterator[Move]:
        """Changes of several axes that one part of a model is made of, at the node where it shows."""
        if place.node.startswith("attn."):
            rule = self.sketch.family().tree["weights"]["block"].get("attn.qkv")
            if isinstance(rule, Map) and "attn.qkv" in resolved.blueprint.weights.block:
                yield from splits(rule)
            if place.node not in ("attn.norm", "attn.q", "attn.k", "attn.v"):
                yield from rotations(self.sketch, self.pool)
                yield from self._attentions()
        if "norm" in place.node or place.unit in ("embed", "head"):
            yield from norms(self.sketch, self.fixed)
        if place.unit == "embed":
            yield from embeds(self.sketch, self.fixed)
        layer = int(place.unit[7:]) if place.unit.startswith("layers.") else None
        if layer is not None and resolved.blueprint.blocks[layer].moe and place.node.startswith(_OF_EXPERTS):
            yield from routers(self.sketch)
            yield from gates(self.sketch)

    def _attentions(self) -> Iterator[Move]:
        """What a family does about positions and scores, all of it together."""
        for family in self.pool.families:
            block = family.tree["block"]
            why = f"as in {family.name}; HF's bits agree with it"
            moves = [Change(("block", key), block.get(key), why) for key in ("rope", "alibi")]
            for key, value in block["attn"].items():
                if not self._is_fixed(("block", "attn", key)) and key not in ("qk_norm", "sinks"):
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
        names = {**self.sketch.names(), "i": layer or 0}
        known: set[tuple[Keys, str]] = set()
        for change in (
            *(patterns(self.sketch, self.pool) if section == "layer" else ()),
            *self._of_families(sections, names),
            *(self._widths() if section == "layer" else ()),
            *(mixers(resolved.blueprint.blocks[layer]) if layer is not None else ()),
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
                for value in maps:
                    yield Change(keys, self._held(keys, value), "as in a known family; HF's bits agree with it")

    def _held(self, keys: Keys, value: Map | None) -> Map | None:
        """A whole part as a family has it, with what the tensors decide in it as it is."""
        if not isinstance(value, Map):
            return value
        held: Map = as_map(value)
        for fixed in self.fixed:
            if fixed[: len(keys)] == keys and len(fixed) > len(keys):
                now: Any = self.sketch.family().tree
                for key in fixed:
                    now = now.get(key) if isinstance(now, Map) else None
                if now is not None:
                    put(held, fixed[len(keys) :], now)
        return held

    def _others(self, resolved: Resolved, layer: int | None, section: Any) -> Iterator[Change]:
        for each in alternatives(resolved, layer, section):
            if each.path.startswith("layers["):
                continue
            value = each.other if is_expression(each.other) else read_value(each.other, "draft")
            yield Change(tuple(keys_of(each.path)), self._named(value, each.path), "HF's bits agree with it alone")

    def _widths(self) -> Iterator[Change]:
        """Widths and factors that configs have under keys of their own."""
        for key, held in numbers_of(self.sketch.config):
            if type(held) is int and "rot" in key:
                yield Change(("block", "rope", "dim"), f"=cfg.{key}", "HF's bits agree with it")
            if any(word in key for word in ("top_k", "topk", "per_tok", "moe_k")) and type(held) in (int, list):
                each = f"=each(cfg.{key}, layers)[i]" if isinstance(held, list) else f"=cfg.{key}"
                yield Change(("block", "moe", "top_k"), each, "HF's bits agree with it")
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
            for key, held in numbers_of(self.sketch.config)
            if type(held) is type(value) and held == value and any(word in key for word in words)
        ]
        if not keys and isinstance(value, float) and value not in (0.0, 1.0):
            keys = [key for key, held in numbers_of(self.sketch.config) if held == value and isinstance(held, float)]
        return f"=cfg.{keys[0]}" if len(keys) == 1 else value


def _overlap(one: Keys, other: Keys) -> bool:
    """Whether the second of two changes would undo the first: of the same axis, or of the map it is in."""
    return one[: len(other)] == other


def _shapes(blueprint: Blueprint) -> dict[str, tuple[int, ...]]:
    return {name: parameter.shape for name, parameter in blueprint.parameters().items()}
