"""What depends on positions alone, computed once a forward pass: RoPE tables and masks. And the key/value cache."""

import torch
from torch import Tensor

from porter.specs.schema import Dims, Rope
from porter_kernels.rope_tables import rope_frequencies, rope_tables


class Positions:
    """Positions start .. start + length - 1 of a sequence, with the tables and masks made for them so far."""

    def __init__(self, start: int, length: int, device: torch.device) -> None:
        self.start, self.length, self.device = start, length, device
        self.ids_T = torch.arange(start, start + length, device=device)
        self._tables: dict[tuple[str, torch.dtype], tuple[Tensor, Tensor]] = {}
        self._masks: dict[tuple[int | None, torch.dtype], Tensor] = {}

    def tables(self, rope: Rope, dims: Dims, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin [1, T, R / 2] of one layer's RoPE; sin is negated where the spec rotates the other way."""
        key = (rope.model_dump_json(), dtype)
        if key not in self._tables:
            self._tables[key] = self._make_tables(rope, dims, dtype)
        return self._tables[key]

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """[1, 1, T, S], added to scores: 0 where the key may be seen, the dtype's least value elsewhere."""
        key = (window, dtype)
        if key not in self._masks:
            keys_S = torch.arange(self.start + self.length, device=self.device)
            distance_TS = self.ids_T[:, None] - keys_S[None, :]
            visible_TS = distance_TS >= 0
            if window is not None:
                visible_TS &= distance_TS < window
            zero = torch.zeros((), dtype=dtype, device=self.device)
            self._masks[key] = torch.where(visible_TS, zero, torch.finfo(dtype).min)[None, None]
        return self._masks[key]

    def _make_tables(self, rope: Rope, dims: Dims, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        scaling = rope.scaling.model_dump(exclude_none=True) if rope.scaling else {}
        if rope.original_max_pos is not None:
            scaling.setdefault("original_max_position_embeddings", rope.original_max_pos)
        inv_freq, attention_factor = rope_frequencies(
            scaling.get("rope_type", "default"),
            theta=rope.theta,
            dim=rope.dim or int(dims.head_dim * rope.partial),
            scaling=scaling,
            max_positions=dims.max_pos,
            seq_len=self.start + self.length,
        )
        cos, sin = rope_tables(
            inv_freq,
            self.ids_T,
            attention_factor=attention_factor,
            inv_freq_dtype=rope.inv_freq_dtype,
            pos_dtype=rope.pos_dtype,
            table_dtype=rope.table_dtype,
            act_dtype=dtype,
        )
        return cos, -sin if rope.negate else sin


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
    """The key/value cache of a decoder."""

    def __init__(self, num_layers: int) -> None:
        self.layers = [LayerCache() for _ in range(num_layers)]

    @property
    def length(self) -> int:
        """Positions held."""
        k_BGSK = self.layers[0].k_BGSK
        return 0 if k_BGSK is None else k_BGSK.shape[2]
