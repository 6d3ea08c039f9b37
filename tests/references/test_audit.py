"""Family files against HF's classes: each kind of disagreement is planted, and told with its line and fix."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from porter.cli.main import cli
from porter.references.audit import audit_family
from porter.specs.family import find_family, read_family
from porter.specs.tree import builtin_spec_names

HEAD = "extends: {parent}\nmodel_type: {model_type}\narchitecture: {architecture}\n"


def planted(parent: str, text: str, folder: Path, **config: object) -> list[str]:
    """What is found in a copy of a family with `text` from line 4 on, as `error lines`, without folders."""
    family = find_family(parent)
    values = {**family.size("tiny").config, **config}
    names = {key: family.tree[key] for key in ("model_type", "architecture")}
    path = folder / "mine.yaml"
    sizes = f"\nsizes: {{tiny: {{config: {values!r}}}}}\n".replace("True", "true").replace("False", "false")
    path.write_text(HEAD.format(parent=parent, **names) + text + sizes.replace("None", "null"), encoding="utf-8")
    return [str(error).replace(f"{path}", path.name) for error in audit_family(read_family(path))]


@pytest.mark.parametrize("name", builtin_spec_names())
def test_the_families_of_porter_agree_with_hf(name: str) -> None:
    assert [error.wrong for error in audit_family(find_family(name))] == []


def test_a_key_of_hfs_class_that_nothing_reads(tmp_path: Path) -> None:
    (found,) = planted("phi3", "ignore_config: {resid_pdrop: null}", tmp_path)
    assert found == (
        "mine.yaml:4: nothing reads config key resid_pdrop, which HF's class for phi3 has\n"
        "  expected: every key of a saved config.json is read by an axis, or ignored with a reason\n"
        "  fix: Add an axis that reads cfg.resid_pdrop, or `ignore_config: {resid_pdrop: why it changes no number}`."
    )


def test_an_absent_key_that_hf_takes_otherwise(tmp_path: Path) -> None:
    found = planted("mistral", "config_defaults: {sliding_window: 64}", tmp_path)
    assert found[0] == (
        "mine.yaml:4: with config key sliding_window absent, block.attn.window is not what HF computes\n"
        "  expected: HF's class takes sliding_window for 4096 then\n"
        "  fix: Add `config_defaults: {sliding_window: 4096}`."
    )


def test_tensors_that_are_saved_and_not_read_or_read_and_not_saved(tmp_path: Path) -> None:
    found = planted("llama", "block: {mlp: {bias: false}}", tmp_path)
    first = "mine.yaml:4: model.layers.0.mlp.gate_proj.bias is saved by HF, and no rule reads it so (size tiny)"
    assert any(text.startswith(first) for text in found) or any("mlp_bias" in text for text in found)
    found = planted("llama", "weights: {block: {attn.q: self_attn.query}}", tmp_path)
    assert any(
        "layers.0.attn.q.weight (as model.layers.0.self_attn.query.weight) is not saved by HF" in t for t in found
    )
    assert any("model.layers.0.self_attn.q_proj.weight is saved by HF, and no rule reads it so" in t for t in found)
    assert all(text.startswith("mine.yaml:4: ") for text in found)


def test_the_command_tells_all_of_it_with_exit_2(tmp_path: Path) -> None:
    planted("llama", "weights: {block: {attn.q: self_attn.query}}", tmp_path)
    result = CliRunner().invoke(cli, ["specs", "check", str(tmp_path / "mine.yaml")])
    assert result.exit_code == 2
    assert result.stderr.count("is saved by HF") >= 3 and result.stderr.count("  fix: ") >= 6
    assert CliRunner().invoke(cli, ["specs", "check", "--no-hf", str(tmp_path / "mine.yaml")]).exit_code == 0
