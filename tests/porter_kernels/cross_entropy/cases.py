"""Inputs of cross_entropy, and how far a right result may be from the one in float64."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from porter_kernels.cross_entropy import cross_entropy, cross_entropy_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
WEIGHTED = ("weight", "token_weight")
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "weight": {"weight": True},
    "token_weight": {"token_weight": True},
    "both weights, none": {"weight": True, "token_weight": True, "reduction": "none"},
    "smoothing": {"label_smoothing": 0.2},
    "smoothing and weight": {"label_smoothing": 0.2, "weight": True},
    "z_loss": {"z_loss": 0.03},
    "softcap": {"softcap": 2.0},
    "softcap beyond the logits": {"softcap": 30.0},
    "logit_scale": {"logit_scale": 0.25},
    "num_items": {"num_items": 7},
    "ignore_index": {"ignore_index": 0},
    "everything": {
        "weight": True, "token_weight": True, "ignore_index": 1, "label_smoothing": 0.1, "z_loss": 0.03, "softcap": 3.0,
        "logit_scale": 0.5,
    },
}  # fmt: skip
SOME = ["plain", "sum", "none", "num_items", "everything"]


@dataclass
class Case:
    """Arguments of one call. weight and token_weight are drawn where an option asks for them."""

    logits: Tensor
    target: Tensor
    options: dict[str, Any] = field(default_factory=dict)

    def loss(self, logits: Tensor, **more: Any) -> Tensor:
        loss = cross_entropy(logits, self.target, **self.options, **more)
        assert isinstance(loss, Tensor)
        return loss

    def reference(self, logits: Tensor) -> Tensor:
        wide = {name: self.options[name].double() for name in WEIGHTED if name in self.options}
        loss = cross_entropy_reference(logits, self.target, **self.options | wide)
        assert isinstance(loss, Tensor)
        return loss


def draw(
    generator: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, **options: Any
) -> Case:  # fmt: skip
    """Logits so spread that a few classes have most of the probability; about a quarter of the tokens is ignored."""
    V = shape[-1]
    logits = (3 * torch.randn(shape, generator=generator)).to(dtype)
    target = torch.randint(V, shape[:-1], generator=generator)
    if target.numel() > 1:
        ignored = torch.rand(shape[:-1], generator=generator) < 0.25
        ignored.view(-1)[0] = False
        target = target.where(~ignored, options.get("ignore_index", -100))
    for name, size in zip(WEIGHTED, (shape[-1:], shape[:-1]), strict=True):
        if options.get(name) is True:
            options[name] = (0.1 + torch.rand(size, generator=generator)).to(DEVICE)
    return Case(logits.to(DEVICE), target.to(DEVICE), options)


def small(generator: torch.Generator, option: str, dtype: torch.dtype = torch.float32) -> tuple[Case, Tensor]:
    case = draw(generator, (5, 37), dtype, **OPTIONS[option])
    return case, case.logits.clone().requires_grad_()


def upstream(loss: Tensor, value: float = 1.0) -> Tensor:
    return value * torch.linspace(0.5, 2.0, loss.numel(), device=DEVICE) if loss.ndim else torch.full_like(loss, value)


@dataclass
class Scales:
    """The largest terms that float32 sums up on the way to each result, from the logits in float64."""

    loss: Tensor  # [] or like target
    d_logits: Tensor  # like logits
    lse: Tensor  # like target


def measure_scales(case: Case, d_loss: Tensor) -> Scales:
    """What `excess` takes as the scale of each result.

    A log-sum-exp is as exact as the largest transformed logit, which is as exact as the cap, and a probability is off
    by that times itself.
    """
    options = case.options
    V, ignore = case.logits.shape[-1], options.get("ignore_index", -100)
    counts = case.target != ignore
    cap, scale = options.get("softcap"), options.get("logit_scale", 1.0)
    raw = scale * case.logits.double()
    x = raw if cap is None else cap * torch.tanh(raw / cap)
    slope = scale * (torch.ones_like(raw) if cap is None else 1 / torch.cosh(raw / cap).square())
    steep = 1 + (0 if cap is None else (raw / cap).abs())  # exponents round by as much as they are large
    weight = options["weight"].double() if "weight" in options else torch.ones(V, dtype=torch.float64, device=DEVICE)
    target = case.target.where(counts, 0)
    eps, z = options.get("label_smoothing", 0.0), options.get("z_loss", 0.0)
    largest = x.masked_fill(x == -torch.inf, 0).abs().amax(-1).clamp(min=cap or 1.0)
    lse = x.logsumexp(-1)
    row = (weight[target] + eps * weight.mean()) * 2 * largest + 2 * z * (lse.square() + lse.abs() * largest)

    factor = options["token_weight"].double() if "token_weight" in options else torch.ones_like(row)
    factor = torch.where(counts, factor, 0.0)
    if "num_items" in options:
        factor = factor / float(options["num_items"])
    elif options.get("reduction", "mean") == "mean":
        factor = factor / (factor * weight[target]).sum()
    one = torch.nn.functional.one_hot(target, V)
    hit = (1 - eps) * weight[target][..., None]
    mass = hit + eps * weight.mean() + 2 * z * lse.abs()[..., None]
    d_logits = x.softmax(-1) * mass * largest[..., None] + one * hit + eps / V * weight
    upstream = d_loss.double() if d_loss.ndim else d_loss.double().expand(row.shape)
    loss = factor * row if options.get("reduction") == "none" else (factor * row).sum()
    return Scales(loss, (factor * upstream).abs()[..., None] * d_logits * slope.abs() * steep, largest)
