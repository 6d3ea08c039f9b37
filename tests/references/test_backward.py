"""HF's units run backwards one by one give the gradients that autograd gives HF's whole model."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from porter.comparison.gradients.stage import golden_inputs
from porter.models.backward import INPUT, Gradients
from porter.references.backward import HfBackward
from porter.references.deferred import Deferred, Slice
from porter.references.hf import HfReference
from porter.references.hollow import Slot
from porter.references.pinned import load_pinned
from tests.models.tiny import random_ids, tiny

CPU = torch.device("cpu")


def whole(family: str, ids_1T: Tensor) -> dict[str, Tensor]:
    """The gradients of HF's own model by its parameters' names, in float64."""
    model = load_pinned(tiny(family).checkpoint(), torch.float64, CPU).requires_grad_()
    with torch.enable_grad():
        logits_TV = model(input_ids=ids_1T, use_cache=False).logits[0]
        F.cross_entropy(logits_TV[:-1].double(), ids_1T[0, 1:]).backward()
    return {name: value.grad for name, value in model.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("family", ["gpt2", "gemma3", "llama", "phi3", "gpt_neox"])
def test_unit_by_unit_as_the_whole_model(family: str) -> None:
    build, ids_1T = tiny(family), random_ids(tiny(family), 12)
    reference = HfReference(build.blueprint, build.checkpoint(), torch.float64, CPU)
    inputs = golden_inputs(reference, ids_1T, build.blueprint.dims, torch.float64)
    backward, found = HfBackward(reference), dict[str, Tensor]()
    backward.start(ids_1T)

    def add(part: Gradients, rows_N: Tensor | None = None) -> None:
        for name, value in part.parameters.items():
            if value is not None:
                full = reference.tensors.checkpoint.info(name).shape
                value = value if value.shape == full else torch.zeros(full).double().index_add(0, rows_N, value)
                found[name] = found[name] + value if name in found else value

    head = backward.head(inputs[build.blueprint.dims.layers][:, :-1], ids_1T[0, 1:])
    weights = [dict(part) for part in head.chunks()]
    head_weight = torch.cat([part["head.weight"] for part in weights])
    last = head.finish()
    add(last)
    upstream = F.pad(last.nodes[INPUT], (0, 0, 0, 1))
    for index in reversed(range(build.blueprint.dims.layers)):
        layer = backward.layer(index, inputs[index], upstream)
        add(layer)
        upstream = layer.nodes[INPUT]
        reference.release()
    add(backward.embed(upstream), torch.unique(ids_1T))
    expected = whole(family, ids_1T)
    names = {slot.name: slot.recipe.name for slot in slots_of(reference)}
    out = next(slot.name for slot in reference.weights.places.out.values())
    for name, value in expected.items():
        own = found.get(names[name], 0) + (head_weight if names[name] == names[out] else 0)
        assert float((own - value).norm()) <= 1e-4 * float(value.norm()), name  # of float32 tables of rotary


def slots_of(reference: HfReference) -> list[Slot]:
    places = reference.weights.places
    return [*(slot for slots in places.layers for slot in slots), *places.embed, *places.out.values(), *places.rest]


def test_a_parameter_that_the_loader_made_of_several_has_their_gradients() -> None:
    """A joined and turned parameter's gradient goes back to the two tensors that it was made of."""
    build = tiny("llama")
    reference = HfReference(build.blueprint, build.checkpoint(), torch.float32, CPU)
    names = [f"model.layers.0.mlp.{each}_proj.weight" for each in ("gate", "up")]
    gate, up = (Slice(name, reference.tensors.checkpoint.info(name).shape, torch.float32)[...] for name in names)
    joined = torch.cat([gate, up]).transpose(0, 1)
    assert isinstance(joined, Deferred)
    slot = replace(slots_of(reference)[0], name="mlp.gate_up", recipe=joined.recipe)
    gradient = torch.randn(joined.shape, generator=torch.Generator().manual_seed(0))
    found = HfBackward(reference)._gradients({}, [slot], [gradient])
    assert not found.unknown and found.parameters.keys() == {*names}
    assert torch.equal(found.parameters[names[0]], gradient.T[: gate.shape[0]])
    assert torch.equal(found.parameters[names[1]], gradient.T[gate.shape[0] :])
    none = HfBackward(reference)._gradients({}, [slot], [None])
    assert none.parameters == dict.fromkeys(names)


def test_what_has_no_derivative_is_told() -> None:
    build = tiny("llama")
    reference = HfReference(build.blueprint, build.checkpoint(), torch.float32, CPU)
    name = "model.norm.weight"
    rounded = Slice(name, (build.blueprint.dims.hidden,), torch.float32)[...].argsort()
    slot = replace(slots_of(reference)[0], name="norm.order", recipe=rounded.recipe)
    found = HfBackward(reference)._gradients({}, [slot], [torch.ones(build.blueprint.dims.hidden)])
    assert found.unknown == {name: "HF's loader made norm.order of it by a step without gradient"}
    assert name not in found.parameters
