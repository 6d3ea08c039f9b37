"""How often explain is right: on every mistake of the zoo, on pairs of them, and on ports with nothing wrong.

A fault is the leaves of the blueprint in which the port differs from the right spec. Its axis is named when a change
that explain keeps alters one of them, and its value is right when they are the right spec's afterwards; so a window
that is set for every layer or through a pattern's case counts alike.
"""

import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from porter.comparison.capture import capture
from porter.errors import PorterError
from porter.explanation.as_module import make_module, node_map
from porter.explanation.explain import Explanation, explain
from porter.explanation.steps import overrides_of
from porter.explanation.zoo import choose_rows, plan_port
from porter.explanation.zoo_file import Mistake, Zoo
from porter.models.build import Build, plan_build
from porter.specs import builtin_spec_names
from porter.specs.blueprint import Blueprint

NEEDED = {"axis": 0.95, "value": 0.90, "pairs": 0.85}
PAIRS, SEED = 50, 0
TOKENS = 140  # past the windows of 128, for clean ports
# Relative: how close a fitted number can be known, from golden, from float32 and from bfloat16.
_CLOSE = {"specs": 1e-6, "modules": 1e-5, "dumps": 2.0**-8}
Given = Literal["specs", "dumps", "modules"]  # what explain sees of a port
Leaves = Mapping[str, Any]


@dataclass(frozen=True)
class Scored:
    """One port and what explain said of it.

    Attributes:
        name: the row; 8 + 38 for two; clean for none.
        faults: axis=value, of each fault.
        named: for each fault, whether a change acts on it; for a single one, whether the first change does.
        valued: for each fault, whether the mended spec has its right values.
        outcome: of explain, or what it raised.
        told: what it named.
    """

    name: str
    family: str
    faults: tuple[tuple[str, ...], ...]
    named: tuple[bool, ...]
    valued: tuple[bool, ...]
    outcome: str
    told: tuple[str, ...]
    seconds: float

    @property
    def right(self) -> bool:
        """All faults named; of a clean port, none."""
        return all(self.named) if self.faults else not self.told and self.outcome == "nothing"


@dataclass(frozen=True)
class Scorecard:
    """All that was scored, counted."""

    scored: Sequence[Scored]

    def of(self, faults: int) -> list[Scored]:
        """Ports with that many faults."""
        return [each for each in self.scored if len(each.faults) == faults]

    @property
    def axis(self) -> tuple[int, int]:
        """Single faults whose axis is named first, of all."""
        return sum(all(each.named) for each in self.of(1)), len(self.of(1))

    @property
    def value(self) -> tuple[int, int]:
        """Single faults whose axis is named first, with its right value."""
        return sum(all(each.named) and all(each.valued) for each in self.of(1)), len(self.of(1))

    @property
    def pairs(self) -> tuple[int, int]:
        """Pairs of which both axes are named."""
        return sum(all(each.named) for each in self.of(2)), len(self.of(2))

    @property
    def accused(self) -> list[Scored]:
        """Clean ports of which explain says anything."""
        return [each for each in self.of(0) if not each.right]

    @property
    def passed(self) -> bool:
        shares = {"axis": self.axis, "value": self.value, "pairs": self.pairs}
        enough = all(found >= NEEDED[name] * count for name, (found, count) in shares.items())
        return enough and not self.accused


def score_explain(
    zoo: Zoo, names: Iterable[str] = (), *, pairs: int = PAIRS, clean: Sequence[str] | None = None,
    given: Given = "specs", progress: Callable[[str], None] = lambda name: None,
) -> Iterator[Scored]:  # fmt: skip
    """Each mistake of the zoo, then pairs of them, then a clean port of every family, as they come.

    Args:
        names: rows; none: all.
        pairs: how many pairs, drawn from rows of one family.
        clean: families; None: every one that porter has.
        given: what explain sees of a port: its spec; or a dump of what it computed, or a torch module, where rows that
            preflight refuses, which compute nothing, are left out.
        progress: called after each.
    """
    rows = chosen_mistakes(zoo, names, given)
    for name, row in rows.items():
        yield _score(name, plan_port(row, zoo.tokens), [row], given)
        progress(name)
    for one, other in draw_pairs(rows, pairs, zoo.tokens):
        both = _port_of_both(rows[one], rows[other], zoo.tokens)
        yield _score(f"{one} + {other}", both, [rows[one], rows[other]], given)
        progress(f"{one} + {other}")
    for family in builtin_spec_names() if clean is None else clean:
        port = plan_build(
            family, size="tiny", weights="random:stress", overrides=(), dtype="bfloat16", ops="reference",
            device="cpu", prompt=None, tokens=TOKENS,
        )  # fmt: skip
        yield _score("clean", port, [], given)
        progress(family)


def chosen_mistakes(zoo: Zoo, names: Iterable[str], given: Given) -> dict[str, Mistake]:
    """The rows that are scored."""
    found = {name: row for name in choose_rows(zoo, names) if isinstance(row := zoo.rows[name], Mistake)}
    return {name: row for name, row in found.items() if given == "specs" or row.stage != "preflight"}


def draw_pairs(rows: Mapping[str, Mistake], count: int, tokens: int = TOKENS) -> list[tuple[str, str]]:
    """Pairs of rows of one family that change different axes and make a port together; seeded, none twice."""
    possible = [
        (one, other)
        for position, one in enumerate(rows) for other in list(rows)[position + 1 :]
        if rows[one].family == rows[other].family and rows[one].size == rows[other].size
        and not _axes(rows[one]) & _axes(rows[other]) and "preflight" not in (rows[one].stage, rows[other].stage)
    ]  # fmt: skip
    drawn = random.Random(SEED).sample(possible, min(count, len(possible)))
    spare = (pair for pair in random.Random(SEED).sample(possible, len(possible)) if pair not in drawn)
    made = [pair for pair in drawn if _is_port(rows, pair, tokens)]
    return [*made, *islice((pair for pair in spare if _is_port(rows, pair, tokens)), len(drawn) - len(made))]


def _is_port(rows: Mapping[str, Mistake], pair: tuple[str, str], tokens: int) -> bool:
    """Whether the two together are a spec: one may need what the other takes away."""
    try:
        return bool(_port_of_both(rows[pair[0]], rows[pair[1]], tokens).blueprint)
    except PorterError:
        return False


def _port_of_both(one: Mistake, other: Mistake, tokens: int) -> Build:
    port = plan_port(one, tokens)
    return replace(
        port, config={**port.config, **other.config}, overrides=(*one.set, *other.set),
        tokens=max(port.tokens or 0, other.tokens or 0),
    )  # fmt: skip


def _axes(row: Mistake) -> set[str]:
    """The last words of the axes a row sets: two rows that share one would undo each other."""
    return {change.partition("=")[0].rpartition(".")[2] for change in row.set}


def _score(name: str, port: Build, rows: Sequence[Mistake], given: Given) -> Scored:
    start, right = time.perf_counter(), replace(port, overrides=())
    base, goal = (port, right) if given == "specs" else (right, port)
    try:
        found = _explain_as(given, port, right)
    except PorterError as error:
        named = valued = (False,) * len(rows)
        outcome, told = error.wrong, tuple[str, ...]()
    else:
        judged = [_judge(port, row, found, (base, goal), _CLOSE[given], first_alone=len(rows) == 1) for row in rows]
        named, valued = tuple(axis for axis, _ in judged), tuple(value for _, value in judged)
        outcome, told = found.outcome, found.told
    faults = tuple(row.set for row in rows)
    return Scored(name, port.family.name, faults, named, valued, outcome, told, time.perf_counter() - start)


def _explain_as(given: Given, port: Build, right: Build) -> Explanation:
    """What explain says of a port; of what it computed, given the right spec alone."""
    if given == "modules":
        return explain(right, port=make_module(port), map=node_map())
    if given == "specs":
        return explain(port)
    with TemporaryDirectory() as folder:
        capture(port, out=Path(folder) / "dump")
        return explain(right, port=f"dump:{folder}/dump")


def _judge(
    port: Build, row: Mistake, found: Explanation, turn: tuple[Build, Build], close: float, *, first_alone: bool
) -> tuple[bool, bool]:
    """Whether the axis of a row is named, and whether the changes give it the value it should have.

    Args:
        turn: the spec that explain changed, and what it should become: of a spec the right one, of a dump the port's.
        close: how close a number must come, relative.
        first_alone: only the first change counts as naming.
    """
    base, goal = turn
    wrong, was, wanted = _leaves(port.blueprint), _leaves(base.blueprint), _leaves(goal.blueprint)
    without = _leaves(replace(port, overrides=tuple(o for o in port.overrides if o not in row.set)).blueprint)
    fault = {key for key in without.keys() | wrong.keys() if not _same(without.get(key), wrong.get(key))}
    steps = found.steps[: 1 if first_alone else None]
    first = [override for step in steps for change in step.equals[:1] for override in overrides_of(change)]
    named, mended = _leaves(base.changed(first).blueprint), _leaves(base.changed(found.kept).blueprint)
    is_named = any(not _same(named.get(key), was.get(key)) for key in fault)
    return is_named, all(_same(mended.get(key), wanted.get(key), close) for key in fault)


def _leaves(blueprint: Blueprint) -> dict[str, Any]:
    """What is computed, as dotted paths; of a rotation that a spec lacks, the path with null."""
    tree = blueprint.model_dump(mode="json", exclude={"tokenizer", "family"})
    found = dict(_flat(tree, ""))
    for key in found:
        if key.endswith(".rope.partial"):  # of the share of a head, what is rotated: whole channels
            found[key] = int(found[key] * blueprint.dims.head_dim)
    return found


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}")
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for index, inner in enumerate(value):
            yield from _flat(inner, f"{path}.{index}")
    elif not re.search(r"\.(src|ignore|strip)$", path):
        yield path, value


def _same(one: Any, other: Any, close: float = _CLOSE["specs"]) -> bool:
    if float in (type(one), type(other)) and isinstance(one, float | int) and isinstance(other, float | int):
        return abs(one - other) <= close * max(abs(one), abs(other))
    return bool(one == other)
