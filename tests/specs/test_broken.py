"""Broken family files, each with the exact message that porter specs check gives: the comment it begins with.

`python tests/specs/test_broken.py` writes the comments anew; read what it changes before you keep it.
"""

import re
from pathlib import Path

import pytest

from porter.errors import PorterError
from porter.specs.calls import CALLS
from porter.specs.check import check_family
from porter.specs.family import read_family

FOLDER = Path(__file__).with_name("broken")
PARENTS = {"circle_parent"}  # broken only together with another
FILES = [path for path in sorted(FOLDER.glob("*.yaml")) if path.stem not in PARENTS]


def message_of(path: Path) -> list[str]:
    """What porter specs check says of a file, without folders, and without what every new axis or call would change."""
    with pytest.raises(PorterError) as caught:
        list(check_family(read_family(path)))
    bare = re.sub(r"/\S*/(\w+\.yaml)", r"\1", str(caught.value))
    bare = bare.replace(", ".join(["first", *CALLS]), "CALLS")
    return re.sub(r"_base\.yaml:\d+", "_base.yaml:LINE", bare).splitlines()


def comment_of(path: Path) -> list[str]:
    """The comment that a file begins with."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("# ") for line in lines[: next(i for i, line in enumerate(lines) if line[:1] != "#")]]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_message_is_exactly_this(path: Path) -> None:
    assert message_of(path) == comment_of(path), "python tests/specs/test_broken.py writes the comments anew"


def test_there_are_thirty_and_each_says_what_was_expected_and_the_fix() -> None:
    assert len(FILES) >= 30
    for path in FILES:
        wrong, expected, fix = comment_of(path)
        assert wrong.startswith(path.stem) and expected[:12] == "  expected: " and fix[:7] == "  fix: ", path.name


def write_comments() -> None:
    """Writes the comments of all files; a comment shifts lines, so it is written until it holds."""
    for path in FILES:
        body = [line for line in path.read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
        while comment_of(path) != (message := message_of(path)):
            path.write_text("\n".join([*(f"# {line}" for line in message), *body]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_comments()
