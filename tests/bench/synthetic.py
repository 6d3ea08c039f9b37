"""A run as an H200 might give it: the shape of real results for tests of reports; its numbers were not measured."""

import random
from dataclasses import replace

from porter.bench.cases import Case, default_cases
from porter.bench.curves import HEADS, TOKENS, MemoryRun, Point
from porter.bench.providers.table import EAGER, PORTER, PROVIDERS
from porter.bench.results import BenchRun, Floor, Rate, Record

SLOWNESS = {  # times the floor
    "eager": 6.0, "compile": 1.8, "torch": 1.9, "liger": 1.7, "liger-chunk8": 1.2, "cce": 4.2, "quack": 1.5,
    "quack-base": 1.15, "porter": 1.1, "porter-lean": 1.12,
}  # fmt: skip
MEMORY = {"eager": 5.0, "torch": 1.4, "cce": 0.5, "porter": 1.0, "porter-lean": 0.7}
ENVIRONMENT = {
    "gpu": "NVIDIA H200", "driver": "580.00", "torch": "2.11.0+cu130", "triton": "3.6.0", "transformers": "5.17.0",
    "liger-kernel": "0.8.5", "cut-cross-entropy": "25.1.1", "quack-kernels": "missing", "commit": "0123456789ab",
    "dirty": "no", "sources": "0" * 16, "TF32 matmul": "False", "TRITON_DEFAULT_FP_FUSION": "1",
}  # fmt: skip


def synthetic_run(cases: list[Case] | None = None) -> BenchRun:
    """Every provider at every case; quack is missing, liger wrong once, compile has failed once."""
    chance = random.Random(0)
    cases = default_cases() if cases is None else cases
    floors = [_floor(case) for case in cases]
    records = [each for case, floor in zip(cases, floors, strict=True) for each in _records(case, floor, chance)]
    return BenchRun(
        created="2026-11-30T01:02:03+00:00",
        environment=ENVIRONMENT,
        cases=tuple(cases),
        rates=tuple(_rates()),
        floors=tuple(floors),
        records=tuple(records),
    )


def with_value(run: BenchRun, case: str, provider: str, metric: str, value: float) -> BenchRun:
    """The run with one number changed, its spread with it."""
    records = [
        replace(each, value=value, low=each.low and value, high=each.high and value)
        if (each.case, each.provider, each.metric) == (case, provider, metric)
        else each
        for each in run.records
    ]
    return replace(run, records=tuple(records))


def _floor(case: Case) -> Floor:
    elements = 1
    for size in case.shape:
        elements *= size
    both = max(5 * 2 * elements / 4.2e12 * 1e3, 0.004)
    if case.op == "linear_cross_entropy":
        both = 6 * elements / 788e12 * 1e3
        elements = 10 * case.shape[1] * (case.shape[0] + case.shape[2]) // 100
    return Floor(case.name, 0.4 * both, both, 10 * elements, 0)


def _rates() -> list[Rate]:
    sizes = [2**20 * 4**power for power in range(7)]
    top = {"copy": 4.27e12, "triad": 4.40e12, "read": 4.69e12}
    rates = [
        Rate(kind, size, size / rate * 1e3, rate) for kind, best in top.items() for size in sizes
        if (rate := best / (1 + 3e7 / size))
    ]  # fmt: skip
    return [*rates, Rate("matmul", 2 * 8192**3, 1.395, 788e12)]


def _records(case: Case, floor: Floor, chance: random.Random) -> list[Record]:
    records = []
    for provider in PROVIDERS.values():
        if case.op not in provider.ops:
            continue
        if provider.distribution == "quack-kernels":
            note = "ModuleNotFoundError: No module named 'quack'"
            records.append(Record(case.name, provider.name, "error", status="missing", note=note))
        elif (provider.name, case.op) == ("compile", "activation"):
            records.append(Record(case.name, provider.name, "error", status="failed", note="out of memory"))
        else:
            records += _measured(case, floor, provider.name, chance)
    return records


def _measured(case: Case, floor: Floor, provider: str, chance: random.Random) -> list[Record]:
    wrong = provider == "liger" and case.shape == (8192, 151936)
    status, note = ("wrong", "d_logits is off by 0.5") if wrong else ("ok", "d_x")
    slowness = SLOWNESS[provider] * chance.uniform(0.9, 1.1)
    if case.op == "glu" and provider in ("compile", PORTER):
        slowness = chance.uniform(1.0, 1.02)
    records = [Record(case.name, provider, "error", 3.1e-3, status=status, note=note)]
    for metric, least in (("forward_ms", floor.forward_ms), ("forward_backward_ms", floor.forward_backward_ms)):
        value = least * slowness
        records.append(Record(case.name, provider, metric, value, value * 0.985, value * 1.02, 100))
    if case.small:
        value = {PORTER: 0.15, EAGER: 0.35}.get(provider, 0.5) * chance.uniform(0.9, 1.1)
        records.append(Record(case.name, provider, "host_ms", value, value * 0.9, value * 1.2, 200))
    peak = floor.size_bytes / 5 * MEMORY.get(provider, 1.5)
    return [*records, Record(case.name, provider, "peak_bytes", peak)]


def synthetic_memory() -> MemoryRun:
    """Curves of every method; the naive one runs out of memory at the end of the wider head."""
    points = []
    for features, vocabulary in HEADS:
        for tokens in TOKENS:
            least, logits = 2 * features * (tokens + vocabulary), tokens * vocabulary
            peaks = {
                "naive": least + 14 * logits,
                "chunked": 2 * least + 14 * min(tokens, 2048) * vocabulary,
                "fused": least + 2 * min(tokens, 2048) * vocabulary + 4 * features * vocabulary,
                "fused, lean": least + 2 * min(tokens, 2048) * vocabulary,
            }
            for factor, (method, peak) in zip((1.1, 1.3, 1.0, 1.0), peaks.items(), strict=True):
                point = Point(features, vocabulary, method, tokens)
                if method == "naive" and logits > 3e9:
                    points.append(replace(point, status="out of memory", note="out of memory"))
                    continue
                time = factor * 6 * logits * features / 7e11
                points.append(replace(point, peak_bytes=peak, time_ms=time, low_ms=0.99 * time, high_ms=1.02 * time))
    return MemoryRun("2026-11-30T01:02:03+00:00", ENVIRONMENT, tuple(points))
