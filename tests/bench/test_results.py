"""Results on disk: all of a run comes back, and what is no run is refused."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from porter.bench import curves
from porter.bench.files import read_document, write_whole
from porter.bench.results import SCHEMA, from_document, to_csv, to_text
from porter.errors import ArtifactError, UsageError
from tests.bench.synthetic import synthetic_memory, synthetic_run

RUN = synthetic_run()


def test_a_run_comes_back_whole(tmp_path: Path) -> None:
    run = replace(RUN, running=("a case", "quack"), died=(("a case", "quack"),), notes=("no GPU",))
    write_whole(tmp_path / "deep" / "run.json", to_text(run))
    document = read_document(tmp_path / "deep" / "run.json")
    assert document["schema"] == SCHEMA
    assert from_document(document, "run.json") == run
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["run.json"]


def test_curves_come_back_whole(tmp_path: Path) -> None:
    run = synthetic_memory()
    write_whole(tmp_path / "memory.json", curves.to_text(run))
    assert curves.from_document(read_document(tmp_path / "memory.json"), "") == run
    lines = list(csv.DictReader(io.StringIO(curves.to_csv(run))))
    assert len(lines) == len(run.points) and "out of memory" in {line["status"] for line in lines}


def test_the_csv_has_a_line_for_each_record_and_its_floor() -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(RUN))))
    assert len(lines) == len(RUN.records)
    line = next(line for line in lines if line["provider"] == "porter" and line["metric"] == "forward_ms")
    assert (line["op"], line["size"], line["dtype"], line["status"]) == ("rms_norm", "8192x2048", "bfloat16", "ok")
    assert float(line["floor_ms"]) == RUN.floors[0].forward_ms < float(line["value"])


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text, wrong in (("{", "cannot be read"), ("[]", "holds a list")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ArtifactError, match=wrong):
            read_document(path)
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_document(tmp_path / "absent.json")
    with pytest.raises(ArtifactError, match=r"the schema of x is 'porter\.diff/1'"):
        from_document({"schema": "porter.diff/1"}, "x")
    document = json.loads(to_text(RUN))
    del document["records"][0]["metric"]
    with pytest.raises(ArtifactError, match="x is damaged: KeyError 'metric'"):
        from_document(document, "x")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match=r"file/run\.json cannot be written"):
        write_whole(tmp_path / "file" / "run.json", "")
