"""The reference has transformers' bits; the plain losses that memory is drawn against are right."""

import pytest
import torch

from porter_kernels.linear_cross_entropy import (
    chunked_linear_cross_entropy,
    linear_cross_entropy_reference,
    naive_linear_cross_entropy,
)
from tests.porter_kernels.linear_cross_entropy_budget import DEVICE, draw, run_case

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_items", [None, 7])
def test_reference_has_transformers_bits(
    num_items: int | None, dtype: torch.dtype, generator: torch.Generator
) -> None:  # fmt: skip
    from transformers.loss.loss_utils import ForCausalLMLoss

    case = draw(generator, N=15, dtype=dtype)
    hidden, labels = case.hidden.view(3, 5, -1), case.target.view(3, 5)

    def transformers_loss(hidden, weight, target, *, bias):
        logits = torch.nn.functional.linear(hidden, weight, bias)
        return ForCausalLMLoss(logits, target, vocab_size=37, num_items_in_batch=num_items)

    def reference(hidden, weight, target, *, bias):
        return linear_cross_entropy_reference(hidden, weight, target, bias=bias, num_items=num_items, shift=True)

    shaped = type(case)(hidden, case.weight, labels, case.bias)
    golden = run_case(transformers_loss, shaped)
    for name, value in run_case(reference, shaped).items():
        assert torch.equal(value, golden[name]), name


def test_reference_gradient(generator: torch.Generator) -> None:
    case = draw(generator, N=5, H=3, V=6, dtype=torch.float64)
    options = {"label_smoothing": 0.1, "z_loss": 0.01, "softcap": 3.0, "token_weight": torch.rand(5, device=DEVICE)}

    def reference(hidden, weight, bias):
        return linear_cross_entropy_reference(hidden, weight, case.target, bias=bias, **options)

    leaves = [x.requires_grad_() for x in (case.hidden, case.weight, case.bias)]
    assert torch.autograd.gradcheck(reference, leaves)


@pytest.mark.parametrize("plain", [naive_linear_cross_entropy, chunked_linear_cross_entropy])
@pytest.mark.parametrize("bias", [True, False], ids="bias={}".format)
@pytest.mark.parametrize("ignore_index", [-100, 7])
def test_plain_losses_are_the_references(plain, ignore_index: int, bias: bool, generator: torch.Generator) -> None:
    case = draw(generator, N=23, bias=bias, dtype=torch.float64, ignore_index=ignore_index)
    only = {"chunk_rows": 5} if plain is chunked_linear_cross_entropy else {}
    case.target[3] = ignore_index
    shaped = type(case)(case.hidden[:22].view(2, 11, -1), case.weight, case.target[:22].view(2, 11), case.bias)
    if ignore_index != -100:  # the default
        shaped = shaped.but(ignore_index=ignore_index)
    golden = run_case(linear_cross_entropy_reference, shaped)
    for name, value in run_case(plain, shaped.walked(**only)).items():
        torch.testing.assert_close(value.double(), golden[name], rtol=1e-6, atol=1e-7, check_dtype=False)
