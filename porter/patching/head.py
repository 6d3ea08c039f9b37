"""The head and the loss in one: HF's own forward runs, but its logits are a promise that the loss need not redeem."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import unwrap
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from transformers.loss.loss_utils import ForCausalLMLoss

from porter.patching.deferred import DeferredLogits, redeemed
from porter.patching.swap import Plain, fuse
from porter_kernels.cross_entropy import cross_entropy
from porter_kernels.linear_cross_entropy import linear_cross_entropy
from porter_kernels.linear_cross_entropy.chunks import LEAN_ROWS

_SHIFTED_OUT = -100


class FusedHead(Plain):
    """An output head that defers its logits while the model is asked for a loss.

    Attributes:
        deferring: set by the model's hook around its forward.
    """

    weight: Tensor
    bias: Tensor | None
    deferring = False
    defers = True  # what DeferredLogits knows it by

    def forward(self, hidden: Tensor, *, deferred: bool | None = None, loss: Mapping[str, Any] | None = None) -> Any:
        """[..., V], or the promise of it; with `loss`, linear_cross_entropy's arguments, the loss alone."""
        if loss is not None:
            few = hidden.numel() <= LEAN_ROWS * hidden.shape[-1]
            given = {"accumulate": "weight" if few else "float32", **loss}
            return linear_cross_entropy(hidden, self.weight, bias=self.bias, **given)
        wanted = self.deferring and not _has_hooks(self) if deferred is None else deferred
        if wanted and torch.is_grad_enabled():
            device = hidden.device.type
            autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
            return DeferredLogits(self, hidden, autocast)  # type: ignore[arg-type]  # it is mixed into a module
        return nn.functional.linear(hidden, self.weight, self.bias)


class FusedLoss:
    """A model's loss_function: HF's ForCausalLMLoss on the kernel, for logits that are deferred.

    Attributes:
        original: the loss function that computed it before.
        was_set: the model had been given one, rather than its type's.
    """

    def __init__(self, original: Any, was_set: bool) -> None:
        self.original, self.was_set = original, was_set
        self._given: dict[str, Any] = {}

    @contextmanager
    def given(self, **options: Any) -> Iterator[None]:
        """Within it, options as if the model's forward, which may not take them, had passed them on."""
        before = self._given
        self._given = options
        try:
            yield
        finally:
            self._given = before

    def __call__(
        self,
        logits: Any,
        labels: Tensor | None = None,
        vocab_size: int | None = None,
        num_items_in_batch: Tensor | int | None = None,
        ignore_index: int = _SHIFTED_OUT,
        shift_labels: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """The mean cross-entropy of the next token, float32 []; see transformers loss/loss_utils.py, ForCausalLMLoss.

        Args:
            logits: deferred, or [B, T, V].
            labels: [B, T], of the positions themselves.
            num_items_in_batch: what the sum is divided by, over all accumulated batches.
            shift_labels: [B, T], of the next position already; in place of labels.
            options: label_smoothing, z_loss, token_weight and reduction ("none": the loss of each position, zero where
                it does not count), as linear_cross_entropy takes them; accumulate, in which d_weight is summed over
                chunks: by default the weight's dtype up to LEAN_ROWS tokens, float32 beyond; any other, as HF's
                own, is not looked at.
        """
        options |= self._given
        accumulate = options.pop("accumulate", None)
        known = {name: value for name, value in options.items() if name in _OPTIONS and value is not None}
        noted = logits.scale_and_cap() if isinstance(logits, DeferredLogits) else None
        target = labels if shift_labels is None else shift_labels
        if target is None or (noted is None and not known):
            found: Tensor = self.original(
                logits=redeemed(logits), labels=labels, vocab_size=vocab_size, num_items_in_batch=num_items_in_batch,
                ignore_index=ignore_index, shift_labels=shift_labels, **options,
            )  # fmt: skip
            return found
        target, shift, shape = target.to(logits.device), shift_labels is None, logits.shape[:-1]
        if shift and target.shape != shape:  # HF shifts labels as they lie, flat ones over the ends of rows
            target, shift = _next(target, ignore_index), False
            known |= {"token_weight": _next(known["token_weight"], 0.0)} if "token_weight" in known else {}
        target = target.reshape(shape)
        common = {"ignore_index": ignore_index, "num_items": num_items_in_batch, **known}
        if noted is None:
            return _of_logits(redeemed(logits), target, shift=shift, **common)
        scale, cap = noted
        given = {"target": target, "shift": shift, "logit_scale": scale, "softcap": cap, **common}
        given |= {} if accumulate is None else {"accumulate": accumulate}
        found = logits.head(logits.hidden, loss=MappingProxyType(given))  # FSDP casts what it finds in a dict
        return found


_OPTIONS = frozenset({"label_smoothing", "z_loss", "token_weight", "reduction"})


def _of_logits(logits: Tensor, target: Tensor, *, shift: bool, ignore_index: int, **options: Any) -> Tensor:
    """The same loss of logits that are there."""
    if shift:
        target, weight = _next(target, ignore_index), options.pop("token_weight", None)
        options |= {} if weight is None else {"token_weight": _next(weight, 0.0)}
    found = cross_entropy(logits, target, ignore_index=ignore_index, **options)
    assert isinstance(found, Tensor)
    return found


def _next(values: Tensor, last: float) -> Tensor:
    return nn.functional.pad(values, (0, 1), value=last)[..., 1:]


class Deferral:
    """A hook before a model's forward: where it is asked for a loss in training, its head defers the logits."""

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        head = output_head(model)
        if isinstance(head, FusedHead):
            asked = kwargs.get("labels") is not None or kwargs.get("shift_labels") is not None
            replica = getattr(model, "_is_replica", False)  # of DataParallel, which gathers tensors alone
            head.deferring = model.training and asked and not replica


class DeferralEnds:
    """A hook after it: what calls the head by itself gets logits."""

    def __call__(self, model: nn.Module, args: Any, out: Any) -> None:
        head = output_head(model)
        if isinstance(head, FusedHead):
            head.deferring = False


def fuse_head_alone(head: nn.Module) -> None:
    """Puts a head in place that nothing tells to defer."""
    fuse(head, FusedHead)


def fuse_head(model: Any) -> None:
    """Puts head, loss and hooks in place."""
    head = output_head(model)
    assert head is not None
    restore_head(model)  # of a head that was exchanged since, loss and hooks are there
    fuse_head_alone(head)
    model.loss_function = FusedLoss(model.loss_function, "_loss_function" in model.__dict__)
    model.register_forward_pre_hook(Deferral(), with_kwargs=True)
    model.register_forward_hook(DeferralEnds(), always_call=True)


def restore_head(model: Any) -> None:
    """Takes loss and hooks out; the head's class is restored like any other's."""
    loss = model.__dict__.get("_loss_function")
    if isinstance(loss, FusedLoss):
        if loss.was_set:
            model.loss_function = loss.original
        else:
            del model._loss_function
    head = output_head(model)
    if head is not None:
        head.__dict__.pop("deferring", None)
    for hooks in (model._forward_pre_hooks, model._forward_hooks):
        for key in [key for key, hook in hooks.items() if isinstance(hook, (Deferral, DeferralEnds))]:
            del hooks[key]
            for flags in (model._forward_pre_hooks_with_kwargs, model._forward_hooks_always_called):
                flags.pop(key, None)


def why_not_head(model: Any) -> str | None:
    """Why the loss cannot be computed from the head's weight; None: it can."""
    head = output_head(model)
    if head is None:
        return f"{type(model).__name__} has no output head"
    if type(head) is not nn.Linear:
        return (
            f"the output head is a {type(head).__module__.partition('.')[0]} {type(head).__name__}, not a torch "
            f"Linear: what it adds to its weight, an adapter or a quantisation, would be left out"
        )
    if _has_hooks(head):
        return "the output head has hooks, which would not be called with logits"
    loss = model.loss_function.original if isinstance(model.loss_function, FusedLoss) else model.loss_function
    if loss is not ForCausalLMLoss:
        return f"its loss is {getattr(loss, '__name__', type(loss).__name__)}, not HuggingFace's ForCausalLMLoss"
    if not _calls_its_loss(type(model).forward):
        return f"{type(model).__name__} computes its loss by itself"
    return None


def _has_hooks(head: Any) -> bool:
    """Whether somebody looks at a head's input or output; FSDP's hooks, which gather its weight, do not."""
    hooks = (*head._forward_hooks.values(), *head._forward_pre_hooks.values())
    makers = (
        getattr(hook, "__module__", None) or getattr(getattr(hook, "func", None), "__module__", "") for hook in hooks
    )
    return any(not str(maker).startswith("torch.distributed") for maker in makers)


def output_head(model: Any) -> nn.Module | None:
    """The module that makes logits."""
    head = model.get_output_embeddings()
    return head if isinstance(head, nn.Module) else None


def _calls_its_loss(forward: Any) -> bool:
    return "loss_function" in unwrap(forward).__code__.co_names
