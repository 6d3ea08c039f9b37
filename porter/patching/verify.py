"""Is a patched model still the model? The comparator's answer: patched against unpatched, layer by layer, to golden.

The nodes and gradients of every layer are those of a diff whose port is HuggingFace's own model, patched. Head and
loss, which a diff's backward pass takes chunk by chunk, are judged beside it, with the gradients that they give.
"""

import tempfile
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from porter.comparison.cached_lane import Models
from porter.comparison.changed_port import ChangedPort
from porter.comparison.diff import diff
from porter.comparison.progress import Progress
from porter.comparison.report import Behaviour, DiffReport, Verdict
from porter.comparison.verdicts import FLOORS, THRESHOLDS
from porter.errors import UsageError
from porter.models.build import Build, plan_build
from porter.patching.head import FusedHead, FusedLoss, fuse_head_alone
from porter.patching.patch import Patch, PatchError, patch_model, preview
from porter.patching.stock import why_not_stock
from porter.patching.swap import is_fused
from porter.references.unknown import empty_model
from porter.specs.schema import Head

_TOKENS = 128  # that a model in memory is judged by
_LOSS_TOKENS, _LOSS_ROWS = 256, 32_768  # tokens and rows of the vocabulary that the loss is judged by, at most


def verify_patch(
    build: Build,
    wanted: frozenset[str],
    *,
    layers: str = "all",
    grad: bool = True,
    tokens: int | None = None,
    prompt: str | None = None,
    progress: Progress | None = None,
    command: str = "",
) -> DiffReport:
    """The report of HuggingFace's model of a build, patched, against the same model unpatched.

    Args:
        wanted: the ops that are patched.
        grad: gradients too.
    """
    if build.overrides:
        wrong = f"a build whose spec is changed ({', '.join(build.overrides)})"
        raise UsageError(wrong, "HuggingFace's own model, which no --set changes", "Build it again without --set.")
    port = ChangedPort(
        partial(patch_model, wanted=wanted, blueprint=build.reference_blueprint),
        f"{build.name}, HuggingFace's model on porter's kernels",
        {"patched": ", ".join(sorted({each.op for each in preview_patch(build, wanted).replaced}))},
        partial(judge_loss, build.reference_blueprint.head) if "linear_cross_entropy" in wanted else _nothing,
    )
    return diff(
        build, port=port, layers=layers, grad=grad, tokens=tokens, prompt=prompt, progress=progress, command=command
    )


def preview_patch(build: Build, wanted: frozenset[str]) -> Patch:
    """What patching HuggingFace's model of a build would do."""
    return preview(empty_model({"model_type": build.reference_blueprint.model_type, **build.config}), wanted)


def check_patch(model: Any, wanted: frozenset[str]) -> DiffReport:
    """The same of a model in memory, whose weights are written to a temporary folder.

    Raises:
        PatchError: the two part; the model's weights are not there yet; or a module is none of HuggingFace's own, as
            an adapter is, since what is compared is HuggingFace's model of the config with these weights.
    """
    weight = next(parameter for parameter in model.parameters() if parameter.is_floating_point())
    if any(parameter.is_meta for parameter in model.parameters()):
        raise PatchError(f"{type(model).__name__} is on the device meta, without numbers", "a model that is loaded",
                         "Load its weights first, or pass verify=False.")  # fmt: skip
    _check_stock(model, wanted)
    with tempfile.TemporaryDirectory(prefix="porter-patch-") as folder:
        model.save_pretrained(folder)
        build = plan_build(
            folder, size=None, weights=None, overrides=(), dtype=str(weight.dtype).removeprefix("torch."),
            ops="reference", device=weight.device.type, prompt=None, tokens=_TOKENS,
        )  # fmt: skip
        report = verify_patch(build, wanted, command="porter.patch(…, verify=True)")
    if report.verdict == "FAIL":
        raise PatchError(
            f"patched, {type(model).__name__} is another model: {report.sentence}", "a verdict of PASS or WARN",
            "Leave the op at that node out (rope=False, glu=False, …), and report it.",
        )  # fmt: skip
    return report


def _check_stock(model: Any, wanted: frozenset[str]) -> None:
    """Refuses what a model made anew would not have: modules of other code, and places of an op that are changed."""
    changed = {path: why_not_stock(each) for path, each in model.named_modules() if path and not is_fused(each)}
    anew = {each.path for each in preview(empty_model(model.config.to_dict()), wanted).left}
    changed |= {each.path: each.reason for each in preview(model, wanted).left if each.path not in anew}
    if reasons := [f"{path}: {reason}" for path, reason in changed.items() if reason is not None]:
        raise PatchError(
            f"verify=True with {reasons[0]}{f' (and {len(reasons) - 1} more)' if len(reasons) > 1 else ''}",
            "HuggingFace's own modules: the comparison makes the model anew from its config and weights",
            "Verify before adapters and hooks are put on (or merge them), or pass verify=False.",
        )


def _nothing(_dtype: str, _models: Models, _ids_BT: Tensor) -> Sequence[Behaviour]:
    return ()


# --- the loss -------------------------------------------------------------------------------------


def judge_loss(head: Head, dtype: str, models: Models, ids_BT: Tensor) -> list[Behaviour]:
    """The loss, and its gradients to the hidden states and the head's weight: the kernel's and HuggingFace's errors.

    Golden is the same loss in float64, of the same hidden states and weight. Of a large vocabulary the first rows are
    taken; the next token of those that are not among them is one that is.
    """
    hidden_ND, weight_VD, bias_V = _given(models, ids_BT)
    if not len(hidden_ND):
        raise UsageError("a prompt of one token", "two or more: a loss needs a next token", "Pass more --tokens.")
    targets_N = ids_BT[0, 1 : len(hidden_ND) + 1].to(hidden_ND.device) % len(weight_VD)
    tensors = (hidden_ND, weight_VD) if bias_V is None else (hidden_ND, weight_VD, bias_V)
    wide = [each.double() for each in tensors]
    golden = _differentiate(lambda *given: _loss(head, *given, targets_N=targets_N), wide)
    reference = _differentiate(lambda *given: _loss(head, *given, targets_N=targets_N), tensors)
    port = _differentiate(lambda *given: _fused_loss(head, *given, targets_N=targets_N), tensors)
    names = ("loss", "loss: gradient of its input", "loss: gradient of the head's weight", "loss: gradient of its bias")
    return [
        _judge(name, dtype, *sides)
        for name, *sides in zip(names, port, reference, golden, strict=False)
    ]  # fmt: skip


def _given(models: Models, ids_BT: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Hidden states as the head is given them, its weight, and its bias."""
    reference = models.reference
    ids_1T = ids_BT[:1, : _LOSS_TOKENS + 1]
    reference.start(ids_1T)
    seen: list[Tensor] = []
    head: Any = reference.model.get_output_embeddings()
    handle = head.register_forward_pre_hook(lambda _module, args: seen.append(args[0]))
    try:
        reference.head(reference.embed()["embed.out"])
    finally:
        handle.remove()
    chunk = next(iter(reference.weights.chunks()))
    weight_VD, bias = chunk["weight"][:_LOSS_ROWS].clone(), chunk.get("bias")
    reference.release()
    return seen[0][0, :-1].detach(), weight_VD, None if bias is None else bias[:_LOSS_ROWS].clone()


def _loss(
    head: Head, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None = None, *, targets_N: Tensor
) -> Tensor:
    """As HuggingFace computes it: logits in the model's dtype, then float32."""
    logits_NV = _capped(head, nn.functional.linear(hidden_ND, weight_VD, bias_V))
    wide = torch.promote_types(logits_NV.dtype, torch.float32)
    return nn.functional.cross_entropy(logits_NV.to(wide), targets_N)


def _fused_loss(
    head: Head, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None = None, *, targets_N: Tensor
) -> Tensor:
    """By a patched head and loss, through what a model's forward does between the two."""
    linear: Any = nn.Linear(weight_VD.shape[1], weight_VD.shape[0], bias=bias_V is not None, device="meta")
    del linear.weight
    linear.weight = weight_VD  # the leaf itself, not a parameter
    if bias_V is not None:
        del linear.bias
        linear.bias = bias_V
    fuse_head_alone(linear)
    assert isinstance(linear, FusedHead)
    deferred = linear.forward(hidden_ND, deferred=True)
    loss = FusedLoss(None, was_set=False)
    return loss(_capped(head, deferred), shift_labels=targets_N)


def _capped(head: Head, logits: Any) -> Any:
    """Logits as the model's forward goes on with them."""
    if head.mul != 1.0:
        logits = logits * head.mul
    if head.div != 1.0:
        logits = logits / head.div
    return logits if head.softcap is None else torch.tanh(logits / head.softcap) * head.softcap


def _differentiate(loss: Any, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The loss, and its gradient to each tensor."""
    with torch.enable_grad():
        leaves = [each.detach().clone().requires_grad_() for each in tensors]
        value = loss(*leaves)
        return [value.detach(), *torch.autograd.grad(value, leaves)]


def _judge(name: str, dtype: str, port: Tensor, reference: Tensor, golden: Tensor) -> Behaviour:
    good, bad = THRESHOLDS["gradients"][dtype]["rho_grad"]
    size = torch.linalg.vector_norm(golden)
    e_port, e_ref = (float(torch.linalg.vector_norm(side.double() - golden) / size) for side in (port, reference))
    rho = e_port / max(e_ref, FLOORS[dtype])
    status: Verdict = "PASS" if rho <= good else "WARN" if rho <= bad else "FAIL"
    said = f"relative error {e_port:.1e}, HuggingFace's own {e_ref:.1e}"
    return Behaviour(name, dtype, status, rho, good, said)
