"""Patched models in HuggingFace's Trainer, TRL's SFTTrainer, with adapters, and compiled: trained like plain ones."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer

import porter
from porter.patching.head import FusedLoss
from porter.patching.swap import fused_modules
from tests.models.tiny import porter_cache
from tests.patching.tiny_hf import hf_ids, hf_model, step

__all__ = ["porter_cache"]
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*deprecated:FutureWarning"),  # what TRL, PEFT still say
    pytest.mark.filterwarnings("ignore:.*label_smoothing_factor.*deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning"),
]
_STEPS, _RATE = 2, 0.05
_LOGGED = ("loss", "grad_norm", "entropy", "mean_token_accuracy", "likelihood")
_LORA: Any = LoraConfig(target_modules=["q_proj", "gate_proj", "down_proj"])


@dataclass(frozen=True)
class Run:
    """What training gave: numbers logged by step, those of the evaluation, and how far each weight moved."""

    logged: dict[str, list[float]]
    evaluated: dict[str, float]
    moved: dict[str, Tensor]


def _train(trainer: Any, model: Any) -> Run:
    before = {_own_name(name): each.detach().clone() for name, each in model.named_parameters()}
    trainer.train()
    found = trainer.evaluate()
    after = {_own_name(name): each.detach() for name, each in trainer.model.named_parameters()}
    moved = {name: each - before[name] if name in before else each for name, each in after.items()}
    lines = [line for line in trainer.state.log_history if "loss" in line]
    logged = {name: [line[name] for line in lines] for name in _LOGGED if name in lines[0]}
    return Run(logged, {name: found[f"eval_{name}"] for name in _LOGGED if f"eval_{name}" in found}, moved)


def _own_name(name: str) -> str:
    """A parameter's name without what PEFT adds."""
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def _arguments(kind: Any, folder: Path, options: dict[str, Any]) -> Any:
    fixed: dict[str, Any] = {
        "use_cpu": True, "max_steps": _STEPS, "per_device_train_batch_size": 2, "logging_steps": 1,
        "save_strategy": "no", "report_to": [], "optim": "sgd", "learning_rate": _RATE, "disable_tqdm": True,
        "bf16": False, "lr_scheduler_type": "constant", "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
    }  # fmt: skip
    return kind(str(folder), **fixed | options)


def _likelihood(found: Any) -> dict[str, float]:
    """The mean log-probability of the rows' tokens, which the loss is, too, were none left out."""
    logits = found.predictions[0] if isinstance(found.predictions, tuple) else found.predictions
    log_probs_BTV = torch.tensor(logits).float().log_softmax(-1)
    labels_BT = torch.tensor(found.label_ids)[:, 1:]
    return {"likelihood": float(log_probs_BTV[:, :-1].gather(-1, labels_BT.clamp(min=0)[..., None]).mean())}


def _hf_run(folder: Path, family: str, *, patched: bool, lora: bool, options: dict[str, Any]) -> Run:
    torch.manual_seed(0)
    model, ids_BT = hf_model(family), hf_ids(family, 20, 8)
    model = get_peft_model(model, _LORA) if lora else model
    if patched:
        porter.patch(model)
    ids = ids_BT.clone()
    ids[:, :3] = -100  # a prompt; and batches of different counts
    ids[1, 3:15] = -100
    rows = Dataset.from_dict({"input_ids": ids_BT.tolist(), "labels": ids.tolist()})
    trainer = Trainer(
        model, _arguments(TrainingArguments, folder, options), train_dataset=rows, eval_dataset=rows.select(range(4)),
        compute_metrics=_likelihood,
    )  # fmt: skip
    return _train(trainer, model)


def _trl_run(folder: Path, family: str, *, patched: bool, lora: bool, options: dict[str, Any]) -> Run:
    torch.manual_seed(0)
    model, ids_BT = hf_model(family), hf_ids(family, 20, 8)
    if patched:
        porter.patch(model)
    rows = Dataset.from_dict({"input_ids": ids_BT.tolist()})
    trainer = SFTTrainer(
        model, _arguments(SFTConfig, folder, options), train_dataset=rows, eval_dataset=rows.select(range(4)),
        processing_class=_tokenizer(model.config.vocab_size), peft_config=_LORA if lora else None,
    )  # fmt: skip
    return _train(trainer, model)


def _tokenizer(vocab: int) -> Any:
    words = {f"t{i}": i for i in range(vocab - 2)} | {"<pad>": vocab - 2, "</s>": vocab - 1}
    model: Any = WordLevel(words, unk_token="<pad>")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), pad_token="<pad>", eos_token="</s>")


def _assert_alike(patched: Run, plain: Run, *, bf16: bool) -> None:
    """Within float32's rounding of each other; under bfloat16's autocast within one of its steps."""
    rtol, parted = (2.0**-8, 0.1) if bf16 else (1e-5, 1e-4)
    assert patched.logged.keys() == plain.logged.keys() and patched.evaluated.keys() == plain.evaluated.keys()
    for name, values in plain.logged.items():
        assert len(values) == _STEPS
        numpy.testing.assert_allclose(patched.logged[name], values, rtol=rtol, err_msg=name)
    for name, value in plain.evaluated.items():
        numpy.testing.assert_allclose(patched.evaluated[name], value, rtol=rtol, err_msg=name)
    assert patched.moved.keys() == plain.moved.keys()
    assert sum(bool(each.any()) for each in plain.moved.values()) >= 12
    square = sum(float((patched.moved[name] - each).double().square().sum()) for name, each in plain.moved.items())
    assert square <= parted**2 * sum(float(each.double().square().sum()) for each in plain.moved.values())


_WAYS = {
    "softcap": ("gemma2", {}),
    "accumulated": ("llama", {"gradient_accumulation_steps": 2}),
    "smoothed": ("llama", {"label_smoothing_factor": 0.1}),
    "bf16": ("llama", {"bf16": True}),
    "lora, checkpointed": ("llama", {"gradient_checkpointing": True}),
}


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("train", [_hf_run, _trl_run], ids=["transformers", "trl"])
def test_a_trainer_trains_a_patched_model_as_a_plain_one(train: Any, way: str, tmp_path: Path) -> None:
    family, options = _WAYS[way]
    given = {"lora": "lora" in way, "options": options}
    plain, patched = (train(tmp_path / str(it), family, patched=it, **given) for it in (False, True))
    _assert_alike(patched, plain, bf16="bf16" in options)
    assert ("likelihood" in plain.evaluated) == (train is _hf_run)
    assert ("entropy" in plain.logged) == (train is _trl_run)


def test_a_trainer_takes_the_loss_from_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above would compare a plain model with itself."""
    seen: list[Any] = []
    own = FusedLoss.__call__

    def see(self: FusedLoss, logits: Any, *args: Any, **options: Any) -> Tensor:
        seen.append(type(logits).__name__)
        return own(self, logits, *args, **options)

    monkeypatch.setattr(FusedLoss, "__call__", see)
    _hf_run(tmp_path, "llama", patched=True, lora=False, options={"gradient_accumulation_steps": 2})
    assert seen[: 2 * _STEPS] == ["DeferredLogits"] * 2 * _STEPS
    assert set(seen[2 * _STEPS :]) == {"Tensor"}  # the evaluation's


# --- what trainers read of a forward's logits ---------------------------------------------------------


def test_entropy_and_accuracy_are_read_off_a_promise() -> None:
    """As trainers do that compute both from outputs.logits beside the model's own loss (TRL before 1.16)."""
    from trl.trainer.utils import entropy_from_logits

    model, ids_BT = hf_model("gemma2"), hf_ids("gemma2")
    plain = model(ids_BT, labels=ids_BT)
    porter.patch(model)
    patched = model(ids_BT, labels=ids_BT)
    with torch.no_grad():
        torch.testing.assert_close(entropy_from_logits(patched.logits), entropy_from_logits(plain.logits))
        assert torch.equal(patched.logits[..., :-1, :].argmax(dim=-1), plain.logits[..., :-1, :].argmax(dim=-1))
    assert patched.logits[...].requires_grad  # whoever looked first wanted no gradient, who looks now may


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_a_promise_of_autocast_is_kept_outside_it(family: str) -> None:
    """accelerate leaves autocast where the model's forward ends; metrics look at logits after that."""
    model, ids_BT = hf_model(family), hf_ids(family)
    with torch.autocast("cpu", torch.bfloat16):
        plain = model(ids_BT, labels=ids_BT).logits
    porter.patch(model)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(ids_BT, labels=ids_BT)
    assert out.logits.dtype == out.logits[...].dtype == plain.dtype == torch.bfloat16
    error, size = (out.logits[...] - plain).float().abs().max(), plain.float().abs().max()
    assert error <= 2**-5 * size  # some roundings to bfloat16 in four layers


# --- torch.compile ------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gemma2", "phi3"])
def test_a_patched_model_compiles_into_one_graph(family: str) -> None:
    model, ids_BT = hf_model(family), hf_ids(family)
    porter.patch(model)
    eager = step(model, ids_BT)
    torch._dynamo.reset()
    compiled = step(torch.compile(model, backend="aot_eager", fullgraph=True), ids_BT)
    assert torch.equal(compiled.loss, eager.loss)
    torch.testing.assert_close(
        {name.removeprefix("_orig_mod."): value for name, value in compiled.gradients.items()}, eager.gradients
    )
    assert [*fused_modules(model)]
