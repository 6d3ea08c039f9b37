"""What cross_entropy refuses, and that it says how to mend it; what it accepts at the edges."""

from typing import Any

import pytest
import torch

from porter_kernels.cross_entropy import cross_entropy

LOGITS, TARGET = torch.zeros(2, 3, 5), torch.zeros(2, 3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": TARGET[0]}, r"target has shape \[3\], expected \[2, 3\].*movedim.*shift labels"),
        ({"logits": torch.tensor(0.0)}, r"target has shape \[2, 3\], expected \[\]"),
        ({"logits": torch.tensor(0.0), "target": torch.tensor(0)}, r"target has shape \[\], expected \[\]"),
        ({"logits": torch.zeros(1).expand(2, 3, 2**24)}, r"logits have 16777216 classes, expected 1 to 16777215"),
        ({"weight": torch.ones(5, device="meta")}, r"weight is torch.float32 on meta, expected torch.float32 on cpu"),
        ({"logits": torch.zeros(2, 3, 0)}, r"logits have 0 classes, expected 1 to 16777215"),
        ({"logits": LOGITS.double()}, r"logits are torch.float64, expected float32.*cross_entropy_reference"),
        ({"target": TARGET.int()}, r"target is torch.int32 on cpu, expected torch.int64.*target\.to\("),
        ({"weight": torch.ones(4)}, r"weight has shape \[4\], expected \[5\], one a class"),
        ({"weight": torch.ones(5).double()}, r"weight is torch.float64 .*expected torch.float32.*weight\.to\("),
        ({"weight": torch.ones(5, requires_grad=True)}, r"weight requires a gradient, expected a constant.*detach"),
        ({"token_weight": torch.ones(6)}, r"token_weight has shape \[6\], expected \[2, 3\], like target"),
        ({"token_weight": torch.ones(2, 3).half()}, r"token_weight is torch.float16 .*expected torch.float32"),
        ({"token_weight": torch.ones(2, 3, requires_grad=True)}, r"token_weight requires a gradient, .*_reference"),
        ({"reduction": "avg"}, r"reduction is 'avg', expected 'mean', 'sum' or 'none'"),
        ({"reduction": "none", "num_items": 3}, r"num_items was passed with reduction 'none', expected"),
        ({"num_items": torch.ones(2)}, r"num_items has shape \[2\], expected one number.*num_items\.sum"),
        ({"label_smoothing": 1.001}, r"label_smoothing is 1.001, expected 0 to 1"),
        ({"label_smoothing": -0.001}, r"label_smoothing is -0.001, expected 0 to 1"),
        ({"softcap": 0.0}, r"softcap is 0.0, expected a positive number.*pass None"),
        ({"reduction": "none", "inplace": True}, r"inplace=True with reduction 'none', expected 'mean' or 'sum'"),
    ],
    ids=str,
)
def test_a_mistake_is_explained(change: dict[str, Any], message: str) -> None:
    arguments = {"logits": LOGITS, "target": TARGET} | change
    with pytest.raises(ValueError, match=f"cross_entropy: {message}"):
        cross_entropy(arguments.pop("logits"), arguments.pop("target"), **arguments)
