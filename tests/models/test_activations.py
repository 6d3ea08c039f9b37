"""Activations with tensors of their own."""

import pytest
import torch

from porter.models.activations import FUNCTIONS, Activation, xielu
from porter.specs.kinds import ACTIVATION_TENSORS
from tests.comparison.gradient_runs import run
from tests.models.tiny import tiny


def test_every_activation_with_tensors_has_a_function() -> None:
    assert FUNCTIONS.keys() == ACTIVATION_TENSORS.keys()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_xielu_has_the_models_bits(dtype: torch.dtype) -> None:
    from transformers.activations import XIELUActivation

    theirs = XIELUActivation(alpha_p_init=1.3, alpha_n_init=0.9, beta=0.4, eps=-0.3, dtype=dtype)
    x = 3 * torch.randn(7, 400, generator=torch.Generator().manual_seed(0)).to(dtype)
    own = Activation("xielu").to(dtype)
    own.load_state_dict(theirs.state_dict())
    assert torch.equal(own(x), theirs(x))


def test_xielu_has_its_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, dtype=torch.float64, generator=generator)
    tensors = [x, *(torch.tensor(value, dtype=torch.float64) for value in ([0.3], [-0.7], 0.5, -0.1))]
    assert torch.autograd.gradcheck(xielu, [each.requires_grad_() for each in tensors])


def test_constants_are_no_parameters_of_the_model() -> None:
    blueprint = tiny("apertus").blueprint
    kinds = {name.removeprefix("layers.1.mlp.act."): each.kind for name, each in blueprint.parameters().items()}
    assert [kinds[name] for name in ("alpha_p", "alpha_n", "beta", "eps")] == ["activation"] * 2 + ["buffer"] * 2
    elements = sum(each.num_elements for each in blueprint.parameters().values())
    assert blueprint.num_parameters == elements - 2 * blueprint.dims.layers


def test_its_parameters_have_gradients_and_its_constants_none() -> None:
    nodes = run("apertus", tokens=20, layers=(1,))
    assert {node.status for node in nodes} == {"PASS"}
    names = {node.name for node in nodes if ".mlp.act." in node.name}
    assert names == {"grad:layers.1.mlp.act.alpha_p", "grad:layers.1.mlp.act.alpha_n"}
