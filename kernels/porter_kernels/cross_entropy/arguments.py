"""What cross_entropy refuses, and how each mistake is mended."""

from collections.abc import Sequence

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_VOCAB = 2**24  # classes pass through float32


def check_tensors(
    op: str, logits: Tensor, target: Tensor, weight: Tensor | None, token_weight: Tensor | None
) -> None:  # fmt: skip
    """Raises ValueError unless the tensors fit each other."""
    if logits.ndim == 0 or target.shape != logits.shape[:-1]:
        raise ValueError(
            f"{op}: target has shape {list(target.shape)}, expected {list(logits.shape[:-1])}, the leading axes of "
            f"logits {list(logits.shape)}. Move the classes to the last axis, logits.movedim(1, -1), and shift labels "
            f"rather than logits."
        )
    if not 0 < logits.shape[-1] < MAX_VOCAB:
        raise ValueError(
            f"{op}: logits have {logits.shape[-1]} classes, expected 1 to {MAX_VOCAB - 1}. "
            f"Pass logits whose last axis is the vocabulary."
        )
    if logits.dtype not in DTYPES:
        raise ValueError(
            f"{op}: logits are {logits.dtype}, expected float32, bfloat16 or float16. "
            f"Call {op}_reference, which computes in float64 when given it."
        )
    if target.dtype != torch.int64 or target.device != logits.device:
        raise ValueError(
            f"{op}: target is {target.dtype} on {target.device}, expected torch.int64 on {logits.device} like logits. "
            f"Pass target.to(logits.device, torch.int64)."
        )
    _check_weights(op, "weight", weight, logits, logits.shape[-1:], "one a class")
    _check_weights(op, "token_weight", token_weight, logits, target.shape, "like target")


def _check_weights(
    op: str, name: str, weight: Tensor | None, logits: Tensor, shape: Sequence[int], meaning: str
) -> None:  # fmt: skip
    if weight is None:
        return
    if weight.shape != shape:
        raise ValueError(
            f"{op}: {name} has shape {list(weight.shape)}, expected {list(shape)}, {meaning}. "
            f"weight is of classes, token_weight of tokens."
        )
    if weight.dtype != torch.float32 or weight.device != logits.device:
        raise ValueError(
            f"{op}: {name} is {weight.dtype} on {weight.device}, expected torch.float32 on {logits.device}. "
            f"Pass {name}.to(logits.device, torch.float32)."
        )
    if weight.requires_grad:
        raise ValueError(
            f"{op}: {name} requires a gradient, expected a constant: the kernel has no gradient for it. "
            f"Pass {name}.detach(), or call {op}_reference."
        )


def check_options(
    op: str, reduction: str, label_smoothing: float, softcap: float | None, logit_scale: float,
    num_items: Tensor | int | float | None,
) -> None:  # fmt: skip
    """Raises ValueError unless the options are ones that the reference knows."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{op}: reduction is {reduction!r}, expected 'mean', 'sum' or 'none'. Pass one of them.")
    if num_items is not None and reduction == "none":
        raise ValueError(
            f"{op}: num_items was passed with reduction 'none', expected 'mean' or 'sum': it divides a sum. "
            f"Leave num_items out, and divide the losses."
        )
    if isinstance(num_items, Tensor) and num_items.numel() != 1:
        raise ValueError(
            f"{op}: num_items has shape {list(num_items.shape)}, expected one number. Pass num_items.sum()."
        )
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(
            f"{op}: label_smoothing is {label_smoothing}, expected 0 to 1. Pass the share spread over all classes."
        )
    if softcap is not None and not softcap > 0:
        raise ValueError(f"{op}: softcap is {softcap}, expected a positive number. Without a cap, pass None.")
    if not logit_scale > 0:
        raise ValueError(
            f"{op}: logit_scale is {logit_scale}, expected a positive number. Pass what multiplies the logits: where a "
            f"model divides them (Granite's logits_scaling), its inverse."
        )


def check_overwritable(op: str, logits: Tensor) -> None:
    """Raises ValueError where autograd forbids that the gradient overwrites the logits, or it would vanish."""
    base = logits if logits._base is None else logits._base
    if base.is_leaf and base.requires_grad:
        raise ValueError(
            f"{op}: inplace=True would overwrite a leaf that requires a gradient, expected logits that a model "
            f"computed. Leave inplace out."
        )
    if logits.dtype == torch.float16:
        raise ValueError(
            f"{op}: inplace=True with logits in float16, expected bfloat16 or float32: the gradient is rounded before "
            f"a scaled loss (torch.amp.GradScaler) could keep it from vanishing. Leave inplace out."
        )
