"""YAML with places: what is read, and what is refused with its line."""

from pathlib import Path

import pytest

from porter.errors import SpecError
from porter.specs.located import Map, read_map, read_value


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "f.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_values_are_yaml_1_2(tmp_path: Path) -> None:
    path = write(
        tmp_path, "a: {e: 1e-6, f: 1.5, i: 012, x: 0x1F, o: off, n: ~, t: true, d: 2024-01-01, l: [1, {q: no}]}\n"
    )
    values = read_map(path)["a"]
    assert dict(values) == {
        "e": 1e-6,
        "f": 1.5,
        "i": 12,
        "x": 31,
        "o": "off",
        "n": None,
        "t": True,
        "d": "2024-01-01",
        "l": [1, {"q": "no"}],
    }
    assert type(values["t"]) is bool and type(values["i"]) is int


def test_every_key_has_its_line(tmp_path: Path) -> None:
    tree = read_map(write(tmp_path, "# first\na: 1\nb:\n  c: {d: 2,\n    e: 3}\n"))
    assert [tree.where["a"].line, tree.where["b"].line, tree["b"].where["c"].line, tree["b"]["c"].where["e"].line] == [
        2,
        3,
        4,
        5,
    ]
    assert str(tree.where["a"]) == f"{tmp_path / 'f.yaml'}:2"


def test_reading_again_sees_a_changed_file_and_not_a_changed_tree(tmp_path: Path) -> None:
    path = write(tmp_path, "a: {b: 1}")
    first = read_map(path)
    first["a"].put("b", 5, None)
    assert read_map(path)["a"]["b"] == 1
    assert read_map(write(tmp_path, "a: {b: 2}"))["a"]["b"] == 2


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, "an empty file at the top level"),
        ("# nothing\n", 1, "an empty file"),
        ("- a\n", 1, "a list at the top level"),
        ("word", 1, "a single value"),
        ("a: 1\nb: 2\na: 3\n", 3, "the key 'a' stands twice"),
        ("a:\n  b: 1\n  c: {d: 1, d: 2}\n", 3, "the key 'd' stands twice"),
        ("a:\n\tb: 1\n", 2, "a tab where"),
        ("a: 1\nb: {c: =first(cfg.x, 1)}\n", 2, "'=first.cfg.x' ends inside a parenthesis"),
        ("a: {by: =[1, 2]}\n", 1, "expected ',' or '}'|ends inside"),
        ("a: 1\n1: 2\n", 2, "the key 1 is no text"),
        ("true: 2\n", 1, "the key true is no text"),
        ("? [a]\n: 2\n", 1, "is no text"),
        ("a: !foo b\n", 1, "the tag !foo"),
        ("a: !foo {b: 1}\n", 1, "the tag !foo"),
        ("a: !!python/object:os.system b\n", 1, "the tag tag:yaml.org"),
        ("a: 1\nb: *c\n", 2, "undefined alias"),
        ("a: &x {b: *x}\n", 1, "holds itself"),
        ("a: {b: 1\n", 2, "expected ',' or '}'"),
        ("a: 1\n---\nb: 2\n", 2, "another document"),
        ("a: b: c\n", 1, "mapping values are not allowed"),
        (b"a: 1\nb: \xff\n", 2, "not UTF-8"),
        ("%YAML 1.1\n---\na: off\n", 3, "'off' is no bool"),
    ],
)
def test_refusals_name_file_and_line(tmp_path: Path, text: str | bytes, line: int, says: str) -> None:
    with pytest.raises(SpecError, match=rf"f\.yaml:{line}: .*({says})"):
        read_map(write(tmp_path, text))


def test_a_flow_map_that_cut_an_expression_is_told_to_quote(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        read_map(write(tmp_path, "a: {b: =first(cfg.x, 1)}"))
    assert caught.value.fix == 'Quote it, from the = to the end: "=first(cfg.x, …)".'
    assert read_map(write(tmp_path, "a: {b: \"=first(cfg.x, '(')\"}"))["a"]["b"] == "=first(cfg.x, '(')"
    assert read_map(write(tmp_path, "a: =first(cfg.x, 1)"))["a"] == "=first(cfg.x, 1)"


def test_bombs_end_soon(tmp_path: Path) -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"] + [
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)
    ]
    with pytest.raises(SpecError, match="more than 20000 values"):
        read_map(write(tmp_path, "\n".join(lines)))
    with pytest.raises(SpecError, match="nested too deeply"):
        read_map(write(tmp_path, "a: " + "[" * 3000))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.yaml: No such file"):
        read_map(tmp_path / "none.yaml")
    with pytest.raises(SpecError, match="Is a directory"):
        read_map(tmp_path)


@pytest.mark.parametrize(
    ("text", "value"), [("1e-5", 1e-5), ("null", None), ("off", "off"), ("[1, 2]", [1, 2]), ("gelu", "gelu")]
)
def test_values_of_overrides(text: str, value: object) -> None:
    assert read_value(text, "--set x") == value


def test_maps_of_overrides_have_no_line() -> None:
    value = read_value("{rope_type: linear}", "--set x=y")
    assert isinstance(value, Map) and str(value.where["rope_type"]) == "--set x=y"
    with pytest.raises(SpecError, match=r"^--set x: expected"):
        read_value("[a", "--set x")
