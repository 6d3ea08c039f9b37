"""porter map names nodes by values: of HF models under random names, and of modules in other layouts."""

from pathlib import Path

import pytest
import torch
from torch import nn

from porter.comparison.diff import diff
from porter.comparison.map_module import clear_length, map_module
from porter.errors import PreflightError, UsageError
from porter.references.pinned import load_pinned
from porter.references.user_module.draft_text import map_text
from tests.models.tiny import tiny
from tests.references.user_module.scramble import scramble

MODULES = Path(__file__).resolve().parents[2] / "user_modules"


def scrambled(family: str, weights: str = "random:stress") -> nn.Module:
    build = tiny(family, weights=weights)
    model = load_pinned(build.checkpoint(), torch.float32, torch.device("cpu"))
    ids = torch.arange(9)[None]
    before = model(ids).logits
    names = {name for name, _ in (*model.named_modules(), *model.named_parameters()) if name}
    scramble(model, seed=3)
    assert torch.equal(model(ids).logits, before)
    assert not names & {name for name, _ in (*model.named_modules(), *model.named_parameters())}
    return model


@pytest.mark.parametrize("family", ["gemma3", "gpt2", "gpt_neox", "phi3", "qwen3"])
def test_nodes_of_renamed_hf_models_are_named_and_the_map_passes(family: str, tmp_path: Path) -> None:
    build, model = tiny(family, tokens=20), scrambled(family)
    draft, _ = map_module(model, build)
    assert draft.named >= 0.9 * draft.total, draft.unnamed  # all of them, in fact:
    assert (draft.unnamed, draft.by_weights, draft.absent, draft.left_over) == ({}, [], [], [])
    path = tmp_path / "map.yaml"
    path.write_text(map_text(draft, "scrambled", build.name))
    report = diff(build, port=model, map=path, stages=["semantics"])
    assert (report.verdict, report.compared, report.declared) == ("PASS", draft.total, draft.total), report.sentence


def test_norms_that_are_all_ones_are_told_apart_by_activations() -> None:
    draft, _ = map_module(scrambled("llama", weights="random"), tiny("llama", weights="random"))
    assert draft.unnamed == {} and draft.by_weights == []


@pytest.mark.parametrize(
    ("family", "function", "by_weights", "unnamed"),
    [
        ("llama", "load", set(), set()),
        ("mistral", "load", set(), set()),
        ("llama", "load_swapped", {"mlp.act", "mlp.out"}, set()),
        ("qwen3", "load_without_qk_norm", {"attn.ctx", "attn.out", "resid_mid", "mlp.norm", "mlp.gate", "mlp.up",
         "mlp.act", "mlp.out"}, {"attn.q_norm", "attn.k_norm", "attn.q_rope", "attn.k_rope"}),
    ],
)  # fmt: skip
def test_a_mistake_hides_no_node_that_has_weights(
    family: str, function: str, by_weights: set[str], unnamed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(MODULES)
    draft, _ = map_module(f"my_{family}.{function}", tiny(family))
    assert {name.split(".", 2)[2] for name in draft.by_weights} == by_weights
    assert {name.split(".", 2)[2] for name in draft.unnamed} == unnamed
    if unnamed:
        assert draft.unnamed["layers.0.attn.q_norm"] == "blocks.0.attention.norm_q holds its weights and is not called"
        assert draft.unnamed["layers.0.attn.q_rope"] == "no tensor has its values"


def test_a_module_with_other_weights_is_refused() -> None:
    model = scrambled("llama")
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    with pytest.raises(PreflightError, match=r"none of the .* tensors of the checkpoint is in LlamaForCausalLM"):
        map_module(model, tiny("llama"))


class Flat(nn.Module):
    """Holds the right weights, and calls no layer as a module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.inner.lm_head(self.inner.model.embed_tokens(ids))


def test_a_module_without_layers_is_refused() -> None:
    inner = load_pinned(tiny("llama").checkpoint(), torch.float32, torch.device("cpu"))
    with pytest.raises(UsageError, match="Flat has no module for each layer that is given the residual stream"):
        map_module(Flat(inner), tiny("llama"))
    with pytest.raises(UsageError, match="--reference 'keras'"):
        map_module(inner, tiny("llama"), reference="keras")


def test_the_axis_of_tokens_is_known_by_its_length() -> None:
    blueprint = tiny("llama").blueprint
    dims = blueprint.dims.model_copy(update={"heads": 47, "ffn": 48})
    assert clear_length(blueprint.model_copy(update={"dims": dims})) == 49
