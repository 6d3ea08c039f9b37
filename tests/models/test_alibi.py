"""ALiBi's slopes against HF's own functions, and where the bias counts from."""

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from porter.models.alibi import alibi_slopes
from porter.models.positions import Positions
from porter.specs.schema import Alibi

CPU = torch.device("cpu")
HEADS = [1, 2, 3, 6, 12, 16, 25, 32, 71, 112]


@pytest.mark.parametrize("heads", HEADS)
def test_blooms_bias_is_hfs(heads: int) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        expected_H1S = build_alibi_tensor(torch.ones(1, 300, dtype=torch.long), heads, dtype)
        found_1H1S = Positions(0, 300, CPU).alibi(Alibi(kind="bloom"), heads, dtype)
        assert found_1H1S.dtype == dtype and torch.equal(found_1H1S[0], expected_H1S)


@pytest.mark.parametrize("heads", HEADS)
def test_mpts_bias_is_hfs(heads: int) -> None:
    found_1H1S = Positions(0, 300, CPU).alibi(Alibi(kind="mpt"), heads, torch.bfloat16)
    assert found_1H1S.dtype == torch.float32
    assert torch.equal(found_1H1S[0], build_mpt_alibi_tensor(heads, 2048)[:, :, -300:])


@pytest.mark.parametrize("heads", HEADS)
def test_the_kinds_differ_in_rounding_alone(heads: int) -> None:
    bloom_H, mpt_H = (alibi_slopes(kind, heads, CPU) for kind in ("bloom", "mpt"))
    assert bloom_H.shape == (heads,) and torch.allclose(bloom_H, mpt_H, rtol=1e-5, atol=0)
    assert torch.equal(bloom_H, mpt_H) == (heads <= 8)  # the exponents are whole


@pytest.mark.parametrize("kind", ["bloom", "mpt"])
def test_distances_are_those_within_a_document(kind: str) -> None:
    documents_BS = torch.tensor([[-1, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0]])
    bias_BH1S = Positions(2, 4, CPU, documents_BS).alibi(Alibi(kind=kind), 4, torch.float32).expand(2, -1, -1, -1)
    steps_BHS = bias_BH1S[:, :, 0].diff(dim=-1)
    slopes_H = alibi_slopes(kind, 4, CPU)
    for row, slots in ((0, [1, 2, 4]), (1, [0, 1, 2, 3, 4])):  # slot s and the next are of one document
        assert torch.equal(steps_BHS[row][:, slots], slopes_H[:, None].expand(-1, len(slots)))
