"""Diffs with a golden cache: the same report to the last bit, whoever made the cache, and whatever became of it."""

import dataclasses
import errno
import json
import weakref
from pathlib import Path
from typing import Any

import pytest

from porter.comparison import cached_lane
from porter.comparison.diff import diff
from porter.comparison.report import DiffReport
from porter.errors import UsageError
from porter.references import golden_cache
from porter.reports.json_report import to_json, to_text
from porter.reports.read_json import from_json
from porter.weights import checked_file
from tests.full_disk import largest_file
from tests.models.tiny import FAMILIES, tiny
from tests.read_only import read_only

BOTH = ("semantics", "precision")
UNITS = 2 * (2 + 3 * 3 + 2)  # of tiny gemma in two dtypes: embed, three layers, head; of a layer also the own way


def run(cache: Path | None, *overrides: str, family: str = "gemma", **given: Any) -> DiffReport:
    options = {
        "dtype": "bfloat16",
        "tokens": 12,
        **{key: given.pop(key) for key in ("dtype", "tokens") if key in given},
    }
    return diff(tiny(family, *overrides, **options), golden_cache=cache, **{"stages": BOTH, **given})


def numbers(report: DiffReport) -> dict[str, Any]:
    """The JSON but for times and what names the cache."""
    document = json.loads(to_text(report))
    for key in ("timings", "warnings"):
        del document[key]
    for key in ("created", "golden"):
        del document["run"][key]
    return document


def counts(report: DiffReport) -> tuple[Any, Any]:
    return report.golden["cache_read"], report.golden["cache_made"]


def units(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.safetensors"))


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """HF's model cannot be opened: what is compared comes from the cache, or not at all."""

    def opened(*_: object, **__: object) -> None:
        raise AssertionError("HF's model was opened")

    monkeypatch.setattr(cached_lane, "HfReference", opened)


@pytest.fixture(scope="module")
def without() -> DiffReport:
    return run(None)


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    run(tmp_path / "cache")
    return tmp_path / "cache"


@pytest.mark.parametrize("family", FAMILIES)
def test_reports_are_equal_bit_for_bit_without_a_cache_cold_and_warm(family: str, tmp_path: Path) -> None:
    bare = run(None, family=family)
    cold, warm = (run(tmp_path, family=family) for _ in range(2))
    assert numbers(bare) == numbers(cold) == numbers(warm)
    assert bare.golden == {} and counts(cold)[0] == counts(warm)[1] == 0 and counts(cold)[1] == counts(warm)[0] > 0
    assert bare.warnings == cold.warnings == warm.warnings == ()


def test_a_warm_run_opens_no_model_and_a_wrong_port_is_judged_as_without(filled: Path, no_model: None) -> None:
    report = run(filled, "block.mlp.act=gelu", layers="first-bad")
    assert report.first_fail.name == "layers.0.mlp.act" and report.exit_code == 1
    assert report.reference.what.endswith("GemmaForCausalLM, eager") and counts(report) == (5, 0)


def test_ports_of_one_checkpoint_share_what_was_kept(filled: Path) -> None:
    for override in ("block.mlp.act=gelu", "embed.scale=1.0"):
        report = run(filled, override)
        assert counts(report) == (UNITS, 0) and report.exit_code == 1
        assert numbers(report) == numbers(run(None, override))
    assert len(units(filled)) == UNITS


def test_another_prompt_dtype_or_checkpoint_shares_nothing(filled: Path, tmp_path: Path) -> None:
    assert counts(run(filled, tokens=11)) == (0, UNITS)
    half = run(filled, dtype="float16", stages=("precision",))  # other weights, too: they are stored in the dtype
    assert counts(half) == (0, UNITS // 2)
    keys = {run(filled, family=family).golden["cache"] for family in ("gemma", "gpt2", "llama")}
    assert len(keys) == 3 and half.golden["cache"] not in keys


def test_a_cache_of_an_older_format_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without) -> None:
    with monkeypatch.context() as older:
        older.setattr(golden_cache, "FORMAT", "porter.golden/0")
        run(tmp_path)
    old = {path: path.read_bytes() for path in units(tmp_path)}
    report = run(tmp_path)
    assert counts(report) == (0, UNITS) and numbers(report) == numbers(without) and report.warnings == ()
    assert all(path.read_bytes() == content for path, content in old.items()) and len(units(tmp_path)) == 2 * UNITS


def test_several_prompts_and_some_layers_and_the_behaviour_stage(tmp_path: Path) -> None:
    prompts = tmp_path / "two.jsonl"
    prompts.write_text('{"ids": [2, 7, 8]}\n{"ids": [2, 9, 10, 11, 12, 13]}\n')
    for given in ({"prompts": prompts}, {"layers": "1"}, {"stages": ()}):
        bare, cold, warm = (run(cache, **given) for cache in (None, tmp_path / "c", tmp_path / "c"))
        assert numbers(bare) == numbers(cold) == numbers(warm) and counts(warm)[1] == 0


def test_the_report_says_which_cache_and_is_read_back(filled: Path) -> None:
    report = run(filled)
    document = to_json(report)
    said = document["run"]["golden"]
    assert said == {
        "dtype": "float64", "cache": report.golden["cache"], "cache_folder": str(filled.resolve()),
        "cache_read": UNITS, "cache_made": 0,
    }  # fmt: skip
    assert said["cache"].startswith("sha256:") and from_json(document).golden == report.golden
    assert to_json(dataclasses.replace(report, golden={}))["run"]["golden"] == {"dtype": "float64"}


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "no file", "a folder"])
def test_a_damaged_unit_is_noticed_dropped_and_made_again(filled: Path, damage: str, without: DiffReport) -> None:
    path = next(each for each in units(filled) if each.name == "layers.2.safetensors" and "golden" in each.parts)
    good = path.read_bytes()
    path.unlink()
    if damage == "flipped":
        path.write_bytes(good[:-100] + bytes([good[-100] ^ 4]) + good[-99:])
    elif damage in ("cut", "empty"):
        path.write_bytes(good[: len(good) // 2 if damage == "cut" else 0])
    elif damage == "a folder":
        path.mkdir()
    report = run(filled)
    assert numbers(report) == numbers(without) and counts(report) == (UNITS - 1, 1)
    if damage == "no file":
        assert report.warnings == ()
    else:
        assert str(path) in report.warnings[0]
    if damage != "a folder":
        assert path.read_bytes() == good and counts(run(filled)) == (UNITS, 0)
        assert "made again" in report.warnings[0] if report.warnings else damage == "no file"


def test_every_unit_damaged_is_said_in_one_sentence(filled: Path, without: DiffReport) -> None:
    for path in units(filled):
        path.write_bytes(path.read_bytes()[:-1])
    report = run(filled)
    assert numbers(report) == numbers(without) and counts(report) == (0, UNITS)
    assert len(report.warnings) == 1 and report.warnings[0].endswith(f"and {UNITS - 1} more were, too")


def test_a_unit_in_another_s_place_is_not_used(filled: Path, without: DiffReport) -> None:
    folder = next(each.parent for each in units(filled) if "golden" in each.parts)
    one, other = folder / "layers.1.safetensors", folder / "layers.2.safetensors"
    one_bytes = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(one_bytes)
    report = run(filled)
    assert numbers(report) == numbers(without) and counts(report) == (UNITS - 2, 2)
    assert counts(run(filled)) == (UNITS, 0)


def test_units_after_one_that_came_out_otherwise_are_made_again(filled: Path) -> None:
    """As when a library changes bits in a way that the key does not know: nothing is compared across the two."""
    folder = next(each.parent for each in units(filled) if "golden" in each.parts and "float32" in str(each))
    nodes, about = checked_file.read_checked(folder / "layers.1.safetensors")
    nodes["resid_post"] = nodes["resid_post"] + 1e-3
    checked_file.write_checked(folder / "layers.1.safetensors", nodes, about)
    after = 1 * 2 + 2  # layer 2 and the head, of golden and of the reference; its own way has not changed
    assert counts(run(filled)) == (UNITS - after, after)


def test_a_disk_that_fills_up_ends_the_writing_once_and_not_the_run(tmp_path: Path, without: DiffReport) -> None:
    with largest_file(60_000):  # golden's layers are larger, its embedding is not
        report = run(tmp_path)
    assert numbers(report) == numbers(without) and counts(report) == (0, UNITS)
    assert len(report.warnings) == 1
    assert "layers.0.safetensors cannot be written (File too large)" in report.warnings[0]
    assert 0 < len(units(tmp_path)) < UNITS and list(tmp_path.rglob("*.part")) == []
    held = len(units(tmp_path))
    assert counts(run(tmp_path)) == (held, UNITS - held)  # with room again, the rest is made
    assert counts(run(tmp_path)) == (UNITS, 0)


def test_no_space_is_said_in_the_system_s_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def full(*arguments: object) -> None:
        calls.append(arguments)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checked_file, "write_file", full)
    report = run(tmp_path)
    assert len(calls) == 1 and "(No space left on device); this unit and those after it are not kept" in str(
        report.warnings
    )


def test_a_read_only_folder_that_holds_everything_is_used(filled: Path, no_model: None, without: DiffReport) -> None:
    with read_only(filled):
        report = run(filled)
    assert numbers(report) == numbers(without) and counts(report) == (UNITS, 0) and report.warnings == ()


def test_a_read_only_folder_that_lacks_something_is_refused_before_the_work(filled: Path, no_model: None) -> None:
    units(filled)[3].unlink()
    with read_only(filled), pytest.raises(UsageError, match=f"lacks 1 of the {UNITS} units") as caught:
        run(filled)
    assert str(filled) in caught.value.wrong and "--golden-cache" in caught.value.fix


def test_a_read_only_folder_need_hold_no_more_than_the_layers_that_are_compared(tmp_path: Path) -> None:
    run(tmp_path, layers="1")
    with read_only(tmp_path):
        assert counts(run(tmp_path, layers="1"))[1] == 0
        with pytest.raises(UsageError, match=r"it lacks \d+ of the"):
            run(tmp_path, layers="0-1")


@pytest.mark.parametrize("stages", [("gradients",), ("gradients", "precision")])
def test_a_read_only_folder_must_hold_golden_s_inputs_for_gradients(tmp_path: Path, stages: tuple[str, ...]) -> None:
    filled = run(tmp_path, layers="1", stages=stages)
    with read_only(tmp_path):
        assert numbers(run(tmp_path, layers="1", stages=stages)) == numbers(filled)
        assert numbers(run(None, layers="1", stages=stages)) == numbers(filled)
    next(path for path in units(tmp_path) if path.name == "layers.2.safetensors").unlink()
    with read_only(tmp_path), pytest.raises(UsageError, match="it lacks 1 of the"):
        run(tmp_path, layers="1", stages=stages)


def test_a_damaged_unit_of_a_read_only_folder_is_run_and_said(filled: Path, without: DiffReport) -> None:
    path = units(filled)[5]
    path.write_bytes(path.read_bytes()[:-1])
    with read_only(filled):
        report = run(filled)
    assert numbers(report) == numbers(without) and counts(report) == (UNITS - 1, 1)
    assert str(path) in report.warnings[0] and path.is_file()


def test_a_file_in_the_way_is_refused_at_once(tmp_path: Path, no_model: None) -> None:
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match=r"the golden cache .* cannot be used: "):
            run(place)
    assert (tmp_path / "file").read_text() == "mine"


def test_no_more_than_one_unit_of_a_side_is_in_memory(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[weakref.ref] = []
    most = 0

    def noting(path: Path) -> tuple[dict, dict]:
        nonlocal most
        most = max(most, sum(ref() is not None for ref in held))
        nodes, about = checked_file.read_checked(path)
        held.append(weakref.ref(nodes["logits" if "logits" in nodes else "embed.out" if "embed.out" in nodes else
                                      "attn.ctx" if "attn.ctx" in nodes else "resid_post"]))  # fmt: skip
        return nodes, about

    monkeypatch.setattr(golden_cache, "read_checked", noting)
    run(filled)
    assert len(held) == UNITS and most <= 4  # golden and the reference of a unit, and their streams
