"""Modules that are built otherwise than most: split residual streams, no batch axis, logits of the last token alone."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from porter.comparison.diff import diff
from porter.comparison.map_module import map_module
from porter.comparison.report import DiffReport
from porter.references.user_module.draft_text import map_text
from porter.references.user_module.lane import ModuleLane
from porter.references.user_module.map_file import read_node_map
from tests.models.commands import porter
from tests.models.tiny import tiny

MODULES = Path(__file__).resolve().parents[2] / "user_modules"


@pytest.fixture
def gpt(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """Mistral in plain torch, with the checkpoint's weights."""
    monkeypatch.syspath_prepend(str(MODULES))
    model: nn.Module = importlib.import_module("my_mistral").load(tiny("mistral").checkpoint())
    return model


def judged(model: nn.Module, tmp_path: Path, name: str) -> tuple[str, DiffReport]:
    """The drafted map, and what a diff with it says."""
    build = tiny("mistral", tokens=30)
    draft, _ = map_module(model, build)
    assert draft.unnamed == {} and draft.by_weights == []
    path = tmp_path / "map.yaml"
    path.write_text(map_text(draft, name, build.name))
    return path.read_text(), diff(build, port=model, map=path, stages=["semantics"])


def test_a_layer_is_run_without_those_before_and_after_it(gpt: nn.Module) -> None:
    build = tiny("mistral")
    node_map = read_node_map({"layers": "h.{i}", "nodes": {"attn.out": "attn.c_proj", "final.norm": "ln_f"}})
    lane = ModuleLane("gpt", gpt, node_map, build.blueprint, torch.float32, torch.device("cpu"))
    lane.start(torch.arange(5)[None])
    calls: list[str] = []
    for path, module in gpt.named_modules():
        if path.endswith((".attn", "ln_f")):
            module.register_forward_hook(lambda *_, path=path: calls.append(path))
    x_BTD = lane.embed()["embed.out"]
    out_BTD = lane.layer(1, x_BTD)["resid_post"]
    assert calls == ["h.1.attn"]
    assert torch.equal(lane.output(1, x_BTD), out_BTD) and torch.equal(out_BTD, gpt.h[1](x_BTD)[0])
    assert calls[1:] == ["h.1.attn"] * 2
    logits_BTV = lane.head(x_BTD[:, 2:4])["logits"]
    assert calls[3:] == ["ln_f"]
    assert torch.equal(logits_BTV, gpt.lm_head(gpt.ln_f(x_BTD[:, 2:4])))
    assert not any(module._forward_pre_hooks for module in gpt.modules())


class Split(nn.Module):
    """A layer whose last addition is left to the next layer's norm, as fused kernels want it."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, hidden: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        block, x = self.block, hidden if residual is None else hidden + residual
        x = x + block.attn(block.ln_1(x))
        h = block.ln_2(x)
        return block.mlp["down"](F.silu(block.mlp["gate"](h)) * block.mlp["up"](h)), x


class SplitStream(nn.Module):
    def __init__(self, gpt: nn.Module) -> None:
        super().__init__()
        self.gpt, self.layers = gpt, nn.ModuleList(Split(block) for block in gpt.h)
        del gpt.h

    def forward(self, ids: Tensor) -> Tensor:
        hidden, residual = self.gpt.wte(ids), None
        for layer in self.layers:
            hidden, residual = layer(hidden, residual)
        return self.gpt.lm_head(self.gpt.ln_f(hidden + residual))


def test_a_split_residual_stream_is_added_up(gpt: nn.Module, tmp_path: Path) -> None:
    text, report = judged(SplitStream(gpt), tmp_path, "split")
    assert 'layers:\n  at: "layers.{i}"\n  input: [0, 1]\n  output: [0, 1]\n' in text
    assert (report.verdict, report.compared, report.declared) == ("PASS", 48, 48), report.sentence


class TokensFirst(nn.Module):
    """[T, 1, D] inside, and beside the stream another tensor of its shape that means nothing."""

    def __init__(self, gpt: nn.Module) -> None:
        super().__init__()
        self.gpt, self.layers = gpt, nn.ModuleList(Turned(block) for block in gpt.h)
        del gpt.h

    def forward(self, ids: Tensor) -> Tensor:
        x = self.gpt.wte(ids).transpose(0, 1)
        for layer in self.layers:
            _, x = layer(torch.zeros_like(x), x)
        return self.gpt.lm_head(self.gpt.ln_f(x.transpose(0, 1)[:, -1]))  # of the last token, as decoding needs it


class Turned(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, other: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return other, self.block(x.transpose(0, 1))[0].transpose(0, 1)


def test_tokens_first_and_the_last_logits_alone(gpt: nn.Module, tmp_path: Path) -> None:
    model = TokensFirst(gpt)
    text, report = judged(model, tmp_path, "turned")
    assert "input: 1\n  output: 1\n" in text
    assert (report.verdict, report.compared) == ("PASS", 48), report.sentence
    logits = next(node for node in report.nodes if node.name == "logits")
    assert logits.shape == (1, 30, 512)


class Padded(nn.Module):
    """A head of more words than the vocabulary has."""

    def __init__(self, gpt: nn.Module) -> None:
        super().__init__()
        self.gpt = gpt
        gpt.lm_head = nn.Linear(96, 640, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.gpt(ids)["logits"]


def test_a_padded_vocabulary_is_a_slice(gpt: nn.Module, tmp_path: Path) -> None:
    head = gpt.lm_head.weight.data
    model = Padded(gpt)
    model.gpt.lm_head.weight.data[:512] = head
    text, report = judged(model, tmp_path, "padded")
    assert '  logits: {at: gpt.lm_head, slice: "0:512"}' in text
    assert (report.verdict, report.compared) == ("PASS", 48), report.sentence


NOISY = """
import torch
import my_llama

print("loading")
torch.set_default_dtype(torch.bfloat16)
torch.set_grad_enabled(False)

def load(folder):
    print("with", torch.get_default_dtype())
    return my_llama.load(folder)
"""


def test_what_a_users_code_sets_and_prints_stays_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("my_llama.py", "my_llama.map.yaml"):
        (tmp_path / name).write_text((MODULES / name).read_text())
    (tmp_path / "my_noisy.py").write_text(NOISY)
    given = ["--weights", "random:stress", "--size", "tiny", "--tokens", "12", "--dtype", "float32", "--json", "-"]
    result = porter("diff", "llama", *given, "--port", "module:my_noisy:load", "--map", "my_llama.map.yaml")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("{") and result.stderr.count("loading") == 1
    assert torch.get_default_dtype() == torch.float32 and torch.is_grad_enabled()
    assert str(tmp_path) not in sys.path
