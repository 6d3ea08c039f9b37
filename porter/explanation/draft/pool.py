"""What the known families say: where tensors lie, which config keys an axis reads, which layers take which case."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from porter.specs.document import EVALUATED
from porter.specs.family import Family, find_family
from porter.specs.located import read_map
from porter.specs.tree import Map, builtin_spec_names, leaves, spec_folder

Keys = tuple[str, ...]
SECTIONS = ("embed", "norm", "block", "final_norm", "head")


@dataclass(frozen=True)
class Pool:
    """The families that a draft may learn from."""

    families: tuple[Family, ...]

    @cached_property
    def values(self) -> dict[Keys, list[Any]]:
        """Axis -> the values that families have there, as they write them; the most common first."""
        counts: dict[Keys, Counter[str]] = {}
        raw: dict[tuple[Keys, str], Any] = {}
        for family in self.families:
            for path, value in leaves(family.tree):
                if path[0] in (*SECTIONS, "dims"):
                    counts.setdefault(path, Counter())[repr(value)] += 1
                    raw[path, repr(value)] = value
        return {path: [raw[path, text] for text, _ in each.most_common()] for path, each in counts.items()}

    @cached_property
    def maps(self) -> dict[Keys, list[Map | None]]:
        """Part of a model that may be exchanged whole -> what families have there, the most common first."""
        found: dict[Keys, list[Map | None]] = {}
        for path in (
            ("norm",),
            ("embed",),
            ("head",),
            ("block", "rope"),
            ("block", "attn", "qk_norm"),
            ("block", "moe", "router"),
        ):
            counts: Counter[str] = Counter()
            kept: dict[str, Map | None] = {}
            for family in self.families:
                value: Any = family.tree
                for key in path:
                    value = value.get(key) if isinstance(value, Map) else None
                counts[repr(value)] += 1
                kept[repr(value)] = value
            found[path] = [kept[text] for text, _ in counts.most_common()]
        return found

    @cached_property
    def patterns(self) -> list[tuple[str, Map]]:
        """Patterns by name, each once."""
        seen: dict[str, tuple[str, Map]] = {}
        for family in self.families:
            for name, pattern in (family.tree.get("patterns") or {}).items():
                if pattern is not None:
                    seen.setdefault(repr((name, pattern)), (name, pattern))
        return list(seen.values())

    @cached_property
    def reasons(self) -> dict[str, str]:
        """Config key -> why a family says that it changes no number."""
        found: dict[str, str] = {}
        for family in self.families:
            for key, reason in family.tree["ignore_config"].items():
                if reason is not None:
                    found.setdefault(key, reason)
        return found

    @cached_property
    def mixers(self) -> frozenset[str]:
        """The kinds of mixers that families have."""
        found = (family.tree["block"].get("mixer") for family in self.families)
        return frozenset(str(mixer["kind"]) for mixer in found if isinstance(mixer, Map) and "kind" in mixer)

    def places(self, section: str, slot: str) -> list[str]:
        """The paths at which families have a parameter, the most common first."""
        counts: Counter[str] = Counter()
        for family in self.families:
            rule = family.tree["weights"][section].get(slot)
            source = rule.get("src") if isinstance(rule, Map) else rule
            for each in [source] if isinstance(source, str) else source or []:
                counts[each] += 1
        return [path for path, _ in counts.most_common()]


def make_pool(hidden: Collection[str] = ()) -> Pool:
    """Porter's families but those that are hidden, and those that extend one of them."""
    return Pool(tuple(find_family(name) for name in builtin_spec_names() if not _descends(name, hidden)))


def _descends(name: str, hidden: Collection[str]) -> bool:
    return any(each in hidden for each in _line(name))


def _line(name: str) -> Iterator[str]:
    """A family and its parents."""
    while name and name != "_base":
        yield name
        name = str(read_map(spec_folder() / f"{name}.yaml").get("extends") or "")


assert set(SECTIONS) < set(EVALUATED)
