import json
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from porter.bench.training import trainers
from porter.bench.training.cases import TrainCase, read_grid, train_cases
from porter.bench.training.clock import HostStepClock
from porter.bench.training.medusa import DECAY, MedusaHeads, MedusaModel, shifted
from porter.bench.training.models import make_model
from porter.bench.training.results import (
    TrainRun,
    best_own,
    best_peer,
    from_document,
    judge_losses,
    to_csv,
    to_text,
    verdict,
)  # fmt: skip
from porter.bench.training.run import DIED, Effort, TrainBench, start_train_run
from porter.bench.training.steps import Stepper, Weights
from porter.bench.training.trainers import Patched, Trainer, choose_trainers, eager_head_loss
from porter.errors import ArtifactError, UsageError
from porter.patching import head
from tests.bench.training.fakes import FAKES, TINY, Tires, row, synthetic_training

CPU = torch.device("cpu")
QUICK = Effort(turns=2, steps=1, dtype=torch.float32)


def measure(
    case: TrainCase = TINY, who: tuple[Trainer, ...] = FAKES, run: TrainRun | None = None
) -> tuple[TrainRun, list[TrainRun]]:
    saved: list[TrainRun] = []
    run = run or start_train_run([case])[0]
    bench = TrainBench(run, who, HostStepClock(), save=saved.append, say=lambda line: None, effort=QUICK)
    assert bench.measure([case]) == 0
    return bench.run, saved


@pytest.fixture(scope="module")
def measured() -> TrainRun:
    return measure()[0]


def test_who_trains_otherwise_is_wrong_and_who_cannot_says_why(measured: TrainRun) -> None:
    rows = {each.trainer: each for each in measured.rows}
    assert {name: each.status for name, each in rows.items()} == {
        "hf": "ok", "off by 1 %": "wrong", "absent": "missing", "too large": "out of memory", "nan": "failed",
        "the same": "ok",
    }  # fmt: skip
    assert rows["off by 1 %"].note.startswith("the loss of step 1 is")
    assert "ArithmeticError: losses nan" in rows["nan"].note
    assert rows["absent"].note == "ImportError: no module named peer"
    assert rows["too large"].tokens_per_s is None


def test_equal_code_has_equal_losses_from_equal_weights(measured: TrainRun) -> None:
    rows = {each.trainer: each for each in measured.rows}
    assert rows["hf"].losses == rows["the same"].losses
    assert rows["hf"].gradient_norm == rows["the same"].gradient_norm
    assert len(set(rows["hf"].losses)) == 3  # it trains
    assert rows["hf"].losses[2] < rows["hf"].losses[0]


def test_times_are_of_every_turn(measured: TrainRun) -> None:
    mine = next(each for each in measured.rows if each.trainer == "hf")
    assert mine.steps == QUICK.turns * QUICK.steps
    assert mine.low is not None and mine.high is not None and mine.tokens_per_s is not None
    assert 0 < mine.low <= mine.tokens_per_s <= mine.high


def test_who_fails_in_its_turns_has_no_times_and_the_others_go_on() -> None:
    tires = Trainer("tires", lambda model: Patched(Tires(model, 5)))
    run, _ = measure(who=(FAKES[0], tires, FAKES[-1]))
    rows = {each.trainer: each for each in run.rows}
    assert (rows["tires"].status, rows["tires"].note) == ("failed", "RuntimeError: tired")
    assert rows["tires"].tokens_per_s is None
    assert rows["hf"].steps == rows["the same"].steps == 2


def test_a_run_is_written_and_read(measured: TrainRun) -> None:
    for run in (measured, synthetic_training()):
        assert from_document(json.loads(to_text(run)), "x") == run
        assert len(to_csv(run).splitlines()) == 1 + len(run.rows)
    document = json.loads(to_text(measured))
    del document["rows"]
    with pytest.raises(ArtifactError, match="x is damaged: KeyError 'rows'"):
        from_document(document, "x")


def test_a_run_goes_on_where_it_stopped(measured: TrainRun) -> None:
    again, saved = measure(run=start_train_run([TINY], earlier=measured)[0])
    assert again.rows == measured.rows
    assert not saved
    other = start_train_run([TINY], earlier=measured)[0]
    other.environment["torch"] = "1.0"  # type: ignore[index]
    assert start_train_run([TINY], earlier=other)[1] == [f"torch was 1.0, is {torch.__version__}"]


def test_a_trainer_that_ends_the_process_twice_is_left_out() -> None:
    who = (FAKES[0], FAKES[-1])
    run = start_train_run([TINY])[0]
    once = start_train_run([TINY], earlier=TrainRun(run.created, run.environment, run.cases, (), (TINY.name, "hf")))[0]
    assert once.died == ((TINY.name, "hf"),)
    assert not once.rows
    died = TrainRun(run.created, run.environment, run.cases, (), (TINY.name, "hf"), once.died)
    found, _ = measure(who=who, run=start_train_run([TINY], earlier=died)[0])
    assert [(each.trainer, each.status, each.note) for each in found.rows] == [
        ("hf", "failed", DIED), ("the same", "ok", ""),
    ]  # fmt: skip


def test_all_models_share_one_set_of_weights() -> None:
    weights = Weights(TINY, CPU, torch.float32)
    model = weights.fresh_model()
    weights.share_with(model)
    mine, shared = dict(model.named_parameters()), {id(p) for p in weights.parameters}
    assert {id(p) for p in mine.values()} == shared
    tied = Weights(TrainCase("gemma", 2, 2, 16, size="tiny"), CPU, torch.float32)
    other = tied.fresh_model()
    tied.share_with(other)
    assert other.lm_head.weight is other.model.embed_tokens.weight


def test_reset_weights_are_the_same_each_time() -> None:
    weights = Weights(TrainCase("gemma", 2, 2, 16, size="tiny"), CPU, torch.float32)
    model = weights.fresh_model()
    weights.share_with(model)
    stepper = Stepper(FAKES[0], model, weights)
    first, second = [*stepper.first_steps(2)], [*stepper.first_steps(2)]
    assert first == second
    assert first[1][1] is None


def test_what_a_peer_writes_into_a_modeling_file_is_there_for_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    modeling = sys.modules[type(make_model(TINY.shape, dtype=torch.float32, device=CPU)).__module__]
    original: Any = modeling.apply_rotary_pos_emb  # type: ignore[attr-defined]
    calls: list[int] = []

    def rotary(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return original(*args, **kwargs)

    def patch(model: Any) -> None:
        modeling.apply_rotary_pos_emb = rotary  # type: ignore[attr-defined]

    peer, functional = ModuleType("monkey_patch"), ModuleType("functional")
    peer._apply_liger_kernel_to_instance = patch  # type: ignore[attr-defined]
    functional.liger_fused_linear_cross_entropy = eager_head_loss  # type: ignore[attr-defined]
    found = {"liger_kernel.transformers.monkey_patch": peer, "liger_kernel.transformers.functional": functional}
    monkeypatch.setattr(trainers, "import_module", found.__getitem__)
    run, _ = measure(who=(trainers.TRAINERS["hf"], trainers.TRAINERS["liger"]))
    assert [each.status for each in run.rows] == ["ok", "ok"]
    assert len(calls) == 2 * (3 + 1 + 2 * 2)  # layers, by first steps, the one for the peak, and two turns of two
    assert modeling.apply_rotary_pos_emb is original  # type: ignore[attr-defined]


def test_medusa_heads_look_further_ahead() -> None:
    ids_BT = torch.arange(10).view(2, 5)
    assert shifted(ids_BT, 2).tolist() == [[2, 3, 4, -100, -100], [7, 8, 9, -100, -100]]
    model = make_model(TINY.shape, dtype=torch.float32, device=CPU)
    heads = MedusaHeads(2, 96, 512)
    medusa = MedusaModel(model, heads, eager_head_loss)
    ids_BT = torch.randint(0, 512, (2, 16))
    own = model(input_ids=ids_BT, labels=ids_BT, use_cache=False).loss
    hidden_BTD = model.model(input_ids=ids_BT, use_cache=False).last_hidden_state
    first, second = heads.losses(hidden_BTD, ids_BT, eager_head_loss)
    x_BTD = hidden_BTD + torch.nn.functional.silu(heads.blocks[1](hidden_BTD))
    want = torch.nn.functional.cross_entropy(heads.heads[1](x_BTD[:, :-3]).flatten(0, 1), ids_BT[:, 3:].flatten())
    torch.testing.assert_close(second, want)
    torch.testing.assert_close(medusa(ids_BT), own + first + DECAY * second)


def test_medusa_is_trained_by_everybody() -> None:
    run, _ = measure(TrainCase("llama", 2, 2, 16, 2, "tiny"), (FAKES[0], FAKES[-1]))
    assert [each.status for each in run.rows] == ["ok", "ok"]
    assert run.rows[0].losses == run.rows[1].losses


@pytest.mark.parametrize(
    ("mine", "wrong"),
    (
        ({}, ""),
        ({"losses": (12.62, 1.3998)}, "the loss of step 1 is 12.62, hf's 12.587"),
        ({"losses": (12.5867, 1.45)}, "the loss of step 2 is 1.45, hf's 1.3998"),
        ({"losses": (12.5869, 1.3993)}, ""),
        ({"gradient_norm": 3.1}, "the gradients' norm is 3.1, hf's 3"),
        ({"gradient_norm": float("nan")}, "the gradients' norm is nan, hf's 3"),
    ),
)
def test_losses_are_judged(mine: dict[str, Any], wrong: str) -> None:
    assert judge_losses(row("porter", 1.0, 1.0, **mine), row("hf", 1.0, 1.0)) == wrong


def test_ranking() -> None:
    run = synthetic_training()
    rows = run.rows_of(run.cases[0].name)
    own, peer = best_own(rows), best_peer(rows)
    assert own is not None and peer is not None
    assert (own.trainer, peer.trainer, verdict(own, peer)) == ("porter", "liger", "ahead")
    assert verdict(row("porter", 100, 1), row("liger", 101, 1)) == "a tie"
    assert verdict(row("porter", 100, 1), row("liger", 103, 1)) == "behind"
    assert best_own(run.rows_of(run.cases[1].name)) is None  # the only one is wrong


def test_cases() -> None:
    names = [case.name for case in train_cases()]
    assert names[:2] == ["llama-3-8b/8 16x512", "llama-3-8b/8 2x4096"]
    assert names[-2:] == ["llama-3-8b/8 8x4096 +3 heads", "llama-3-8b/8 8x4096 +5 heads"]
    assert [case.name for case in train_cases(names=["gemma*8192"])] == ["gemma-7b/8 1x8192"]
    assert read_grid("2x4096") == (2, 4096)
    for wrong in ("2", "0x8", "axb"):
        with pytest.raises(UsageError, match="--grid"):
            read_grid(wrong)
    with pytest.raises(UsageError, match="no case is left of --case none"):
        train_cases(names=["none"])
    with pytest.raises(UsageError, match="no trainer is called 'porte'"):
        choose_trainers(["porte"])
    assert [each.name for each in choose_trainers(["liger"])] == ["hf", "liger"]


def test_the_lean_loss_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    fused = head.linear_cross_entropy

    def watched(*args: Any, **options: Any) -> Any:
        asked.append(options.get("accumulate"))
        return fused(*args, **options)

    monkeypatch.setattr(head, "linear_cross_entropy", watched)
    weights = Weights(TINY, CPU, torch.float32)
    for name in ("porter", "porter-lean"):
        model = weights.fresh_model()
        weights.share_with(model)
        Stepper(trainers.TRAINERS[name], model, weights).backward()
    assert asked == ["weight", "weight"]  # of few rows it is what a patched model asks for by itself
