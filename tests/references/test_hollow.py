"""HF's model opened without weights holds, once filled, what from_pretrained gives, bit for bit; converted ones too."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from porter.comparison.diff import diff
from porter.errors import PreflightError
from porter.references.deferred import Deferred, Slice, Source
from porter.references.hf import HfReference
from porter.references.hollow import open_hollow
from porter.references.pinned import load_pinned, ordinary_forward
from porter.weights.reader import SharedTensors
from porter.weights.safetensors_files import Checkpoint, open_checkpoint
from tests.models.tiny import FAMILIES, random_ids, tiny

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_slots_and_buffers_are_those_of_from_pretrained(family: str, dtype: torch.dtype) -> None:
    folder = tiny(family).checkpoint()
    whole, checkpoint = load_pinned(folder, dtype, CPU), open_checkpoint(folder)
    model, slots = open_hollow(folder, checkpoint, dtype, CPU)
    assert {each.device.type for each in model.parameters()} == {"meta"}
    buffers = dict(model.named_buffers())
    assert buffers.keys() == dict(whole.named_buffers()).keys()
    for name, buffer in whole.named_buffers():
        assert buffers[name].dtype == buffer.dtype and torch.equal(buffers[name], buffer), name
    tensors = SharedTensors(checkpoint)
    found = {slot.name: slot.compute(tensors, CPU) for slot in slots}
    theirs = dict(whole.named_parameters(remove_duplicate=False))
    assert found.keys() == theirs.keys()
    for name, value in found.items():
        assert value.dtype == dtype and value.data_ptr() % 64 == 0 and torch.equal(value, theirs[name]), name


def test_a_config_that_hf_cannot_compute_with_is_said(tmp_path: Path) -> None:
    folder = shutil.copytree(tiny("llama").checkpoint(), tmp_path / "null")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": None}))
    with pytest.raises(PreflightError, match=r"HF makes no model of .*null/config\.json \(TypeError"):
        open_hollow(folder, open_checkpoint(folder), torch.float32, CPU)


def test_what_a_loader_does_to_a_tensor_is_done_to_its_values() -> None:
    values = {"a": torch.arange(12.0).view(4, 3), "b": torch.arange(6.0).view(2, 3)}
    a, b = (Slice(name, tuple(value.shape), torch.float32)[...] for name, value in values.items())
    joined = torch.cat([a.to(device="cpu", dtype=torch.float64), b.to(torch.float64)])
    part = torch.nn.Parameter(joined.transpose(0, 1).chunk(3, dim=1)[1].contiguous())
    assert isinstance(part, Deferred) and part.shape == (3, 2) and part.recipe.sources() == {"a", "b"}
    computed = part.recipe.compute(lambda name, dtype: values[name].to(dtype))
    assert torch.equal(computed, torch.cat([values["a"], values["b"]]).double().T[:, 2:4])
    assert a.to(torch.bfloat16).recipe == Source("a", torch.bfloat16)


@pytest.mark.parametrize("through_behaviour", [False, True])
def test_memory_is_flat_in_the_number_of_layers(through_behaviour: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert peak_bytes(8, through_behaviour, monkeypatch) <= peak_bytes(4, through_behaviour, monkeypatch)


def peak_bytes(num_layers: int, behaviour: bool, monkeypatch: pytest.MonkeyPatch) -> int:
    """The most bytes of shared tensors at one time."""
    build = tiny("llama", dtype="bfloat16", tokens=24)
    build.config["num_hidden_layers"] = num_layers  # type: ignore[index]
    peak = 0
    original = SharedTensors.read

    def read(self, *args, **kwargs):
        nonlocal peak
        tensor = original(self, *args, **kwargs)
        peak = max(peak, sum(each.nbytes for each in self._held.values()))
        return tensor

    with monkeypatch.context() as patch:
        patch.setattr(SharedTensors, "read", read)
        report = diff(build, stages=("semantics", "behaviour") if behaviour else ("semantics",))
    assert report.num_layers == num_layers and peak > 0
    return peak


def test_a_forward_pass_holds_one_layer() -> None:
    build = tiny("qwen3")
    reference = HfReference(build.blueprint, build.checkpoint(), torch.float32, CPU)
    held: list[int] = []
    for layer in reference.layers:
        layer.register_forward_hook(
            lambda *_: held.append(sum(p.device.type != "meta" for p in reference.layers.parameters()))
        )
    ordinary_forward(reference.model, reference.layers, random_ids(build, 5))
    assert held == [len(list(layer.parameters())) for layer in reference.layers]
    assert isinstance(reference.tensors.checkpoint, Checkpoint)
