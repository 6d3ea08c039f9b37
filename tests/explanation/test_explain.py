"""explain names the axis that is wrong and its right value, says what it cannot tell apart, and accuses no other."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import porter
import porter_kernels.glu
from porter.explanation.explain import Explanation, explain
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
    monkeypatch.setattr(porter_kernels.glu, "glu_reference", lambda gate, up, act: right(gate, up, act=act).tanh())
    found = explained("gemma3", tokens=40)
    assert (found.outcome, found.exit_code, found.kept) == ("unexplained", 1, ())
    (step,) = found.steps
    assert (step.before.name, step.equals, step.explained) == ("layers.0.mlp.act", (), 0)
    assert step.closest is not None and step.tried > 10 and "block.mlp.act" in step.axes
    found = explained("gemma3", "norm.offset=0", tokens=40)
    assert (found.outcome, found.exit_code, found.kept) == ("partly", 1, ("norm.offset=1",))


def test_two_faults_in_one_layer() -> None:
    found = explained("llama", "block.residual_scale=0.5", "block.attn.scale=0.2", tokens=40)
    assert found.outcome == "explained" and set(found.kept) == {"block.residual_scale=1.0", "block.attn.scale=0.25"}


def test_more_faults_than_it_looks_for_are_partly_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("porter.explanation.search.MOST_FAULTS", 2)
    found = explained("gemma2", "embed.scale=1.0", "norm.offset=0", "head.softcap=9.0", tokens=40)
    assert (found.outcome, len(found.kept), len(found.steps)) == ("partly", 2, 3)
    assert (found.steps[-1].before.name, found.steps[-1].tried) == ("logits", 0)


MISFITS = [  # family, wrong, right, a tensor that does not fit
    ("gemma", "dims.head_dim==hidden // heads", "dims.head_dim=32", "model.layers.0.self_attn.q_proj.weight"),
    ("qwen2", "dims.vocab==cfg.vocab_size - 2", "dims.vocab=512", "model.embed_tokens.weight"),
    ("qwen2", "block.attn.bias_qkv=false", "block.attn.bias_qkv=true", "model.layers.0.self_attn.q_proj.bias"),
    ("qwen2", "head.tied=false", "head.tied=true", "head.weight (as lm_head.weight)"),
    ("qwen3", "block.attn.qk_norm.over=full", "block.attn.qk_norm.over=head", "model.layers.0.self_attn.q_norm.weight"),
]


@pytest.mark.parametrize(("family", "wrong", "right", "tensor"), MISFITS, ids=lambda each: str(each))
def test_a_spec_that_the_tensors_do_not_fit_is_mended_before_anything_runs(
    family: str, wrong: str, right: str, tensor: str
) -> None:
    found = explained(family, wrong, tokens=20)
    assert (found.outcome, found.kept) == ("explained", (right,))
    (step,) = found.steps
    assert (step.by, step.unit, step.before.name, step.left) == ("preflight", "weights", tensor, 0)
    assert step.before.residual == step.failing > 0 and "float32 head" in found.looked_at


def test_tensors_and_numbers_are_mended_one_after_the_other() -> None:
    found = explained("qwen3", "block.attn.qk_norm=null", "block.rope.theta=20000", tokens=20)
    kept = ("block.attn.qk_norm={over: head, when: before_rope}", "block.rope.theta=1000000.0")
    assert (found.outcome, found.kept) == ("explained", kept)
    assert [step.by for step in found.steps] == ["preflight", "semantics"]
    assert len(found.steps[0].equals) == 1  # shapes cannot tell before_rope from after_rope, the numbers can


def test_the_order_of_layers_is_named_and_no_axis_of_one_kind() -> None:
    every = "patterns.window.by==every(2, layers, {0!r}, {1!r})"
    found = explained("gemma2", every.format("sliding_attention", "full_attention"), tokens=140)
    assert (found.outcome, found.kept) == ("explained", (every.format("full_attention", "sliding_attention"),))
    found = explained("qwen2", "patterns.window.by==const('full_attention', layers)", tokens=140)
    assert found.kept == ("patterns.window.by==head(2, layers, 'full_attention', 'sliding_attention')",)
    found = explained("gemma3", "patterns.window.by==const('full_attention', layers)", tokens=140)
    assert len(found.steps[0].equals) == 1  # layer 0 knows other orders as good, layers 1 to 5 do not
    assert found.kept == ("patterns.window.by==every(6, layers, 'full_attention', 'sliding_attention')",)


def test_a_layer_without_rotation_gets_what_the_others_have() -> None:
    found = explained("qwen2", "layers[3].rope=null", tokens=40)
    assert (found.outcome, found.kept) == ("explained", ("layers[3].rope={theta: 1000000.0}",))
    found = explained("llama", "block.rope=null", tokens=40)
    assert found.outcome == "explained" and "theta: 500000.0" in found.kept[0]


UNUSUAL = [  # family, config, wrong, right: numbers that neither the config nor any model has
    ("llama", {"rope_theta": 512345.0}, "block.rope.theta=500000.0", "block.rope.theta=512345.0"),
    ("gemma2", {"query_pre_attn_scalar": 37}, "block.attn.scale=0.2", "block.attn.scale=0.164399"),
    ("llama", {"rms_norm_eps": 3.3e-5}, "norm.eps=1e-5", "norm.eps=3.3e-05"),
]


@pytest.mark.parametrize(("family", "config", "wrong", "right"), UNUSUAL, ids=lambda each: str(each))
def test_a_number_that_nobody_wrote_down_is_fitted(
    family: str, config: dict[str, float], wrong: str, right: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("porter.specs.alternatives._of_config", lambda name, config: iter(()))
    port = tiny(family, dtype="float32", tokens=140)
    found = explain(replace(port, config={**port.config, **config}, overrides=(wrong,)))
    assert found.outcome == "explained"
    axis, _, value = found.kept[0].partition("=")
    wanted, _, number = right.partition("=")
    assert axis == wanted and float(value) == pytest.approx(float(number), rel=1e-5)


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


def test_an_op_that_multiplies_is_named_and_its_bits_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    right = porter_kernels.glu.glu_reference
    monkeypatch.setattr(porter_kernels.glu, "glu_reference", lambda gate, up, act: right(gate, up, act=act) * 1.25)
    found = explained("gemma3", tokens=40)
    assert (found.outcome, found.kept) == ("explained", ())
    assert found.tensors[0] == "layers.0.mlp.act: 1.25 times as large"
    assert found.steps[0].equals[0][0].patch == (
        "where layers.0.mlp.act is computed: as it was computed, not 1.25 times as large"
    )
    assert not any(each.startswith("bfloat16") for each in found.looked_at)


RULES = [  # a file of one's own whose rules take a tensor for another, and what is said of it
    ("attn.v: self_attn.k_proj", ("weights.block.attn.v.src=self_attn.v_proj",), ()),
    ("mlp.gate: mlp.up_proj, mlp.up: mlp.gate_proj", (), ("layers.0.mlp.gate is layers.0.mlp.up, and that is it",)),
    ("attn.o: {src: self_attn.o_proj, transpose: true}", (), ("layers.0.attn.o.weight is transposed",)),
]


@pytest.mark.parametrize(("rule", "kept", "tensors"), RULES, ids=lambda each: str(each)[:20])
def test_a_rule_that_takes_a_tensor_for_another_is_named(
    rule: str, kept: tuple[str, ...], tensors: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    llama = (Path(__file__).parents[2] / "model_specs" / "llama.yaml").read_text(encoding="utf-8")
    path.write_text(f"{llama}weights: {{block: {{{rule}}}}}\n", encoding="utf-8")
    weights = str(tiny("llama").checkpoint())
    found = porter.explain(str(path), size="tiny", weights=weights, device="cpu", tokens=24)
    assert (found.outcome, found.kept, found.tensors[:1]) == ("explained", kept, tensors)
