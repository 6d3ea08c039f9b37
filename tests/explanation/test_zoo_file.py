"""The zoo's file is whole: every row of the catalogue, each change a change, each refusal with its line."""

from collections import Counter
from pathlib import Path

import pytest

from porter.errors import SpecError
from porter.explanation.zoo_file import PATH, FalseAlarm, Mistake, Outside, read_zoo
from porter.specs.axes import changes
from porter.specs.family import find_family
from porter.specs.overrides import parse_override
from porter.specs.resolve import check_config_is_read, resolve

# The catalogue's rows that a spec's axis might show on random weights, and those that need text or training.
RANDOM = {
    3, 4, 5, 6, 8, 9, 10, 11, 13, 14, 15, 16, 18, 19, 20, 21, 24, 25, 26, 28, 29, 30, 31, 33, 34, 35, 38, 39, 40, 41,
    43, 44, 45, 46, 48, 49, 50, 51, 53, 54, 55, 56, 58, 59, 60, 61, 63, 64, 65, 66, 68, 69, 70, 71, 73, 74, 75, 76, 78,
    79, 80, 81, 83, 84, 85, 86, 88, 89, 90, 91, 93, 94, 95, 96, 98, 99, 100, 101, 103, 104, 105, 108, 109, 111, 113,
    115, 116, 126, 131,
}  # fmt: skip
TEXT = {1, 23, 36, 110, 118, 119, 120, 121, 124}
TRAINING = {106, 114, 123, 125, 128, 129, 130}
ZOO = read_zoo()
MISTAKES = ZOO.of(Mistake)
WHOLE = """tokens: 8
rows:
  "3":
    mistake: It is wrong.
    family: gemma
    set: [embed.scale=1.0]
    stage: semantics
    node: embed.out
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "zoo.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_row_of_the_catalogue_is_there() -> None:
    numbered = {int(name) for name in ZOO.rows if not name.startswith("N")}
    assert numbered == RANDOM | TEXT | TRAINING
    assert {name[:2] for name in ZOO.rows if name.startswith("N")} == {f"N{i}" for i in range(1, 7)}


def test_rows_about_text_and_training_are_outside_by_that_word() -> None:
    reasons = {name: row.outside for name, row in ZOO.of(Outside).items()}
    assert {int(name) for name, reason in reasons.items() if reason == "tokenizer"} == TEXT
    assert {int(name) for name, reason in reasons.items() if reason == "training"} == TRAINING


def test_most_rows_are_changes_of_a_spec() -> None:
    assert len(MISTAKES) >= 56 and {int(name) for name in MISTAKES} <= RANDOM
    assert Counter(row.stage for row in MISTAKES.values()).keys() == {"preflight", "exact", "semantics", "precision"}
    assert {row.family for row in MISTAKES.values()} >= {"gemma", "gemma2", "gemma3", "gpt2", "gpt_neox", "llama"}


@pytest.mark.parametrize("name", [*MISTAKES, *ZOO.of(FalseAlarm)])
def test_each_row_resolves_and_its_config_is_read(name: str) -> None:
    row = ZOO.rows[name]
    assert isinstance(row, Mistake | FalseAlarm)
    family = find_family(row.family)
    config = {**family.size(row.size).config, **row.config}
    right = resolve(family, config)
    check_config_is_read(right)
    resolve(family, config, [parse_override(text, family.tree) for text in row.set])  # each must change the blueprint
    if row.config:
        assert right.blueprint.hash != resolve(family, family.size(row.size).config).blueprint.hash
    if isinstance(row, Mistake) and row.stage == "exact":
        rounding = {change.path for change in changes(right.blueprint) if change.rounding}
        assert {text.partition("=")[0] for text in row.set} <= rounding  # what only bits can show


def test_the_readme_counts_the_mistakes() -> None:
    readme = Path(__file__).resolve().parents[2] / "README.md"
    assert f"{len(MISTAKES)} porting bugs" in readme.read_text(encoding="utf-8")


def test_a_file_is_read_with_its_lines(tmp_path: Path) -> None:
    zoo = read_zoo(write(tmp_path, WHOLE))
    assert zoo.tokens == 8 and list(zoo.rows) == ["3"] and zoo.where["3"].line == 3
    assert (zoo.rows["3"].size, zoo.rows["3"].tokens, zoo.rows["3"].set) == ("tiny", None, ("embed.scale=1.0",))
    assert ZOO.where["3"].file == PATH


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("stage: semantics", "stage: semantic", 7, "did you mean semantics"),
        ("node: embed.out", "node: 3", 8, "text"),
        ("    node: embed.out\n", "", 3, "rows.3.node has no value"),
        ("set: [embed.scale=1.0]", "set: []", 6, "set = []"),
        ("set: [embed.scale=1.0]", "set: embed.scale=1.0", 6, "a list"),
        ("family: gemma", "familly: gemma", 5, "did you mean family"),
        ('"3"', '"x3"', 3, "'x3' is no row"),
        ('"3"', '"N3"', 4, "unknown key 'rows.N3.mistake'"),
        ('  "3":', '  "4": null\n  "3":', 3, "row 4 is no map"),
        ("tokens: 8", "tokens: 0", 1, "a number above 0"),
        ("tokens: 8", "tokens: 8\ntoken: 9", 2, "did you mean tokens"),
        ("tokens: 8\n", "", 1, "tokens has no value"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, old: str, new: str, line: int, says: str) -> None:
    assert old in WHOLE
    path = write(tmp_path, WHOLE.replace(old, new, 1))
    with pytest.raises(SpecError) as caught:
        read_zoo(path)
    assert str(caught.value).startswith(f"{path}:{line}: ") and says in str(caught.value), caught.value
