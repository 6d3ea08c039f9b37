"""Layers that differ: patterns as families have them, and changes for the layers of one kind alone."""

from collections.abc import Iterator

from porter.explanation.draft.combos import Move
from porter.explanation.draft.lists import tell_apart
from porter.explanation.draft.pool import Pool
from porter.explanation.draft.sketch import Change, Sketch
from porter.specs.resolve import Resolved


def patterns(sketch: Sketch, pool: Pool) -> Iterator[Change]:
    """Every pattern of a family, told apart by a list of the config where one says it, and none in place of each."""
    for name, pattern in pool.patterns:
        for key, items in sketch.config.items():
            if isinstance(items, list) and f"cfg.{key}" in str(pattern.get("by")) and items:
                by, cases = tell_apart(key, items, sketch.config)
                if set(cases) <= set(pattern["cases"]):
                    own = {**pattern, "by": by}
                    yield Change(("patterns", name), own, f"cfg.{key} tells layers apart as in a known family")
        yield Change(("patterns", name), pattern, "the layers differ as in a known family; HF's bits agree")
    for name in sketch.family().tree.get("patterns") or {}:
        yield Change(("patterns", name), None, "HF's layers are alike")


def of_some_layers(sketch: Sketch, singles: list[Change], resolved: Resolved, layer: int) -> Iterator[Move]:
    """The changes of `block`, for the layers alone that a list of the config takes to be of this layer's kind."""
    for name, lists in _kinds(sketch, resolved).items():
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


def _kinds(sketch: Sketch, resolved: Resolved) -> dict[str, tuple[str, list[str], Move]]:
    """Ways to tell layers apart: pattern -> (what says it, the case of each layer, the change that adds it)."""
    count = resolved.blueprint.dims.layers
    found: dict[str, tuple[str, list[str], Move]] = {}
    for name, cases in resolved.cases.items():
        found[name] = (f"patterns.{name}", list(cases), ())
    for key, value in sketch.config.items():
        if not isinstance(value, list) or len(value) != count or len(set(map(str, value))) < 2:
            continue
        by, taken = tell_apart(key, value, sketch.config)
        name = key if key != "layer_types" else "kind"
        if name in found or any(list(cases) == taken for _, cases, _ in found.values()):
            continue
        pattern = {"by": by, "cases": {each: {} for each in dict.fromkeys(taken)}}
        found[name] = (f"cfg.{key}", taken, (Change(("patterns", name), pattern, f"cfg.{key} tells layers apart"),))
    return found
