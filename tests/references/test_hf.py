"""HF as a lane: its units run one by one are its ordinary forward pass, and recording moves no bit."""

from pathlib import Path

import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from porter.errors import ComparisonError, WeightError
from porter.models.matmul import quick_matmul
from porter.references import recording
from porter.references.float64 import Float64
from porter.references.hf import HfReference
from porter.references.pinned import find_layers, load_pinned, ordinary_forward
from porter.references.recording import RECORDING
from tests.models.checkpoints import change_tensors
from tests.models.tiny import FAMILIES, random_ids, save_tiny, tiny

CPU = torch.device("cpu")
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def open_reference(family: str, dtype: torch.dtype = torch.float32) -> HfReference:
    build = tiny(family)
    return HfReference(build.blueprint, build.checkpoint(), dtype, CPU)


BOTH = [*((family, torch.float32) for family in FAMILIES), ("gemma3", torch.bfloat16), ("gpt2", torch.bfloat16)]


@pytest.mark.parametrize(("family", "dtype"), BOTH, ids=str)
def test_units_one_by_one_are_the_forward_pass(family: str, dtype: torch.dtype) -> None:
    reference = open_reference(family, dtype)
    assert reference.records_attention  # every family shows what its attention is given
    ids_BT = random_ids(tiny(family), 140 if family == "gemma3" else 20)
    whole = load_pinned(tiny(family).checkpoint(), dtype, CPU)
    with quick_matmul(dtype, CPU), torch.no_grad():
        outputs, logits_BTV = ordinary_forward(whole, find_layers(whole, reference.blueprint.dims.layers)[1], ids_BT)
    for _ in range(2):  # a second prompt starts afresh
        reference.start(ids_BT.flip(1))
        reference.start(ids_BT)
        x_BTD = reference.embed()["embed.out"]
        for i, output in enumerate(outputs):
            x_BTD = reference.layer(i, x_BTD)["resid_post"]
            assert torch.equal(x_BTD, output), f"layers.{i}"
        assert torch.equal(reference.head(x_BTD)["logits"], logits_BTV)


def test_the_head_of_some_tokens_is_theirs_in_the_whole() -> None:
    reference = open_reference("gemma2")
    ids_BT = random_ids(tiny("gemma2"), 20)
    reference.start(ids_BT)
    x_BTD = torch.randn(1, 20, 96, generator=torch.Generator().manual_seed(0))
    whole, part = reference.head(x_BTD), reference.head(x_BTD[:, [3, 19]])
    assert part["logits"].shape == (1, 2, 512)
    assert torch.allclose(part["logits"], whole["logits"][:, [3, 19]], atol=1e-5)


def test_a_call_leaves_the_model_as_it_was() -> None:
    reference = open_reference("llama")
    ids_BT = random_ids(tiny("llama"), 6)
    forwards = [module.forward for module in reference.model.modules()]
    before = ordinary_forward(reference.model, reference.layers, ids_BT)[1]
    reference.start(ids_BT)
    reference.head(reference.layer(0, reference.embed()["embed.out"])["resid_post"])
    assert torch.equal(ordinary_forward(reference.model, reference.layers, ids_BT)[1], before)
    assert [module.forward for module in reference.model.modules()] == forwards
    assert not [m for m in reference.model.modules() if m._forward_hooks or m._forward_pre_hooks]


def test_recording_that_moves_a_bit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def meddling(module, query, *args, **kwargs):
        return recording._recording_attention(module, query * (1 + 2**-20), *args, **kwargs)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, RECORDING, meddling)
    with pytest.raises(ComparisonError, match=r"recording attention changes LlamaForCausalLM\n.*equal to plain eager"):
        open_reference("llama")


@pytest.mark.parametrize("family", FAMILIES)
def test_golden_is_hf_in_float64_on_the_rounded_weights(family: str) -> None:
    build = tiny(family)  # stored in float32
    ids_BT = random_ids(build, 12)
    golden = open_reference(family, torch.bfloat16).golden_of(build.checkpoint())
    whole = load_pinned(build.checkpoint(), torch.float64, CPU)
    for parameter in whole.parameters():
        parameter.data = parameter.data.bfloat16().double()
    with torch.no_grad(), Float64():
        outputs, logits_BTV = ordinary_forward(whole, find_layers(whole, build.blueprint.dims.layers)[1], ids_BT)
    golden.start(ids_BT)
    x_BTD = golden.embed()["embed.out"]
    for i, output in enumerate(outputs):
        x_BTD = golden.layer(i, x_BTD)["resid_post"]
        assert x_BTD.dtype == torch.float64 and torch.equal(x_BTD, output), f"layers.{i}"
    assert torch.equal(golden.head(x_BTD)["logits"], logits_BTV)


def test_golden_keeps_constants_that_the_dtype_would_round() -> None:
    golden = open_reference("gemma3", torch.bfloat16).golden_of(tiny("gemma3").checkpoint())
    golden.start(random_ids(tiny("gemma3"), 4))
    table = load_pinned(tiny("gemma3").checkpoint(), torch.bfloat16, CPU).get_input_embeddings().weight.double()
    scaled = table[random_ids(tiny("gemma3"), 4)] * 96**0.5
    assert torch.allclose(golden.embed()["embed.out"], scaled, rtol=1e-7)  # not bfloat16's 9.8125


def test_a_model_without_that_many_layers_is_refused() -> None:
    with pytest.raises(ComparisonError, match="LlamaForCausalLM has no list of 7 layers"):
        find_layers(open_reference("llama").model, 7)


def test_describes_itself() -> None:
    assert open_reference("gpt2").describe().endswith("GPT2LMHeadModel, eager")


STRAY = {"stray.weight": torch.ones(2)}
HF_LACKS = {
    "missing": (lambda tensors: tensors.pop(Q_PROJ), f"{Q_PROJ}: are not in the checkpoint"),
    "unexpected": (lambda tensors: tensors.update(STRAY), "stray.weight: are in the checkpoint, but HF's model has no"),
    "misshapen": (lambda tensors: tensors.update({Q_PROJ: torch.ones(96, 8)}), f"{Q_PROJ}: have another shape in HF's"),
}


@pytest.mark.parametrize("case", HF_LACKS)
def test_a_tensor_that_hf_would_fill_at_random_is_refused(case: str, tmp_path: Path) -> None:
    change, message = HF_LACKS[case]
    folder = save_tiny("llama", tmp_path / "model")
    change_tensors(folder, change)
    with pytest.raises(WeightError, match=message):
        HfReference(tiny("llama").blueprint, folder, torch.float32, CPU)
