"""What linear_cross_entropy holds at once: never all logits, and no more bytes than choose_chunks promises."""

import gc
import weakref

import pytest
import torch
from torch import Tensor

from porter_kernels.linear_cross_entropy import choose_chunks, linear_cross_entropy, passes
from tests.porter_kernels.linear_cross_entropy_budget import DEVICE, assert_within_budget, draw, run_case


class Allocations(torch.profiler.profile):
    """The most bytes alive at once, and the largest allocation."""

    def __init__(self) -> None:
        super().__init__(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)

    def measure(self) -> tuple[int, int]:
        events = [event for event in self.profiler.kineto_results.events() if event.name() == "[memory]"]
        alive = least = peak = largest = 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            alive += event.nbytes()
            least = min(least, alive)  # something older was freed meanwhile
            peak, largest = max(peak, alive - least), max(largest, event.nbytes())
        return peak, largest


@pytest.mark.skipif(DEVICE != "cpu", reason="counts allocations on the CPU")
@pytest.mark.parametrize("grad", [True, False], ids="grad={}".format)
@pytest.mark.parametrize("trainable", [(True, True), (True, False), (False, True)], ids=str)
def test_never_all_logits_at_once(trainable: tuple[bool, bool], grad: bool, generator: torch.Generator) -> None:
    N, H, V = 256, 16, 2048
    case = draw(generator, N=N, H=H, V=V, bias=False)
    hidden, weight = (x.requires_grad_(on) for x, on in zip((case.hidden, case.weight), trainable, strict=True))
    with Allocations() as allocations, torch.set_grad_enabled(grad):
        loss = linear_cross_entropy(hidden, weight, case.target, chunk_rows=64)
        if grad:
            loss.backward()
    peak, largest = allocations.measure()
    needed = {name: grad and on for name, on in zip(("hidden_gradient", "weight_gradient"), trainable, strict=True)}
    plan = choose_chunks(N, H, V, element_size=4, chunk_rows=64, **needed)
    assert largest == 64 * V * 4
    few = 2 * 64 * H * 4 + 50 * N * 4  # a chunk's rows and their gradient, copied; some floats a row
    assert plan.peak_bytes <= peak <= plan.peak_bytes + few


def test_logits_are_gone_before_a_float32_sum_is_cast(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    chunks: list[weakref.ref[torch.UntypedStorage]] = []
    alive: list[bool] = []
    project, finish = passes.project, passes.HeadGradient.finish

    def note(hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, out: Tensor) -> None:
        chunks.append(weakref.ref(out.untyped_storage()))
        project(hidden_NH, weight_VH, bias_V, out)

    def look(self: passes.HeadGradient) -> tuple[Tensor | None, Tensor | None]:
        gc.collect()  # Triton's interpreter leaves circles behind
        alive.extend(chunk() is not None for chunk in chunks)
        return finish(self)

    monkeypatch.setattr(passes, "project", note)
    monkeypatch.setattr(passes.HeadGradient, "finish", look)
    case = draw(generator, N=40, H=16, V=67, bias=False)
    hidden, weight = (x.requires_grad_() for x in (case.hidden, case.weight))
    linear_cross_entropy(hidden, weight, case.target, chunk_rows=16)
    assert len(alive) >= 2
    assert not any(alive)


@pytest.mark.skipif(DEVICE != "cuda", reason="counts allocations on the GPU")
@pytest.mark.parametrize("accumulate", ["float32", "weight"])
def test_peak_is_as_promised(accumulate: str) -> None:
    N, H, V = 3072, 1024, 32000
    hidden, weight = (torch.randn(s, device=DEVICE, dtype=torch.bfloat16).requires_grad_() for s in ((N, H), (V, H)))
    target = torch.randint(V, (N,), device=DEVICE)
    (hidden.detach() @ weight.detach()[:8].T).sum()  # cuBLAS takes its workspace, 32 MB on an H200, and keeps it
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    linear_cross_entropy(hidden, weight, target, accumulate=accumulate).backward()
    peak = torch.cuda.max_memory_allocated() - before
    plan = choose_chunks(N, H, V, element_size=2, accumulate=accumulate)
    assert plan.peak_bytes <= peak <= plan.peak_bytes + 100 * N * 4 + 2**24


@pytest.mark.skipif(DEVICE != "cuda", reason="cuBLAS splits long sums only on a GPU")
def test_long_sums_of_few_rows_are_not_rounded_on_the_way(generator: torch.Generator) -> None:
    """d_hidden sums the vocabulary; torch lets cuBLAS add parts of such a sum in bfloat16 unless told otherwise."""
    case = draw(generator, N=16, H=64, V=4096, dtype=torch.bfloat16, bias=False, ignored=0.0)
    assert_within_budget(run_case(linear_cross_entropy, case), case)
