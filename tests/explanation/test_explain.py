"""explain names the axis that is wrong and its right value, says what it cannot tell apart, and accuses no other."""

import re
from pathlib import Path

import pytest

import porter
import porter_kernels.glu
from porter.explanation.explain import Explanation, explain
from porter.explanation.search import MOST_FAULTS
from tests.models.tiny import tiny


def explained(family: str, *overrides: str, tokens: int = 140, dtype: str = "bfloat16") -> Explanation:
    return explain(tiny(family, *overrides, dtype=dtype, tokens=tokens))


WINDOW = "patterns.window.cases.sliding_attention"
CASES = [  # family, wrong, right, stage, node, tokens
    ("gemma", "embed.scale=1.0", "embed.scale=9.797958971132712", "semantics", "embed.out", 40),
    ("gemma", "embed.scale_rounding=none", "embed.scale_rounding=act", "exact", "embed.out", 40),
    ("gemma", "norm.offset=0", "norm.offset=1", "semantics", "layers.0.attn.norm", 40),
    ("llama", "norm.eps=1e-6", "norm.eps=1e-05", "semantics", "layers.0.attn.norm", 40),
    ("llama", "norm.math=scale_then_cast", "norm.math=cast_then_scale", "exact", "layers.0.attn.norm", 40),
    ("llama", "block.rope.style=interleaved", "block.rope.style=half", "semantics", "layers.0.attn.ctx", 40),
    ("llama", "block.rope.theta=20000", "block.rope.theta=500000.0", "semantics", "layers.0.attn.ctx", 40),
    ("llama", "block.rope.pos_dtype=act", "block.rope.pos_dtype=fp32", "exact", "layers.0.attn.q_rope", 300),
    ("llama", "block.attn.scale=0.2", "block.attn.scale=0.25", "semantics", "layers.0.attn.ctx", 40),
    ("gemma2", "block.attn.softcap=null", "block.attn.softcap=5.0", "semantics", "layers.0.attn.ctx", 40),
    ("gemma2", "head.softcap=null", "head.softcap=3.0", "semantics", "logits", 40),
    ("gemma3", f"{WINDOW}.attn.window=129", f"{WINDOW}.attn.window=128", "semantics", "layers.0.attn.ctx", 140),
    ("gemma3", f"{WINDOW}.rope.theta=1e6", f"{WINDOW}.rope.theta=10000.0", "semantics", "layers.0.attn.ctx", 40),
    ("qwen3", "block.attn.qk_norm.when=after_rope", "block.attn.qk_norm.when=before_rope", "semantics",
     "layers.0.attn.ctx", 40),
    ("phi3", "weights.block.mlp.gate_up.order=[up, gate]", "weights.block.mlp.gate_up.order=[gate, up]", "semantics",
     "layers.0.mlp.act", 40),
    ("gpt_neox", "block.rope.partial=1.0", "block.rope.partial=0.25", "semantics", "layers.0.attn.ctx", 40),
    ("gpt_neox", "block.add_order=residual_first", "block.add_order=branches_first", "exact", "layers.0.resid_post",
     40),
    ("gpt2", "block.mlp.act=gelu", "block.mlp.act=gelu_new", "semantics", "layers.0.mlp.act", 40),
    ("llama", "layers[1].mlp.act=gelu", "layers[1].mlp.act=silu", "semantics", "layers.1.mlp.act", 40),
]  # fmt: skip


@pytest.mark.parametrize(("family", "wrong", "right", "by", "node", "tokens"), CASES, ids=lambda each: str(each))
def test_one_wrong_axis_is_named_with_its_value(
    family: str, wrong: str, right: str, by: str, node: str, tokens: int
) -> None:
    found = explained(family, wrong, tokens=tokens)
    assert (found.outcome, found.exit_code, found.kept) == ("explained", 0, (right,))
    (step,) = found.steps
    assert (step.by, step.before.name, step.explained, step.left) == (by, node, step.failing, 0)
    assert [[each.override for each in change] for change in step.equals] == [[right]]
    assert step.after is not None and not step.after.fails and step.after.residual < step.before.residual


def test_a_clean_port_has_nothing_to_explain() -> None:
    found = explained("gemma3", tokens=40)
    assert (found.outcome, found.exit_code, found.steps, found.kept) == ("nothing", 0, (), ())
    layers = [f"float32 layers.{i}" for i in (0, 5)] + [f"bfloat16 layers.{i}" for i in range(6)]
    assert [each for each in found.looked_at if "layers" in each] == layers
    assert {"float32 embed", "float32 head", "bfloat16 embed", "bfloat16 head"} <= set(found.looked_at)


def test_two_faults_at_different_nodes_are_told_one_after_the_other() -> None:
    found = explained("gemma3", "norm.offset=0", "block.mlp.act=silu", tokens=40)
    assert (found.outcome, found.kept) == ("explained", ("norm.offset=1", "block.mlp.act=gelu_tanh"))
    assert [step.before.name for step in found.steps] == ["layers.0.attn.norm", "layers.0.mlp.act"]
    assert found.steps[0].left == 4 and found.steps[1].left == 0


def test_a_fault_of_the_function_and_one_of_rounding() -> None:
    found = explained("llama", "block.mlp.act=gelu", "block.rope.table_dtype=fp32", tokens=40)
    assert (found.outcome, found.kept) == ("explained", ("block.mlp.act=silu", "block.rope.table_dtype=act"))
    assert [step.by for step in found.steps] == ["semantics", "exact"]


def test_two_faults_at_one_node_are_found_as_a_pair() -> None:
    found = explained("llama", "block.attn.scale=0.2", "block.rope.theta=20000", tokens=40)
    assert (found.outcome, set(found.kept)) == ("explained", {"block.attn.scale=0.25", "block.rope.theta=500000.0"})
    assert len(found.steps) == 1 and len(found.steps[0].equals[0]) == 2


def test_what_cannot_be_told_apart_is_listed() -> None:
    found = explained("llama", "block.rope.negate=true", tokens=1, dtype="float32")
    assert found.outcome == "nothing"  # one token at position 0 is not rotated
    found = explained("gpt2", "block.mlp.act=relu2", tokens=40)
    assert [[each.override for each in change] for change in found.steps[0].equals] == [["block.mlp.act=gelu_new"]]
    found = explained("gemma3", f"{WINDOW}.attn.window=20", tokens=40)
    equals = {change[0].override for change in found.steps[0].equals}
    assert equals == {f"{WINDOW}.attn.window={value}" for value in ("null", 128)}  # 40 tokens pass neither
    assert found.outcome == "explained"


def test_a_wrong_op_is_no_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    right = porter_kernels.glu.glu_reference
    monkeypatch.setattr(porter_kernels.glu, "glu_reference", lambda gate, up, act: right(gate, up, act=act) * 1.01)
    found = explained("gemma3", tokens=40)
    assert (found.outcome, found.exit_code, found.kept) == ("unexplained", 4, ())
    (step,) = found.steps
    assert (step.before.name, step.equals, step.explained) == ("layers.0.mlp.act", (), 0)
    assert step.closest is not None and step.tried > 10 and "block.mlp.act" in step.axes
    found = explained("gemma3", "norm.offset=0", tokens=40)
    assert (found.outcome, found.exit_code, found.kept) == ("partly", 1, ("norm.offset=1",))


def test_two_faults_in_one_layer() -> None:
    found = explained("llama", "block.residual_scale=0.5", "block.attn.scale=0.2", tokens=40)
    assert found.outcome == "explained" and set(found.kept) == {"block.residual_scale=1.0", "block.attn.scale=0.25"}


def test_more_faults_than_it_looks_for_are_partly_explained() -> None:
    wrong = (
        "embed.scale=1.0", "norm.offset=0", "block.rope.style=interleaved", "block.mlp.act=silu", "head.softcap=9.0",
    )  # fmt: skip
    found = explained("gemma2", *wrong, tokens=40)
    assert (found.outcome, len(found.kept), len(found.steps)) == ("partly", MOST_FAULTS, MOST_FAULTS + 1)
    assert (found.steps[-1].before.name, found.steps[-1].tried) == ("logits", 0)


def test_a_family_of_ones_own_is_explained_without_a_right_spec(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^```yaml\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    line = "norm: {math: scale_then_cast}\n"
    assert found is not None and line in found[1]
    path = tmp_path / "olmo2.yaml"
    path.write_text(found[1].replace(line, ""), encoding="utf-8")
    named = porter.explain(str(path), size="tiny", weights="random:stress", device="cpu", tokens=40)
    assert (named.outcome, named.kept) == ("explained", ("norm.math=scale_then_cast",))
    assert (named.steps[0].by, named.steps[0].before.name) == ("exact", "layers.0.attn.q_norm")
