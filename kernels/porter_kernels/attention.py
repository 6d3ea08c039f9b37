"""Attention over the keys a query may see, with capped scores and sinks, by the kernels that torch brings.

    y[t] = sum over s of p[t, s] * v[s],  p = softmax over s of cap(scale * q[t] . k[s])     Vaswani et al. 2017, eq. 1
    cap(x) = softcap * tanh(x / softcap)                   Gemma 2, arXiv:2408.00118, sec. 2
    a sink is one more score a head, of no value           gpt-oss, arXiv:2508.10925, sec. 2.2

Query t stands at position S - T + t. With causal it sees no later key; with a window, of the earlier ones only the
nearest, itself counted: window keys in all.

Axes    B samples, T queries, S keys, H query heads, G key heads (H is a multiple of G), K head width.
Dtypes  q, k and v in {float64, float32, bfloat16, float16}, alike; sinks in any. Scores are summed in float32 or wider;
        the reference rounds where the models' own code does.

No backend does everything, so one is chosen by what a call needs; REFUSALS says why one is not.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from porter_kernels.softcap import softcap_reference

Backend = Literal["sdpa", "flex", "plain"]
REFUSALS: dict[Backend, dict[str, str]] = {  # in order of preference
    "sdpa": {"softcap": "scaled_dot_product_attention adds to scores, it does not transform them"},
    "flex": {
        "cpu": "flex_attention has no gradient there",
        "float64": "flex_attention does not compile",
        "narrow": "its products need heads of 16 features or more",
        "sinks": "it would need the log-sum-exp and its gradient, and no model has both a cap and sinks",
    },
    "plain": {},  # at the price of T x S scores in memory
}

# --- reference -------------------------------------------------------------------------------


def attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    softcap: float | None = None,
    window: int | None = None,
    sinks: Tensor | None = None,
    causal: bool = True,
    mask: Tensor | None = None,
) -> Tensor:
    """The equations above in the steps of eager_attention_forward of Llama, Gemma 2 and gpt-oss; differentiable.

    Args:
        q: [B, H, T, K], floating.
        k: [B, G, S, K].
        v: [B, G, S, K].
        scale: multiplies the scores, once they are rounded.
        softcap: bounds the scores (Gemma 2: 50).
        window: how many keys a query sees, itself counted (Gemma 3, gpt-oss).
        sinks: [H], a score a head that takes its share of the softmax (gpt-oss).
        causal: whether keys after the query are hidden.
        mask: [1 or B, 1 or H, 1 or T, S], bool; keys it is False for are hidden too (padding, packed sequences).

    Returns:
        [B, H, T, K], dtype of q. A query that sees no key gets the mean of all values.
    """
    scores_BHTS = torch.matmul(q, _repeat_heads(k, q).transpose(2, 3)) * scale
    if softcap is not None:
        scores_BHTS = softcap_reference(scores_BHTS, softcap)
    seen = _seen(q, k, window, causal, mask)
    if seen is not None:
        hidden = torch.finfo(scores_BHTS.dtype).min
        scores_BHTS = scores_BHTS + torch.zeros_like(seen, dtype=q.dtype).masked_fill(~seen, hidden)
    if sinks is None:
        wide = torch.promote_types(q.dtype, torch.float32)
        p_BHTS = F.softmax(scores_BHTS, dim=-1, dtype=wide).to(q.dtype)
    else:
        scores_BHTS = torch.cat((scores_BHTS, _sink_column(sinks, q)), dim=-1)
        scores_BHTS = scores_BHTS - scores_BHTS.max(dim=-1, keepdim=True).values
        p_BHTS = F.softmax(scores_BHTS, dim=-1)[..., :-1].to(v.dtype)
    return torch.matmul(p_BHTS, _repeat_heads(v, q))


def _seen(q: Tensor, k: Tensor, window: int | None, causal: bool, mask: Tensor | None) -> Tensor | None:
    """[1 or B, 1 or H, T, S], bool: which keys each query sees; None: all."""
    T, S = q.shape[2], k.shape[2]
    if causal:
        distance_TS = torch.arange(S - T, S, device=q.device)[:, None] - torch.arange(S, device=q.device)
        near = (distance_TS >= 0) if window is None else (distance_TS >= 0) & (distance_TS < window)
        mask = near[None, None] if mask is None else near & mask
    return mask if mask is None else mask.expand(-1, -1, T, -1)


def _repeat_heads(x_BGSK: Tensor, q_BHTK: Tensor) -> Tensor:
    times = q_BHTK.shape[1] // x_BGSK.shape[1]
    return x_BGSK if times == 1 else x_BGSK.repeat_interleave(times, dim=1)


def _sink_column(sinks_H: Tensor, q_BHTK: Tensor) -> Tensor:
    return sinks_H.reshape(1, -1, 1, 1).expand(q_BHTK.shape[0], -1, q_BHTK.shape[2], -1)


# --- backends --------------------------------------------------------------------------------


class How(NamedTuple):
    """The keyword arguments of attention."""

    scale: float
    softcap: float | None
    window: int | None
    sinks: Tensor | None
    causal: bool
    mask: Tensor | None


def choose_backend(q: Tensor, *, softcap: float | None, sinks: Tensor | None) -> Backend:
    """The first backend that refuses nothing this call needs."""
    needs = {
        "softcap": softcap is not None,
        "sinks": sinks is not None,
        "cpu": q.device.type != "cuda",
        "float64": q.dtype == torch.float64,
        "narrow": q.shape[-1] < 16,
    }
    for backend, refused in REFUSALS.items():  # a loop, since torch 2.11 traces no generator here
        if not any([needs[name] for name in refused]):  # noqa: C419
            return backend
    raise AssertionError("plain refuses nothing")


def _run_sdpa(q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
    K, whole = q.shape[3], how.mask is None and how.window is None and q.shape[2] == k.shape[2]
    seen = None if whole else _seen(q, k, how.window, how.causal, how.mask)
    if how.sinks is not None:
        q, k, v = _with_sinks(q, k, v, how.sinks, how.scale)
        if how.causal and whole:  # one more query, before the first one: so each sees the sink, and its keys
            q = F.pad(q, (0, 0, 1, 0))
        seen = None if seen is None else F.pad(seen, (1, 0), value=True)
    if seen is not None:  # of the kernels for grouped heads none takes a mask
        k, v = _repeat_heads(k, q), _repeat_heads(v, q)
    is_causal, enable_gqa = how.causal and whole, q.shape[1] != k.shape[1]
    y = F.scaled_dot_product_attention(
        q, k, v, attn_mask=seen, is_causal=is_causal, scale=how.scale, enable_gqa=enable_gqa
    )
    if how.sinks is None:
        return y
    return (y[:, :, 1:, :K] if is_causal else y[..., :K]).contiguous()


def _with_sinks(q: Tensor, k: Tensor, v: Tensor, sinks_H: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v with a key before the first one whose score is the sink and whose value is 0.

    Queries get features that hold sinks / scale, and only the new key has ones there. One feature of a 16-bit dtype
    would round a sink; three hold float32. Eight are added: kernels want heads of a multiple of 8.
    """
    rest = sinks_H.to(torch.promote_types(q.dtype, torch.float32)) / scale
    features: list[Tensor] = []
    for _ in range(3 if q.element_size() == 2 else 1):
        features.append(rest.to(q.dtype))
        rest = (rest - features[-1]).detach()  # the gradient is the first feature's
    features_H8 = F.pad(torch.stack(features, dim=-1), (0, 8 - len(features)))
    q = torch.cat((q, features_H8[None, :, None].expand(q.shape[0], -1, q.shape[2], -1)), dim=-1)
    ones_8 = F.pad(k.new_ones(len(features)), (k.shape[3], 8 - len(features)))
    sink_key = ones_8.expand(k.shape[0], k.shape[1], 1, -1)
    return q, torch.cat((sink_key, F.pad(k, (0, 8))), dim=2), F.pad(v, (0, 8, 1, 0))


def _run_flex(q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
    from torch.nn.attention.flex_attention import create_block_mask

    B, H, T, S = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    block_mask = None
    if how.mask is not None:
        seen = _seen(q, k, how.window, how.causal, how.mask)
        assert seen is not None
        several, headed = seen.shape[0] > 1, seen.shape[1] > 1
        block_mask = create_block_mask(
            lambda b, h, t, s: seen[b if several else 0, h if headed else 0, t, s],
            B=B if several else None, H=H if headed else None, Q_LEN=T, KV_LEN=S, device=q.device,
        )  # fmt: skip
    elif how.causal:
        block_mask = _causal_blocks(T, S, how.window or S, q.device)
    y: Tensor = _compile_flex()(
        q, k, v, score_mod=_capping(how.softcap), block_mask=block_mask, scale=how.scale, enable_gqa=k.shape[1] != H
    )
    return y


@lru_cache(maxsize=16)  # layers of one forward pass share theirs
def _causal_blocks(T: int, S: int, window: int, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    def is_seen(b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        distance = t + (S - T) - s
        return (distance >= 0) & (distance < window)

    return create_block_mask(is_seen, B=None, H=None, Q_LEN=T, KV_LEN=S, device=device)


@cache
def _compile_flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


@cache
def _capping(softcap: float | None) -> Callable[..., Tensor] | None:
    """The same function for the same cap: another one would be compiled again."""
    if softcap is None:
        return None
    return lambda score, b, h, t, s: softcap * torch.tanh(score / softcap)


def _run_plain(q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
    wide = torch.promote_types(q.dtype, torch.float32)
    scores_BHTS = torch.matmul(q.to(wide), _repeat_heads(k, q).to(wide).transpose(2, 3)) * how.scale
    if how.softcap is not None:
        scores_BHTS = softcap_reference(scores_BHTS, how.softcap)
    seen = _seen(q, k, how.window, how.causal, how.mask)
    if seen is not None:  # a finite score: the softmax of a row that is -inf throughout is NaN, and so is its gradient
        scores_BHTS = scores_BHTS.masked_fill(~seen, torch.finfo(wide).min)
    if how.sinks is not None:
        scores_BHTS = torch.cat((scores_BHTS, _sink_column(how.sinks.to(wide), q)), dim=-1)
    p_BHTS = F.softmax(scores_BHTS, dim=-1)[..., : k.shape[2]]
    if seen is not None:
        p_BHTS = torch.where(seen.any(-1, keepdim=True), p_BHTS, 0.0)
    return torch.matmul(p_BHTS, _repeat_heads(v, q).to(wide)).to(q.dtype)


RUN: dict[Backend, Callable[..., Tensor]] = {"sdpa": _run_sdpa, "flex": _run_flex, "plain": _run_plain}

# --- public ----------------------------------------------------------------------------------


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    softcap: float | None = None,
    window: int | None = None,
    sinks: Tensor | None = None,
    causal: bool = True,
    mask: Tensor | None = None,
) -> Tensor:
    """attention_reference by the fastest of torch's kernels that can do it; gradients of q, k, v and sinks.

    Args:
        q: [B, H, T, K], floating.
        k: [B, G, S, K], dtype and device of q; H is a multiple of G.
        v: like k.
        scale: multiplies the scores.
        softcap: bounds the scores; positive.
        window: how many keys a query sees, itself counted; only with causal.
        sinks: [H], a score a head that takes its share of the softmax.
        causal: whether keys after the query are hidden; query t stands at position S - T + t.
        mask: [1 or B, 1 or H, 1 or T, S], bool; keys it is False for are hidden too. For left padding pass
            attention_mask[:, None, None, :].bool().

    Returns:
        [B, H, T, K], dtype of q. A query that sees no key gets zeros (HuggingFace's eager code: a mean).

    Raises:
        ValueError: shapes, dtypes or devices do not fit, softcap or window is not positive.
    """
    how = How(scale, softcap, window, sinks, causal, mask)
    _check(q, k, v, how)
    return RUN[choose_backend(q, softcap=softcap, sinks=sinks)](q, k, v, how)


def _check(q: Tensor, k: Tensor, v: Tensor, how: How) -> None:
    _, softcap, window, sinks, causal, mask = how
    B, H, T, K = q.shape
    G, S = k.shape[1:3]
    for name, x in (("k", k), ("v", v)):
        if x.shape != (B, G, S, K) or H % max(G, 1) or (x.dtype, x.device) != (q.dtype, q.device):
            raise ValueError(
                f"attention: {name} is {x.dtype} {list(x.shape)} on {x.device}, expected {q.dtype} [{B}, G, S, {K}] on "
                f"{q.device} like q, G dividing {H}. Split the projections by their own number of heads."
            )
    if softcap is not None and not softcap > 0:
        raise ValueError(f"attention: softcap is {softcap}, expected a positive number. Without a cap, leave it out.")
    if window is not None and not (window > 0 and causal):
        raise ValueError(
            f"attention: window is {window} with causal={causal}, expected a positive number with causal=True. "
            f"Pass a window that looks both ways as mask."
        )
    if sinks is not None and sinks.shape != (H,):
        raise ValueError(
            f"attention: sinks has shape {list(sinks.shape)}, expected [{H}], one a query head. Pass the layer's own."
        )
    if mask is not None and (
        mask.dtype != torch.bool or mask.ndim != 4
        or any(n not in (1, m) for n, m in zip(mask.shape[:3], (B, H, T), strict=True)) or mask.shape[3] != S
    ):  # fmt: skip
        raise ValueError(
            f"attention: mask is {mask.dtype} {list(mask.shape)}, expected torch.bool [1 or {B}, 1 or {H}, 1 or {T}, "
            f"{S}], True where a key may be seen. Of an additive mask pass mask == 0."
        )
