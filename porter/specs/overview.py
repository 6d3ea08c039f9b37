"""The table of families in the README: type, sizes, axes off the base, exactness."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from porter.errors import ArtifactError
from porter.specs.family import Family, find_family
from porter.specs.located import read_map
from porter.specs.resolve import resolve_size
from porter.specs.tree import BASE, Map, builtin_spec_names, leaves, spec_folder

START, END = "<!-- table of families: porter specs table -->", "<!-- end of the table -->"
_SECTIONS = ("embed", "norm", "block", "final_norm", "head", "patterns")
_SHOWN = 6


def read_results(path: Path) -> dict[str, dict[str, Any]]:
    """What porter specs exact --json wrote, by family, of the sizes tiny.

    Raises:
        ArtifactError: it cannot be read.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        return {row["family"]: row for row in rows if row["size"] == "tiny"}
    except (OSError, ValueError, KeyError, TypeError) as error:
        fix = f"Run porter specs exact --json {path}."
        raise ArtifactError(f"{path} cannot be read ({error})", "rows of porter specs exact", fix) from error


def stale(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Families whose spec is not the one that was run."""
    return [
        name
        for name in builtin_spec_names()
        if results.get(name, {}).get("spec_sha256") != resolve_size(find_family(name), "tiny").blueprint.hash
    ]


def make_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The table in Markdown, a row a family."""
    lines = ["| family | model_type | sizes | axes off the base | exactness |", "|---|---|---|---|---|"]
    for name in builtin_spec_names():
        family = find_family(name)
        sizes = [size for size in family.tree["sizes"] if size != "tiny"] or ["tiny"]
        axes = axes_off_the_base(family)
        more = f" and {len(axes) - _SHOWN} more" if len(axes) > _SHOWN else ""
        told = f"{len(axes)}: {', '.join(axes[:_SHOWN])}{more}" if axes else "none"
        cells = (name, family.tree["model_type"], ", ".join(sizes), told, _exactness(results.get(name)))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def axes_off_the_base(family: Family) -> list[str]:
    """The axes that a family, its parents included, has otherwise than _base."""
    base = dict(leaves(_bare(read_map(spec_folder() / f"{BASE}.yaml"))))
    own = dict(leaves(_bare(family.tree)))
    names = [path[1:] if path[0] == "block" else path for path in own if base.get(path, ...) != own[path]]
    nulls = {path for path, value in own.items() if value is None}  # of a part that is null, the part itself is named
    gone = [path for path in base if path not in own and not any(path[:depth] in nulls for depth in range(len(path)))]
    names += [path[1:] if path[0] == "block" else path for path in gone if path[0] != "patterns"]
    short = [("patterns", path[1]) if path[0] == "patterns" else path for path in names]
    return list(dict.fromkeys(".".join(path) for path in short))


def _bare(tree: Map) -> Map:
    kept = Map()
    for key in _SECTIONS:
        kept.put(key, tree[key], None)
    return kept


def _exactness(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "not run"
    if row["problem"]:
        return "cannot be run"
    unequal = [dtype for dtype in ("float32", "bfloat16") if not row[dtype]["exact"]]
    if not unequal:
        return "bit-equal"
    return ", ".join(f"{dtype}: {row[dtype]['first']} differs by {row[dtype]['difference']:.0e}" for dtype in unequal)


def put_into(text: str, table: str) -> str:
    """A page with the table between its marks.

    Raises:
        ArtifactError: it has none.
    """
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ArtifactError("the page has no place for the table", f"{START} and {END}", "Add both lines.")
    return f"{before}{START}\n{table}{END}{after}"
