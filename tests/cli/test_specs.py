"""porter specs: list, show, check, exact."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from porter.cli.main import cli
from porter.comparison import exactness
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
    assert lines[3].split(maxsplit=2) == ["gemma3", "gemma3_text", "gemma-3-270m, gemma-3-1b, tiny"]


def test_list_as_json() -> None:
    rows = json.loads(output("list", "--json"))
    assert [row["name"] for row in rows] == builtin_spec_names()
    assert rows[0]["sizes"] == {"gemma-2b": "google/gemma-2b", "gemma-7b": "google/gemma-7b", "tiny": None}
    assert rows[0]["architecture"] == "GemmaForCausalLM"


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
    assert ["block.mlp.act", "gelu_tanh", "silu | gelu | gelu_tanh | gelu_new | quick_gelu | relu | relu2"] in lines
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
        ["llama", "smollm2-135m", "OK"],
    ]
    assert lines[1].endswith("28 layers, 254 tensors, 8,537,680,896 parameters")


def test_check_a_file_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    head = "extends: llama\nmodel_type: m\narchitecture: M\nblock:\n  "
    path.write_text(head + "mlp: {acts: gelu}\nsizes: {tiny: {config: {}}}\n", encoding="utf-8")
    result = porter("check", str(path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{path}:5: unknown key 'block.mlp.acts'" in result.stderr


def row(name: str, first: str | None) -> exactness.ExactRow:
    return exactness.ExactRow(
        name, "gemma", "bfloat16", 320, 2 if first else 3, 3, not first, 0.5 if first else 0.0, first
    )


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str, str, int]]]:
    """What exact would run: (file or family, size, weights, tokens); the model `tiny` of gpt2 is not exact."""
    asked: list[tuple[str, str, str, int]] = []

    def plan(spec: str, size: str, weights: str) -> tuple[str, str, str]:
        return Path(spec).stem, size, weights

    def check(build: tuple[str, str, str], tokens: int) -> Iterator[exactness.ExactRow]:
        asked.append((*build, tokens))
        yield row(build[0], "layers.2" if build[0] == "gpt2" else None)

    monkeypatch.setattr(exactness, "plan_exact", plan)
    monkeypatch.setattr(exactness, "check_exactness", check)
    yield asked


def test_exact_runs_every_family_and_fails_on_one(runs: list[tuple[str, str, str, int]]) -> None:
    result = porter("exact")
    assert runs == [(name, "tiny", "random:stress", 320) for name in builtin_spec_names()]
    assert result.exit_code == 1 and result.stderr == "1 not bit-equal\n"
    lines = result.stdout.splitlines()
    assert sum(line.endswith("  bit-equal") for line in lines) == 9
    different = next(line for line in lines if not line.endswith("bit-equal"))
    assert different.startswith("gpt2 ") and different.endswith("layers.2 differs first, by 5.0e-01 relative")


def test_exact_runs_what_it_is_told(runs: list[tuple[str, str, str, int]]) -> None:
    assert porter("exact", "gemma", "gemma-3-270m", "--demo").exit_code == 0
    assert runs == [
        ("gemma", "tiny", "random:stress", 320),
        ("gemma3", "gemma-3-270m", "demo", 640),
        ("llama", "smollm2-135m", "demo", 640),
    ]


def test_exact_refuses_a_name_before_it_runs_anything(runs: list[tuple[str, str, str, int]]) -> None:
    assert porter("exact", "gemma", "gema").exit_code == 2 and runs == []


def test_exact_for_real_on_one_family() -> None:
    result = porter("exact", "mistral")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split()[2] for line in lines] == ["float32", "bfloat16"]
    assert all(line.endswith(" bit-equal") for line in lines)
