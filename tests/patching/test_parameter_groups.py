"""Groups for an optimizer: every trainable parameter once, by what the blueprint says that it is."""

from typing import Any

import pytest
import torch

import porter
from porter.errors import UsageError
from porter.patching.parameter_groups import parameter_groups
from porter.specs.tree import builtin_spec_names
from tests.models.tiny import porter_cache, tiny
from tests.patching.tiny_hf import hf_ids, hf_model

__all__ = ["porter_cache"]
_PEFT = "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"


def _named(model: Any, **rates: Any) -> dict[str, list[str]]:
    """Group -> the names of its parameters."""
    names = {id(each): name for name, each in model.named_parameters()}
    groups = parameter_groups(model, **{"lr": 1e-3, **rates})
    return {group["name"]: [names[id(each)] for each in group["params"]] for group in groups}


@pytest.mark.parametrize("family", builtin_spec_names())
def test_every_parameter_is_in_the_group_of_its_kind(family: str) -> None:
    model, blueprint = hf_model(family), tiny(family).blueprint
    found = _named(model, weight_decay=0.1)
    names = [name for group in found.values() for name in group]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    sizes = {name: each.numel() for name, each in model.named_parameters()}
    counted = {group: sum(sizes[name] for name in members) for group, members in found.items()}
    kinds: dict[str, int] = {}
    for each in blueprint.parameters().values():
        of_head = each.module == "head"
        kind = "embedding" if each.kind == "linear" and of_head else f"{each.kind} of head" if of_head else each.kind
        kinds[kind] = kinds.get(kind, 0) + each.num_elements
    assert counted["embeddings"] == kinds["embedding"]
    assert counted["matrices"] == kinds["linear"]
    assert counted.get("vectors of embeddings", 0) == kinds.get("bias of head", 0)


def test_rates_and_decay() -> None:
    model = hf_model("gemma2")
    groups = {group["name"]: group for group in parameter_groups(model, lr=1e-3, embedding_lr=1e-4, weight_decay=0.1)}
    assert [(name, group["lr"], group["weight_decay"]) for name, group in groups.items()] == [
        ("matrices", 1e-3, 0.1), ("vectors", 1e-3, 0.0), ("embeddings", 1e-4, 0.1),
    ]  # fmt: skip
    assert len(groups["embeddings"]["params"]) == 1  # the head is tied to it
    assert all("norm" in name for name in _named(model)["vectors"])
    other = parameter_groups(model, lr=1e-3, weight_decay=0.1, embedding_weight_decay=0.0)
    assert (other[2]["lr"], other[2]["weight_decay"]) == (1e-3, 0.0)


def test_norms_with_matrices_and_matrices_of_biases_do_not_decay() -> None:
    assert any("q_norm" in name for name in _named(hf_model("cohere"))["vectors"])
    assert any("gate_up_proj_bias" in name for name in _named(hf_model("gpt_oss"))["vectors"])
    assert _named(hf_model("phi"))["vectors of embeddings"] == ["lm_head.bias"]


def test_an_optimizer_moves_a_patched_model_at_each_groups_rate() -> None:
    model, ids_BT = hf_model("llama"), hf_ids("llama")
    porter.patch(model)
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    groups: Any = parameter_groups(model, lr=1e-3, embedding_lr=1e-4)
    optimizer = torch.optim.Adam(groups)
    model(ids_BT, labels=ids_BT).loss.backward()
    optimizer.step()
    largest = {name: float((each.detach() - before[name]).abs().max()) for name, each in model.named_parameters()}
    for name, moved in largest.items():  # Adam's first step is the rate, whatever the gradient
        assert moved == pytest.approx(1e-4 if "embed" in name or "lm_head" in name else 1e-3, rel=1e-2), name


@pytest.mark.filterwarnings(_PEFT)
def test_what_adapters_freeze_is_left_out() -> None:
    from peft import LoraConfig, get_peft_model

    adapted: Any = get_peft_model(hf_model("llama"), LoraConfig(target_modules=["q_proj"]))
    found = _named(adapted)
    assert found.keys() == {"matrices"} and all("lora_" in name for name in found["matrices"])
    with pytest.raises(UsageError, match="but embeddings and head are frozen"):
        parameter_groups(adapted, lr=1e-3, embedding_lr=1e-4)
    config = LoraConfig(target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"])
    saved: Any = get_peft_model(hf_model("llama"), config)
    tables = [name.partition(".modules_to_save")[0].rpartition(".")[2] for name in _named(saved)["embeddings"]]
    assert sorted(tables) == ["embed_tokens", "lm_head"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_rate_that_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(UsageError, match=rf"lr {value}\n  expected: 0 or more\n  fix: Pass a number"):
        parameter_groups(hf_model("llama"), lr=value)


def test_a_negative_rate_is_refused() -> None:
    with pytest.raises(UsageError, match=r"embedding_lr -0\.1\n  expected: 0 or more"):
        parameter_groups(hf_model("llama"), lr=1e-3, embedding_lr=-0.1)
