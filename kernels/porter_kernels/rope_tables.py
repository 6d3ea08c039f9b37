"""Frequencies and cos/sin tables of rotary position embeddings, in plain torch.

    angle[t, i] = t * inv_freq[i],  inv_freq[i] = theta**(-2i / dim)      Su et al. 2021, arXiv:2104.09864, eq. 15

What the scaling kinds do to inv_freq follows transformers 5.24, modeling_rope_utils.py, operation by operation, so
bits agree. A kernel reads the tables and does not care how they were made; rounding on the way here is the spec's.

Axes    B samples, T positions, R rotated features of a head (R / 2 frequencies).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

Rounding = Literal["act", "fp32"]
Scaling = Mapping[str, Any]

# --- frequencies -----------------------------------------------------------------------------


def rope_frequencies(
    kind: str,
    *,
    theta: float,
    dim: int,
    scaling: Scaling,
    max_positions: int,
    seq_len: int | Tensor | None = None,
) -> tuple[Tensor, float]:
    """Inverse frequencies of one layer, and the factor its cos and sin are multiplied by.

    Args:
        kind: one of FREQUENCIES: default, linear, dynamic, yarn, longrope, llama3, proportional, ntk_alpha.
        theta: the base, rope_theta.
        dim: rotated features of a head, R; a partial rotary factor has been applied, except for proportional, which
            takes it from scaling and leaves R as wide as the head, with frequencies of 0.
        scaling: the keys of HuggingFace's rope_parameters (rope_scaling) that `kind` reads.
        max_positions: max_position_embeddings of the config.
        seq_len: positions in the sequence, past the cached ones too; longrope chooses long or short factors by it, and
            dynamic grows theta. HuggingFace passes dynamic a tensor in a forward pass, which makes float32 of theta.

    Returns:
        inv_freq, float32 [R / 2], and the attention factor.

    Raises:
        ValueError: kind is unknown, a key is missing from scaling, or factors do not match dim.
    """
    if kind not in FREQUENCIES:
        raise ValueError(
            f"rope_frequencies: kind is {kind!r}, expected one of {', '.join(FREQUENCIES)}. "
            f"Add the kind to FREQUENCIES in {__name__}, or correct rope_type in the config."
        )
    try:
        return FREQUENCIES[kind](theta, dim, scaling, max_positions, seq_len)
    except KeyError as missing:
        raise ValueError(
            f"rope_frequencies: scaling has no {missing} (it has {sorted(scaling)}), which kind {kind} needs. "
            f"Pass rope_parameters (rope_scaling) of the config whole."
        ) from None


def _powers(theta: float | Tensor, dim: int) -> Tensor:
    return torch.pow(theta, torch.arange(0, dim, 2, dtype=torch.float32) / dim)


def _default(theta: float, dim: int, scaling: Scaling, max_positions: int, seq_len: object) -> tuple[Tensor, float]:
    return 1.0 / _powers(theta, dim), 1.0


def _linear(theta: float, dim: int, scaling: Scaling, max_positions: int, seq_len: object) -> tuple[Tensor, float]:
    return 1.0 / _powers(theta, dim) / scaling["factor"], 1.0


def _dynamic(
    theta: float, dim: int, scaling: Scaling, max_positions: int, seq_len: int | Tensor | None
) -> tuple[Tensor, float]:
    factor = scaling["factor"]
    length: int | Tensor
    if isinstance(seq_len, Tensor):
        length = torch.clamp(seq_len.cpu(), min=max_positions)
    else:
        length = max(seq_len or 0, max_positions)
    grown = theta * ((factor * length / max_positions) - (factor - 1)) ** (dim / (dim - 2))
    return 1.0 / _powers(grown, dim), 1.0


def _ntk_alpha(theta: float, dim: int, scaling: Scaling, max_positions: int, seq_len: object) -> tuple[Tensor, float]:
    # Hunyuan: `dynamic` with a fixed alpha, transformers models/hunyuan_v1_dense/modeling_hunyuan_v1_dense.py.
    return 1.0 / _powers(theta * scaling["alpha"] ** (dim / (dim - 2)), dim), 1.0


def _yarn(theta: float, dim: int, scaling: Scaling, max_positions: int, seq_len: object) -> tuple[Tensor, float]:
    # Peng et al. 2023, arXiv:2309.00071, sections 3.2 and 3.4.
    original = _original_positions(scaling, max_positions)
    factor = scaling["factor"] if scaling["factor"] is not None else max_positions / original
    low = _dimension_turning(scaling.get("beta_fast") or 32, theta, dim, original)
    high = _dimension_turning(scaling.get("beta_slow") or 1, theta, dim, original)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # HF: no division by zero
    kept = 1 - torch.clamp((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low), 0, 1)
    powers = _powers(theta, dim)
    return 1.0 / (factor * powers) * (1 - kept) + 1.0 / powers * kept, _yarn_attention_factor(factor, scaling)


def _dimension_turning(turns: float, theta: float, dim: int, positions: int) -> float:
    """The feature pair that turns `turns` times within `positions`."""
    return (dim * math.log(positions / (turns * 2 * math.pi))) / (2 * math.log(theta))


def _yarn_attention_factor(factor: float, scaling: Scaling) -> float:
    def mscale(multiplier: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * multiplier * math.log(factor) + 1.0

    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return mscale(scaling["mscale"]) / mscale(scaling["mscale_all_dim"])
    return mscale(1)


def _longrope(
    theta: float, dim: int, scaling: Scaling, max_positions: int, seq_len: int | Tensor | None
) -> tuple[Tensor, float]:
    # Ding et al. 2024, arXiv:2402.13753.
    original = _original_positions(scaling, max_positions)
    key = "long_factor" if seq_len is not None and int(seq_len) > original else "short_factor"
    factors = torch.tensor(scaling[key], dtype=torch.float32)
    if factors.shape != (dim // 2,):
        raise ValueError(
            f"rope_frequencies: {key} has {factors.numel()} numbers, expected {dim // 2}, half the {dim} rotated "
            f"features. Check partial_rotary_factor and head_dim in the config."
        )
    factor = scaling.get("factor")
    factor = max_positions / original if factor is None else factor
    attention_factor = scaling.get("attention_factor")
    if attention_factor is None:
        attention_factor = 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(original))
    return 1.0 / (factors * _powers(theta, dim)), attention_factor


def _llama3(theta: float, dim: int, scaling: Scaling, max_positions: int, seq_len: object) -> tuple[Tensor, float]:
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    original = _original_positions(scaling, max_positions)
    inv_freq = 1.0 / _powers(theta, dim)
    wavelength = 2 * math.pi / inv_freq
    scaled = torch.where(wavelength > original / low, inv_freq / factor, inv_freq)
    share = (original / wavelength - low) / (high - low)
    smoothed = (1 - share) * scaled / factor + share * scaled
    between = ~(wavelength < original / high) & ~(wavelength > original / low)
    return torch.where(between, smoothed, scaled), 1.0


def _proportional(
    theta: float, dim: int, scaling: Scaling, max_positions: int, seq_len: object
) -> tuple[Tensor, float]:
    # Gemma 4: the fastest frequencies of the whole head turn, the others stand still.
    turning = int(scaling.get("partial_rotary_factor", 1.0) * dim // 2)
    powers = torch.pow(theta, torch.arange(0, 2 * turning, 2, dtype=torch.float32) / dim)
    still = torch.zeros(dim // 2 - turning, dtype=torch.float32)
    return torch.cat((1.0 / powers, still)) / scaling.get("factor", 1.0), 1.0


def _original_positions(scaling: Scaling, max_positions: int) -> int:
    return int(scaling.get("original_max_position_embeddings") or max_positions)


FREQUENCIES: dict[str, Callable[[float, int, Scaling, int, Any], tuple[Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": _proportional,
    "ntk_alpha": _ntk_alpha,
}


# --- tables ----------------------------------------------------------------------------------


def rope_tables(
    inv_freq: Tensor,
    positions: Tensor,
    *,
    attention_factor: float,
    inv_freq_dtype: Rounding,
    pos_dtype: Rounding,
    table_dtype: Rounding,
    act_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """cos and sin for `rope`, one column a frequency: the half that HuggingFace duplicates to R columns.

    Args:
        inv_freq: [R / 2], float32.
        positions: [T], or [B, T] where samples have their own.
        attention_factor: multiplies cos and sin.
        inv_freq_dtype: "act" rounds inv_freq to act_dtype first (a model moved with .to(bfloat16)).
        pos_dtype: "act" rounds positions first (bfloat16 has no 257).
        table_dtype: "act" rounds cos and sin last (Llama); "fp32" keeps them (OLMo 2, Ernie 4.5).
        act_dtype: dtype of the activations; under float64 all but inv_freq's own value is float64.

    Returns:
        cos and sin, each [1 or B, T, R / 2].
    """
    wide = torch.promote_types(act_dtype, torch.float32)
    dtypes = {"act": act_dtype, "fp32": wide}
    positions_BT = (positions[None] if positions.ndim == 1 else positions).to(dtypes[pos_dtype]).to(wide)
    angles = positions_BT[..., None] * inv_freq.to(positions.device, dtypes[inv_freq_dtype]).to(wide)  # [B, T, R / 2]
    cos, sin = angles.cos() * attention_factor, angles.sin() * attention_factor
    return cos.to(dtypes[table_dtype]), sin.to(dtypes[table_dtype])


def halve_tables(cos: Tensor, sin: Tensor, *, doubled: Literal["halves", "pairs"]) -> tuple[Tensor, Tensor]:
    """cos and sin with one column a frequency, of tables that say each frequency twice, as HuggingFace's do.

    The two are compared, which waits for the device: call it once a forward pass, where the tables are made. While
    torch.compile traces, the comparison becomes an assertion in the graph.

    Args:
        cos: [..., R].
        sin: like cos.
        doubled: "halves", columns i and i + R / 2 are alike (Llama, GLM), or "pairs", 2 i and 2 i + 1 (Cohere).
            gpt-oss does not double: pass its tables to rope as they are.

    Returns:
        cos and sin, [..., R / 2], views.

    Raises:
        ValueError: the columns of a frequency differ, or there is an odd number of them.
    """
    return _halve("cos", cos, doubled), _halve("sin", sin, doubled)


def _halve(name: str, table: Tensor, doubled: str) -> Tensor:
    if doubled not in ("halves", "pairs"):
        raise ValueError(
            f"halve_tables: doubled is {doubled!r}, expected 'halves' or 'pairs'. "
            f"torch.cat((t, t), -1) doubles in halves, t.repeat_interleave(2, -1) in pairs."
        )
    R = table.shape[-1]
    first = table[..., : R // 2] if doubled == "halves" else table[..., 0 : R - R % 2 : 2]
    second = table[..., R // 2 : 2 * (R // 2)] if doubled == "halves" else table[..., 1::2]
    if R % 2 == 0 and torch.compiler.is_compiling():
        torch._assert_async((first == second).all(), f"halve_tables: {name} is not doubled in {doubled}")
    elif R % 2 or not torch.equal(first, second):
        raise ValueError(
            f"halve_tables: {name} {list(table.shape)} differs between the columns of a frequency, expected each "
            f"twice, in {doubled}. Pass tables with one column a frequency to rope as they are; Cohere's are in pairs."
        )
    return first
