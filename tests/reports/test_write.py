"""Reports on disk: whole or not at all."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from porter.errors import UsageError
from porter.reports import from_json, write_report
from porter.reports.write import check_writable, folder_name
from tests.reports import synthetic

REFUSAL = r"the report cannot be written to .*\n  expected: a folder that can be written to.*\n  fix: .*--out"


@pytest.fixture(scope="module")
def report():
    return synthetic.inconclusive()  # the smallest one


def files_under(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_writes_both_files_into_a_folder_of_their_own(tmp_path: Path, report) -> None:
    folder = write_report(report, tmp_path / "new" / "diff_reports")
    assert folder == tmp_path / "new/diff_reports/gemma-3-270m/2026-03-14T092653Z"
    assert files_under(folder) == ["report.html", "report.json"]
    assert repr(from_json(json.loads((folder / "report.json").read_text(encoding="utf-8")))) == repr(report)
    assert folder.stat().st_mode & 0o777 == tmp_path.joinpath("new").stat().st_mode & 0o777


def test_two_reports_of_one_second_get_two_folders(tmp_path: Path, report) -> None:
    names = [write_report(report, tmp_path).name for _ in range(3)]
    assert names == ["2026-03-14T092653Z", "2026-03-14T092653Z-2", "2026-03-14T092653Z-3"]


def test_the_stamp_is_utc(tmp_path: Path, report) -> None:
    folder = write_report(replace(report, created="2026-03-14T09:26:53.123Z"), tmp_path)
    assert folder.name == "2026-03-14T092653Z"


@pytest.mark.parametrize(
    ("name", "folder"), [("gemma-3-270m", "gemma-3-270m"), ("../evil <name>", "evil-name"), ("..", "report")]
)
def test_a_name_is_one_folder(name: str, folder: str) -> None:
    assert folder_name(name) == folder


@pytest.mark.parametrize(("given", "name"), [("json_path", "report.json"), ("html_path", "report.html")])
def test_a_second_place(tmp_path: Path, report, given: str, name: str) -> None:
    elsewhere = tmp_path / "made" / "a.file"
    folder = write_report(report, tmp_path, **{given: elsewhere})
    assert elsewhere.read_bytes() == (folder / name).read_bytes()
    elsewhere.write_text("replaced")
    write_report(report, tmp_path, **{given: elsewhere})
    assert elsewhere.read_bytes() == (folder / name).read_bytes() and files_under(elsewhere.parent) == ["a.file"]


def test_one_place_for_json_and_page_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--json and --html are both "):
        check_writable(tmp_path, json_path=tmp_path / "x", html_path=tmp_path / "x")


def test_hostile_text_is_written(tmp_path: Path) -> None:
    report = synthetic.hostile()  # a lone surrogate among its tokens, and a name that climbs
    folder = write_report(report, tmp_path)
    assert folder.parent == tmp_path / "evil-name"
    assert from_json(json.loads((folder / "report.json").read_text(encoding="utf-8"))) == report


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("fails_at", ["write_bytes", "rename", "replace"])
def test_an_interruption_leaves_nothing(tmp_path: Path, report, monkeypatch, error, fails_at: str) -> None:
    calls = []
    real = getattr(Path, fails_at)

    def interrupted(self: Path, *arguments):
        calls.append(self)
        if len(calls) == (3 if fails_at == "write_bytes" else 1):
            raise error
        return real(self, *arguments)

    monkeypatch.setattr(Path, fails_at, interrupted)
    with pytest.raises(error):
        write_report(report, tmp_path / "out", json_path=tmp_path / "a" / "b.json", html_path=tmp_path / "a" / "b.html")
    left = files_under(tmp_path)
    if fails_at == "replace":  # the report itself was in place: that one is whole
        assert [name for name in left if name.startswith("a")] == []
        assert len([name for name in left if name.endswith(("report.json", "report.html"))]) == 2
    else:
        assert left == []


def test_an_interruption_leaves_other_reports_alone(tmp_path: Path, report, monkeypatch) -> None:
    before = write_report(report, tmp_path)
    monkeypatch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_report(report, tmp_path)
    assert [path.name for path in before.parent.iterdir()] == [before.name]


@pytest.mark.parametrize("act", [check_writable, lambda folder: write_report(synthetic.inconclusive(), folder)])
def test_a_file_in_the_way_is_refused(tmp_path: Path, act) -> None:
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match=REFUSAL):
            act(place)
    assert files_under(tmp_path) == ["file"] and (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that nobody can write to")
@pytest.mark.parametrize("act", [check_writable, lambda folder: write_report(synthetic.inconclusive(), folder)])
@pytest.mark.parametrize("place", ["/proc", "/proc/reports"])
def test_a_read_only_place_is_refused(act, place: str) -> None:
    with pytest.raises(UsageError, match=REFUSAL):
        act(Path(place))


@pytest.mark.parametrize("given", ["json_path", "html_path"])
def test_a_folder_in_the_way_of_a_file_is_refused(tmp_path: Path, report, given: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="it is a folder, and a file is to be written"):
        check_writable(tmp_path / "out", **{given: tmp_path / "folder"})
    with pytest.raises(UsageError, match="it is a folder, and a file is to be written"):
        write_report(report, tmp_path / "out", **{given: tmp_path / "folder"})
    assert files_under(tmp_path) == ["folder"]


@pytest.mark.parametrize("given", ["json_path", "html_path"])
def test_a_device_or_a_pipe_is_not_replaced(tmp_path: Path, report, given: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(UsageError, match="it is a device or a pipe, and a file is to be written"):
            check_writable(tmp_path / "out", **{given: tmp_path / name})
        with pytest.raises(UsageError, match="it is a device or a pipe, and a file is to be written"):
            write_report(report, tmp_path / "out", **{given: tmp_path / name})
    assert files_under(tmp_path) == ["link", "pipe"] and (tmp_path / "pipe").is_fifo()


def test_checking_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_writable(Path("diff_reports"), json_path=Path("x.json"))
    check_writable(tmp_path / "a" / "b")
    assert files_under(tmp_path) == []
