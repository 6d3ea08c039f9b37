"""What the card reaches on plain traffic and on a plain matrix product, and the least time that leaves for a case.

Bandwidth depends on the size (67 MB of an H200's traffic run at 3.7 TB/s, 8.6 GB at 4.3) and on how much of it is
read, so copies, reads and triads (two reads, one write) are measured at sizes from 1 MB up, as every op is measured.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

import torch

from porter.bench.cases import Case
from porter.bench.clock import Clock, Job
from porter.bench.results import Floor, Rate
from porter.bench.traffic import Pass, count_flops, passes
from porter_kernels.launch import tl, triton

MEGABYTES = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)  # of traffic
READ_SHARE = {"copy": 1 / 2, "triad": 2 / 3, "read": 1.0}
PRODUCTS = ((8192, 8192, 8192), (8192, 4096, 128256))
BLOCK = 8192


@triton.jit
def _read_kernel(x_ptr, sum_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(sum_ptr + tl.program_id(0), tl.sum(tl.load(x_ptr + at), axis=0))


def measure_rates(clock: Clock) -> list[Rate]:
    """Copies, reads, triads and matrix products on a clock's device, a few seconds in all."""
    rates = []
    for size in (megabytes * 2**20 for megabytes in MEGABYTES):
        if 3 * size > clock.device.free_bytes():
            break
        jobs = {kind: Job(run, _nothing) for kind, run in _streams(size, clock.device.place)}
        for kind, timing in clock.device_times(jobs).items():
            rates.append(Rate(kind, size, timing.median, size / timing.median * 1e3))
    for shape in PRODUCTS:
        run = _product(*shape, clock.device.place)
        timing = clock.device_times({"matmul": Job(run, _nothing)})["matmul"]
        flops = 2 * math.prod(shape)
        rates.append(Rate("matmul", flops, timing.median, flops / timing.median * 1e3))
    return rates


def _nothing() -> None:
    pass


def _streams(size_bytes: int, place: torch.device) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each moves so many bytes in all."""
    whole = torch.zeros(size_bytes // 4, dtype=torch.float32, device=place)
    source, target = whole.chunk(2)
    a, b, c = torch.zeros(3, size_bytes // 12 // BLOCK * BLOCK, dtype=torch.float32, device=place)
    sums = torch.empty(len(whole) // BLOCK, dtype=torch.float32, device=place)
    yield "copy", lambda: target.copy_(source)
    yield "triad", lambda: torch.add(a, b, out=c)
    yield "read", lambda: _read_kernel[(len(sums),)](whole, sums, BLOCK=BLOCK, num_warps=8)


def _product(m: int, k: int, n: int, place: torch.device) -> Callable[[], object]:
    a = torch.randn(m, k, dtype=torch.bfloat16, device=place)
    b = torch.randn(k, n, dtype=torch.bfloat16, device=place)
    out = torch.empty(m, n, dtype=torch.bfloat16, device=place)
    return lambda: torch.mm(a, b, out=out)


def find_floor(case: Case, rates: Sequence[Rate]) -> Floor:
    """The least time for a case on a card of these rates."""
    forward, both = passes(case)
    times = []
    for steps, flops in zip((forward, both), count_flops(case), strict=True):
        times.append(max(sum(_pass_ms(step, rates) for step in steps), _flops_ms(flops, rates)))
    return Floor(case.name, times[0], times[1], sum(step.read + step.written for step in both), count_flops(case)[1])


def _flops_ms(flops: int, rates: Iterable[Rate]) -> float:
    best = max((rate.per_second for rate in rates if rate.kind == "matmul"), default=math.inf)
    return flops / best * 1e3


def _pass_ms(step: Pass, rates: Sequence[Rate]) -> float:
    """Time for one pass over memory, between the two kinds of traffic whose share of reads is nearest."""
    size = step.read + step.written
    share = max(step.read / size, READ_SHARE["copy"])
    for (low, low_share), (high, high_share) in pairwise(READ_SHARE.items()):
        if share <= high_share:
            mix = (share - low_share) / (high_share - low_share)
            slowness = (1 - mix) / _bandwidth(low, size, rates) + mix / _bandwidth(high, size, rates)
            return size * slowness * 1e3
    raise AssertionError("a share of reads is at most 1")


def _bandwidth(kind: str, size: int, rates: Sequence[Rate]) -> float:
    """Bytes a second at a size, between the sizes measured on either side; the nearest one's beyond them."""
    found = sorted((rate.size, rate.per_second) for rate in rates if rate.kind == kind)
    if size <= found[0][0]:
        return found[0][1]
    for (smaller, low), (larger, high) in pairwise(found):
        if size <= larger:
            mix = math.log(size / smaller) / math.log(larger / smaller)
            return math.exp((1 - mix) * math.log(low) + mix * math.log(high))
    return found[-1][1]
