"""Experts by name and shape: numbered or stacked projections, the router, what every token goes to."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from porter.explanation.draft.layout import Layout, Shape

_NUMBERED = re.compile(r"^(.*\bexperts)\.(\d+)\.(.+)$")
_PARTS = {"gate": r"^(w1|gate|gate_proj)$", "up": r"^(w3|up|up_proj)$", "down": r"^(w2|down|down_proj)$"}


@dataclass(frozen=True)
class Experts:
    """What names and shapes say of experts.

    Attributes:
        rules: slot -> weight rule.
        count, ffn: experts, and the width of one.
    """

    rules: Mapping[str, Any]
    count: int
    ffn: int
    shared_ffn: int | None
    shared_gate: bool
    bias: bool


def find_experts(layout: Layout, hidden: int | None) -> Experts | None:
    """The experts of a checkpoint; None where there are none, or none whose layout is known."""
    modules = layout.modules()
    rules: dict[str, Any] = {}
    count, ffn = _numbered(modules, rules) or _stacked(modules, hidden, rules) or (0, 0)
    if not count:
        return None
    taken = {name for name in modules if "experts." in name}
    shared_ffn = None
    for name, tensors in modules.items():
        weight, last = tensors.get("weight", tensors.get("")), name.rpartition(".")[2]
        if name in taken or weight is None:
            continue
        if len(weight) == 2 and weight[0] == count and weight[1] == hidden and "attn" not in name:
            rules["moe.router"] = name
        elif len(weight) == 1 and weight[0] == count and ("correction" in name or "bias" in last):
            rules["moe.correction"] = f"{name}!"
        elif "shared" in name and len(weight) == 2 and weight[0] == 1:
            rules["moe.shared_gate"] = name
        elif "shared" in name and len(weight) == 2:
            part = next((part for part, words in _PARTS.items() if re.match(words, last)), None)
            if part is not None:
                rules[f"moe.shared.{part}"] = name
                shared_ffn = weight[1] if part == "down" else weight[0]
    bias = any(
        "experts" in name and ("bias" in name or "bias" in each)
        for name, each in modules.items()
        if "correction" not in name
    )
    return Experts(rules, count, ffn, shared_ffn, "moe.shared_gate" in rules, bias)


def _numbered(modules: Mapping[str, Mapping[str, Shape]], rules: dict[str, Any]) -> tuple[int, int] | None:
    found: dict[str, str] = {}
    count, ffn, place = 0, 0, ""
    for name, tensors in modules.items():
        if match := _NUMBERED.match(name):
            count, place = max(count, int(match[2]) + 1), match[1]
            part = next((part for part, words in _PARTS.items() if re.match(words, match[3])), None)
            weight = tensors.get("weight")
            if part is not None and weight is not None:
                found[part] = match[3]
                ffn = weight[1] if part == "down" else weight[0]
    if set(found) != set(_PARTS):
        return None
    rules["moe.gate_up"] = {"src": f"{place}.{{e}}.{{part}}", "parts": {"gate": found["gate"], "up": found["up"]}}
    rules["moe.down"] = f"{place}.{{e}}.{found['down']}"
    return count, ffn


def _stacked(
    modules: Mapping[str, Mapping[str, Shape]], hidden: int | None, rules: dict[str, Any]
) -> tuple[int, int] | None:
    count = ffn = 0
    for name, tensors in modules.items():
        bare = "" in tensors
        weight = tensors.get("weight", tensors.get(""))
        if weight is None or len(weight) != 3:
            continue
        source = f"{name}!" if bare else name
        if re.search(r"down|output|w2", name):
            count, transposed = weight[0], weight[1] != hidden
            ffn = weight[1] if transposed else weight[2]
            rules["moe.down"] = {"src": source, "transpose": True} if transposed else source
        else:
            turned = {"transpose": True} if weight[2] != hidden else {}
            rules["moe.gate_up"] = {"src": source, **turned, "order": ["gate", "up"]}
    return (count, ffn) if {"moe.down", "moe.gate_up"} <= set(rules) else None
