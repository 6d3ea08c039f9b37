"""cut-cross-entropy 25.1.1: a linear cross-entropy that never writes logits."""

from collections.abc import Mapping
from importlib import import_module

from porter.bench.cases import Case
from porter.bench.providers.table import Builder, Function


def ops() -> Mapping[str, Builder]:
    """Its one function, with its defaults."""
    peer = import_module("cut_cross_entropy")

    def linear_cross_entropy(case: Case) -> Function:
        function: Function = peer.linear_cross_entropy
        return function

    return {"linear_cross_entropy": linear_cross_entropy}
