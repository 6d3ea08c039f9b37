"""Experts by name and shape: numbered or stacked projections, the router, what every token goes to."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from porter.explanation.draft.layout import Layout, Shape
from porter.explanation.draft.roles import Roles

Modules = Mapping[str, Mapping[str, Shape]]
_NUMBERED = re.compile(r"^(.*\bexperts)\.(\d+)\.(.+)$")
_PARTS = {"gate": r"^(w1|gate|gate_proj)$", "up": r"^(w3|v1|up|up_proj)$", "down": r"^(w2|down|down_proj)$"}
_SHARED = {**_PARTS, "gate_up": r"^(gate_up_proj|input_linear)$", "down": r"^(w2|down|down_proj|output_linear)$"}


@dataclass(frozen=True)
class Experts:
    """What names and shapes say of experts.

    Attributes:
        rules: slot -> weight rule.
        count, ffn: experts, and the width of one.
        layers: for each layer, whether it has experts.
    """

    rules: Mapping[str, Any]
    count: int
    ffn: int
    shared_ffn: int | None
    shared_gate: bool
    bias: bool
    router_bias: bool
    layers: tuple[bool, ...]


def find_experts(layout: Layout, roles: Roles, hidden: int | None) -> Experts | None:
    """The experts of a checkpoint; None where there are none, or none whose layout is known."""
    modules = layout.modules()
    rules: dict[str, Any] = {}
    count, ffn = (
        _numbered(modules, rules) or _stacked(modules, hidden, rules) or _flat(modules, hidden, rules) or (0, 0)
    )
    if not count:
        return None
    router = ""
    for name, tensors in modules.items():
        weight = tensors.get("weight", tensors.get(""))
        if weight is None or "experts." in name:
            continue
        if len(weight) == 2 and weight == (count, hidden) and "attn" not in name:
            rules["moe.router"] = router = name
        elif weight in ((count,), (1, count)) and ("correction" in name or "bias" in name.rpartition(".")[2]):
            rules["moe.correction"] = {"src": f"{name}!", "row": True} if len(weight) == 2 else f"{name}!"
    shared_ffn = _shared(modules, hidden, rules)
    bias = any("experts" in name and ("bias" in name or "bias" in each)
               for name, each in modules.items() if "correction" not in name and "shared" not in name)  # fmt: skip
    rules = {slot: _with_alias(slot, rule, roles) for slot, rule in rules.items()}
    has = (layout.sparse(), "moe.shared_gate" in rules, bias, "bias" in modules.get(router, {}))
    return Experts(rules, count, ffn, shared_ffn, has[1], has[2], has[3], has[0])


def _shared(modules: Modules, hidden: int | None, rules: dict[str, Any]) -> int | None:
    """The width of an expert for every token, its rules written; None where there is none."""
    ffn = None
    for name, tensors in modules.items():
        weight, last = tensors.get("weight"), name.rpartition(".")[2]
        if "shared" not in name or weight is None or len(weight) != 2:
            continue
        if weight[0] == 1:
            rules["moe.shared_gate"] = name
            continue
        part = next((part for part, words in _SHARED.items() if re.match(words, last)), None)
        if part == "gate_up":
            rules["moe.shared.gate_up"] = {"src": name, "order": ["gate", "up"]}
        elif part is not None:
            rules[f"moe.shared.{part}"] = name
            if part == "down":
                ffn = weight[1]
    return ffn


def _with_alias(slot: str, rule: Any, roles: Roles) -> Any:
    """The rule with HF's own path, too, where HF calls the module otherwise, or has stacked what the files number."""
    source = rule["src"] if isinstance(rule, dict) else rule
    other = roles.aliases.get(source.removesuffix("!"))
    if "{e}" in source:
        words = {"moe.gate_up": "gate_up", "moe.down": "down"}.get(slot, " ")
        other = next((name for name in roles.stacked if words in name), None)
    if other is None:
        return rule
    marked = other if not source.endswith("!") and "{e}" not in source else f"{other}!"
    return {**(rule if isinstance(rule, dict) else {}), "src": [source, marked]}


def _numbered(modules: Modules, rules: dict[str, Any]) -> tuple[int, int] | None:
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


def _stacked(modules: Modules, hidden: int | None, rules: dict[str, Any]) -> tuple[int, int] | None:
    count = ffn = 0
    turns: list[bool] = []
    for name, tensors in sorted(modules.items()):  # down, which tells the layout of a square gate_up, too
        bare = "" in tensors
        weight = tensors.get("weight", tensors.get(""))
        if weight is None or len(weight) != 3:
            continue
        source = f"{name}!" if bare else name
        if re.search(r"down|output|w2", name):
            count, transposed = weight[0], weight[1] != hidden
            ffn = weight[1] if transposed else weight[2]
            turns.append(transposed)
            rules["moe.down"] = {"src": source, "transpose": True} if transposed else source
        else:
            square = weight[1] == weight[2] and turns[:1] == [True]
            turned = {"transpose": True} if weight[2] != hidden or square else {}
            rules["moe.gate_up"] = {"src": source, **turned, "order": ["gate", "up"]}
    return (count, ffn) if {"moe.down", "moe.gate_up"} <= set(rules) else None


def _flat(modules: Modules, hidden: int | None, rules: dict[str, Any]) -> tuple[int, int] | None:
    """Experts below each other in matrices of one shape, [experts * ffn, hidden]; the router says how many."""
    parts = {name: each[""] for name, each in modules.items() if "experts" in name and "" in each}
    wide = Counter(shape for shape in parts.values() if shape is not None and len(shape) == 2 and shape[1] == hidden)
    shape = next((shape for shape, times in wide.items() if times == len(_PARTS)), None)
    routers = [each.get("weight") for name, each in modules.items() if "router" in name or name.endswith("gate")]
    counts = {each[0] for each in routers if each is not None and len(each) == 2 and each[1] == hidden}
    if shape is None or len(counts) != 1 or shape[0] % next(iter(counts)):
        return None
    for name in parts:
        part = next((part for part, words in _PARTS.items() if re.match(words, name.rpartition(".")[2])), "other")
        turned = {"transpose": True} if part == "down" else {}
        rules[f"moe.{part}"] = {"src": f"{name}!", "flat": True, **turned}
    count = next(iter(counts))
    return (count, shape[0] // count) if "moe.other" not in rules else None
