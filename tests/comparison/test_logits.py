"""Logits: KL in nats, the worst token, agreement."""

import pytest
import torch

from porter.comparison.logits import measure_logits


def measure(port_NV, reference_NV, golden_NV=None, at_N=None):
    golden_NV = reference_NV.double() if golden_NV is None else golden_NV
    at_N = torch.arange(len(port_NV)) if at_N is None else at_N
    return measure_logits("precision", "bfloat16", at_N, port_NV, reference_NV, golden_NV)


def test_kl_is_from_the_reference_to_the_port_and_keeps_the_worst_token() -> None:
    generator = torch.Generator().manual_seed(0)
    reference_NV, noise_NV = (torch.randn(5, 30, generator=generator) for _ in range(2))
    port_NV = reference_NV + 0.1 * noise_NV
    port_NV[3] += 2 * noise_NV[3]
    p_NV, q_NV = (x.double().softmax(-1) for x in (reference_NV, port_NV))
    kl_N = (p_NV * (p_NV / q_NV).log()).sum(-1)
    found = measure(port_NV, reference_NV, at_N=torch.tensor([0, 10, 20, 30, 40]))
    assert found.kl == pytest.approx(float(kl_N.mean()), rel=1e-9)
    assert found.worst_kl == pytest.approx(float(kl_N.max()), rel=1e-9) and found.worst_token == 30
    nmse = (port_NV.double() - reference_NV.double()).square().sum() / reference_NV.double().square().sum()
    assert found.nmse == pytest.approx(float(nmse), rel=1e-9) and found.tokens == 5


def test_kl_ref_is_from_golden_to_the_reference() -> None:
    golden_NV = torch.tensor([[0.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
    reference_NV = torch.tensor([[0.0, 1.5], [2.0, 0.0]])
    p_NV, q_NV = golden_NV.softmax(-1), reference_NV.double().softmax(-1)
    wanted = float((p_NV * (p_NV / q_NV).log()).sum(-1).mean())
    found = measure(reference_NV, reference_NV, golden_NV)
    assert found.kl_ref == pytest.approx(wanted, rel=1e-9) and found.kl == 0.0


def test_agreement_is_the_share_of_equal_argmaxes() -> None:
    reference_NV = torch.eye(4)
    port_NV = reference_NV.clone()
    port_NV[1] = reference_NV[2]
    assert measure(port_NV, reference_NV).agreement == 0.75
    assert measure(port_NV + 5, reference_NV + 7).kl == pytest.approx(
        measure(port_NV, reference_NV).kl
    )  # softmax's shift


def test_each_token_has_its_margin_and_what_rounding_moves_one_by() -> None:
    golden_NV = torch.tensor([[0.0, 3.0, 1.0], [5.0, 4.0, 0.0]], dtype=torch.float64)
    reference_NV = golden_NV + torch.tensor([0.3, -0.3, 0.3])
    port_NV = reference_NV.clone()
    port_NV[1, 1] = 9.0
    first, second = measure(port_NV, reference_NV, golden_NV, torch.tensor([2, 7])).at
    assert (first.token, second.token) == (2, 7)
    assert first.margin == pytest.approx(1.4) and first.floor == pytest.approx(0.3 * 2**0.5)
    assert [each[0] for each in first.reference] == [1, 2, 0] and first.reference[0][1] == pytest.approx(2.7)
    assert not first.flipped and second.flipped and second.port[0] == (1, 9.0)
    assert not first.safe and second.margin == pytest.approx(1.6)  # 1.4 and 1.6 are under 4 x 0.42
