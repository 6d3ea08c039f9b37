"""Rotary position embedding of queries and keys, in one launch, or of one tensor alone.

    y[a] = x[a] * cos - x[b] * sin       Su et al. 2021, arXiv:2104.09864, eq. 34
    y[b] = x[b] * cos + x[a] * sin       a, b: the features of pair i, i < R / 2

Pairs   style "half": a = i, b = i + R / 2 (Llama); "interleaved": a = 2i, b = 2i + 1 (Cohere, GLM, GPT-J).
Axes    B samples, T positions, N = B * T tokens, H query heads, G key heads, K head width, R <= K rotated features;
        the rest passes.
Dtypes  q and k in {float32, bfloat16, float16}, alike; tables in any of them. The kernel computes in float32 and
        rounds once, at the store; `apply_dtype` says how the model's own code rounds, which the reference imitates.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from typing import Any, Literal, overload

import torch
from torch import Tensor

from porter_kernels.fused import Fused
from porter_kernels.launch import next_power_of_2, num_warps, rows_per_program, tl, triton
from porter_kernels.plans import Plan, launch, planned

Style = Literal["half", "interleaved"]
HEADS = 8  # that a program takes, at most: each reads its positions' rows of the tables

# --- reference -------------------------------------------------------------------------------


def rope_reference(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, style: Style, apply_dtype: Literal["act", "fp32"]
) -> tuple[Tensor, Tensor]:
    """The equations above as the models write them; differentiable; float64 stays float64.

    Args:
        q: [B, H, T, K], floating.
        k: [B, G, T, K].
        cos: [1 or B, T, R / 2], one column a frequency, as rope_tables makes them (HuggingFace duplicates to R).
        sin: like cos.
        style: which features are a pair; see above.
        apply_dtype: "act" multiplies q and the tables as torch promotes them (Llama, GLM), "fp32" widens q first
            (Cohere, OLMo 2, Ernie 4.5). They differ only where the tables are in the activations' dtype.

    Returns:
        q and k rotated, shapes and dtypes as they came.
    """
    cos, sin = cos[:, None], sin[:, None]  # [1 or B, 1, T, R / 2]
    return _rotate_reference(q, cos, sin, style, apply_dtype), _rotate_reference(k, cos, sin, style, apply_dtype)


def _rotate_reference(x: Tensor, cos: Tensor, sin: Tensor, style: Style, apply_dtype: str) -> Tensor:
    R = 2 * cos.shape[-1]
    rotated = x[..., :R]
    if apply_dtype == "fp32":
        rotated = rotated.to(torch.promote_types(x.dtype, torch.float32))
    if style == "half":
        a, b = rotated[..., : R // 2], rotated[..., R // 2 :]
        y = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    else:
        a, b = rotated[..., 0::2], rotated[..., 1::2]
        y = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    y = y.to(x.dtype)
    return y if x.shape[-1] == R else torch.cat((y, x[..., R:]), dim=-1)


# --- kernels ---------------------------------------------------------------------------------


@triton.jit
def _rotate_tile(
    x_ptr, y_ptr, cos_ptr, sin_ptr, tile, T, num_heads, R, K, table_stride_b,
    x_stride_b, x_stride_h, x_stride_t, x_stride_k, y_stride_b, y_stride_h, y_stride_t, y_stride_k,
    INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_REST: tl.constexpr,
):  # fmt: skip
    # Tiles of the same positions are neighbours, so their rows of the tables are read from memory once.
    head_tiles, position_tiles = (num_heads - 1) // BLOCK_H + 1, (T - 1) // BLOCK_T + 1
    sample = (tile // head_tiles // position_tiles).to(tl.int64)
    first = ((tile // head_tiles) % position_tiles).to(tl.int64) * BLOCK_T
    t = first + tl.arange(0, BLOCK_T)[:, None, None]  # [T, 1, 1]
    head = ((tile % head_tiles) * BLOCK_H + tl.arange(0, BLOCK_H)[None, :, None]).to(tl.int64)  # [1, H, 1]
    i = tl.arange(0, BLOCK_R)[None, None, :].to(tl.int64)  # [1, 1, R / 2]
    here = (t < T) & (head < num_heads)
    x_ptr += sample * x_stride_b + t * x_stride_t + head * x_stride_h  # each head's first element, [T, H, 1]
    y_ptr += sample * y_stride_b + t * y_stride_t + head * y_stride_h
    # Each head reads its own copy of the row, from L1: tiles of one shape need no shared memory to meet.
    mask = here & (i < R // 2)
    at = tl.broadcast_to(sample * table_stride_b + t * (R // 2) + i, (BLOCK_T, BLOCK_H, BLOCK_R))
    cos_ptr, sin_ptr = cos_ptr + at, sin_ptr + at

    if INTERLEAVED:
        # Both features of a pair in one access of 16 bytes; as many pairs of the tables in one of theirs.
        PAIRS: tl.constexpr = 64 // x_ptr.dtype.element_ty.primitive_bitwidth
        cos_ptr = tl.max_contiguous(cos_ptr, [1, 1, PAIRS])
        sin_ptr = tl.max_contiguous(sin_ptr, [1, 1, PAIRS])
        col = tl.arange(0, 2 * BLOCK_R)[None, None, :].to(tl.int64)
        pairs = tl.load(x_ptr + col * x_stride_k, mask=here & (col < R), other=0.0).to(tl.float32)  # [T, H, R]
        x_a, x_b = tl.split(pairs.reshape(BLOCK_T, BLOCK_H, BLOCK_R, 2))  # [T, H, R / 2]
    else:
        x_a = tl.load(x_ptr + i * x_stride_k, mask=mask, other=0.0).to(tl.float32)  # [T, H, R / 2]
        x_b = tl.load(x_ptr + (i + R // 2) * x_stride_k, mask=mask, other=0.0).to(tl.float32)  # [T, H, R / 2]
    cos = tl.load(cos_ptr, mask=mask, other=0.0).to(tl.float32)  # [T, H, R / 2]
    sin = tl.load(sin_ptr, mask=mask, other=0.0).to(tl.float32)  # [T, H, R / 2]
    if INVERSE:
        sin = -sin
    # Which product of a sum an optimizer fuses depends on how the tile lies in registers, so on strides: say it.
    y_a, y_b = tl.fma(x_a, cos, -(x_b * sin)), tl.fma(x_b, cos, x_a * sin)
    if INTERLEAVED:
        pairs = tl.join(y_a, y_b).reshape(BLOCK_T, BLOCK_H, 2 * BLOCK_R)
        tl.store(y_ptr + col * y_stride_k, pairs, mask=here & (col < R))
    else:
        tl.store(y_ptr + i * y_stride_k, y_a, mask=mask)
        tl.store(y_ptr + (i + R // 2) * y_stride_k, y_b, mask=mask)

    if BLOCK_REST:
        rest = R + tl.arange(0, BLOCK_REST)[None, None, :].to(tl.int64)
        x = tl.load(x_ptr + rest * x_stride_k, mask=here & (rest < K))  # [T, H, K - R]
        tl.store(y_ptr + rest * y_stride_k, x, mask=here & (rest < K))


@triton.jit
def _kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr, q_tiles, T, H, G, R, K, table_stride_b,
    q_stride_b, q_stride_h, q_stride_t, q_stride_k, k_stride_b, k_stride_h, k_stride_t, k_stride_k,
    q_out_stride_b, q_out_stride_h, q_out_stride_t, q_out_stride_k,
    k_out_stride_b, k_out_stride_h, k_out_stride_t, k_out_stride_k,
    INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_REST: tl.constexpr,
):  # fmt: skip
    # The first programs take tiles of q, the others tiles of k, of BLOCK_S positions and BLOCK_G heads.
    tile = tl.program_id(0)
    if tile < q_tiles:
        _rotate_tile(
            q_ptr, q_out_ptr, cos_ptr, sin_ptr, tile, T, H, R, K, table_stride_b,
            q_stride_b, q_stride_h, q_stride_t, q_stride_k,
            q_out_stride_b, q_out_stride_h, q_out_stride_t, q_out_stride_k,
            INTERLEAVED, INVERSE, BLOCK_T, BLOCK_H, BLOCK_R, BLOCK_REST,
        )  # fmt: skip
    else:
        _rotate_tile(
            k_ptr, k_out_ptr, cos_ptr, sin_ptr, tile - q_tiles, T, G, R, K, table_stride_b,
            k_stride_b, k_stride_h, k_stride_t, k_stride_k,
            k_out_stride_b, k_out_stride_h, k_out_stride_t, k_out_stride_k,
            INTERLEAVED, INVERSE, BLOCK_S, BLOCK_G, BLOCK_R, BLOCK_REST,
        )  # fmt: skip


# --- ops: what autograd and torch.compile see ------------------------------------------------


def _launch(
    q_BHTK: Tensor, k_BGTK: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool
) -> tuple[Tensor, Tensor]:
    q_out_BHTK, k_out_BGTK = torch.empty_like(q_BHTK), torch.empty_like(k_BGTK)
    if q_BHTK.numel() or k_BGTK.numel():
        plan = _plan(
            q_BHTK.shape, k_BGTK.shape[1], 2 * cos.shape[-1], cos.stride(0) if cos.shape[0] > 1 else 0,
            q_BHTK.stride(), k_BGTK.stride(), q_out_BHTK.stride(), k_out_BGTK.stride(), interleaved, inverse,
        )  # fmt: skip
        launch(plan, q_ptr=q_BHTK, k_ptr=k_BGTK, cos_ptr=cos, sin_ptr=sin, q_out_ptr=q_out_BHTK, k_out_ptr=k_out_BGTK)
    return q_out_BHTK, k_out_BGTK


@planned
def _plan(
    q_shape: tuple[int, ...], G: int, R: int, table_stride: int, q_strides: tuple[int, ...],
    k_strides: tuple[int, ...], q_out_strides: tuple[int, ...], k_out_strides: tuple[int, ...],
    interleaved: bool, inverse: bool,
) -> Plan:  # fmt: skip
    B, H, T, K = q_shape
    all_strides = {"q": q_strides, "k": k_strides, "q_out": q_out_strides, "k_out": k_out_strides}
    strides: dict[str, Any] = {
        f"{name}_stride_{axis}": stride
        for name, of_axes in all_strides.items()
        for axis, stride in zip("bhtk", of_axes, strict=True)
    }
    BLOCK_R, BLOCK_REST = next_power_of_2(R // 2), next_power_of_2(K - R) if K > R else 0
    BLOCK_H, BLOCK_G = (min(next_power_of_2(heads), HEADS) for heads in (H, G))
    width = max(BLOCK_R, BLOCK_REST)
    BLOCK_T, BLOCK_S = (rows_per_program(T, heads * width) for heads in (BLOCK_H, BLOCK_G))
    q_tiles, k_tiles = B * _tiles(T, H, BLOCK_T, BLOCK_H), B * _tiles(T, G, BLOCK_S, BLOCK_G)
    return Plan(
        "rope", _kernel, (q_tiles + k_tiles,),
        q_tiles=q_tiles, T=T, H=H, G=G, R=R, K=K, table_stride_b=table_stride, **strides, INTERLEAVED=interleaved,
        INVERSE=inverse, BLOCK_T=BLOCK_T, BLOCK_H=BLOCK_H, BLOCK_S=BLOCK_S, BLOCK_G=BLOCK_G, BLOCK_R=BLOCK_R,
        BLOCK_REST=BLOCK_REST, num_warps=num_warps(BLOCK_T * BLOCK_H * width),
    )  # fmt: skip


def _tiles(num_positions: int, num_heads: int, block_positions: int, block_heads: int) -> int:
    return -(-num_positions // block_positions) * -(-num_heads // block_heads)


def _fake(
    q_BHTK: Tensor, k_BGTK: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q_BHTK), torch.empty_like(k_BGTK)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor, bool, bool], output: tuple[Tensor, Tensor]) -> None:
    _, _, cos, sin, ctx.interleaved, ctx.inverse = inputs
    ctx.save_for_backward(cos, sin)


def _differentiate(ctx: Any, dq_BHTK: Tensor | None, dk_BGTK: Tensor | None) -> tuple[Tensor | None, ...]:
    # The transpose of a rotation is its inverse; attention_factor is in the tables, and stays.
    given = dq_BHTK if dq_BHTK is not None else dk_BGTK
    assert given is not None
    no_heads = given[:, :0]
    dq_in, dk_in = (no_heads if d is None else d for d in (dq_BHTK, dk_BGTK))
    dq, dk = _rotate(dq_in, dk_in, *ctx.saved_tensors, ctx.interleaved, not ctx.inverse)
    return None if dq_BHTK is None else dq, None if dk_BGTK is None else dk, None, None, None, None


_rotate = Fused("rope", _launch, _fake, save=_save, differentiate=_differentiate)


# --- public ----------------------------------------------------------------------------------


@overload
def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, style: Style) -> tuple[Tensor, Tensor]: ...
@overload
def rope(q: Tensor, k: None, cos: Tensor, sin: Tensor, *, style: Style) -> tuple[Tensor, None]: ...
def rope(q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, *, style: Style) -> tuple[Tensor, Tensor | None]:
    """q and k rotated by their positions; rope_reference states the arithmetic.

    Args:
        q: [B, H, T, K], floating, any strides: of [B, T, H, K] pass q.transpose(1, 2), which costs nothing.
        k: [B, G, T, K], dtype and device of q, or None to rotate q alone (Gemma 3n).
        cos: [1 or B, T, R / 2], from rope_tables; B rows where samples have their own positions (left padding,
            packing). Of a table with two columns a frequency, as HuggingFace has it, pass what halve_tables makes: its
            width can be right for another R.
        sin: like cos. To rotate the other way, pass -sin.
        style: "half" or "interleaved".

    Returns:
        q and k rotated, shapes, dtypes and order in memory as they came.

    Raises:
        ValueError: shapes, dtypes, devices or style do not fit, or a table requires a gradient.
    """
    keys = q[:, :0] if k is None else k
    _check(q, keys, cos, sin, style)
    y, z = _rotate(q, keys, cos.contiguous(), sin.contiguous(), style == "interleaved", False)
    return y, None if k is None else z


def _check(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, style: str) -> None:
    if style not in ("half", "interleaved"):
        raise ValueError(
            f"rope: style is {style!r}, expected 'half' or 'interleaved'. Llama has half, Cohere interleaved."
        )
    if q.ndim != 4 or k.ndim != 4:
        raise ValueError(
            f"rope: q has shape {list(q.shape)} and k {list(k.shape)}, expected [samples, heads, positions, features]. "
            f"Split heads with view and move them with transpose(1, 2)."
        )
    B, _, T, K = q.shape
    if (k.shape[0], *k.shape[2:]) != (B, T, K) or (k.dtype, k.device) != (q.dtype, q.device):
        raise ValueError(
            f"rope: k is {k.dtype} {list(k.shape)} on {k.device}, expected {q.dtype} [{B}, heads, {T}, {K}] on "
            f"{q.device} like q. Rotate new keys before they join a cache."
        )
    if cos.ndim != 3 or cos.shape[0] not in (1, B) or cos.shape[1] != T or 2 * cos.shape[2] > K:
        raise ValueError(
            f"rope: cos has shape {list(cos.shape)}, expected [1 or {B}, {T}, at most {K // 2}] for q {list(q.shape)}. "
            f"Pass one column a frequency: rope_tables.halve_tables makes them of a table with two, as HuggingFace has."
        )
    if (sin.shape, sin.dtype, sin.device) != (cos.shape, cos.dtype, q.device):
        raise ValueError(
            f"rope: sin is {sin.dtype} {list(sin.shape)} on {sin.device}, expected {cos.dtype} {list(cos.shape)} on "
            f"{q.device} like cos and q. Make both with one call of rope_tables."
        )
    if cos.requires_grad or sin.requires_grad:
        raise ValueError(
            "rope: cos or sin requires a gradient, expected constants. "
            "Detach them, or call rope_reference to learn them."
        )
