"""The published schema: what the dataclasses say, and what a report holds."""

import json
from dataclasses import dataclass, fields, make_dataclass, replace
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from porter.comparison import report as report_module
from porter.comparison.report import Behaviour, Check, DiffReport, NodeDiff, Stage
from porter.reports import schema, to_json
from porter.reports.schema import make_schema, schema_text, write_schema
from tests.reports import synthetic
from tests.reports.validated import check


def test_the_file_is_what_the_dataclasses_say() -> None:
    assert schema_text() == write_schema(), "run python -m porter.reports.schema"


def test_it_is_a_schema_of_2020_12() -> None:
    published = json.loads(schema_text())
    Draft202012Validator.check_schema(published)
    assert published["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("strict", [False, True], ids=["published", "strict"])
@pytest.mark.parametrize("name", list(synthetic.ALL))
def test_every_kind_of_report_is_valid(name: str, strict: bool) -> None:
    document = json.loads(json.dumps(to_json(synthetic.ALL[name]())))
    check(document, strict=strict)


def test_every_dataclass_of_a_report_is_described() -> None:
    named = {name for name, each in vars(report_module).items() if hasattr(each, "__dataclass_fields__")}
    inside = {"Changed", "Closest", "Fault", "LogitsAt"}  # of Explained, and of Logits
    assert named - {"DiffReport"} | inside == set(make_schema()["$defs"]) - {"number"}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("verdict",), "GOOD"),
        (("schema",), "porter.diff/2"),
        (("nodes", 0, "status"), "pass"),
        (("nodes", 0, "shape"), [1, "2"]),
        (("nodes", 0, "exact"), "yes"),
        (("stages", 1, "compared"), 1.5),
        (("thresholds", "fp32", "rho"), [1.0]),
        (("nodes", 500, "local", "rho"), "large"),
        (("nodes", 500, "local", "rho_tok", "max"), None),
        (("logits", 0, "at", 0, "port", 0), [1]),
        (("run", "command"), None),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused(place: tuple, value: object) -> None:
    document = json.loads(json.dumps(to_json(synthetic.failing())))
    inside = document
    for key in place[:-1]:
        inside = inside[key]
    assert inside[place[-1]] != value
    inside[place[-1]] = value
    with pytest.raises(AssertionError):
        check(document, strict=False)


@pytest.mark.parametrize("key", ["verdict", "nodes", "run", "stages"])
def test_what_is_missing_is_refused(key: str) -> None:
    document = to_json(synthetic.inconclusive())
    del document[key]
    with pytest.raises(AssertionError, match=f"'{key}' is a required property"):
        check(document, strict=False)


def test_more_keys_are_allowed_but_not_unseen() -> None:
    document = to_json(synthetic.passing()) | {"later": 1}
    check(document, strict=False)
    with pytest.raises(AssertionError, match="'later' was unexpected"):
        check(document)


def test_a_report_of_an_earlier_porter_is_valid() -> None:
    document = to_json(synthetic.failing())
    del document["run"]["fail_on"], document["behaviour"], document["self_check"]
    for each in document["logits"]:
        del each["at"], each["tokens"]
    for each in document["preflight"]:
        del each["head"], each["rows"]
    check(document, strict=False)


def test_a_field_that_to_json_forgets_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    more = make_dataclass("DiffReport", [("forgotten", int, 0)], bases=(DiffReport,), frozen=True)
    monkeypatch.setattr(schema, "DiffReport", more)
    assert "forgotten" in make_schema()["properties"] and "forgotten" not in make_schema()["required"]
    with pytest.raises(AssertionError):
        errors = [*Draft202012Validator(make_schema(strict=True)).iter_errors(to_json(synthetic.inconclusive()))]
        assert not errors, errors[0].message


def test_a_field_that_to_json_forgets_inside_a_node_is_missed() -> None:
    @dataclass(frozen=True)
    class Grown(NodeDiff):
        forgotten: float = 0.0

    made = schema.Maker(strict=True)
    made.of(Grown)
    assert "forgotten" in made.parts["Grown"]["required"] and len(fields(Grown)) == len(fields(NodeDiff)) + 1


def test_rows_of_checks_and_behaviour_are_valid() -> None:
    behaviour = (Behaviour("cache", "float32", "PASS", float("inf"), 4.0, "as without", ""),)
    report = replace(
        synthetic.inconclusive(),
        preflight=(Check("config", "WARN", "differs", ("key", "is"), (("a", "1"),)),),
        behaviour=behaviour,
        stages=(Stage("behaviour", "float32", "PASS", 1, None, ""),),
    )
    document = to_json(report)
    check(document)
    assert document["behaviour"][0]["measured"] == "inf"


def test_reports_of_earlier_porters_on_disk_are_valid() -> None:
    for path in Path(__file__).with_name("earlier").glob("*.json"):
        check(json.loads(path.read_text(encoding="utf-8")), strict=False)
