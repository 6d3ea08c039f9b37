"""Which tensor of a module holds which tensor of the checkpoint: by values, wherever its rows stand.

Rows are compared by a hash of their values in bfloat16, so a module that has rounded its weights is known too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_SEED = 7
_ELEMENTS = 2**22  # that are hashed at once: 32 MiB as int64
_OFFSETS = (0.0, 1.0, -1.0)  # Gemma's norms: some store w, some 1 + w


@dataclass(frozen=True)
class Held:
    """A tensor of the checkpoint in a module.

    Attributes:
        name: of the module's tensor; `path` and `attribute` are its parts.
        transposed: the module has [in, out].
        rows: [out]: where each row stands.
        columns: their elements stand in another order.
        rounded: its values are the checkpoint's in a narrower dtype.
    """

    name: str
    transposed: bool
    rows: Tensor
    columns: bool = False
    rounded: bool = False

    @property
    def path(self) -> str:
        return self.name.rpartition(".")[0]


class Holdings:
    """The floating tensors of a module, by their rows.

    Args:
        loose: find rows whose elements stand in another order too.
    """

    def __init__(self, module: nn.Module, *, loose: bool = True) -> None:
        named = {name: value.detach() for name, value in (*module.named_parameters(), *module.named_buffers())}
        self.tensors: Mapping[str, Tensor] = {
            name: value for name, value in named.items() if value.is_floating_point() and value.ndim in (1, 2)
        }
        self._matrices = [
            (name, transposed)
            for name, value in self.tensors.items()
            if value.ndim == 2
            for transposed in (False, True)
        ]
        kinds = (True, False) if loose else (True,)
        self._tables = {ordered: self._make_table(ordered=ordered) for ordered in kinds}

    def find(self, tensor: Tensor) -> Held | None:
        """Where a tensor of the checkpoint is, [out, in] or [width]; None where it is nowhere whole."""
        if tensor.ndim == 1:
            return self._find_vector(tensor)
        for ordered, table in self._tables.items():
            keys_R = _hash(tensor.cpu(), ordered=ordered)
            whose_R = table.whose(keys_R)
            most = int(whose_R.mode().values)
            if most < 0:
                continue
            name, transposed = self._matrices[most]
            held = self._matrix(name, transposed)
            rows = _Table([held], ordered=ordered).rows(keys_R)
            if bool((rows >= 0).all()):
                rounded = ordered and not torch.equal(held[rows].float(), tensor.to(held.device).float())
                return Held(name, transposed, rows, columns=not ordered, rounded=rounded)
        return None

    def _matrix(self, name: str, transposed: bool) -> Tensor:
        return self.tensors[name].T if transposed else self.tensors[name]

    def _make_table(self, *, ordered: bool) -> "_Table":
        return _Table([self._matrix(*matrix) for matrix in self._matrices], ordered=ordered)

    def _find_vector(self, tensor: Tensor) -> Held | None:
        found = self.vectors(tensor)
        return Held(found[0], False, torch.arange(len(tensor))) if found else None

    def vectors(self, tensor: Tensor) -> list[str]:
        """Every tensor of the module that holds a vector, which several may, or one more or less than it."""
        wanted = [(tensor.float() + offset).bfloat16() for offset in _OFFSETS]
        alike = [(name, value.bfloat16().cpu()) for name, value in self.tensors.items() if value.shape == tensor.shape]
        return [name for name, value in alike if any(torch.equal(value, each) for each in wanted)]


class _Table:
    """The rows of several matrices by their hashes."""

    def __init__(self, matrices: Sequence[Tensor], *, ordered: bool) -> None:
        hashes = [_hash(each.cpu(), ordered=ordered) for each in matrices] or [torch.empty(0, dtype=torch.int64)]
        keys = torch.cat(hashes)
        self.keys, order = keys.sort(stable=True)
        self._whose = torch.cat([torch.full_like(each, at) for at, each in enumerate(hashes)])[order]
        self._rows = torch.cat([torch.arange(len(each)) for each in hashes])[order]

    def whose(self, keys_R: Tensor) -> Tensor:
        """[R]: the first matrix that has each row; -1 where none has."""
        return self._look_up(keys_R, self._whose)

    def rows(self, keys_R: Tensor) -> Tensor:
        """[R]: which row of it that is; -1 where there is none."""
        return self._look_up(keys_R, self._rows)

    def _look_up(self, keys_R: Tensor, values: Tensor) -> Tensor:
        if not len(self.keys):
            return torch.full_like(keys_R, -1)
        at_R = torch.searchsorted(self.keys, keys_R).clamp_max(len(self.keys) - 1)
        return torch.where(self.keys[at_R] == keys_R, values[at_R], -1)


def _hash(value_RC: Tensor, *, ordered: bool) -> Tensor:
    """[R]: a number for each row's values; alike for the same values in another order unless `ordered`."""
    generator = torch.Generator().manual_seed(_SEED)
    weights_C = torch.randint(-(2**40), 2**40, (value_RC.shape[1],), generator=generator)
    table = torch.randint(-(2**62), 2**62, (2**16,), generator=generator)
    found = []
    for block in torch.split(value_RC, max(1, _ELEMENTS // value_RC.shape[1])):
        bits_RC = block.bfloat16().contiguous().view(torch.int16).to(torch.int64)
        found.append((bits_RC * weights_C if ordered else table[bits_RC + 2**15]).sum(1))
    return torch.cat(found)


def common_path(paths: Iterable[str]) -> str:
    """The path of the smallest module that holds all of these."""
    split = [path.split(".") if path else [] for path in paths]
    shared = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)
