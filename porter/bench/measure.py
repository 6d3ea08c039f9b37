"""All providers at one case: who is right, then how long each takes and what memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from porter.bench.accuracy import Error, find_fault, worst_error
from porter.bench.cases import Case
from porter.bench.clock import Clock, Job, Timing
from porter.bench.operators import Inputs, draw_inputs
from porter.bench.providers.table import EAGER, Builder, Unsupported
from porter.bench.results import Metric, Record
from porter.bench.truth import find_truth
from porter.bench.worker import ProviderFailed, Worker, blamed, copy_all, describe
from porter.errors import ComparisonError

SETUP_S = 90.0  # a provider that still compiles or tunes after that is left out


@dataclass(frozen=True)
class Loaded:
    """A provider that was asked for: its ops and their builders, or why it cannot run here."""

    name: str
    ops: tuple[str, ...]
    builders: Mapping[str, Builder] = field(default_factory=dict)
    missing: str = ""


class DeviceLost(ComparisonError):
    """The GPU answers nothing any more; `record` says who was running, and a new process must go on."""

    def __init__(self, record: Record) -> None:
        super().__init__(
            f"the GPU stopped answering while {record.provider} ran {record.case}: {record.note}",
            "a provider that leaves the GPU usable, whatever it does",
            "run again with --resume FILE; this provider is left out of this case",
        )
        self.record = record


def measure_case(
    case: Case, providers: Sequence[Loaded], clock: Clock | None, mark: Callable[[str], None]
) -> list[Record]:
    """The records of a case.

    Args:
        case: what to run.
        providers: who runs it; eager first.
        clock: None where there is no GPU: then only errors are found.
        mark: called with a provider's name before it first runs.
    Raises: DeviceLost: a provider left the GPU unusable.
    """
    inputs = draw_inputs(case, torch.device("cpu") if clock is None else clock.device.place)
    truths, pristine = find_truth(case, inputs), copy_all(inputs)
    records: list[Record] = []
    checked: dict[str, tuple[Worker, dict[str, Error]]] = {}
    for provider in providers:
        mark(provider.name)
        try:
            worker = Worker(provider.name, _build(case, provider), inputs, pristine)
            with blamed(provider.name, SETUP_S):
                checked[provider.name] = worker, worker.check(truths)
        except (Unsupported, ImportError) as reason:
            status = "unsupported" if isinstance(reason, Unsupported) else "missing"
            note = str(reason) if isinstance(reason, Unsupported) or provider.missing else describe(reason)
            records.append(Record(case.name, provider.name, "error", status=status, note=note))  # type: ignore[arg-type]
        except ProviderFailed as failure:
            records.append(_failed(case, failure, clock))
            _put_back(inputs, pristine)
    records += _judge(case, checked)
    if clock is not None:
        records += _measure(case, {name: worker for name, (worker, _) in checked.items()}, clock)
    return records


def _build(case: Case, provider: Loaded) -> Callable[..., object]:
    """Raises: ImportError: it is not here; Unsupported: it has no such case; ProviderFailed: building it failed."""
    if provider.missing:
        raise ImportError(provider.missing)
    with blamed(provider.name, SETUP_S, passing=(Unsupported, ImportError)):
        return provider.builders[case.op](case)


def _failed(case: Case, failure: ProviderFailed, clock: Clock | None) -> Record:
    """The record of a failure. Raises: DeviceLost: the GPU did not survive it."""
    record = Record(case.name, failure.name, "error", status="failed", note=failure.reason)
    try:
        if clock is not None:
            clock.device.free_bytes()
    except RuntimeError as error:
        raise DeviceLost(record) from error
    return record


def _put_back(inputs: Inputs, pristine: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, x in inputs.everything().items():
            x.copy_(pristine[name])


def _judge(case: Case, checked: Mapping[str, tuple[Worker, Mapping[str, Error]]]) -> Iterator[Record]:
    """The worst error of each, and whether it is right beside eager's."""
    eager = checked[EAGER][1] if EAGER in checked else {}
    for name, (worker, errors) in checked.items():
        tensor, worst = worst_error(errors)
        fault = find_fault(errors, eager)
        overwritten = f"; overwrites {', '.join(worker.overwritten)}" if worker.overwritten else ""
        value = worst if worst < float("inf") else None
        note = f"{fault or tensor}{overwritten}"
        yield Record(case.name, name, "error", value, status="wrong" if fault else "ok", note=note)


def _measure(case: Case, workers: dict[str, Worker], clock: Clock) -> Iterator[Record]:
    """Memory, device times, and host times where the case is small; who fails now is left out of what follows."""
    workers = dict(workers)
    for name, worker in list(workers.items()):
        try:
            with blamed(name):
                size = clock.device.peak_bytes(worker.both)
                worker.restore()
            yield Record(case.name, name, "peak_bytes", float(size))
        except ProviderFailed as failure:
            del workers[name]
            yield _failed(case, failure, clock)
    plans: list[tuple[Metric, bool]] = [("forward_ms", False), ("forward_backward_ms", True)]
    if case.small:
        plans.append(("host_ms", True))
    for metric, backward in plans:
        take = clock.host_times if metric == "host_ms" else clock.device_times
        timings, failures = _time_those_that_run(workers, take, backward=backward)
        for failed in failures:
            del workers[failed.name]
            yield _failed(case, failed, clock)
        for name, found in timings.items():
            yield Record(case.name, name, metric, found.median, found.low, found.high, found.runs)


def _time_those_that_run(
    workers: Mapping[str, Worker], take: Callable[[Mapping[str, Job]], dict[str, Timing]], *, backward: bool
) -> tuple[dict[str, Timing], list[ProviderFailed]]:
    """Times all; whoever fails is dropped, and the others are timed anew."""
    jobs = {name: worker.job(backward=backward) for name, worker in workers.items()}
    failures: list[ProviderFailed] = []
    while jobs:
        try:
            return take(jobs), failures
        except ProviderFailed as failure:
            failures.append(failure)
            del jobs[failure.name]
    return {}, failures
