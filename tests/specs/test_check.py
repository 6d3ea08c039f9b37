"""porter specs check: what it finds in a family, with file and line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from porter.errors import PorterError, PreflightError, SpecError
from porter.specs.check import check_family
from porter.specs.family import find_family, read_family
from porter.specs.tree import builtin_spec_names

READ = "ignore_config: {x: for the tests}\n"


def check(path: Path) -> list[str]:
    return [row.size for row in check_family(read_family(path))]


@pytest.mark.parametrize("name", builtin_spec_names())
def test_the_families_of_porter_pass(name: str) -> None:
    family = find_family(name)
    assert [row.size for row in check_family(family)] == list(family.tree["sizes"])


def test_a_family_elsewhere_passes_by_its_path(write_family: Callable[..., Path]) -> None:
    rows = list(check_family(read_family(write_family(READ))))
    assert [(row.size, row.layers) for row in rows] == [("tiny", 4)]
    assert rows[0].tensors == 2 + 4 * 11  # embed and final norm; 4 norms and 7 projections a layer


@pytest.mark.parametrize(
    ("text", "kind", "wrong"),
    [
        ("", PreflightError, r"mine\.yaml:\d+: size tiny: nothing reads config key x"),
        (
            READ + "weights: {block: {attn.q: null}}",
            SpecError,
            r"mine\.yaml:5: weights\.block has no rule for 'attn\.q', needed by size tiny",
        ),
        (
            READ + "weights: {globals: {embed: null}}",
            SpecError,
            r"mine\.yaml:5: weights\.globals has no rule for 'embed'",
        ),
        (
            READ + "head: {tied: false}\nweights: {globals: {head: null}}",
            SpecError,
            r"mine\.yaml:6: .*no rule for 'head'",
        ),
        (READ + "block: {mlp: {act: gelux}}", SpecError, r"mine\.yaml:5: block\.mlp\.act = 'gelux'"),
    ],
)
def test_findings(write_family: Callable[..., Path], text: str, kind: type[PorterError], wrong: str) -> None:
    with pytest.raises(kind, match=wrong):
        check(write_family(text))


def test_an_unread_key_is_found_at_its_line(write_family: Callable[..., Path]) -> None:
    path = write_family("")
    line = next(i for i, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1) if " x: 3" in text)
    with pytest.raises(PreflightError, match=rf"mine\.yaml:{line}: "):
        check(path)


def test_a_family_needs_a_tiny_size(write_family: Callable[..., Path]) -> None:
    with pytest.raises(SpecError, match=r"mine\.yaml:5: mine has no size tiny"):
        check(write_family("", sizes="\nsizes: {small: {config: {}}}"))


def test_one_size_alone() -> None:
    assert [row.parameters for row in check_family(find_family("gemma"), "gemma-7b")] == [8_537_680_896]
