"""Rows of the embedding and the head that training never reached, and their repair.

Vocabularies are padded and hold reserved tokens. A row that no text has touched is what initialisation and decay left:
zero, a constant, the copy of another, or far shorter than trained rows. Fine-tuning that uses such a token starts from
there, and a head's row near zero gives its token a logit near zero, which may be above those of all others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from porter.errors import PorterError
from porter.patching.patch import unwrapped

_NEAR_ZERO = 1e-3  # of the median length of rows
_FAR_BELOW, _GAP = 0.25, 2.0  # of the median; and the next longer row is so many times as long
_PAIR = 2  # as many alike may be a token and a new one that was made of it
_SHOWN = 6


class UntrainedRowsError(PorterError):
    """A table whose rows cannot be judged, or repaired."""


@dataclass(frozen=True)
class UntrainedRows:
    """What of a table was never trained.

    Attributes:
        path: of its module; a head that is tied is not told of again.
        rows: of the table.
        found: reason -> the rows, each under the first reason that holds: near zero, constant, copies, short.
    """

    path: str
    rows: int
    found: Mapping[str, tuple[int, ...]]

    @property
    def untrained(self) -> tuple[int, ...]:
        return tuple(sorted(row for rows in self.found.values() for row in rows))

    def __str__(self) -> str:
        if not self.untrained:
            return f"{self.path}: all {self.rows} rows are trained"
        parts = "; ".join(f"{reason}: {_ranges(rows)}" for reason, rows in self.found.items())
        return f"{self.path}: {len(self.untrained)} of {self.rows} rows are untrained ({parts})"


def untrained_rows(model: Any) -> list[UntrainedRows]:
    """What of a model's embedding and, where it is not tied, of its head was never trained. Nothing is changed.

    Args:
        model: of HuggingFace's, bare, patched or wrapped.

    Raises:
        UntrainedRowsError: a table is quantised, or has numbers that are not finite.
    """
    weights = {path: table.weight for path, table in _tables(model).items()}
    return [UntrainedRows(path, len(weight), judge_rows(weight, path)) for path, weight in weights.items()]


def repair_rows(model: Any, found: Sequence[UntrainedRows] | None = None) -> list[UntrainedRows]:
    """Sets untrained rows to the mean of the table's trained rows, in place; call it before training, if at all.

    The row of padding_idx stays as it is in an embedding of its own, where no gradient reaches it; of a head that is
    tied to the embedding it is a row like any other.

    Args:
        found: what untrained_rows said, or a part of it; None: it is asked.

    Returns:
        What was found; of each table all but its padding row was repaired.

    Raises:
        UntrainedRowsError: a table has no trained row, or none of that name and size.
    """
    tables, head_weight = _tables(model), getattr(unwrapped(model).get_output_embeddings(), "weight", None)
    found = [each for each in (untrained_rows(model) if found is None else found) if each.untrained]
    for each in found:
        table = tables.get(each.path)
        if table is None or len(table.weight) != each.rows:
            shown = ", ".join(f"{path} of {len(table.weight)}" for path, table in tables.items())
            raise UntrainedRowsError(
                f"no table {each.path} of {each.rows} rows", shown,
                "Ask untrained_rows of this model.",
            )  # fmt: skip
        if len(each.untrained) == each.rows:
            raise UntrainedRowsError(f"{each.path} has no trained row", "rows to take the mean of", "Train it first.")
    for each in found:
        table = tables[each.path]
        weight = table.weight
        untrained = torch.zeros(each.rows, dtype=torch.bool, device=weight.device)
        untrained[list(each.untrained)] = True
        trained = ~untrained
        padding = getattr(table, "padding_idx", None)
        if padding is not None and weight is not head_weight:
            untrained[padding] = trained[padding] = False
        with torch.no_grad():
            weight[untrained] = weight[trained].mean(dim=0, dtype=torch.float64).to(weight.dtype)
    return found


def judge_rows(weight: Tensor, name: str = "the table") -> dict[str, tuple[int, ...]]:
    """Reason -> the rows of a table that were never trained.

    Args:
        weight: [V, H], floating.
    """
    if not weight.is_floating_point() or weight.dtype.itemsize < 2:
        raise UntrainedRowsError(f"{name} is {weight.dtype}", "floating point", "Ask before the model is quantised.")
    wide_VH = weight.detach().float()
    length_V = torch.linalg.vector_norm(wide_VH, dim=1)
    if not length_V.isfinite().all():
        raise UntrainedRowsError(f"{name} has rows that are not finite", "numbers", "Load the weights again.")
    middle = length_V.median()  # rows that are trained outnumber those that are not
    reasons = {
        "near zero": length_V <= _NEAR_ZERO * middle,
        "constant": (wide_VH == wide_VH[:, :1]).all(dim=1),
        "copies of one row": _copies(wide_VH),
        "far shorter than all others": length_V < _cut(length_V, float(middle)),
    }
    taken, found = torch.zeros_like(length_V, dtype=torch.bool), {}
    for reason, mask in reasons.items():
        rows = (mask & ~taken).nonzero().flatten().tolist()
        taken |= mask
        if rows:
            found[reason] = tuple(rows)
    return found


def _copies(wide_VH: Tensor) -> Tensor:
    """[V], which rows equal two others or more: tokens that are trained each have a gradient of their own, and a new
    one is often begun as the copy of another.
    """
    _, which_V, counts = torch.unique(wide_VH, dim=0, return_inverse=True, return_counts=True)
    repeated: Tensor = counts[which_V] > _PAIR
    return repeated


def _cut(length_V: Tensor, middle: float) -> float:
    """The length below which rows stand apart from all others: the widest gap under a quarter of the median."""
    ordered = length_V.sort().values
    ordered = ordered[ordered > _NEAR_ZERO * middle]
    short = int((ordered <= _FAR_BELOW * middle).sum())
    if short == 0 or short == len(ordered):
        return 0.0
    ratios = ordered[1 : short + 1] / ordered[:short]
    widest = int(ratios.argmax())
    return float(ordered[widest + 1]) if ratios[widest] >= _GAP else 0.0


def _tables(model: Any) -> dict[str, Any]:
    """Embedding and head by their paths; one whose weight is tied once."""
    bare = unwrapped(model)
    paths = {module: path for path, module in bare.named_modules()}
    found: dict[str, Any] = {}
    for module in (bare.get_input_embeddings(), bare.get_output_embeddings()):
        weight = getattr(module, "weight", None)
        known = isinstance(weight, Tensor) and weight.data_ptr() in {each.weight.data_ptr() for each in found.values()}
        if isinstance(module, nn.Module) and isinstance(weight, Tensor) and not known:
            found[paths[module]] = module
    return found


def _ranges(rows: Sequence[int]) -> str:
    """128 to 255, 300, …"""
    runs: list[list[int]] = []
    for row in rows:
        if runs and row == runs[-1][1] + 1:
            runs[-1][1] = row
        else:
            runs.append([row, row])
    shown = [str(first) if first == last else f"{first} to {last}" for first, last in runs[:_SHOWN]]
    return ", ".join([*shown, f"and {len(runs) - _SHOWN} more runs"] if len(runs) > _SHOWN else shown)
