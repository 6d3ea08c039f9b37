"""What depends on positions alone, computed once a forward pass: RoPE tables and masks. And the key/value cache."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from porter.models.alibi import alibi_slopes
from porter.specs.plugins import Plugin, plugin_of
from porter.specs.rope import Rope
from porter.specs.schema import Alibi, Dims, Temperature
from porter_kernels.rope_tables import rope_frequencies, rope_tables


class Positions:
    """Where the tokens of one forward pass stand in their rows, with the tables and masks made for them so far.

    A slot is a place in a row, the cache's first; a position is what RoPE and position tables count. They are the same,
    unless rows are padded or hold several documents: each document counts from 0, and padding belongs to none.

    Attributes:
        start: slots before these tokens.
        length: tokens a row, T.
        ids_BT: positions of the tokens, [B, T]; [1, T] where all rows are alike.
    """

    def __init__(self, start: int, length: int, device: torch.device, documents_BS: Tensor | None = None) -> None:
        """
        Args:
            documents_BS: [B, start + length], int64: the document of every slot so far, -1 for padding; a token sees
                tokens of its own document alone. None: a row is one document.

        Raises:
            ValueError: documents_BS is for another number of slots.
        """
        self.start, self.length, self.device = start, length, device
        slots = start + length
        if documents_BS is not None and documents_BS.shape[1] != slots:
            raise ValueError(
                f"Positions: documents_BS has {documents_BS.shape[1]} slots, expected {slots}: {start} before these "
                f"tokens and {length} of their own. Pass the documents of the whole row so far."
            )
        self._documents_BS = None if documents_BS is None else documents_BS.to(device)
        self._positions_BS = self._count_positions(slots)
        self.ids_BT = self._positions_BS[:, start:]
        self._tables: dict[tuple[str, torch.dtype], tuple[Tensor, Tensor]] = {}
        self._masks: dict[tuple[int | None, torch.dtype], Tensor] = {}
        self._biases: dict[tuple[str, int, torch.dtype], Tensor] = {}

    def tables(self, rope: Rope, dims: Dims, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin [1 or B, T, R / 2] of one layer's RoPE; sin is negated where the spec rotates the other way."""
        key = (rope.model_dump_json(), dtype)
        if key not in self._tables:
            self._tables[key] = self._make_tables(rope, dims, dtype)
        return self._tables[key]

    def temperature(self, spec: Temperature, dtype: torch.dtype) -> Tensor:
        """[1 or B, 1, T, 1], what queries are multiplied by: computed in float32, then rounded to `dtype`."""
        steps_BT = torch.floor(self.ids_BT.to(torch.promote_types(dtype, torch.float32)) / spec.base)
        return (1 + spec.beta * torch.log(1 + steps_BT)).to(dtype)[:, None, :, None]

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """[1 or B, 1, T, S], added to scores: 0 where the key may be seen, the dtype's least value elsewhere."""
        key = (window, dtype)
        if key not in self._masks:
            distance_BTS = self.ids_BT[:, :, None] - self._positions_BS[:, None, :]
            visible_BTS = distance_BTS >= 0
            if window is not None:
                visible_BTS &= distance_BTS < window
            if self._documents_BS is not None:
                visible_BTS &= self._documents_BS[:, self.start :, None] == self._documents_BS[:, None, :]
            zero = torch.zeros((), dtype=dtype, device=self.device)
            self._masks[key] = torch.where(visible_BTS, zero, torch.finfo(dtype).min)[:, None]
        return self._masks[key]

    def alibi(self, alibi: Alibi, heads: int, dtype: torch.dtype) -> Tensor:
        """[1 or B, H, 1, S], added to scores; in `dtype`, or float32 or wider where the spec says so.

        Slots may stand for positions: within a document their distances are the same, and a softmax sees no more.
        """
        key = (alibi.kind, heads, dtype)
        if key not in self._biases:
            slopes_H11 = alibi_slopes(alibi.kind, heads, self.device)[:, None, None]
            if alibi.kind == "bloom":
                self._biases[key] = (slopes_H11 * self._positions_BS[:, None, None]).to(dtype)
            else:
                slots = self.start + self.length
                distance_S = torch.arange(1 - slots, 1, dtype=torch.int32, device=self.device)
                self._biases[key] = (distance_S * slopes_H11)[None].to(torch.promote_types(dtype, torch.float32))
        return self._biases[key]

    def _count_positions(self, slots: int) -> Tensor:
        """[1 or B, S]: how many tokens of its own document stand before each slot."""
        if self._documents_BS is None:
            return torch.arange(slots, device=self.device)[None]
        same_BSS = self._documents_BS[:, :, None] == self._documents_BS[:, None, :]
        return same_BSS.tril(-1).sum(-1)

    def turns(self, rope: Rope, dims: Dims) -> Tensor:
        """[1 or B, T, R / 2], complex64: what pairs are multiplied by, made as DeepSeek V2 makes it, by torch.polar."""
        inv_freq, attention_factor = self._frequencies(rope, dims)
        angles_BTF = self.ids_BT[..., None].float() * inv_freq.to(self.device)
        return torch.polar(torch.ones_like(angles_BTF), angles_BTF) * attention_factor

    def _frequencies(self, rope: Rope, dims: Dims) -> tuple[Tensor, float]:
        """Inverse frequencies, and the factor on what is made of them."""
        scaling = rope.scaling.model_dump(exclude_none=True) if rope.scaling else {}
        if rope.original_max_pos is not None:
            scaling.setdefault("original_max_position_embeddings", rope.original_max_pos)
        kind = scaling.get("rope_type", "default")
        plugin = plugin_of("rope_scaling", kind)
        find = rope_frequencies if plugin is None else partial(_of_plugin, plugin)
        return find(
            kind,
            theta=rope.theta,
            dim=rope.width(dims.head_dim),
            scaling=scaling,
            max_positions=dims.max_pos,
            seq_len=self._reach(),
        )

    def _make_tables(self, rope: Rope, dims: Dims, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        inv_freq, attention_factor = self._frequencies(rope, dims)
        cos, sin = rope_tables(
            inv_freq,
            self.ids_BT,
            attention_factor=attention_factor,
            inv_freq_dtype=rope.inv_freq_dtype,
            pos_dtype=rope.pos_dtype,
            table_dtype=rope.table_dtype,
            act_dtype=dtype,
        )
        return cos, -sin if rope.negate else sin

    def _reach(self) -> int:
        """Positions up to the farthest token of any row."""
        return self.start + self.length if self._documents_BS is None else int(self.ids_BT.max()) + 1


def _of_plugin(plugin: Plugin, _kind: str, **given: Any) -> tuple[Tensor, float]:
    inv_freq, factor = plugin.load()(**given)
    return inv_freq, float(factor)


class LayerCache:
    """Keys and values of one layer, of all positions so far."""

    def __init__(self) -> None:
        self.k_BGSK: Tensor | None = None
        self.v_BGSK: Tensor | None = None

    def update(self, k_BGTK: Tensor, v_BGTK: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values, the new ones last."""
        if self.k_BGSK is None or self.v_BGSK is None:
            self.k_BGSK, self.v_BGSK = k_BGTK, v_BGTK
        else:
            self.k_BGSK = torch.cat((self.k_BGSK, k_BGTK), dim=2)
            self.v_BGSK = torch.cat((self.v_BGSK, v_BGTK), dim=2)
        return self.k_BGSK, self.v_BGSK


class Cache:
    """The key/value cache of a decoder.

    Attributes:
        length: slots taken so far, in every layer.
    """

    def __init__(self, num_layers: int) -> None:
        self.layers = [LayerCache() for _ in range(num_layers)]
        self.length = 0

    def take(self, slots: int) -> int:
        """The first of the next `slots` slots, which the tokens of one forward pass fill layer by layer."""
        first = self.length
        self.length += slots
        return first
