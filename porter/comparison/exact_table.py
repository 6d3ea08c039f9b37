"""Exactness of many models: one row a model, both dtypes, spread over processes that import transformers once each."""

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from porter.comparison.exactness import DTYPES, ExactRow, check_exactness, plan_exact
from porter.errors import PorterError
from porter.specs.family import find_family


@dataclass(frozen=True)
class ExactRun:
    """A model to prove exact."""

    spec: str
    size: str
    weights: str
    tokens: int


@dataclass(frozen=True)
class ModelRow:
    """One model in both dtypes.

    Attributes:
        spec_hash: of the blueprint that was run; empty where none could be made.
        results: one a dtype; empty where the model could not be run.
        problem: why it could not.
    """

    family: str
    model_type: str
    size: str
    weights: str
    tokens: int
    spec_hash: str
    results: tuple[ExactRow, ...]
    problem: str = ""

    @property
    def exact(self) -> bool:
        """Bit-equal in every dtype."""
        return bool(self.results) and all(row.exact for row in self.results)

    def exact_in(self, dtype: str) -> bool:
        return any(row.exact for row in self.results if row.dtype == dtype)


def run_exact_table(runs: Sequence[ExactRun], jobs: int | None = None) -> Iterator[ModelRow]:
    """The row of each run, in order, as it is known.

    Args:
        jobs: processes, each with its share of the cores; default: as many as there are cores. One: this process.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    jobs = min(jobs or cores, len(runs))
    if jobs < 2:
        yield from map(check_model, runs)
        return
    pool = ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_share_cores, initargs=(cores // jobs,)
    )
    try:
        yield from pool.map(check_model, runs)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def check_model(run: ExactRun) -> ModelRow:
    """The row of one run; what stops it is told in the row, so that the others are run."""
    family = find_family(run.spec)
    results: tuple[ExactRow, ...] = ()
    model_type, spec_hash, problem = str(family.tree["model_type"]), "", ""
    try:
        build = plan_exact(run.spec, run.size, run.weights)
        spec_hash = build.spec_hash
        results = tuple(check_exactness(build, DTYPES, tokens=run.tokens))
    except PorterError as error:
        problem = error.wrong
    return ModelRow(family.name, model_type, run.size, run.weights, run.tokens, spec_hash, results, problem)


def _share_cores(threads: int) -> None:
    """In a process of the pool: its share of the cores; Ctrl-C is the parent's to answer."""
    import torch

    torch.set_num_threads(max(1, threads))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
