"""What linear_cross_entropy refuses, in words that say what to do."""

from typing import Any

import pytest
import torch
from torch import Tensor

from porter_kernels.linear_cross_entropy import linear_cross_entropy
from tests.porter_kernels.linear_cross_entropy_budget import DEVICE, draw


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.zeros(37, 5)}, r"weight has shape \[37, 5\], expected \[V, 12\].*torch.nn.Linear"),
        ({"weight": torch.zeros(37, 12, 1)}, r"weight has shape \[37, 12, 1\], expected \[V, 12\]"),
        ({"hidden": torch.tensor(1.0)}, r"weight has shape \[37, 12\], expected \[V, H\].*hidden \[\]"),
        ({"class_weight": torch.ones(37, device="meta")}, r"class_weight is torch.float32 on meta, expected"),
        ({"weight": torch.zeros(0, 12)}, r"weight has no rows, expected one a class"),
        ({"weight": torch.zeros(37, 12).half()}, r"weight is torch.float16 on .*expected torch.float32 .*autocast"),
        ({"bias": torch.zeros(36)}, r"bias has shape \[36\], expected \[37\]"),
        ({"bias": torch.zeros(37).bfloat16()}, r"bias is torch.bfloat16 on .*expected torch.float32"),
        ({"target": torch.zeros(18, dtype=torch.int64)}, r"target has shape \[18\], expected \[19\].*shift=True"),
        ({"target": torch.zeros(19)}, r"target is torch.float32 on .*expected torch.int64.*target\.to\("),
        ({"class_weight": torch.ones(36)}, r"class_weight has shape \[36\], expected \[37\]"),
        ({"class_weight": torch.ones(37).double()}, r"class_weight is torch.float64 .*expected torch.float32"),
        ({"class_weight": torch.ones(37).requires_grad_()}, r"class_weight requires a gradient.*detach"),
        ({"token_weight": torch.ones(19).requires_grad_()}, r"token_weight requires a gradient.*detach"),
        ({"token_weight": torch.ones(1)}, r"token_weight has shape \[1\], expected \[19\]"),
        ({"reduction": "max"}, r"reduction is 'max', expected 'mean', 'sum' or 'none'"),
        ({"accumulate": "bfloat16"}, r"accumulate is 'bfloat16', expected 'float32' or 'weight'"),
        ({"softcap": 0.0}, r"softcap is 0.0, expected a positive number"),
        ({"num_items": 3, "reduction": "none"}, r"num_items was passed with reduction 'none'"),
        ({"chunk_rows": 0}, r"chunk_rows is 0"),
        ({"byte_budget": 10}, r"byte_budget is 10, expected at least"),
    ],
    ids=str,
)
def test_wrong_arguments_say_what_to_do(change: dict[str, Any], message: str, generator: torch.Generator) -> None:
    case = draw(generator)
    inputs = {"hidden": case.hidden, "weight": case.weight, "target": case.target, "bias": case.bias}
    change = {name: x.to(DEVICE) if isinstance(x, Tensor) and not x.is_meta else x for name, x in change.items()}
    if "requires" in message:
        change = {name: x.detach().requires_grad_() for name, x in change.items()}
    with pytest.raises(ValueError, match=f"linear_cross_entropy: {message}"):
        linear_cross_entropy(**inputs | change)


def test_float64_is_for_the_reference(generator: torch.Generator) -> None:
    case = draw(generator)
    with pytest.raises(ValueError, match=r"hidden is torch.float64, expected float32.*_reference, which"):
        linear_cross_entropy(case.hidden.double(), case.weight.double(), case.target)
