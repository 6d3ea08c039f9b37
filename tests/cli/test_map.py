"""porter map and porter diff --port on the command line: from a module to a verdict."""

import json
from pathlib import Path

import pytest

from tests.models.commands import porter, refused
from tests.models.tiny import porter_cache  # noqa: F401

MODULES = Path(__file__).resolve().parents[1] / "user_modules"
LLAMA = ["llama", "--size", "tiny", "--weights", "random:stress"]


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in MODULES.glob("*.py"):
        (tmp_path / path.name).write_text(path.read_text())
    monkeypatch.chdir(tmp_path)


def test_a_draft_proposes_layouts_and_passes_as_it_is() -> None:
    result = porter("map", "my_llama:load", *LLAMA, "--out", "my.map.yaml")
    assert result.exit_code == 0, result.output
    assert "48 of 48 nodes named" in result.stdout
    assert '  attn.q: {at: wqkv, slice: "0:96", rope: interleaved}' in result.stdout
    assert "next: porter diff --port module:my_llama:load --map my.map.yaml" in result.stdout
    drafted = Path("my.map.yaml").read_text()
    assert 'attn.k: {at: wqkv, slice: "96:128", rope: interleaved}  # proposed: its values fit' in drafted
    assert porter("build", *LLAMA, "--dtype", "float32", "--tokens", "40").exit_code == 0
    result = porter("diff", "--port", "module:my_llama:load", "--map", "my.map.yaml", "--json", "-")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["verdict"] == "PASS" and document["summary"]["compared"] == document["summary"]["declared"] == 48
    assert document["run"]["port"]["details"] == {"module": "my_llama:load", "map": "my.map.yaml", "spec": "llama"}
    refused(porter("map", "my_llama:load", *LLAMA, "--out", "my.map.yaml"), 2, "--out my.map.yaml is there already")


def test_a_mistake_fails_with_the_command_that_looks_again() -> None:
    assert porter("build", *LLAMA, "--dtype", "float32", "--tokens", "20").exit_code == 0
    result = porter("map", "module:my_llama.load_swapped")
    assert result.exit_code == 0 and "mlp.act: w2:input  # by its weights" in result.stdout
    assert "named by their weights, as their values are not the reference's:\n  mlp.act\n  mlp.out" in result.stderr
    Path("my.map.yaml").write_text(result.stdout)
    result = porter("diff", "--port", "module:my_llama.load_swapped", "--map", "my.map.yaml", "--layers", "first-bad")
    assert result.exit_code == 1, result.output
    assert result.stdout.strip().splitlines()[-1].startswith("FAIL at layers.0.mlp.act (semantics, float32): ρ")
    assert "NOT COMPARED" not in result.stdout


def test_what_a_module_has_otherwise_is_explained() -> None:
    (Path("my.map.yaml")).write_text((MODULES / "my_mistral.map.yaml").read_text())
    given = ["mistral", *LLAMA[1:], "--tokens", "140", "--map", "my.map.yaml"]
    result = porter("explain", *given, "--port", "module:my_mistral:load_with_a_wider_window")
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[:4] == ["layers.0.attn.ctx (semantics, float32)", "axis block.attn.window", "the port has 129",
                         "the reference 128"]  # fmt: skip
    assert "patch" not in result.stdout and "The mended port" not in result.stdout
    result = porter("explain", *given, "--port", "module:my_mistral:load", "--json", "-")
    document = json.loads(result.stdout)
    assert (document["outcome"], document["foreign"], document["faults"]) == ("nothing", True, [])
    refused(porter("explain", *given[:-2], "--port", "dump:x"), 3, "x does not exist")


def test_refusals() -> None:
    refused(porter("map", "my_llama", *LLAMA), 2, "'my_llama' names no function")
    refused(porter("map", "my_lama:load", *LLAMA), 2, "there is no module 'my_lama'")
    refused(porter("map", "my_qwen3:load", *LLAMA), 3, "my_qwen3:load raised: KeyError", "my_qwen3.py:")
    refused(
        porter("diff", *LLAMA, "--port", "module:my_llama:load"), 2, "--port without --map", "porter map my_llama:load"
    )
    refused(porter("diff", *LLAMA, "--map", "x.yaml"), 2, "--map without --port")
