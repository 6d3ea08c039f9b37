"""porter diff on the command line: reports, selections, refusals, interruption."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.models.checkpoints import add_tokenizer, copy_checkpoint
from tests.models.commands import ENVIRONMENT, porter, refused
from tests.models.tiny import porter_cache, save_tiny  # noqa: F401

TINY = ["--size", "tiny"]


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny gemma with a tokenizer of bytes that puts BOS 2 first."""
    folder = save_tiny("gemma", tmp_path_factory.mktemp("saved") / "gemma")
    add_tokenizer(folder)
    return folder


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return copy_checkpoint(saved, tmp_path / "copy")


def reports() -> list[Path]:
    return sorted(Path("diff_reports").rglob("*")) if Path("diff_reports").exists() else []


def built(*arguments: str) -> None:
    result = porter("build", *arguments)
    assert result.exit_code == 0, result.output


def test_a_diff_of_the_build_just_made_writes_a_report() -> None:
    built("llama", *TINY, "--tokens", "6", "--dtype", "float32")
    result = porter("diff")
    assert result.exit_code == 0, result.output
    assert "PASS: " in result.stdout
    names = [path.relative_to("diff_reports").parts for path in reports()]
    folder = names[1][1]
    assert names == [("llama-tiny",), ("llama-tiny", folder), ("llama-tiny", folder, "report.html"),
                     ("llama-tiny", folder, "report.json")]  # fmt: skip
    document = json.loads(Path("diff_reports", "llama-tiny", folder, "report.json").read_text())
    assert (document["schema"], document["verdict"], document["exit"]) == ("porter.diff/1", "PASS", 0)
    assert document["summary"]["compared"] == document["summary"]["declared"] > 0
    assert folder.startswith("20") and folder.endswith("Z")


def test_json_on_stdout_is_alone() -> None:
    result = porter("diff", "gpt2", *TINY, "--tokens", "5", "--dtype", "float32", "--json", "-", "--timings")
    assert json.loads(result.stdout)["verdict"] == "PASS"
    elsewhere = porter(
        "diff", "gpt2", *TINY, "--tokens", "5", "--dtype", "float32", "--json", "deep/d.json", "--out", "o",
        "--html", "page/d.html",
    )  # fmt: skip
    assert elsewhere.exit_code == 0 and "PASS" in elsewhere.stdout
    written = json.loads(Path("deep/d.json").read_text())
    assert written == json.loads(next(Path("o").rglob("report.json")).read_text())
    assert Path("page/d.html").read_bytes() == next(Path("o").rglob("report.html")).read_bytes()


def test_two_runs_write_the_same_json_but_for_times() -> None:
    first, second = (
        json.loads(porter("diff", "qwen3", *TINY, "--tokens", "12", "--json", "-").stdout) for _ in range(2)
    )
    assert {key for key in first if first[key] != second[key]} <= {"timings", "run"}
    assert {key for key in first["run"] if first["run"][key] != second["run"][key]} <= {"created"}


def test_a_wrong_port_exits_with_1_and_says_where() -> None:
    built("gemma3", *TINY, "--tokens", "20", "--set", "block.mlp.act=gelu", "--dtype", "float32")
    result = porter("diff")
    assert result.exit_code == 1, result.output
    assert result.stdout.strip().splitlines()[-1].startswith("FAIL at layers.0.mlp.act (semantics, float32): ")
    assert json.loads(next(Path().rglob("report.json")).read_text())["exit"] == 1
    more = porter("diff", "gemma3-tiny", "--set", "embed.scale=1.0", "--layers", "first-bad", "--json", "-")
    assert json.loads(more.stdout)["summary"]["first_fail"] == "embed.out" and more.exit_code == 1


def test_layers_and_timings() -> None:
    result = porter("diff", "llama", *TINY, "--tokens", "6", "--dtype", "float32", "--layers", "0,2", "--timings")
    assert result.exit_code == 0, result.output
    document = json.loads(next(Path().rglob("report.json")).read_text())
    assert {name.split(".")[1] for name in (node["name"] for node in document["nodes"]) if "layers" in name} == {
        "0",
        "2",
    }
    assert "semantics" in result.stderr and "seconds" in result.stderr
    assert set(document["timings"]) >= {"weights", "preflight", "semantics"}


def test_axes_are_listed_when_asked_for_and_on_a_written_report_too() -> None:
    result = porter("diff", "gemma3", *TINY, "--tokens", "6", "--dtype", "float32", "--layers", "0", "--axes")
    assert result.exit_code == 0, result.output
    window = next(line for line in result.stdout.splitlines() if line.startswith("block.attn.window  "))
    assert "128 → 129" in window and "not seen: 6 tokens do not" in window
    again = porter("recheck", next(Path().rglob("report.json")), "--axes")
    assert again.exit_code == 0 and window in again.stdout
    assert window not in porter("recheck", next(Path().rglob("report.json"))).stdout
    assert "blind to: " in result.stdout and "it was blind to " in result.stdout.strip().splitlines()[-1]


def test_the_self_check_is_a_line_and_a_table_in_all_reports() -> None:
    given = ["llama", *TINY, "--tokens", "6", "--stage", "semantics,precision", "--self-check"]
    result = porter("diff", *given)
    assert result.exit_code == 0, result.output
    assert re.search(r"^self-check: (\d+) of \1 observable faults caught, \d unobservable$", result.stdout, re.M)
    assert re.search(r"^layers\.0\.mlp\.down\.weight +× 1\.01 +semantics at", result.stdout, re.M)
    document = json.loads(next(Path().rglob("report.json")).read_text())
    assert {each["outcome"] for each in document["self_check"]} == {"caught", "unobservable"}
    page = next(Path().rglob("report.html")).read_text()
    assert "observable faults caught" in page and "layers.0.mlp.gate, up" in page
    assert "self-check" in document["timings"]
    refused(porter("diff", *given, "--layers", "first-bad"), 2, "--self-check with --layers first-bad")


def test_a_missed_fault_exits_with_1_and_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["llama", *TINY, "--tokens", "6", "--stage", "semantics", "--self-check"]
    with monkeypatch.context() as patch:
        patch.setattr("porter.comparison.measure.judge", lambda *given: ("PASS", ""))
        result = porter("diff", *given)
    assert result.exit_code == 1 and result.stdout.splitlines()[-1].startswith("FAIL: the self-check missed ")
    again = porter("recheck", next(Path().rglob("report.json")), "--threshold", "f32.rho.fail=20")
    assert again.exit_code == 1 and "the self-check missed" in again.stdout


def test_fail_on_exact_makes_other_rounding_exit_with_1() -> None:
    given = ["llama", *TINY, "--tokens", "8", "--set", "norm.math=scale_then_cast"]
    assert porter("diff", *given).exit_code == 0
    result = porter("diff", *given, "--fail-on", "exact, warn")
    assert result.exit_code == 1 and "layers.0.attn.norm" in result.stdout.strip().splitlines()[-1]


def test_a_folder_with_a_tokenizer_runs_on_text(copy: Path) -> None:
    given = [copy, "--tokens", "12", "--dtype", "float32", "--layers", "0"]
    result = porter("diff", *given, "--json", "-")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    statuses = {each["check"]: each["status"] for each in document["preflight"]}
    assert {statuses[f"tokenizer.{name}"] for name in ("add_bos", "bos_id", "eos_ids", "pad_id", "ids")} == {"PASS"}
    assert document["run"]["prompts"][0]["label"].startswith("Alice")
    Path("two.jsonl").write_text('"Once"\n\n{"text": "upon a\\u2028time"}\n')
    result = porter("diff", *given, "--prompts", "two.jsonl", "--json", "-")
    assert [prompt["len"] for prompt in json.loads(result.stdout)["run"]["prompts"]] == [5, 12]
    Path("one.txt").write_text("Hello")
    result = porter("diff", *given, "--prompt", "one.txt", "--json", "-")
    assert [prompt["label"] for prompt in json.loads(result.stdout)["run"]["prompts"]] == ["Hello"]


def test_a_tokenizer_without_the_bos_of_the_spec_exits_with_5(copy: Path) -> None:
    add_tokenizer(copy, bos=None)
    refused(porter("diff", copy), 5, "tokenizer.add_bos", "puts nothing first, the spec says BOS 2")
    add_tokenizer(copy, bos="<eos>")
    refused(porter("diff", copy), 5, "puts [1] first, the spec says BOS 2")
    assert reports() == []


def test_special_tokens_with_other_ids_exit_with_5(copy: Path) -> None:
    path = copy / "tokenizer_config.json"
    path.write_text(path.read_text().replace('"eos_token": "<eos>"', '"eos_token": "<unk>"'))
    refused(porter("diff", copy), 5, "tokenizer.eos_ids", "the tokenizer has 3, the spec says 1")


def test_a_tokenizer_json_that_hf_reads_otherwise_exits_with_5(copy: Path) -> None:
    add_tokenizer(copy, kind="GemmaTokenizer")  # which builds its own normalizer
    refused(porter("diff", copy), 5, "tokenizer.ids", "from tokenizer.json", "from HF at token")


def test_a_corrupt_tokenizer_exits_with_3(copy: Path) -> None:
    (copy / "tokenizer.json").write_text("{")
    refused(porter("diff", copy), 3, "tokenizer.json")


PROMPTS = [
    (["--prompts", "gone.txt"], 3, "gone.txt: No such file"),
    (["--prompt", "gone.txt"], 3, "gone.txt: No such file"),
    (["--prompts", "binary.txt"], 3, "binary.txt: not UTF-8 text"),
    (["--prompts", "."], 3, "Is a directory"),
    (["--prompts", "bad.jsonl"], 3, "bad.jsonl:2: no prompt"),
    (["--prompts", "number.jsonl"], 3, "number.jsonl:1: no prompt"),
    (["--prompts", "words.jsonl"], 3, "words.jsonl:1: no prompt"),
    (["--prompts", "blank.jsonl"], 4, "blank.jsonl holds no prompt"),
    (["--prompts", "blank.txt"], 4, "the prompt has no tokens"),
    (["--prompts", "empty.jsonl"], 4, "the prompt has no tokens"),
    (["--prompt", ""], 4, "the prompt has no tokens"),
    (["--prompt", "some text"], 2, "without a tokenizer"),
    (["--prompts", "high.jsonl"], 2, "ids outside the vocabulary"),
    (["--prompts", "low.jsonl"], 2, "ids outside the vocabulary"),
    (["--prompts", "true.jsonl"], 2, "ids outside the vocabulary"),
]


@pytest.mark.parametrize(("arguments", "exit_code", "wrong"), PROMPTS, ids=lambda each: str(each))
def test_prompts_that_cannot_be_run(arguments: list[str], exit_code: int, wrong: str) -> None:
    files = {
        "binary.txt": b"\xff\xfe\x00\x80", "bad.jsonl": b'{"ids": [1]}\n{"ids": [1\n', "number.jsonl": b'{"text": 5}',
        "words.jsonl": b'{"ids": "one two"}', "blank.jsonl": b"\n \n", "blank.txt": b"", "empty.jsonl": b'{"ids": []}',
        "high.jsonl": b'{"ids": [1, 512]}', "low.jsonl": b'{"ids": [-1]}', "true.jsonl": b'{"ids": [true]}',
    }  # fmt: skip
    for name, content in files.items():
        Path(name).write_bytes(content)
    refused(porter("diff", "gpt2", *TINY, *arguments), exit_code, wrong)
    assert reports() == []


USAGE = [
    (["--layers", "99"], "there is no layer 99"), (["--layers", "banana"], "--layers 'banana'"),
    (["--fail-on", "nonsense"], "--fail-on 'nonsense'"), (["--reference", "keras"], "--reference 'keras'"),
    (["--tokens", "0"], "--tokens 0"), (["--tokens", "-1"], "--tokens -1"),
    (["--tokens", "1000000"], "--tokens 1000000"), (["--prompt", "x", "--prompts", "file"], "--prompt and --prompts"),
    (["--tokens", "1025"], "1025 tokens are more than the position table of gpt2 holds"),
    (["--device", "tpu"], "--device 'tpu'"), (["--set", "block.mlp.akt=relu"], "no axis is called 'block.mlp.akt'"),
    (["--set", "block.mlp.act=gelu_new"], "changes nothing"),
    (["--out", "file"], "cannot be written to file"), (["--out", "/proc/porter/reports"], "/proc/porter/reports"),
    (["--json", "file/d.json"], "cannot be written"), (["--json", "folder"], "it is a folder"),
    (["--html", "folder"], "it is a folder"), (["--html", "x", "--json", "x"], "--json and --html are both x"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "wrong"), USAGE, ids=lambda each: str(each))
def test_bad_usage_exits_with_2(arguments: list[str], wrong: str) -> None:
    Path("file").write_text("in the way")
    Path("folder").mkdir()
    start = time.monotonic()
    refused(porter("diff", "gpt2", *TINY, *arguments), 2, wrong)
    assert reports() == [] and time.monotonic() - start < 20


def test_a_model_that_was_never_built_exits_with_2() -> None:
    refused(porter("diff"), 2, "nothing was built in this folder yet", "porter build")
    refused(porter("diff", "gema3"), 2, "no size or family is called 'gema3'", "gemma3")


RECORDS = {
    "cut": "{",
    "list": "[]",
    "text": '"build"',
    "schema": '{"schema": "porter.build/9"}',
    "bare": '{"schema": "porter.build/1"}',
}


@pytest.mark.parametrize("case", RECORDS)
def test_a_corrupt_record_exits_with_3(case: str) -> None:
    built("gpt2", *TINY)
    record = Path("builds/gpt2-tiny/build.json")
    record.write_text(RECORDS[case])
    refused(porter("diff"), 3, f"{record} is no record of a build", "Run porter build again.")


def test_a_record_with_a_value_of_another_kind_exits_with_3() -> None:
    built("gpt2", *TINY)
    record = Path("builds/gpt2-tiny/build.json")
    record.write_text(json.dumps(json.loads(record.read_text()) | {"config": 3}))
    refused(porter("diff"), 3, "is no record of a build (config: ")
    record.unlink()
    refused(porter("diff"), 3, "builds/current names 'gpt2-tiny', and there is no such build")


def test_weights_that_went_away_exit_with_3(copy: Path) -> None:
    built(str(copy))
    copy.rename(copy.with_name("elsewhere"))
    refused(porter("diff"), 3, str(copy))


def test_ctrl_c_leaves_no_report_and_no_traceback(tmp_path: Path) -> None:
    given = ["gemma3", *TINY, "--tokens", "1000", "--ops", "triton", "--device", "cpu"]  # takes minutes
    cache = tmp_path / "cache"
    ran = subprocess.Popen(
        [sys.executable, "-m", "porter", "diff", *given], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=ENVIRONMENT | {"XDG_CACHE_HOME": str(cache)},
    )  # fmt: skip
    while not list(cache.glob("porter/random-stress-*")) and ran.poll() is None:
        time.sleep(0.1)
    time.sleep(1)  # the weights are drawn, so the run is on its way
    assert ran.poll() is None, ran.communicate()
    ran.send_signal(signal.SIGINT)
    out, err = ran.communicate(timeout=60)
    assert ran.returncode in {1, 130} and "Traceback" not in err and out == "", err
    assert reports() == [] and list(cache.rglob("*.part")) == []


def test_stages_are_a_list_with_commas_and_imports_are_timed() -> None:
    given = ["llama", *TINY, "--tokens", "6", "--layers", "0", "--json", "-"]
    document = json.loads(porter("diff", *given, "--stage", "precision, behaviour").stdout)
    assert {node["stage"] for node in document["nodes"]} == {"precision"}
    assert "imports" in document["timings"]
    refused(porter("diff", *given, "--stage", "precise"), 2, "--stage 'precise'", "precision")
