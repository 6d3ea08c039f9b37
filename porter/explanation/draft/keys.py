"""Config keys that a draft does not read: why that may be, found by giving HF another value."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from porter.explanation.draft.pool import Pool
from porter.references.quiet import quiet_transformers
from porter.references.unknown import HF_ERRORS


@dataclass(frozen=True)
class Unread:
    """A key that nothing reads.

    Attributes:
        harmless: HF's bits do not depend on it; reason: how that is known, or what is not.
    """

    key: str
    harmless: bool
    reason: str


def explain_unread(
    keys: tuple[str, ...], config: Mapping[str, Any], folder: Path, ids_BT: torch.Tensor, pool: Pool
) -> Iterator[Unread]:
    """Each key, with HF's own answer: the same weights with another value of it."""
    base = None
    for key in keys:
        top = key.split(".")[0]
        if top in pool.reasons:
            yield Unread(key, True, pool.reasons[top])
            continue
        value = at(config, key)
        if value is None or value == [] or value == {}:
            yield Unread(key, True, "null")
            continue
        other = _other(value)
        if other is None:
            yield Unread(key, False, "other texts were not tried")
            continue
        base = _logits(config, folder, ids_BT) if base is None else base
        changed = _logits(_with(config, key, other), folder, ids_BT)
        if changed is None:
            yield Unread(key, True, f"HF takes no other value ({other!r} was tried)")
        elif base is not None and base.shape == changed.shape and torch.equal(base, changed):
            yield Unread(key, True, f"HF's bits stay with {other!r}")
        else:
            yield Unread(key, False, f"HF's numbers change with {other!r}, and no axis reads it")


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 1.5 if value else 0.5
    return None


def at(config: Mapping[str, Any], key: str) -> Any:
    """The value of a.b in a config; None where it has none."""
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _with(config: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    changed = deepcopy(dict(config))
    node: Any = changed
    *parents, last = key.split(".")
    for part in parents:
        node = node[part]
    node[last] = value
    return changed


@torch.no_grad()
def _logits(config: Mapping[str, Any], folder: Path, ids_BT: torch.Tensor) -> torch.Tensor | None:
    """HF's logits on the folder's weights with this config; None: HF refuses it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    values = {key: value for key, value in deepcopy(dict(config)).items() if key != "model_type"}
    with quiet_transformers():
        try:
            made: Any = AutoConfig.for_model(str(config["model_type"]), **values)
            model = auto.from_pretrained(
                folder, config=made, dtype=torch.float32, attn_implementation="eager", local_files_only=True
            ).eval()
            logits: torch.Tensor = model(input_ids=ids_BT, use_cache=False).logits
        except HF_ERRORS:  # it does not take the value
            return None
    return logits
