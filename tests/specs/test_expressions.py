"""Expressions: what they give, what they refuse, and that none is expensive."""

import time
from typing import Any

import pytest

from porter.errors import SpecError
from porter.specs.expressions import Config, check_expression, evaluate, mentions

CONFIG = {"a": 7, "s": "text", "n": None, "m": {"x": {"y": 2}}, "flags": [1, 0, 1], "maps": [{"q": 1}], "h": 0.5}


def run(text: str, **names: Any) -> Any:
    return evaluate(text, {"cfg": Config(CONFIG), "layers": 6, "hidden": 96, **names})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("=cfg.a // 2", 3),
        ("=cfg.a / 2", 3.5),
        ("=cfg.a % 4", 3),
        ("=-cfg.a", -7),
        ("=hidden ** -0.5", 96**-0.5),
        ("=1 + 2 * 3 - 4", 3),
        ("=cfg.missing", None),
        ("=cfg.n.deeper.still", None),
        ("=cfg.m.x.y", 2),
        ("=cfg['a']", 7),
        ("=cfg.m['x'].y", 2),
        ("=cfg.flags[1]", 0),
        ("=cfg.maps[0].q", 1),
        ("=cfg.m.x", {"y": 2}),
        ("=[cfg.m.x]", [{"y": 2}]),
        ("=first(cfg.missing, cfg.n, 3, 1 / 0)", 3),
        ("=first(0, 1)", 0),
        ("=first(False, True)", False),
        ("=first()", None),
        ("=first(cfg.n)", None),
        ("=cfg.missing * 2 + 1", None),
        ("=first(cfg.missing // 2, 8)", 8),
        ("=sqrt(cfg.n)", None),
        ("=min(cfg.n, 1)", None),
        ("=sqrt(16)", 4.0),
        ("=int(3.9)", 3),
        ("=max(1, cfg.a)", 7),
        ("=len(cfg.flags)", 3),
        ("='a' if cfg.a > 3 else 'b'", "a"),
        ("=1 if cfg.n else 2", 2),
        ("=cfg.n or cfg.a", 7),
        ("=cfg.n and 1 / 0", None),
        ("=not cfg.n", True),
        ("=cfg.s == 'text'", True),
        ("=cfg.n is None", True),
        ("=cfg.s in ['text']", True),
        ("=cfg.a not in [1]", True),
        ("=every(3, layers, 'f', 's')", ["s", "s", "f"] * 2),
        ("=head(2, 3, 'a', 'b')", ["a", "a", "b"]),
        ("=cycle(['a', 'b'], 3)", ["a", "b", "a"]),
        ("=const(1, 2)", [1, 1]),
        ("=flags(cfg.flags, 'y', 'n')", ["y", "n", "y"]),
        ("= 1", 1),
        ("=1e-6", 1e-6),
    ],
)
def test_values(text: str, value: Any) -> None:
    found = run(text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("='a' * 10**9", "arithmetic needs numbers, not 'a'"),
        ("=[0] * 10**9", r"arithmetic needs numbers, not \[0\]"),
        ("=10 ** 64 ** 64", "beyond 2"),
        ("=(10**18) ** 64", "beyond 2"),
        ("=2 ** 65", "exponent 65 is beyond 64"),
        ("=const(0, 10**9)", "a list of 1000000000 items"),
        ("=every(2, 10**12, 1, 2)", "a list of"),
        ("=1 << 400", "LShift"),
        ("=cfg.__class__", "'__class__' is no config key"),
        ("=().__class__", "not part of the language"),
        ("=cfg.s.upper()", "not part of the language"),
        ("=lambda: 1", "not part of the language"),
        ("=[x for x in cfg.flags]", "not part of the language"),
        ("=f'{cfg}'", "not part of the language"),
        ("=__import__('os')", "'__import__' is no call"),
        ("=first(a=1)", "not part of the language"),
        ("=1 < 2 < 3", "not part of the language"),
        ("=b'x'", "not part of the language"),
        ("=1j", "not part of the language"),
        ("=(-1) ** 0.5", "no number of a model"),
        ("=1e308 * 10", "it gives inf"),
        ("=1 / 0", "it divides by zero"),
        ("=cycle([], 3)", "it divides by zero"),
        ("=cfg.a.b", "cfg.a is no map"),
        ("=cfg.a[0]", "a map takes text"),
        ("=cfg.flags[9]", "index out of range"),
        ("=cfg.s < 3", "'text' and 3 cannot be compared"),
        ("=frist(1)", "did you mean first"),
        ("=hiden", "did you mean hidden"),
        ("=evry(2, 4, 1, 2)", "did you mean every"),
        ("=every(2, 4)", "every does not take"),
        ("=every(2, cfg.n, 1, 2)", "a length is a whole number, not None"),
        ("=const(1, True)", "a length is a whole number"),
        ("=const(1, -1)", "a list of -1 items"),
        ("=1 +", "does not parse"),
        ("=", "does not parse"),
        ("=" + "-" * 390 + "1", "nested deeper than 25"),
        ("=" + "1+" * 300 + "1", "longer than 400"),
        ("=" + "(" * 300, "does not parse|nested deeper"),
        ("=cfg.s + 1", "arithmetic needs numbers"),
        ("=-cfg.s", "arithmetic needs"),
        ("=int('9999999999999999999999')", "beyond 2"),
    ],
)
def test_refusals_are_quick_and_say_why(text: str, says: str) -> None:
    start = time.perf_counter()
    with pytest.raises(SpecError, match=says) as caught:
        run(text)
    assert time.perf_counter() - start < 0.5
    assert "the calls first, every" in caught.value.expected


def test_first_is_lazy_in_what_it_reads() -> None:
    cfg = Config({"old": 1, "new": {"theta": 2}})
    assert evaluate("=first(cfg.new.theta, cfg.old)", {"cfg": cfg}) == 2
    assert cfg.read == {"new", "new.theta"}


def test_a_whole_map_counts_as_read_at_any_depth() -> None:
    cfg = Config({"rope": {"full": {"theta": 1}}})
    assert evaluate("=cfg.rope", {"cfg": cfg}) == {"full": {"theta": 1}}
    assert cfg.read == {"rope", "rope.full", "rope.full.theta"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("=1 if True else nope", "'nope' is no name here"),
        ("=first(1, frist(2))", "did you mean first"),
        ("=first(1, cfg.__dict__)", "is no config key"),
        ("=first(1, (lambda: 2))", "not part of the language"),
        ("=first(1", "does not parse at column 7"),
        ("=1 << 2", "not part of the language"),
    ],
)
def test_checks_reach_branches_that_are_not_taken(text: str, says: str) -> None:
    with pytest.raises(SpecError, match=f"gemma.yaml:3: .*{says}"):
        check_expression(text, ["cfg"], "gemma.yaml:3")


@pytest.mark.parametrize(
    ("text", "does"), [("=i%2", True), ("=10.0*i", True), ("=1 if cfg.i else 2", False), ("=int(2)", False)]
)
def test_mentions(text: str, does: bool) -> None:
    assert mentions(text, "i") is does
