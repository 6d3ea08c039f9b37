"""A node's numbers against the plain formulas in float64, whole and in chunks."""

import math

import pytest
import torch
from torch import Tensor

from porter.comparison.measure import Tally, measure_propagated
from porter.comparison.verdicts import FLOORS

T, D = 12, 40


def sides(dtype: torch.dtype = torch.bfloat16, shape: tuple[int, ...] = (1, T, D)) -> tuple[Tensor, Tensor, Tensor]:
    """Port, reference, golden; the reference is golden rounded, the port a little farther off."""
    generator = torch.Generator().manual_seed(0)
    golden = torch.randn(shape, generator=generator, dtype=torch.float64)
    golden[0, 4] *= 7  # tokens and channels of other sizes
    golden[..., 3] *= 30
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (golden + 0.01 * noise).to(dtype), golden.to(dtype), golden


def tally(port: Tensor, reference: Tensor, golden: Tensor, name: str = "layers.0.resid_post", chunks: int = T, **kw):
    found = Tally(name, "precision", "bfloat16")
    for start in range(0, port.shape[1], chunks):
        at = slice(start, start + chunks)
        indices = torch.arange(port.shape[1])[at] if chunks < T else None
        found.add(port[:, at], reference[:, at], golden[:, at], kw.get("executor", reference)[:, at], indices)
    return found.finish()


def rel(value: Tensor, golden: Tensor) -> float:
    return float((value.double() - golden).norm() / golden.norm())


def test_errors_are_relative_l2_against_golden() -> None:
    port, reference, golden = sides()
    local = tally(port, reference, golden).local
    assert local.e_port == pytest.approx(rel(port, golden), rel=1e-12)
    assert local.e_ref == pytest.approx(rel(reference, golden), rel=1e-12)
    assert local.rho == pytest.approx(rel(port, golden) / max(rel(reference, golden), FLOORS["bfloat16"]), rel=1e-12)


def test_rho_tok_is_the_worst_token_of_each_side() -> None:
    port, reference, golden = sides()
    port[0, 7] += 1
    per_token = [[rel(side[:, t], golden[:, t]) for t in range(T)] for side in (port, reference)]
    local = tally(port, reference, golden).local
    scale = max(*per_token[1], FLOORS["bfloat16"])
    assert local.rho_tok == pytest.approx(max(per_token[0]) / scale, rel=1e-12)
    assert local.token == max(range(T), key=per_token[0].__getitem__) == 7
    assert local.tokens == pytest.approx([each / scale for each in per_token[0]], abs=1e-4)
    assert tally(port, reference, golden, name="layers.0.attn.ctx").local.tokens == ()  # only where a report draws them


@pytest.mark.parametrize("chunks", [1, 5, 11])
def test_chunks_give_what_the_whole_gives(chunks: int) -> None:
    port, reference, golden = sides()
    whole, parts = tally(port, reference, golden), tally(port, reference, golden, chunks=chunks)
    for name in ("shape", "worst", "status", "exact", "nonfinite", "kind"):
        assert getattr(parts, name) == getattr(whole, name), name
    for name in ("bias", "trimmed", "cosine"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-9), name
    for name in ("e_port", "e_ref", "rho", "rho_tok", "token", "tokens"):
        assert getattr(parts.local, name) == pytest.approx(getattr(whole.local, name), rel=1e-12), name


def test_the_worst_element_has_its_place_and_both_values() -> None:
    port, reference, golden = sides(shape=(1, T, 4, 10))
    port[0, 5, 2, 7] = -50.0
    worst = tally(port, reference, golden).worst
    assert worst.at == (0, 5, 2, 7) and worst.port == -50.0
    assert worst.reference == float(reference[0, 5, 2, 7])
    assert worst.difference == abs(worst.port - worst.reference)
    assert tally(port, reference, golden, chunks=4).worst.at == (0, 5, 2, 7)


def test_tokens_that_were_picked_keep_their_places_in_the_prompt() -> None:
    port, reference, golden = sides()
    port[0, 2] += 9
    found = Tally("logits", "precision", "bfloat16")
    found.add(port, reference, golden, reference, torch.arange(T) * 10 + 3)
    node = found.finish()
    assert node.local.token == 23 and node.worst.at[1] == 23 and node.shape == (1, T, D)


def test_bias_trimmed_cosine_and_ulps() -> None:
    port, reference, golden = sides()
    port[..., 3] += 4  # the largest channel, which `trimmed` leaves out: ceil(0.1 % of 40) = 1
    found, error = tally(port, reference, golden), port.double() - golden
    assert found.bias == pytest.approx(float(error.mean() / error.square().mean().sqrt()), rel=1e-9)
    keep = [i for i in range(D) if i != 3]
    assert found.trimmed == pytest.approx(rel(port[..., keep], golden[..., keep]), rel=1e-12)
    assert found.trimmed < found.local.e_port / 2
    cosine = torch.cosine_similarity(port.double().flatten(), reference.double().flatten(), dim=0)
    assert found.cosine == pytest.approx(float(cosine), rel=1e-12)
    unit = torch.finfo(torch.bfloat16).eps * 2 ** reference.double().abs().log2().floor()
    ulps = ((port.double() - reference.double()).abs() / unit).flatten().sort().values
    assert found.ulp_p99 == float(ulps[math.ceil(0.99 * ulps.numel()) - 1])


def test_one_ulp_is_one() -> None:
    reference = torch.tensor([1.0, 1.5, 3.0, -100.0]).bfloat16()[None, :, None]
    port = (reference.view(torch.int16) + 1).view(torch.bfloat16)
    assert tally(port, reference, reference.double()).ulp_p99 == 1.0


def test_equal_bits() -> None:
    _, reference, golden = sides()
    found = tally(reference.clone(), reference, golden)
    assert found.exact is True and found.worst is None and found.cosine == 1.0 and found.ulp_p99 == 0.0
    assert found.local.e_port == found.local.e_ref and found.status == "PASS"


def test_exact_is_about_the_executor_not_the_port() -> None:
    port, reference, golden = sides()
    assert tally(port, reference, golden).exact is True
    assert tally(reference, reference, golden, executor=port).exact is False
    assert tally(port, reference, golden, executor=reference.float()).exact is False  # another dtype is another result
    late = reference.clone()
    late[0, 0, 0] += 1
    assert tally(port, reference, golden, executor=late, chunks=3).exact is False  # once unequal, always
    none = Tally("logits", "precision", "bfloat16")
    none.add(port, reference, golden, None)
    assert none.finish().exact is None


@pytest.mark.parametrize(
    ("port_bad", "reference_bad", "status"),
    [([math.nan], [], "FAIL"), ([math.inf, -math.inf], [], "FAIL"), ([math.inf], [math.inf], "INCONCLUSIVE"),
     ([], [math.inf, math.nan], "INCONCLUSIVE")],
)  # fmt: skip
def test_values_that_are_not_finite_are_counted(port_bad, reference_bad, status) -> None:
    port, reference, golden = sides()
    for side, values in ((port, port_bad), (reference, reference_bad)):
        for i, value in enumerate(values):
            side[0, 3, i] = value
    found = tally(port, reference, golden)
    assert found.nonfinite == (len(port_bad), len(reference_bad))
    assert found.status == status
    if status == "FAIL":
        assert found.local.token == 3 and found.worst.at[:2] == (0, 3)
    assert tally(port, reference, golden, chunks=5).nonfinite == found.nonfinite


def test_gauges_warn_at_most() -> None:
    port, reference, golden = sides()
    assert tally(port * 2, reference, golden, name="layers.0.attn.ctx").status == "FAIL"
    gauge = tally(port * 2, reference, golden, name="layers.0.attn.q_rope")
    assert (gauge.kind, gauge.status) == ("gauge", "WARN")


def test_a_node_of_zeros_measures_absolutely() -> None:
    zeros = torch.zeros(1, T, D)
    assert tally(zeros, zeros, zeros.double()).local.rho == 0.0
    off = zeros.clone()
    off[0, 0, 0] = 1.0
    assert tally(off, zeros, zeros.double()).status == "FAIL"


def test_propagated_numbers() -> None:
    port, reference, golden = sides()
    found = measure_propagated(port, reference, golden)
    l2 = float((port.double() - reference.double()).norm())
    assert found.l2 == pytest.approx(l2, rel=1e-12)
    assert found.log10_l2 == pytest.approx(math.log10(l2), rel=1e-12)
    assert found.rel_l2 == pytest.approx(l2 / float(reference.double().norm()), rel=1e-12)
    assert found.e_port == pytest.approx(rel(port, golden), rel=1e-12)
    assert found.e_ref == pytest.approx(rel(reference, golden), rel=1e-12)
    assert found.floor_l2 == pytest.approx(float((reference.double() - golden).norm()), rel=1e-12)
    assert measure_propagated(port, port, golden).log10_l2 is None


def test_two_overflows_are_the_same_bits_and_one_is_not() -> None:
    port, reference, golden = sides()
    reference[0, 2, 5] = math.nan
    port = reference.clone()
    assert tally(port, reference, golden, executor=port).exact is True
    port[0, 3, 5] = math.nan
    assert tally(port, reference, golden, executor=port).exact is False


def test_sides_on_inputs_of_their_own_are_each_measured_from_golden_on_it() -> None:
    port, _, golden = sides()
    elsewhere = golden.flip(1) * 8  # golden on the reference's input, of another size
    found = Tally("layers.0.resid_post", "precision", "bfloat16", limits={"rho": (0.5, 1e9)})
    found.add(port, elsewhere.to(torch.bfloat16), golden, None, reference_golden=elsewhere)
    node = found.finish()
    assert node.local is not None
    assert node.local.e_port == pytest.approx(rel(port, golden))
    assert node.local.e_ref == pytest.approx(rel(elsewhere.to(torch.bfloat16), elsewhere))
    token = (port.double() - golden).norm(dim=-1) / golden.norm(dim=-1)
    reference_token = (elsewhere.to(torch.bfloat16).double() - elsewhere).norm(dim=-1) / elsewhere.norm(dim=-1)
    floor = FLOORS["bfloat16"]
    assert node.local.rho_tok == pytest.approx(float(token.max()) / max(float(reference_token.max()), floor), rel=1e-5)
    assert node.status == "WARN"  # by the limits given
