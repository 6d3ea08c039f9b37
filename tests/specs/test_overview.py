"""The table of families, and how short family files are."""

from pathlib import Path
from statistics import median

import pytest

from porter.errors import ArtifactError
from porter.specs.family import find_family
from porter.specs.overview import END, START, axes_off_the_base, make_table, put_into, read_results, stale
from porter.specs.tree import builtin_spec_names, spec_folder


def lines_of(path: Path) -> list[str]:
    """The lines of a family file without its sizes and comments."""
    head = path.read_text(encoding="utf-8").partition("\nsizes:")[0]
    return [line for line in head.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def test_family_files_are_short() -> None:
    counts = [len(lines_of(spec_folder() / f"{name}.yaml")) for name in builtin_spec_names()]
    assert median(counts) <= 12


def test_lines_are_at_most_120_columns() -> None:
    long = [f"{name}: {line[:60]}" for name in builtin_spec_names() for line in lines_of(spec_folder() / f"{name}.yaml")
            if len(line) > 120]  # fmt: skip
    assert long == []


def test_axes_off_the_base() -> None:
    assert axes_off_the_base(find_family("gemma"))[:3] == ["embed.scale", "norm.offset", "norm.math"]
    assert "patterns.window" in axes_off_the_base(find_family("gemma3"))
    assert "rope" in axes_off_the_base(find_family("gpt2"))


def test_a_row_says_type_sizes_axes_and_exactness() -> None:
    result = {"problem": "", "spec_sha256": "x", "float32": {"exact": True},
              "bfloat16": {"exact": False, "first": "layers.1", "difference": 0.0123}}  # fmt: skip
    rows = make_table({"gemma": result, "gpt2": {"problem": "no"}}).splitlines()
    gemma, gpt2, llama = (
        next(row for row in rows if row.startswith(f"| {name} |")) for name in ("gemma", "gpt2", "llama")
    )
    assert gemma.startswith("| gemma | gemma | gemma-2b, gemma-7b | ") and "embed.scale" in gemma
    assert gemma.endswith("| bfloat16: layers.1 differs by 1e-02 |")
    assert gpt2.endswith("| cannot be run |") and llama.endswith("| not run |")
    assert "gemma" in stale({"gemma": result})


def test_a_page_takes_the_table_between_its_marks(tmp_path: Path) -> None:
    page = f"a\n{START}\nold\n{END}\nb\n"
    assert put_into(page, "| new |\n") == f"a\n{START}\n| new |\n{END}\nb\n"
    with pytest.raises(ArtifactError, match="no place for the table"):
        put_into("a", "b")
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_results(tmp_path / "none.json")
