"""The README says what is true: its example runs, its commands exist, its tables are those of the code."""

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from ruamel.yaml import YAML

from porter.cli.main import COMMANDS, cli

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TOKENS = 320  # past 256, where bfloat16 positions have gaps, and past the window of 128

STARCODER2 = """
# starcoder2.yaml
model_type: starcoder2
architecture: Starcoder2ForCausalLM
config_defaults: {norm_epsilon: 1.0e-5, hidden_act: gelu_pytorch_tanh, num_key_value_heads: 2}
ignore_config: {embedding_dropout: training only, residual_dropout: training only}
norm: {kind: layernorm, eps: =cfg.norm_epsilon, bias: true, math: fused}
block:
  attn:
    window: =cfg.sliding_window
    bias_qkv: "=first(cfg.use_bias, True)"
    bias_o: "=first(cfg.use_bias, True)"
  mlp: {gated: false, bias: "=first(cfg.use_bias, True)"}
head: {tied: "=first(cfg.tie_word_embeddings, True)"}
weights:
  block: {mlp.gate: null, mlp.up: mlp.c_fc, mlp.down: mlp.c_proj}
sizes:
  tiny:
    config: {vocab_size: 512, hidden_size: 96, intermediate_size: 160, num_hidden_layers: 3,
             num_attention_heads: 4, num_key_value_heads: 2, hidden_act: gelu_pytorch_tanh,
             max_position_embeddings: 4096, norm_epsilon: 1.0e-5, rope_theta: 100000, sliding_window: 128,
             use_bias: true, tie_word_embeddings: true, bos_token_id: 3, eos_token_id: 3}
"""


def fences(language: str = "") -> list[str]:
    """The bodies of the README's code blocks of one language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    return [body for name, body in found if name == language]


def table(header: str) -> list[list[str]]:
    """The cells of the table whose header row starts with `header`, row by row."""
    _, found, rest = README.partition(f"| {header} |".replace("  ", " "))
    assert found, f"no table starts with {header}"
    rows = [line for line in rest.split("\n\n")[0].splitlines()[2:] if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.mark.parametrize("text", [*fences("yaml"), STARCODER2], ids=lambda text: text.split()[1])
def test_a_new_architecture_is_yaml_alone(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = f"./{text.split()[1]}"
    Path(spec).write_text(text, encoding="utf-8")
    for arguments in (
        ("specs", "check", spec),
        ("build", spec, "--size", "tiny", "--weights", "random:stress"),
        ("diff", "--tokens", str(TOKENS), "--fail-on", "exact", "--json", "report.json"),
    ):
        result = run(*arguments)
        assert result.exit_code == 0, f"porter {shlex.join(arguments)}\n{result.output}"
    report = json.loads(Path("report.json").read_text(encoding="utf-8"))
    unequal = [(node["name"], node["dtype"]) for node in report["nodes"] if node["exact"] is not True]
    assert {node["dtype"] for node in report["nodes"]} == {"float32", "bfloat16"}
    assert unequal == []


def test_commands_exist() -> None:
    lines = [shlex.split(line, comments=True) for fence in fences() for line in fence.splitlines()]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for line in lines:
        if line[0] == "make":
            assert line[1] in targets, line
            continue
        assert line[0] == "porter" and line[1] in COMMANDS, line
        words = line[1:3] if line[1] in ("specs", "bench") else line[1:2]
        help_text = run(*words, "--help").output
        assert all(option in help_text for option in line if option.startswith("--")), line


@pytest.mark.parametrize(
    ("changed", "exit_code"), [((), 0), (("--set", "block.mlp.act=gelu"), 1)], ids=["right", "wrong"]
)
def test_the_workflow_fails_on_divergence(
    changed: tuple[str, ...], exit_code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command as it stands there, on a tiny model in place of theirs."""
    (text,) = fences("yml")
    steps = YAML(typ="safe").load(text)["jobs"]["diff"]["steps"]
    (command,) = (step["run"] for step in steps if "porter diff" in step.get("run", ""))
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command.replace("$GITHUB_STEP_SUMMARY", "summary.md"))
    help_text = run("diff", "--help").output
    assert words[:2] == ["porter", "diff"] and all(word in help_text for word in words if word.startswith("--"))
    given = dict(zip(words[3::2], words[4::2], strict=True))
    theirs = {"--weights", "--port", "--map", "--golden-cache"}
    flags = [word for flag, value in given.items() if flag not in theirs for word in (flag, value)]
    result = run("diff", "llama", "--size", "tiny", "--weights", "random:stress", *flags, *changed)
    assert result.exit_code == exit_code, result.output
    assert Path("summary.md").read_text(encoding="utf-8").startswith(f"### {'❌ FAIL' if exit_code else '✅ PASS'}")
    assert f'failures="{exit_code}"' in Path("porter.xml").read_text(encoding="utf-8").split("<testcase")[0]
    assert Path("porter.html").stat().st_size > 700_000  # plotly is in it, packed


def test_a_module_is_mapped_and_passes_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = README.partition("## Your own module\n")[2].partition("\n## ")[0]
    commands = re.findall(r"^porter .*$", section, re.MULTILINE)
    for path in (ROOT / "tests" / "user_modules").glob("*.py"):
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for command in commands:
        result = run(*shlex.split(command)[1:], *(("--tokens", "40") if "diff" in command else ()))
        assert result.exit_code == 0, f"{command}\n{result.output}"
    drafted = Path("my_llama.map.yaml").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    assert drafted.partition("\n")[2] == shown  # all but the comment at the top
    assert len(commands) == 3 and result.stdout.strip().splitlines()[-1].startswith("PASS: 48 nodes of 3 layers")


def test_ci_runs_the_readme_s_test_command() -> None:
    ran = re.findall(r"^make \w+", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    assert "make test" in ran and re.search(r"^make test\b", fences()[0], re.MULTILINE)


def test_no_number_is_left_to_fill_in() -> None:
    assert re.findall(r"@@|TODO|XXX", README) == []


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets
    assert [target for target in targets if "://" not in target and not (ROOT / target).exists()] == []


def test_the_table_of_families_is_that_of_the_specs_and_of_their_last_run() -> None:
    from porter.specs.overview import make_table, put_into, read_results, stale

    results = read_results(ROOT / "benchmarks" / "results" / "exact.json")
    assert stale(results) == [], "make table"
    assert put_into(README, make_table(results)) == README, "make table"


def test_exit_codes_are_those_of_the_command_line() -> None:
    assert [row[0] for row in table("exit")] == re.findall(r"(\d)\s", run("--help").output.partition("Exit codes:")[2])


def test_thresholds_are_those_of_the_code() -> None:
    from porter.comparison.verdicts import FLOORS, SYMBOLS, THRESHOLDS

    stated = {row[0]: re.findall(r"(ρ\w*) [≤>] ([\d.]+)", " ".join(row[1:])) for row in table("")}
    for stage, by_dtype in THRESHOLDS.items():
        for dtype, limits in by_dtype.items():
            row = dtype
            if stage == "gradients":
                row = f"gradients, {dtype if dtype == 'float32' else 'other dtypes'}"
            numbers = next(cells for name, cells in stated.items() if row in name)
            for metric, (good, bad) in limits.items():
                assert [float(value) for name, value in numbers if name == SYMBOLS[metric]] == [good, bad, bad]
    assert FLOORS["float32"] == 4 * 2.0**-24 and FLOORS["bfloat16"] < 2.0**-9  # four units; one rounded store


def test_python_face() -> None:
    import porter

    assert set(re.findall(r"\bporter\.(\w+)(?:\(|\.from_pretrained)", README)) == set(porter.__all__)


def test_gallery_is_small() -> None:
    files = [path for path in (ROOT / "diff_reports" / "gallery").rglob("*") if path.is_file()]
    assert files
    assert sum(path.stat().st_size for path in files) < 15_000_000
    assert all(path.stat().st_size < 400_000 for path in files if path.suffix == ".png")
