"""The elements that a picture of a node is drawn from."""

import math
from dataclasses import replace

import pytest
import torch

from porter.comparison.conclusion import MOST_SAMPLES, keep_samples
from porter.comparison.diff import diff
from porter.comparison.report import NodeDiff
from porter.comparison.sampler import EDGES, LOOKED_AT, SHOWN, Sampler
from tests.models.tiny import tiny


def sampler(golden: torch.Tensor, port: torch.Tensor, reference: torch.Tensor, chunks: int = 1):
    made = Sampler()
    for parts in zip(*(each.chunk(chunks) for each in (golden, port, reference)), strict=True):
        made.add(*parts)
    return made.finish()


def test_a_small_node_is_taken_whole() -> None:
    golden = torch.tensor([[2.0, -2.0], [2.0, 2.0]], dtype=torch.float64)
    found = sampler(golden, golden * 1e-3, golden * 0, chunks=2)
    assert found is not None
    assert found.golden == (2.0, 2.0, 2.0, 2.0) and found.port == (2e-3,) * 4 and found.reference == (0.0,) * 4
    at = [i for i, count in enumerate(found.port_counts) if count]
    assert len(at) == 1 and EDGES[at[0]] <= math.log10(1e-3 + 1e-9) < EDGES[at[0] + 1]
    assert found.reference_counts[0] == 4 and sum(found.port_counts) == 4  # no error at all: in the first bin


def test_a_large_node_is_spread_evenly_over_tokens_and_channels() -> None:
    tokens, width = 128, 512
    where = torch.arange(tokens * width, dtype=torch.float64).reshape(tokens, width) + 1
    found = sampler(where, where, where)
    assert found is not None and len(found.golden) == SHOWN and sum(found.port_counts) == LOOKED_AT
    places = [round(value) - 1 for value in found.golden]
    columns, rows = {place % width // 64 for place in places}, {place // width // 16 for place in places}
    assert columns == set(range(8)) and rows == set(range(8))


def test_what_is_not_finite_is_counted_at_the_end_and_golden_must_be_finite() -> None:
    golden = torch.ones(4, dtype=torch.float64)
    port = torch.tensor([math.inf, math.nan, 0.0, 1.0], dtype=torch.float64)
    found = sampler(golden, port, golden * 0)
    assert found is not None and found.port_counts[-1] == 2 and found.port_counts[0] == 1
    assert sampler(golden * math.inf, port, golden) is None and sampler(golden * 0, port, golden) is None
    assert sampler(golden, port, golden * math.nan) is None


def test_only_what_is_looked_at_first_keeps_its_sample() -> None:
    report = diff(tiny("llama", "norm.eps=1e-3", tokens=24), stages=["semantics"])
    kept = [node.name for node in report.nodes if node.sample]
    assert kept[0] == report.first_fail.name and len(kept) <= MOST_SAMPLES
    assert {name.rpartition(".attn")[0] or name.rpartition(".")[0] for name in kept} <= {"layers.0", "layers.0.mlp"}
    node = next(node for node in report.nodes if node.sample)
    assert node.local is not None and max(node.sample.port) > 3 * max(node.sample.reference)
    clean = diff(tiny("llama", tokens=24), stages=["semantics"])
    (largest,) = [node for node in clean.nodes if node.sample]
    assert largest.local.rho == max(node.local.rho for node in clean.nodes)


@pytest.mark.parametrize("count", [0, 3])
def test_nodes_without_a_sample_are_left_as_they_are(count: int) -> None:
    node = NodeDiff("layers.0.attn.ctx", "observable", "exact", "float32", (1, 2, 3), "PASS", "")
    assert list(keep_samples([replace(node, prompt=i) for i in range(count)])) == [
        replace(node, prompt=i) for i in range(count)
    ]
