"""Nodes of several prompts as one list: each node is what it was for the prompt it did worst on."""

import math
from dataclasses import replace

from porter.comparison.gradients.stage import BackwardRun
from porter.comparison.report import NodeDiff, Verdict
from porter.comparison.stages import StageRun


def merge_nodes(merged: dict[str, NodeDiff], found: StageRun | BackwardRun, prompt: int) -> None:
    """Keeps each node's worst prompt; a node is exact only if it was for every prompt."""
    for node in found.nodes:
        node = replace(node, prompt=prompt)
        held = merged.get(node.name)
        if held is None:
            merged[node.name] = node
            continue
        exact = None if node.exact is None or held.exact is None else node.exact and held.exact
        merged[node.name] = replace(max(held, node, key=badness), exact=exact)


_RANK: dict[Verdict, int] = {"PASS": 0, "NOT_COMPARED": 0, "WARN": 1, "INCONCLUSIVE": 1, "FAIL": 2}


def badness(node: NodeDiff) -> tuple[int, float]:
    """Sorts nodes by verdict, then by rho; a rho that is no number is the worst."""
    rho = node.local.rho if node.local else 0.0
    return _RANK[node.status], rho if not math.isnan(rho) else math.inf
