"""What the tensors of a checkpoint say of themselves, told as notes and not as faults: both sides compute with them.

Rows of a table that were never trained, a tensor that is stored twice, one that ends in zeros, a head that is the
embedding though the config says otherwise, values that lie on a coarser grid than their dtype has.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from porter.specs.blueprint import Blueprint, Parameter
from porter.weights.reader import WeightReader, chunk_rows

_FAR_BELOW = 0.1  # of the median norm
_CONSTANT = 1e-3  # a row's deviation over its size
_SAMPLED = 8  # rows of a matrix that are looked at
_GROUP, _LEVELS = 32, 16  # of 4 bits; 32 values of bfloat16 that no grid holds are some 30 different ones
_LONG, _BYTE = 1024, 256
_DTYPES = {torch.float32: (torch.bfloat16, torch.float16), torch.bfloat16: (torch.float8_e4m3fn,),
           torch.float16: (torch.float8_e4m3fn,)}  # fmt: skip


def note_weights(blueprint: Blueprint, reader: WeightReader) -> Iterator[str]:
    """Sentences about the tensors of a checkpoint; tables are read whole, of matrices a few rows.

    Args:
        reader: of the blueprint's parameters in it.
    """
    parameters = blueprint.parameters()
    for name, each in parameters.items():
        if each.kind == "embedding" or name == "head.weight":
            yield from _untrained(reader, name, 2 if name == "pos.weight" else 0)
    if "head.weight" in parameters and _is_twin(reader, "head.weight", "embed.weight"):
        yield "head.weight holds the values of embed.weight, though the config says that they are not tied"
    matrices = [name for name, each in parameters.items() if _is_matrix(each) and name != "head.weight"]
    yield from _stored_twice(reader, matrices)
    for name in matrices:
        if (zeros := _zeros_at_the_end(reader, name)) is not None:
            first, rows = zeros
            yield f"{name} ends in zeros: rows {first} to {rows - 1} of {rows}"
    yield from _on_a_grid(reader, matrices)


def _is_matrix(parameter: Parameter) -> bool:
    return parameter.kind == "linear" and len(parameter.shape) == 2


def _untrained(reader: WeightReader, name: str, spare: int) -> Iterator[str]:
    """Rows that are zero, constant, or far smaller than the others.

    Args:
        spare: rows at the start that a table may keep unused.
    """
    source = reader.ledger.entries[name].source
    norms, spread = [], []
    for block in reader.checkpoint.blocks(source, chunk_rows(reader.checkpoint.info(source).shape[1])):
        wide = block.float()
        norms.append(wide.norm(dim=1))
        spread.append((wide - wide.mean(1, keepdim=True)).norm(dim=1))
    norms_V, spread_V = torch.cat(norms), torch.cat(spread)
    median = float(norms_V.median())
    empty_V, small_V = norms_V == 0, norms_V < _FAR_BELOW * median
    constant_V = ~empty_V & (spread_V < _CONSTANT * norms_V)
    kinds = {"zero": empty_V, "the same number throughout": constant_V,
             f"below {_FAR_BELOW:g} of the median row's norm": small_V & ~empty_V & ~constant_V}  # fmt: skip
    for what, chosen_V in kinds.items():
        chosen_V[:spare] = False
        if chosen_V.any():
            ids = chosen_V.nonzero().flatten().tolist()
            count = f"{len(ids)} of {len(norms_V)} rows of {name}"
            yield f"{count} look never trained: {what}, at {_ranges(ids)}"


def _ranges(ids: list[int]) -> str:
    """3, 7 to 9, 12 and more."""
    runs: list[list[int]] = []
    for each in ids:
        if runs and each == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], each]
        else:
            runs.append([each])
    shown = ", ".join(" to ".join(map(str, run)) for run in runs[:4])
    return shown + (" and more" if len(runs) > 4 else "")


def _stored_twice(reader: WeightReader, names: list[str]) -> Iterator[str]:
    """Matrices that hold another's values, found by three rows and then looked at whole."""
    seen: dict[bytes, str] = {}
    for name in names:
        source = reader.ledger.entries[name].sources
        rows = reader.checkpoint.info(source[0]).shape[0]
        probe = reader.checkpoint.rows(source[0], [0, rows // 2, rows - 1])
        if len(source) > 1 or not probe.any():
            continue
        key = probe.contiguous().view(torch.uint8).numpy().tobytes()
        if key in seen and _is_twin(reader, name, seen[key]):
            yield f"{name} holds the values of {seen[key]}: one tensor, stored twice"
        seen.setdefault(key, name)


def _is_twin(reader: WeightReader, one: str, other: str) -> bool:
    checkpoint = reader.checkpoint
    sources = [reader.ledger.entries[name].source for name in (one, other)]
    infos = [checkpoint.info(source) for source in sources]
    if sources[0] == sources[1] or infos[0].shape != infos[1].shape or infos[0].torch_dtype != infos[1].torch_dtype:
        return False
    rows = chunk_rows(infos[0].shape[-1])
    return all(torch.equal(*both) for both in zip(*(checkpoint.blocks(each, rows) for each in sources), strict=True))


def _zeros_at_the_end(reader: WeightReader, name: str) -> tuple[int, int] | None:
    """The first of the rows at its end that are zero, and how many it has; None where the last is none."""
    source = reader.ledger.entries[name].source
    rows = reader.checkpoint.info(source).shape[0]
    if reader.checkpoint.rows(source, [rows - 1]).any():
        return None
    filled = torch.cat([block.bool().any(1) for block in reader.checkpoint.blocks(source)]).nonzero()
    return (int(filled.max()) + 1 if len(filled) else 0), rows


def _on_a_grid(reader: WeightReader, names: list[str]) -> Iterator[str]:
    """How coarse the values of matrices are, counted over those of one kind."""
    found: dict[str, list[str]] = {}
    for name in names:
        source = reader.ledger.entries[name].source
        rows = reader.checkpoint.info(source).shape[0]
        some = sorted(set(torch.linspace(0, rows - 1, min(rows, _SAMPLED)).long().tolist()))
        grid = _grid_of(reader.checkpoint.rows(source, some))
        if grid is not None:
            found.setdefault(grid, []).append(name)
    for grid, those in found.items():
        yield f"{len(those)} of {len(names)} matrices, {those[0]} first, hold {grid}"


def _grid_of(rows: Tensor) -> str | None:
    if not rows.any():
        return None
    for narrow in _DTYPES.get(rows.dtype, ()):
        if torch.equal(rows.to(narrow).to(rows.dtype), rows):
            return f"values of {str(narrow).removeprefix('torch.')} in {str(rows.dtype).removeprefix('torch.')}"
    width = rows.shape[1]
    if width % _GROUP == 0 and width >= 2 * _GROUP:
        groups = rows.float().reshape(-1, _GROUP)
        if max(len(set(group)) for group in groups.tolist()) <= _LEVELS:
            return f"at most {_LEVELS} values in each {_GROUP}: quantised to 4 bits or fewer, and read back"
    if width >= _LONG and max(len(set(row)) for row in rows.float().tolist()) <= _BYTE:
        return f"at most {_BYTE} values in each row: quantised to 8 bits or fewer, and read back"
    return None
