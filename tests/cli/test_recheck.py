"""porter recheck: other thresholds on the numbers of a report, without any model."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from porter.reports.json_report import to_json, to_text
from porter.reports.read_json import from_json, read_report
from porter.reports.recheck import recheck
from tests.models.commands import porter, refused
from tests.models.tiny import porter_cache  # noqa: F401
from tests.reports import synthetic

EARLIER = Path(__file__).parents[1] / "reports" / "earlier" / "gemma-3-270m-gelu-first-bad.json"


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A real right port, and one with another activation, with all stages and with those that have nodes alone."""
    folder = tmp_path_factory.mktemp("reports")
    made = {}
    wrong = ["--set", "block.mlp.act=gelu"]
    for name, more in (
        ("right", []),
        ("wrong", wrong),
        ("wrong nodes", [*wrong, "--stage", "semantics,precision"]),
    ):
        path = folder / f"{name}.json"
        given = ["diff", "gemma3", "--size", "tiny", "--tokens", "40", "--out", str(folder / "out"), *more]
        porter(*given, "--json", str(path))
        made[name] = path
    return made


def verdicts(document: dict) -> list[tuple]:
    return [(each["name"], each["stage"], each["dtype"], each["status"], each["reason"]) for each in document["nodes"]]


@pytest.mark.parametrize(("name", "exit_code"), [("right", 0), ("wrong", 1)])
def test_the_report_s_own_thresholds_say_what_it_says(written, name: str, exit_code: int) -> None:
    document = json.loads(written[name].read_text())
    result = porter("recheck", str(written[name]), "--json", "-")
    assert result.exit_code == exit_code == document["exit"], result.output
    assert json.loads(result.stdout) == document


def test_a_report_without_its_nodes_passes_nothing(written) -> None:
    document = json.loads(written["wrong"].read_text())
    for nodes in ([], document["nodes"][1:]):
        Path("r.json").write_text(json.dumps(document | {"nodes": nodes}))
        refused(porter("recheck", "r.json"), 3, "the report is damaged: semantics float32 compared")


def test_a_page_takes_no_place_of_another_file(written) -> None:
    Path("r.json").write_bytes(written["right"].read_bytes())
    refused(porter("recheck", "r.json", "--html", "./r.json"), 2, "the report and --html are both r.json")
    refused(porter("recheck", "r.json", "--html", "x", "--json", "x"), 2, "--json and --html are both x")
    result = porter("recheck", "r.json", "--html", "")
    assert result.exit_code == 2 and "the path is empty" in result.stderr
    Path("r.json").write_text("[" * 99_999)
    refused(porter("recheck", "r.json"), 3, "r.json: no JSON")


def test_a_check_of_behaviour_stays_as_it_was_judged(written) -> None:
    result = porter("recheck", str(written["wrong"]), "--threshold", "f32.rho.fail=1e6", "--json", "-")
    statuses = {(each["name"], each["dtype"]): each["status"] for each in json.loads(result.stdout)["stages"]}
    assert result.exit_code == 1
    assert (statuses["semantics", "float32"], statuses["behaviour", "float32"]) == ("WARN", "FAIL")


def test_a_wider_threshold_turns_a_fail_into_a_warning_and_a_pass(written) -> None:
    path = str(written["wrong nodes"])
    assert porter("recheck", path, "--threshold", "f32.rho.fail=1e6").exit_code == 0
    result = porter("recheck", path, "--threshold", "f32.rho.fail=1e6", "--json", "-")
    document = json.loads(result.stdout)
    assert document["verdict"] == "WARN" and document["summary"]["sentence"].startswith("WARN at layers.0.mlp.act")
    assert document["thresholds"]["float32"]["rho"] == [4.0, 1e6]
    assert document["warnings"] == ["judged again with f32.rho.fail=1e6"]
    both = porter("recheck", path, "--threshold", "f32.rho.warn=1e5", "--threshold", "f32.rho.fail=1e6", "--json", "-")
    statuses = {each["name"]: each["status"] for each in json.loads(both.stdout)["stages"]}
    assert statuses["semantics"] == "PASS" and statuses["exact"] == "WARN"


def test_a_narrower_threshold_makes_a_fail_and_names_the_node(written) -> None:
    given = ["--threshold", "bf16.rho.warn=0.1", "--threshold", "bf16.rho.fail=0.2"]
    result = porter("recheck", str(written["right"]), *given)
    assert result.exit_code == 1, result.output
    last = result.stdout.rstrip("\n").splitlines()[-1]
    assert last.startswith("FAIL at embed.out (precision, bfloat16): ρ 1 > 0.2; ") and "; next: porter " in last
    tokens = ["--threshold", "bf16.rho_tok.warn=0.5", "--threshold", "bf16.rho_tok.fail=0.9"]
    assert porter("recheck", str(written["right"]), *tokens).exit_code == 1


def test_a_gauge_node_warns_at_most(written) -> None:
    again = recheck(read_report(written["right"]), ["bf16.rho.warn=0.1", "bf16.rho.fail=0.2"])
    kinds = {(node.kind, node.status) for node in again.nodes if node.stage == "precision"}
    assert kinds == {("gauge", "WARN"), ("observable", "FAIL")}


def test_what_fail_on_promoted_stays_promoted() -> None:
    report = replace(synthetic.warning(), fail_on=("warn",))
    assert recheck(report, []).exit_code == 1 and recheck(synthetic.warning(), []).exit_code == 0


def test_nothing_compared_stays_inconclusive() -> None:
    Path("r.json").write_text(to_text(synthetic.inconclusive()), encoding="utf-8")
    assert porter("recheck", "r.json").exit_code == 4


def test_a_report_of_an_earlier_porter_is_judged() -> None:
    before = json.loads(EARLIER.read_text(encoding="utf-8"))
    again = recheck(from_json(before), [])
    assert (again.verdict, again.exit_code) == (before["verdict"], before["exit"])
    assert [(n, s, d, status) for n, s, d, status, _ in verdicts(to_json(again))] == [
        (n, s, d, status) for n, s, d, status, _ in verdicts(before)
    ]


def test_json_and_html_are_written_and_replaced(written) -> None:
    for _ in range(2):
        result = porter("recheck", str(written["wrong"]), "--json", "deep/a.json", "--html", "deep/a.html")
        assert result.exit_code == 1 and "FAIL" in result.stdout and "report: deep/a.html" in result.stdout
    assert sorted(path.name for path in Path("deep").iterdir()) == ["a.html", "a.json"]
    assert read_report(Path("deep/a.json")).verdict == "FAIL"
    assert "layers.0.mlp.act" in Path("deep/a.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("threshold", "wrong"),
    [
        ("bf16.rho.fial=4", "did you mean bf16.rho.fail?"),
        ("bf16.rho_tock.fail=4", "did you mean bf16.rho_tok.fail?"),
        ("fp32.rho.fail=4", "did you mean f32.rho.fail?"),
        ("fp8.rho.fail=4", "no threshold is called 'fp8.rho.fail'"),
        ("bf16.rho.fail", "a positive number after ="),
        ("bf16.rho.fail=wide", "a positive number after ="),
        ("bf16.rho.fail=nan", "a positive number after ="),
        ("bf16.rho.fail=-1", "a positive number after ="),
        ("bf16.rho.fail=1", "bf16.rho.fail 1 lies under bf16.rho.warn 1.5"),
    ],
)
def test_a_threshold_that_cannot_be_exits_with_2(written, threshold: str, wrong: str) -> None:
    refused(porter("recheck", str(written["right"]), "--threshold", threshold), 2, wrong)


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (None, "No such file"), (b"", "no JSON, or cut off"), (b"\xff\xfe\x00", "no JSON, or cut off"),
        (b"[]", "the report's schema is None"), (b'{"schema": "porter.diff/2"}', "schema is 'porter.diff/2'"),
        (b'{"schema": "porter.diff/1", "verdict": "PASS"}', "the report is damaged"),
        (b'{"schema": "porter.build/1"}', "schema is 'porter.build/1'"),
    ],
    ids=str,
)  # fmt: skip
def test_a_file_that_is_no_report_exits_with_3(content: bytes | None, wrong: str) -> None:
    if content is not None:
        Path("r.json").write_bytes(content)
    refused(porter("recheck", "r.json"), 3, wrong)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_report_exits_with_3(written, share: float) -> None:
    whole = written["right"].read_bytes()
    Path("r.json").write_bytes(whole[: int(len(whole) * share)])
    refused(porter("recheck", "r.json"), 3, "no JSON, or cut off")


@pytest.mark.parametrize("place", [("nodes", 3, "local", "rho"), ("nodes", 0, "status"), ("thresholds", "bfloat16")])
def test_a_report_with_a_value_of_another_kind_exits_with_3(written, place: tuple) -> None:
    document = json.loads(written["right"].read_text())
    inside = document
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = ["not this"]
    Path("r.json").write_text(json.dumps(document))
    refused(porter("recheck", "r.json"), 3, "the report is damaged")


def test_neither_torch_nor_a_model_is_needed(written) -> None:
    call = f"from porter.cli.main import cli\ntry:\n cli(['recheck', {str(written['right'])!r}, '--html', 'a.html'])\n"
    code = f"import sys\n{call}except SystemExit as e: print(e.code)\nprint(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in ran.stdout.splitlines()[-1].split()}
    assert loaded.isdisjoint({"torch", "transformers", "triton", "pydantic"}) and Path("a.html").exists()


@pytest.mark.parametrize(("name", "title"), [("diff", "A report of porter diff"), ("spec", "A model family of porter")])
def test_schemas_are_printed(name: str, title: str) -> None:
    result = porter("schema", name)
    assert result.exit_code == 0 and json.loads(result.stdout)["title"] == title
    assert porter("schema", "dif").exit_code == 2
