"""How much of the copies between device and host lies beside computation, from a profile of torch's."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch.profiler import ProfilerActivity, profile

Span = tuple[float, float]  # begin and end, microseconds
COPIES = ("Memcpy DtoH", "Memcpy HtoD")


def measure_overlap(step: Callable[[], object]) -> dict[str, float]:
    """Milliseconds of a step's copies to the host and back, of its kernels, and of copies while a kernel ran.

    Args:
        step: run once, under the profiler.
    Returns: copy_ms, to_host_ms, to_device_ms, kernel_ms, beside_ms, and share, beside_ms of copy_ms; zeros on a CPU.
    """
    on_gpu = torch.cuda.is_available()
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as found:
        step()
        if on_gpu:
            torch.cuda.synchronize()
    spans: dict[str, list[Span]] = {"DtoH": [], "HtoD": [], "kernels": []}
    for event in found.events() or ():
        if not str(event.device_type).endswith("CUDA"):
            continue
        kind = kind_of(event.name)
        if kind is not None:
            spans[kind].append((event.time_range.start, event.time_range.end))
    return summarize_overlap(spans["DtoH"], spans["HtoD"], spans["kernels"])


def kind_of(name: str) -> str | None:
    """What an event of the device is: DtoH, HtoD, kernels; None: neither a copy of these nor a kernel."""
    for copy in COPIES:
        if name.startswith(copy):
            return copy[-4:]
    return None if name.startswith(("Memcpy", "Memset")) else "kernels"


def summarize_overlap(to_host: Sequence[Span], to_device: Sequence[Span], kernels: Sequence[Span]) -> dict[str, float]:
    """See measure_overlap."""
    copies = merge([*to_host, *to_device])
    beside = sum(_shared(copies, merge(kernels)))
    copied = _length(copies)
    times = {
        "copy_ms": copied, "to_host_ms": _length(to_host), "to_device_ms": _length(to_device),
        "kernel_ms": _length(merge(kernels)), "beside_ms": beside,
    }  # fmt: skip
    return {**{name: each / 1e3 for name, each in times.items()}, "share": beside / copied if copied else 0.0}


def merge(spans: Iterable[Span]) -> list[Span]:
    """The spans in order, those that touch as one."""
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged


def _length(spans: Iterable[Span]) -> float:
    return sum(end - begin for begin, end in spans)


def _shared(some: Sequence[Span], others: Sequence[Span]) -> Iterable[float]:
    i = 0
    for begin, end in some:
        while i < len(others) and others[i][1] <= begin:
            i += 1
        j = i
        while j < len(others) and others[j][0] < end:
            yield min(end, others[j][1]) - max(begin, others[j][0])
            j += 1
