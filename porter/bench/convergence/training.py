"""A few steps of training, and what is kept of them: losses, log-probabilities, layers, gradients, updates.

The optimizer is AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101) on float32 masters of the weights, float64 ones of
golden's; a narrower model takes its weights from the masters, rounded, after each step. Tokens are bytes of a text.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from porter.comparison.prompts import TEXT
from porter.patching.patch import patch
from porter.references.float64 import Float64
from porter.references.pinned import find_layers
from porter.references.quiet import quiet_transformers
from porter.references.routing import Routing

LEARNING_RATE, BETAS, WEIGHT_DECAY = 1e-3, (0.9, 0.95), 0.1
TOP_K = 10


@dataclass(frozen=True)
class Course:
    """What is trained on.

    Attributes:
        steps: of the optimizer.
        batch, length: windows of the text in a step, and their tokens.
    """

    steps: int = 32
    batch: int = 4
    length: int = 128

    def batches(self) -> Iterator[Tensor]:
        """[batch, length] a step, then one more that is not trained on; seeded."""
        bytes_N = torch.tensor(list(TEXT.read_bytes()))
        generator = torch.Generator().manual_seed(0)
        for _ in range(self.steps + 1):
            starts = torch.randint(len(bytes_N) - self.length, (self.batch,), generator=generator)
            yield torch.stack([bytes_N[start : start + self.length] for start in starts.tolist()])


@dataclass(frozen=True)
class Trajectory:
    """What is kept of a training.

    Attributes:
        losses: [steps], float64.
        log_probs: [B, T, V], of the batch that was not trained on, after the last step.
        layers: of that batch, the output of each layer.
        gradients: of the last step, by parameter.
        updates: what each parameter has moved.
        choices: of each step the experts that tokens went to, in order; empty where there are none.
    """

    losses: Tensor
    log_probs: Tensor
    layers: dict[str, Tensor]
    gradients: dict[str, Tensor]
    updates: dict[str, Tensor]
    choices: list[Tensor]


def train(
    folder: Path, dtype: torch.dtype, device: torch.device, course: Course, *, patched: bool, golden: bool = False
) -> Trajectory:
    """Trains HuggingFace's model of a folder.

    Args:
        dtype: of the model; of golden, which is float64 throughout, what its weights are rounded to at the start.
    """
    with Float64() if golden else nullcontext():
        model = load(folder, dtype, device, golden=golden)
        if patched:
            patch(model)
        return _train(model, [ids_BT.to(device) for ids_BT in course.batches()])


def load(folder: Path, dtype: torch.dtype, device: torch.device, *, golden: bool = False) -> Any:
    """A model to train, with HuggingFace's own choice of attention; nothing is dropped out."""
    auto: Any = AutoModelForCausalLM
    with quiet_transformers():
        given = {"dtype": torch.float64, "experts_implementation": "eager"} if golden else {"dtype": dtype}
        model = auto.from_pretrained(folder, **given, local_files_only=True)  # grouped products know no float64
    if golden:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            for parameter in model.parameters():
                parameter.copy_(parameter.to(dtype).double())
    without_dropout(model)
    return model.to(device).train()


def without_dropout(model: Any) -> None:
    """Sets every share that is dropped out to zero."""
    for owner in (*model.modules(), model.config):
        if isinstance(owner, nn.Dropout):
            owner.p = 0.0
        for name, value in list(vars(owner).items()):
            if "drop" in name and isinstance(value, float):
                setattr(owner, name, 0.0)


def _train(model: Any, batches: list[Tensor]) -> Trajectory:
    parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
    wide = torch.promote_types(next(iter(parameters.values())).dtype, torch.float32)
    masters = {name: nn.Parameter(each.detach().to(wide, copy=True)) for name, each in parameters.items()}
    start = {name: each.detach().clone() for name, each in masters.items()}
    optimizer = torch.optim.AdamW(masters.values(), lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY)
    losses, choices = [], []
    for ids_BT in batches[:-1]:
        model.zero_grad()
        with Routing() as routing:
            loss = model(input_ids=ids_BT, labels=ids_BT, use_cache=False).loss
        loss.backward()
        chosen = [each.sort(-1).values.flatten().to(torch.int16) for each in routing.own]
        choices.append(torch.cat(chosen).cpu() if chosen else torch.empty(0, dtype=torch.int16))
        losses.append(loss.detach().double())
        for name, parameter in parameters.items():
            masters[name].grad = None if parameter.grad is None else parameter.grad.to(wide)
        optimizer.step()
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(masters[name])
    gradients = {name: each.grad.double().cpu() for name, each in masters.items() if each.grad is not None}
    updates = {name: (each.detach().double() - start[name].double()).cpu() for name, each in masters.items()}
    layers, log_probs = _look(model, batches[-1])
    return Trajectory(torch.stack(losses).cpu(), log_probs, layers, gradients, updates, choices)


@torch.no_grad()
def _look(model: Any, ids_BT: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """The output of each layer, and the log-probabilities of what follows."""
    with _outputs(model) as outputs:
        logits_BTV = model(input_ids=ids_BT, use_cache=False).logits
    log_probs = F.log_softmax(logits_BTV.double(), dim=-1)
    return {f"layers.{i}": each.double().cpu() for i, each in enumerate(outputs)}, log_probs.cpu()


@contextmanager
def _outputs(model: Any) -> Iterator[list[Tensor]]:
    config = model.config.to_dict()
    count = next(config[key] for key in ("num_hidden_layers", "n_layer", "num_layers", "n_layers") if key in config)
    outputs: list[Tensor] = []

    def keep(_module: nn.Module, _args: Any, out: Any) -> None:
        outputs.append(out[0] if isinstance(out, (tuple, list)) else out)

    handles = [layer.register_forward_hook(keep) for layer in find_layers(model, count)[1]]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()
