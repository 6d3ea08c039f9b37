"""What linear_cross_entropy refuses, and how each mistake is mended."""

import torch
from torch import Tensor

from porter_kernels.cross_entropy.arguments import check_options


def check_arguments(
    op: str, hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, class_weight: Tensor | None,
    token_weight: Tensor | None, reduction: str, label_smoothing: float, softcap: float | None,
    logit_scale: float, num_items: Tensor | int | float | None, accumulate: str, vocab_size: int,
) -> None:  # fmt: skip
    """Raises ValueError unless linear_cross_entropy can run on these; vocab_size is V of the whole vocabulary."""
    check_options(op, reduction, label_smoothing, softcap, logit_scale, num_items)
    if accumulate not in ("float32", "weight"):
        raise ValueError(f"{op}: accumulate is {accumulate!r}, expected 'float32' or 'weight'. Pass one of them.")
    check_head(op, hidden, weight, bias)
    if target.shape != hidden.shape[:-1]:
        raise ValueError(
            f"{op}: target has shape {list(target.shape)}, expected {list(hidden.shape[:-1])}, the leading axes of "
            f"hidden {list(hidden.shape)}. Pass labels that lie like the tokens, with shift=True if they are unshifted."
        )
    if target.dtype != torch.int64 or target.device != hidden.device:
        raise ValueError(
            f"{op}: target is {target.dtype} on {target.device}, expected torch.int64 on {hidden.device} like hidden. "
            f"Pass target.to(hidden.device, torch.int64)."
        )
    _check_constant(op, "class_weight", class_weight, torch.Size([vocab_size]), hidden)
    _check_constant(op, "token_weight", token_weight, target.shape, hidden)


def check_module(op: str, weight: object) -> None:
    """Raises TypeError if a module was passed for its weight: what else it does would be left out."""
    if isinstance(weight, torch.nn.Module):
        raise TypeError(
            f"{op}: weight is a {type(weight).__name__} module, expected the tensor [V, H]. Pass head.weight and "
            f"bias=head.bias of a plain Linear; of a wrapped one (LoRA, PEFT) merge the adapter first, or call the "
            f"module and pass its logits to cross_entropy: reading the weight alone would leave the adapter out."
        )


def check_head(op: str, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raises ValueError unless hidden can be multiplied by weight."""
    if hidden.ndim < 1 or weight.ndim != 2 or weight.shape[1] != hidden.shape[-1]:
        raise ValueError(
            f"{op}: weight has shape {list(weight.shape)}, expected [V, {hidden.shape[-1] if hidden.ndim else 'H'}], "
            f"the last axis of hidden {list(hidden.shape)}. Pass the head's weight as torch.nn.Linear keeps it."
        )
    if weight.shape[0] == 0:
        raise ValueError(f"{op}: weight has no rows, expected one a class. Pass the weight of the whole head.")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"{op}: bias has shape {list(bias.shape)}, expected [{weight.shape[0]}], one a row of weight. "
            f"Pass the bias of the same head."
        )
    for name, x in (("weight", weight), ("bias", bias)):
        if x is not None and (x.dtype, x.device) != (hidden.dtype, hidden.device):
            raise ValueError(
                f"{op}: {name} is {x.dtype} on {x.device}, expected {hidden.dtype} on {hidden.device} like hidden. "
                f"Cast the model once when loading, or run under torch.autocast."
            )
    if hidden.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(
            f"{op}: hidden is {hidden.dtype}, expected float32, bfloat16 or float16. "
            f"Call {op}_reference, which computes in float64 when given it."
        )


def _check_constant(op: str, name: str, x: Tensor | None, shape: torch.Size, like: Tensor) -> None:
    if x is None:
        return
    if x.shape != shape:
        raise ValueError(
            f"{op}: {name} has shape {list(x.shape)}, expected {list(shape)}. "
            f"class_weight has one a class, token_weight one a token."
        )
    if x.dtype != torch.float32 or x.device != like.device:
        raise ValueError(
            f"{op}: {name} is {x.dtype} on {x.device}, expected torch.float32 on {like.device}. "
            f"Pass {name}.to(hidden.device, torch.float32)."
        )
    if x.requires_grad:
        raise ValueError(
            f"{op}: {name} requires a gradient, expected a constant: the kernel has none for it. "
            f"Pass {name}.detach(), or call {op}_reference."
        )
