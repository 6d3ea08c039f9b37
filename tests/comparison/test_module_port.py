"""A user's module as the port: clean ones pass, planted mistakes fail at the node where they act, errors are told."""

import importlib
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from ruamel.yaml import YAML

from porter.comparison.diff import diff
from porter.comparison.report import DiffReport
from porter.comparison.sentence import sentence
from porter.errors import ArtifactError, ComparisonError, PorterError, PreflightError, SpecError, UsageError
from tests.models.tiny import tiny

MODULES = Path(__file__).resolve().parents[1] / "user_modules"
FIRST = {"llama": "layers.0", "mistral": "h.0", "qwen3": "blocks.0"}
LAYERS = {"llama": 3, "mistral": 3, "qwen3": 4}


@pytest.fixture(autouse=True)
def working_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(MODULES)


def run(family: str, function: str = "load", *, tokens: int = 140, dtype: str = "float32", **given) -> DiffReport:
    build = tiny(family, dtype=dtype, tokens=tokens)
    given = {"port": f"module:my_{family}:{function}", "map": MODULES / f"my_{family}.map.yaml", **given}
    return diff(build, **given)


@pytest.mark.parametrize("family", LAYERS)
def test_a_clean_module_passes(family: str) -> None:
    report = run(family, dtype="bfloat16" if family == "qwen3" else "float32")
    assert (report.verdict, report.exit_code) == ("PASS", 0), report.sentence
    unseen = {node.node for node in report.nodes if node.status == "NOT_COMPARED"}
    assert unseen == ({"attn.q_rope", "attn.k_rope"} if family == "mistral" else set())
    assert report.declared == report.compared + len(unseen) * LAYERS[family]
    assert {node.status for node in report.nodes} <= {"PASS", "NOT_COMPARED"}
    stages = ["semantics", "precision", "behaviour", "behaviour"] if family == "qwen3" else ["semantics", "behaviour"]
    assert [stage.name for stage in report.stages] == stages
    assert {check.name: check.status for check in report.behaviour} == {"logits": "PASS", "decode": "NOT_COMPARED"}
    assert report.port.what == f"my_{family}:load, a torch module"
    checks = {check.name: (check.status, check.detail) for check in report.preflight}
    assert checks["weights.module"] == ("PASS", f"7 of 7 matrices of layer 0 are in {FIRST[family]}")
    assert report.axes and all(axis.seen != "exact" for axis in report.axes)


@pytest.mark.parametrize(
    ("family", "function", "first"),
    [
        ("llama", "load_swapped", "layers.0.mlp.act"),
        ("qwen3", "load_without_qk_norm", "layers.0.attn.ctx"),
        ("mistral", "load_with_a_wider_window", "layers.0.attn.ctx"),
    ],
)
def test_a_planted_mistake_fails_where_it_acts(family: str, function: str, first: str) -> None:
    report = run(family, function, layers="first-bad")
    assert (report.verdict, report.exit_code) == ("FAIL", 1)
    assert (report.first_fail.name, report.first_fail.stage) == (first, "semantics")
    assert report.sentence.startswith(f"FAIL at {first} (semantics, float32): ρ")
    assert "next: porter.explain(…, port=…, map=…)" in report.sentence
    module = f"--port module:my_{family}:{function} --map {MODULES / f'my_{family}.map.yaml'}"
    command = f"porter diff --tokens 140 {module} --layers first-bad"
    assert sentence(replace(report, command=command)).endswith(f"; next: porter explain --tokens 140 {module}")
    if family == "qwen3":  # modules that are there and are not called: what the mistake is
        missing = {node.node: node.reason for node in report.nodes if node.status == "NOT_COMPARED"}
        assert missing == {f"attn.{x}_norm": f"attention.norm_{x} is not called" for x in "qk"}
        assert "; attn.q_norm: attention.norm_q is not called; attn.k_norm: " in report.sentence


def test_a_layout_that_is_not_declared_is_proposed_and_passes_as_proposed(tmp_path: Path) -> None:
    declared = (MODULES / "my_llama.map.yaml").read_text()
    path = tmp_path / "map.yaml"
    path.write_text(declared.replace(", rope: interleaved", "").replace("slice: 0:160", 'slice: "::2"'))
    report = run("llama", map=path, tokens=30)
    assert (report.verdict, report.exit_code) == ("WARN", 0)
    lines = [proposal.line for proposal in report.proposals]
    assert lines == [
        'attn.q: {at: wqkv, slice: "0:96", rope: interleaved}',
        'attn.k: {at: wqkv, slice: "96:128", rope: interleaved}',
        'attn.q_rope: {at: "@scaled_dot_product_attention:input", axes: BHTK, rope: interleaved}',
        'attn.k_rope: {at: "@scaled_dot_product_attention:input1", axes: BHTK, rope: interleaved}',
        'mlp.gate: {at: w13, slice: "0:160"}',
    ]  # fmt: skip
    assert report.sentence.endswith(f"; the data fit the map’s line “{lines[0]}” and 4 more.")
    for line in lines:
        path.write_text(re.sub(rf"^  {line.split(':')[0]}: .*$", f"  {line}", path.read_text(), flags=re.MULTILINE))
    report = run("llama", map=path, tokens=30)
    assert (report.verdict, report.proposals, report.compared) == ("PASS", (), 48)


def test_heads_in_another_order_fail_until_they_are_declared() -> None:
    model = users("my_qwen3").load(tiny("qwen3").checkpoint(), torch.float32)
    for block in model.blocks:  # 6 heads share 2 of keys and values: both groups exchanged, and two heads within one
        heads, attention = torch.tensor([3, 5, 4, 0, 1, 2]), block.attention
        for linear, order in ((attention.wq, heads), (attention.wk, [1, 0]), (attention.wv, [1, 0])):
            for kind in (linear.weight, linear.bias):
                kind.data = kind.data.view(-1, 24, *kind.shape[1:])[order].flatten(0, 1)
        attention.wo.weight.data = attention.wo.weight.data.view(96, 6, 24)[:, heads].flatten(1)
    report = run("qwen3", port=model, tokens=30)
    assert (report.exit_code, report.first_fail.name) == (1, "layers.0.attn.ctx")
    proposed = {proposal.line.split(":")[0]: proposal.line for proposal in report.proposals}
    assert proposed["attn.ctx"] == "attn.ctx: {at: attention.wo:input, heads: [3, 5, 4, 0, 1, 2]}"
    assert (
        "; the data fit the map’s line “attn.ctx: {at: attention.wo:input, heads: [3, 5, 4, 0, 1, 2]}” and "
        in report.sentence
    )
    nodes = yaml((MODULES / "my_qwen3.map.yaml").read_text())
    nodes |= {node: yaml(f"x:\n  {line}")[node] for node, line in proposed.items()}
    report = run("qwen3", port=model, map={"layers": "blocks.{i}", "nodes": nodes}, tokens=30)
    assert (report.verdict, report.proposals) == ("PASS", ()), report.sentence


def test_a_small_error_in_the_right_layout_proposes_nothing() -> None:
    model = users("my_llama").load(tiny("llama").checkpoint())
    model.layers[0].attention_norm.eps *= 2
    report = run("llama", port=model, tokens=30, stages=["semantics"])
    assert report.first_fail.name == "layers.0.attn.norm" and report.first_fail.local.e_port < 1e-3
    assert report.proposals == ()


def users(name: str) -> ModuleType:
    """A file of the users' modules, imported as it would be from their folder."""
    sys.path.insert(0, str(MODULES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(MODULES))


def yaml(text: str) -> dict:
    """The last map of a document."""
    read = YAML(typ="safe").load(text)
    return list(read.values())[-1]


def test_layers_are_fed_what_golden_saw_and_the_curve_is_the_modules_own() -> None:
    my_llama = users("my_llama")
    mistaken = my_llama.load(tiny("llama").checkpoint())
    mistaken.layers[1].__class__ = my_llama.Swapped
    report = run("llama", port=mistaken, tokens=20)
    assert {node.layer for node in report.nodes if node.status == "FAIL"} == {1}
    curve = {n.layer: n.propagated.rel_l2 for n in report.of_stage("semantics") if n.node == "resid_post"}
    assert curve[0] < 1e-5 < 1e-2 < curve[1] and curve[2] > 1e-2
    assert all("forward" not in vars(layer) for layer in mistaken.layers)  # the user's module is as it was


def test_exact_is_compared_when_it_is_asked_for() -> None:
    report = run("qwen3", stages=["exact"], tokens=30)
    (stage,) = report.stages
    assert stage.name == "exact" and stage.compared == report.compared > 60
    assert any(node.exact for node in report.nodes)


def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """my_broken.py in a folder of its own, beside the clean module that it starts from."""
    (tmp_path / "my_llama.py").write_text((MODULES / "my_llama.py").read_text())
    (tmp_path / "my_broken.py").write_text("import torch\nimport my_llama\n" + text)
    monkeypatch.chdir(tmp_path)


LOAD = "def load(folder):\n    model = my_llama.load(folder)\n"
SUBCLASS = "class Other(my_llama.Layer):\n    def forward(self, h, freqs_cis):\n"
BROKEN = {
    "import": (
        "import nothing_of_that_name\n", ArtifactError, 3,
        r"import my_broken raised: ModuleNotFoundError.*my_broken.py:3",
    ),
    "syntax": ("def load(:\n", ArtifactError, 3, r"SyntaxError.*my_broken.py:3"),
    "no function": ("def lode(folder): ...\n", UsageError, 2, r"my_broken has no 'load'.*did you mean lode"),
    "raises": (
        "def load(folder):\n    raise KeyError('wq')\n", ArtifactError, 3,
        r"my_broken:load raised: KeyError.*my_broken.py:4",
    ),
    "no module": ("def load(folder):\n    return 3\n", UsageError, 2, r"my_broken:load gives a int"),
    "arguments": ("def load(a, b):\n    return 3\n", UsageError, 2, r"my_broken:load needs a, b"),
    "wrong dtype": (
        "def load(folder, dtype):\n    return my_llama.load(folder).double()\n", PreflightError, 5,
        r"was asked for float32 and gives parameters in float64",
    ),
    "other weights": (
        LOAD + "    for p in model.parameters(): torch.nn.init.normal_(p)\n    return model\n", PreflightError, 5,
        r"none of the 7 matrices of the checkpoint's layer 0 is in my_broken:load",
    ),
    "wrong shape": (
        SUBCLASS + "        return super().forward(h, freqs_cis)[..., :9]\n" + LOAD
        + "    model.layers[1].__class__ = Other\n    return model\n", UsageError, 2,
        r"layers\.1 gives \[\[1, 20, 9\]\].*the residual stream, \[1, 20, 96\]",
    ),
    "forward raises": (
        SUBCLASS + "        return h @ h\n" + LOAD + "    model.layers[1].__class__ = Other\n    return model\n",
        ArtifactError, 3, r"my_broken:load cannot be run: RuntimeError.*my_broken.py:5",
    ),
    "random": (
        SUBCLASS + "        return super().forward(h, freqs_cis) + torch.randn(96)\n" + LOAD
        + "    model.layers[1].__class__ = Other\n    return model\n", ComparisonError, 4,
        r"gives other logits each time it is run",
    ),
    "layers twice": (
        LOAD + "    model.layers[2] = model.layers[1]\n    return model\n", UsageError, 2,
        r"calls its layers in the order",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_wrong_in_a_users_code_is_told(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, kind, exit_code, message = BROKEN[case]
    source(tmp_path, monkeypatch, text)
    with pytest.raises(kind) as caught:
        run("llama", tokens=20, port="module:my_broken:load")
    assert re.search(message, str(caught.value), re.DOTALL), caught.value
    assert caught.value.exit_code == exit_code
    assert str(tmp_path) not in sys.path


def test_values_that_are_no_numbers_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nan = SUBCLASS + "        return super().forward(h * float('nan'), freqs_cis)\n" + LOAD
    source(tmp_path, monkeypatch, nan + "    model.layers[1].__class__ = Other\n    return model\n")
    report = run("llama", tokens=20, port="module:my_broken:load")
    assert (report.exit_code, report.first_fail.name) == (1, "layers.1.attn.norm")
    assert "1920 values of the port are not finite" in report.first_fail.reason


def test_weights_that_were_rounded_or_changed_are_told() -> None:
    model = users("my_llama").load(tiny("llama").checkpoint()).bfloat16()
    report = run("llama", port=model, tokens=20, stages=["semantics"])
    (check,) = [check for check in report.preflight if check.name == "weights.module"]
    assert check.status == "WARN" and check.detail.endswith("rounded to a narrower dtype than the checkpoint's")
    assert report.exit_code == 1
    model = users("my_llama").load(tiny("llama").checkpoint())
    model.layers[0].w2.weight.data[3] *= 1.5  # a row of 96
    report = run("llama", port=model, tokens=20, stages=["semantics"])
    (check,) = [check for check in report.preflight if check.name == "weights.module"]
    assert (check.status, report.first_fail.name) == ("NOT_COMPARED", "layers.0.mlp.out")
    assert check.detail == "6 of 7 matrices of layer 0 are in layers.0; mlp.down with other values, or turned"


def test_a_module_that_takes_no_dtype_is_cast_and_its_rounded_buffers_are_told() -> None:
    model = users("my_llama").load(tiny("llama").checkpoint())
    model.register_buffer("inv_freq", model.__dict__.pop("inv_freq"))
    report = run("llama", port=model, tokens=20, dtype="bfloat16", stages=["precision"])
    assert any("its buffer inv_freq was rounded to bfloat16 by Module.to" in note for note in report.warnings)
    assert model.inv_freq.dtype == torch.float32  # a copy was cast


IN = "layers: layers.{i}\nnodes:\n  "
MAPS = {
    "path": ("layers: layer.{i}\nnodes: {}\n", r"map.yaml:1: layers: there is no module 'layer.0'.*did you mean"),
    "number": ("layers: [layers.0, layers.1]\nnodes: {}\n", r"map.yaml:1: layers: 2 paths.*3, one a layer"),
    "no number": ("layers: layers\nnodes: {}\n", r"map.yaml:1: layers.*has no \{i\}"),
    "module": (IN + "attn.out: w0\n", r"map.yaml:3: there is no module 'w0'"),
    "node": (IN + "attn.ctxt: wo\n", r"map.yaml:3: no node is called 'attn.ctxt'.*attn.ctx"),
    "stream": (IN + "resid_post: wo\n", r"map.yaml:3: resid_post is what goes into"),
    "tap": (IN + "attn.out: wo:out\n", r"map.yaml:3: attn.out: at: 'wo:out' is no place"),
    "key": (IN + "attn.q: {at: wqkv, slise: 0:96}\n", r"slise: unknown key; did you mean slice"),
    "slice": (IN + "attn.q: {at: wqkv, slice: q}\n", r"slice: 'q' is no slice"),
    "heads": (IN + "attn.ctx: {at: wo:input, heads: [1, 0]}\n", r"2 heads are declared, and there are 6"),
    "rope": (IN + "attn.ctx: {at: wo:input, rope: half}\n", r"the reference has half RoPE itself"),
    "axes": (IN + "attn.ctx: {at: wo:input, axes: BHTK}\n", r"the axes BHTK are 4, and the tensor is"),
    "no heads": (IN + "mlp.out: {at: w2, repeat: 3}\n", r"the node has no heads"),
    "width": (IN + "mlp.act: w2\n", r"layers.0.mlp.act is \[1, 20, 96\] in the port, and \[1, 20, 160\]"),
    "top": ("nodes: {}\n", r"it lacks layers, or nodes"),
    "unknown": ("layer: x\n", r"map.yaml:1: unknown key 'layer'.*did you mean layers"),
    "empty": ("", r"map.yaml:1: an empty file.*the keys layers and nodes"),
    "braces": ("layers: {at: layers.{i}}\nnodes: {}\n", r"map.yaml:1: .*quotes"),
}  # fmt: skip


@pytest.mark.parametrize("case", MAPS)
def test_a_wrong_map_is_refused_with_its_line(case: str, tmp_path: Path) -> None:
    text, message = MAPS[case]
    (tmp_path / "map.yaml").write_text(text)
    with pytest.raises(PorterError) as caught:
        run("llama", tokens=20, map=tmp_path / "map.yaml")
    assert re.search(message, str(caught.value), re.DOTALL), caught.value
    assert isinstance(caught.value, SpecError | UsageError) and caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"map": None}, UsageError, "--port without --map"), ({"port": None}, UsageError, "--map without --port"),
        ({"port": "dump"}, UsageError, "--port 'dump'"), ({"reference": "keras"}, UsageError, "--reference 'keras'"),
        ({"port": "module:my_llama.py:load"}, UsageError, "names a file"),
        ({"port": "module:my_llama"}, UsageError, "names no function"),
        ({"port": "module:nowhere:load"}, UsageError, "there is no module 'nowhere'"),
        ({"port": "module:nowhere.at.all:load"}, UsageError, "there is no module 'nowhere.at.all'"),
        ({"map": "nowhere.yaml"}, ArtifactError, "nowhere.yaml: No such file"),
        ({"ops": "triton"}, UsageError, "--ops triton with --port"), ({"grad": True}, UsageError, "--grad with --port"),
        ({"self_check": True}, UsageError, "--self-check with --port"),
        ({"stages": ["behaviour"]}, UsageError, "--stage behaviour with --port"),
    ],
    ids=str,
)  # fmt: skip
def test_flags_that_do_not_fit_are_refused(given: dict, kind: type, message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        run("llama", tokens=20, **given)
