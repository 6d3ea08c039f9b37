import pytest
import torch

from porter.bench.training.overlap import kind_of, measure_overlap, merge, summarize_overlap


def test_spans_that_touch_are_one() -> None:
    assert merge([(5, 7), (0, 2), (1, 3), (3, 4)]) == [(0, 4), (5, 7)]


def test_the_share_of_copies_beside_kernels() -> None:
    found = summarize_overlap([(0, 1000), (5000, 6000)], [(9000, 10000)], [(500, 700), (600, 1500), (9500, 20000)])
    assert found["copy_ms"] == 3.0
    assert found["to_host_ms"] == 2.0
    assert found["to_device_ms"] == 1.0
    assert found["kernel_ms"] == 11.5
    assert found["beside_ms"] == 0.5 + 0.5
    assert found["share"] == pytest.approx(1 / 3)


def test_kinds() -> None:
    names = ("Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoD", "Memset", "gemm")
    assert [kind_of(name) for name in names] == ["DtoH", "HtoD", None, None, "kernels"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU copies")
def test_a_cpu_copies_nothing() -> None:
    assert measure_overlap(lambda: torch.ones(3).sum())["copy_ms"] == 0.0
