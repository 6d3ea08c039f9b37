"""porter specs: list, show, check, exact."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from porter.cli.main import cli
from porter.comparison import exact_table, exactness
from porter.errors import ComparisonError
from porter.specs.tree import builtin_spec_names


def porter(*args: str) -> Result:
    return CliRunner().invoke(cli, ["specs", *args])


def output(*args: str) -> str:
    result = porter(*args)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def test_list() -> None:
    lines = output("list").splitlines()
    assert lines[0].split() == ["family", "model_type", "sizes"]
    assert [line.split()[0] for line in lines[1:]] == builtin_spec_names()
    gemma3 = next(line for line in lines if line.startswith("gemma3 "))
    assert gemma3.split(maxsplit=2) == ["gemma3", "gemma3_text", "gemma-3-270m, gemma-3-1b, tiny"]


def test_list_as_json() -> None:
    rows = json.loads(output("list", "--json"))
    assert [row["name"] for row in rows] == builtin_spec_names()
    gemma = next(row for row in rows if row["name"] == "gemma")
    assert gemma["sizes"] == {"gemma-2b": "google/gemma-2b", "gemma-7b": "google/gemma-7b", "tiny": None}
    assert gemma["architecture"] == "GemmaForCausalLM"


def test_show_a_size() -> None:
    text = output("show", "gemma-7b")
    assert text.startswith("gemma-7b  gemma, GemmaForCausalLM, model_type gemma\n8,537,680,896 parameters\n")
    assert "× 55.4256 (rounded to the activations)" in text and "28, all alike" in text
    assert text == output("show", "gemma", "--size", "gemma-7b")


def test_show_a_family_says_which_size_it_shows() -> None:
    lines = output("show", "gemma3").splitlines()
    assert lines[1] == "sizes of gemma3: gemma-3-270m, gemma-3-1b, tiny; shown is tiny, others with --size"
    assert lines[2] == "549,600 parameters"
    layers = next(line for line in lines if line.startswith("layers"))
    assert layers.split(maxsplit=1)[1] == (
        "6: 5 × A, 1 × B; A: attn.window 128, rope.theta 10000; B: attn.window null, rope.theta 1e+06"
    )


def test_show_axes() -> None:
    lines = [line.split(maxsplit=2) for line in output("show", "gemma3", "--axes").splitlines()]
    assert ["axis", "value", "allowed"] in lines
    activations = "silu | gelu | gelu_tanh | gelu_new | gelu_bloom | quick_gelu | relu | relu2 | xielu"
    assert ["block.mlp.act", "gelu_tanh", activations] in lines
    assert ["norm.eps", "1e-06", "number ≥ 0"] in lines


def test_show_as_json_is_the_blueprint_alone() -> None:
    values = json.loads(output("show", "gpt2", "--size", "gpt2", "--json"))
    assert (values["parameters"], values["family"], len(values["blocks"])) == (124_439_808, "gpt2", 12)
    assert len(values["spec_sha256"]) == 64


def test_show_with_changes() -> None:
    text = output("show", "gemma", "--set", "block.mlp.act=gelu", "--set", "norm.eps=1e-5")
    assert "set: block.mlp.act=gelu\nset: norm.eps=1e-5\n" in text
    assert "gelu, gated" in text and "eps 1e-05" in text
    wrong = porter("show", "gemma3", "--set", "block.rope.theta=5")
    assert wrong.exit_code == 2 and "--set block.rope.theta=5 changes nothing" in wrong.stderr


def test_check() -> None:
    lines = output("check", "gemma", "smollm2-135m").splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["gemma", "gemma-2b", "OK"],
        ["gemma", "gemma-7b", "OK"],
        ["gemma", "tiny", "OK"],
        ["gemma", "HF", "OK"],
        ["llama", "smollm2-135m", "OK"],
    ]
    assert output("check", "gemma", "--no-hf").splitlines() == lines[:3]
    assert lines[1].endswith("28 layers, 254 tensors, 8,537,680,896 parameters")


def test_check_a_file_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    head = "extends: llama\nmodel_type: m\narchitecture: M\nblock:\n  "
    path.write_text(head + "mlp: {acts: gelu}\nsizes: {tiny: {config: {}}}\n", encoding="utf-8")
    result = porter("check", str(path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{path}:5: unknown key 'block.mlp.acts'" in result.stderr


def row(name: str, dtype: str, first: str | None) -> exactness.ExactRow:
    return exactness.ExactRow(name, "gemma", dtype, 320, 2 if first else 3, 3, not first, 0.5 if first else 0.0, first)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str, str, int]]]:
    """What exact would run: (family, size, weights, tokens); gpt2 is not exact in bfloat16, phi3 cannot be run."""
    asked: list[tuple[str, str, str, int]] = []

    def plan(spec: str, size: str, weights: str) -> SimpleNamespace:
        return SimpleNamespace(name=Path(spec).stem, size=size, weights=weights, spec_hash="abc")

    def check(build: SimpleNamespace, dtypes: tuple[str, ...], tokens: int) -> Iterator[exactness.ExactRow]:
        asked.append((build.name, build.size, build.weights, tokens))
        if build.name == "phi3":
            raise ComparisonError("HF has no such class", "one", "upgrade")
        for dtype in dtypes:
            yield row(build.name, dtype, "layers.2" if build.name == "gpt2" and dtype == "bfloat16" else None)

    monkeypatch.setattr(exact_table, "plan_exact", plan)
    monkeypatch.setattr(exact_table, "check_exactness", check)
    yield asked


def test_exact_runs_every_family_and_fails_on_one(runs: list[tuple[str, str, str, int]]) -> None:
    result = porter("exact", "--jobs", "1")
    names = builtin_spec_names()
    assert runs == [(name, "tiny", "random:stress", 320) for name in names]
    assert result.exit_code == 1
    *lines, closing = result.stdout.splitlines()
    assert sum(line.endswith("  float32 and bfloat16 bit-equal") for line in lines) == len(names) - 2
    gpt2, phi3 = (next(line for line in lines if line.startswith(f"{name} ")) for name in ("gpt2", "phi3"))
    assert gpt2.endswith(" float32 bit-equal; bfloat16 2 of 3 layers: layers.2 differs first, by 5.0e-01 relative")
    assert phi3.endswith(" cannot be run: HF has no such class")
    count = len(names)
    assert closing == f"{count} model types: {count - 2} bit-equal in bfloat16, {count - 1} in float32"


def test_exact_as_json(runs: list[tuple[str, str, str, int]], tmp_path: Path) -> None:
    assert porter("exact", "gpt2", "phi3", "--jobs", "1", "--json", str(tmp_path / "rows.json")).exit_code == 1
    document = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert (document["schema"], set(document["versions"])) == ("porter.exact/1", {"torch", "transformers"})
    gpt2, phi3 = document["rows"]
    assert (gpt2["spec_sha256"], gpt2["float32"]["exact"], gpt2["bfloat16"]["first"]) == ("abc", True, "layers.2")
    assert phi3["problem"] == "HF has no such class" and "float32" not in phi3


def test_exact_runs_what_it_is_told(runs: list[tuple[str, str, str, int]]) -> None:
    result = porter("exact", "gemma", "gemma-3-270m", "--demo", "--jobs", "1")
    assert result.exit_code == 0
    assert runs == [
        ("gemma", "tiny", "random:stress", 320),
        ("gemma3", "gemma-3-270m", "demo", 640),
        ("llama", "smollm2-135m", "demo", 640),
    ]
    assert result.stdout.splitlines()[1].startswith("gemma3_text gemma-3-270m ")
    assert result.stdout.endswith("\n3 model types: 3 bit-equal in bfloat16, 3 in float32\n")


def test_exact_refuses_a_name_before_it_runs_anything(runs: list[tuple[str, str, str, int]]) -> None:
    assert porter("exact", "gemma", "gema").exit_code == 2 and runs == []


def test_exact_for_real_on_two_families_in_two_processes() -> None:
    result = porter("exact", "mistral", "gpt2", "--jobs", "2")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["mistral", "gpt2"]
    assert all(line.endswith(" float32 and bfloat16 bit-equal") for line in lines[:2])
    assert lines[2:] == ["2 model types: 2 bit-equal in bfloat16, 2 in float32"]
