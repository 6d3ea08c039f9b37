"""Parameters read through the ledger: rounded once, finite, each accounted for."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from porter.errors import WeightError
from porter.models.build import plan_build
from porter.weights import reader as reader_module
from porter.weights import safetensors_files
from porter.weights.random_init import write_random
from porter.weights.reader import SharedTensors, chunk_rows, open_weights, read_finite
from tests.models.checkpoints import change_tensors

CPU = torch.device("cpu")
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


def blueprint_of(family: str):
    return plan_build(family, size="tiny", weights="random", overrides=(), dtype="float32", ops="reference",
                      device="cpu", prompt=None, tokens=None)  # fmt: skip


@pytest.fixture
def llama(tmp_path: Path):
    build = blueprint_of("llama")
    write_random(build.blueprint, build.config, tmp_path / "llama", kind="random:stress", dtype="F32")
    return build.blueprint, tmp_path / "llama"


def test_every_parameter_is_read_from_its_tensor(llama) -> None:
    blueprint, folder = llama
    reader, tensors = open_weights(blueprint, folder), load_file(folder / "model.safetensors")
    assert {entry.source for entry in reader.ledger.entries.values()} == tensors.keys()
    assert torch.equal(reader.read("layers.0.attn.q.weight", torch.float32, CPU), tensors[Q_PROJ])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_a_tensor_is_rounded_once(llama, dtype: torch.dtype) -> None:
    blueprint, folder = llama
    found = open_weights(blueprint, folder).read("layers.0.attn.q.weight", dtype, CPU)
    assert found.dtype == dtype and torch.equal(found, load_file(folder / "model.safetensors")[Q_PROJ].to(dtype))


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_values_that_are_not_finite_are_counted_and_placed(llama, value: float, stored: torch.dtype) -> None:
    blueprint, folder = llama

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors[Q_PROJ] = tensors[Q_PROJ].to(stored)
        tensors[Q_PROJ][:2, 5] = value

    change_tensors(folder, spoil)
    reader = open_weights(blueprint, folder)
    with pytest.raises(WeightError, match=rf"{Q_PROJ} \(layers.0.attn.q.weight\) holds 2 values .*, of 9,216"):
        reader.read("layers.0.attn.q.weight", torch.float32, CPU)
    with pytest.raises(WeightError, match="holds 2 values"):
        reader.check("layers.0.attn.q.weight")
    reader.check("layers.1.attn.q.weight")


def test_large_finite_values_are_no_error(llama) -> None:
    blueprint, folder = llama
    change_tensors(folder, lambda tensors: tensors[Q_PROJ].fill_(3e38))  # whose sum is infinite
    assert open_weights(blueprint, folder).read("layers.0.attn.q.weight", torch.float32, CPU)[0, 0] > 1e38


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(Q_PROJ), Q_PROJ),
        (lambda tensors: tensors.update(stray=torch.ones(1)), "stray"),
        (lambda tensors: tensors.update({Q_PROJ: torch.ones(96, 97)}), r"\[96, 97\]"),
    ],
    ids=["missing", "left over", "misshapen"],
)
def test_a_ledger_that_does_not_balance(llama, change, message: str) -> None:
    blueprint, folder = llama
    change_tensors(folder, change)
    with pytest.raises(WeightError, match=message):
        open_weights(blueprint, folder)


def test_a_tied_head_may_be_stored_twice_but_not_differently(tmp_path: Path) -> None:
    build = blueprint_of("gemma")
    write_random(build.blueprint, build.config, tmp_path / "gemma", kind="random:stress", dtype="F32")
    change_tensors(tmp_path / "gemma", lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    open_weights(build.blueprint, tmp_path / "gemma")
    change_tensors(tmp_path / "gemma", lambda tensors: tensors["lm_head.weight"].add_(1e-3))
    with pytest.raises(WeightError, match=r"lm_head.weight differs from model.embed_tokens.weight, but the spec ties"):
        open_weights(build.blueprint, tmp_path / "gemma")


def test_rows_and_chunks_are_the_table(llama, monkeypatch: pytest.MonkeyPatch) -> None:
    blueprint, folder = llama
    reader = open_weights(blueprint, folder)
    whole = reader.read("embed.weight", torch.bfloat16, CPU)
    rows = reader.rows("embed.weight", torch.tensor([3, 511, 0]), torch.bfloat16, CPU)
    assert rows.dtype == torch.bfloat16 and torch.equal(rows, whole[[3, 511, 0]])
    monkeypatch.setattr(reader_module, "_CHUNK_ELEMENTS", 96 * 200)
    chunks = list(reader.chunks("embed.weight", torch.bfloat16, CPU))
    assert chunk_rows(96) == 200 and [len(each) for each in chunks] == [200, 200, 112]
    assert torch.equal(torch.cat(chunks), whole)


def test_a_bad_value_in_a_chunk_or_a_row_is_refused(llama) -> None:
    blueprint, folder = llama
    change_tensors(folder, lambda tensors: tensors["model.embed_tokens.weight"][7].fill_(torch.nan))
    reader = open_weights(blueprint, folder)
    message = r"embed_tokens.weight \(embed.weight\) holds 96 values"
    with pytest.raises(WeightError, match=message):
        list(reader.chunks("embed.weight", torch.float32, CPU))
    with pytest.raises(WeightError, match=message):
        reader.rows("embed.weight", torch.tensor([1, 7]), torch.float32, CPU)
    assert torch.isfinite(reader.rows("embed.weight", torch.tensor([1, 6]), torch.float32, CPU)).all()


def test_shared_tensors_are_read_once_until_they_are_released(llama) -> None:
    blueprint, folder = llama
    reader = open_weights(blueprint, folder)
    shared = SharedTensors(reader.checkpoint)
    one, other = (replace(reader, shared=shared) for _ in range(2))
    name = "layers.0.attn.q.weight"
    first = one.read(name, torch.bfloat16, CPU)
    assert other.read(name, torch.bfloat16, CPU) is first and torch.equal(first, reader.read(name, torch.bfloat16, CPU))
    assert other.read(name, torch.float32, CPU).dtype == torch.float32
    shared.release()
    assert one.read(name, torch.bfloat16, CPU) is not first


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_tensors_lie_where_torch_would_put_them(llama, dtype: torch.dtype) -> None:
    blueprint, folder = llama
    reader = open_weights(blueprint, folder)
    assert all(reader.read(name, dtype, CPU).data_ptr() % 64 == 0 for name in reader.ledger.entries)


def test_a_tensor_of_several_blocks_is_rounded_as_a_whole(llama, monkeypatch: pytest.MonkeyPatch) -> None:
    blueprint, folder = llama
    checkpoint = open_weights(blueprint, folder).checkpoint
    whole = checkpoint.read(Q_PROJ).to(torch.bfloat16)
    monkeypatch.setattr(safetensors_files, "_BLOCK_BYTES", 10 * 96 * 4)  # ten rows
    assert torch.equal(read_finite(checkpoint, Q_PROJ, torch.bfloat16, CPU), whole)
