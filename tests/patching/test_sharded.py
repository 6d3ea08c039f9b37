"""FSDP2: a patched model sharded over two processes has the loss and gradients of one; its options survive."""

import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import porter
from porter.patching.head import FusedLoss
from porter.patching.patch import PatchError
from porter.patching.swap import fused_modules
from tests.models.tiny import porter_cache
from tests.patching.tiny_hf import hf_ids, hf_model

__all__ = ["porter_cache"]
ROOT = Path(__file__).resolve().parents[2]
_VIEW = "ignore:FSDP2-wrapped module .* returned a view tensor:UserWarning"  # of plain models, too


def test_two_processes_compute_what_one_does(tmp_path: Path) -> None:
    """Head and its bias with the root and by themselves; gradients are judged by their errors to float64."""
    out, paths = tmp_path / "fsdp2", os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "benchmarks/gpu_fsdp2.py", "--device", "cpu", "--tokens", "32", "--out", str(out), "phi:tiny"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = [*csv.DictReader(out.with_suffix(".csv").read_text(encoding="utf-8").splitlines())]
    assert [(row["side"], row["head"]) for row in rows] == [
        ("plain", "root"), ("plain", "alone"), ("patched", "root"), ("patched", "alone"),
    ]  # fmt: skip
    assert {row["status"] for row in rows} == {"PASS"} and {row["ranks"] for row in rows} == {"2"}
    assert len({row["e_gradients"] for row in rows}) == 2  # a patched model is not the plain one, to the last bit


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    """Of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


def _sharded(model: Any, mesh: DeviceMesh, policy: Any) -> None:
    for module in (*model.model.layers, model.lm_head, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)


@pytest.mark.filterwarnings(_VIEW)
def test_weights_of_tokens_are_not_cast_with_the_models(mesh: DeviceMesh) -> None:
    """FSDP casts every floating tensor that it finds in a module's arguments, dicts looked through."""
    model, ids_BT = hf_model("llama"), hf_ids("llama")
    porter.patch(model)
    _sharded(model, mesh, MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32))
    weight_BT = torch.full(ids_BT.shape, 1 + 2.0**-12)
    usual = model(ids_BT, labels=ids_BT, use_cache=False)
    loss = model._loss_function
    assert isinstance(loss, FusedLoss)
    with loss.given(token_weight=weight_BT, num_items_in_batch=None):
        weighted = model(ids_BT, labels=ids_BT, use_cache=False)
    torch.testing.assert_close(weighted.loss, usual.loss)  # a mean over the weights
    weighted.loss.backward()
    assert weighted.logits.dtype == torch.bfloat16 and weighted.logits[...].shape == (*ids_BT.shape, 512)


def test_a_model_is_not_unpatched_once_it_is_sharded(mesh: DeviceMesh) -> None:
    model = hf_model("llama")
    porter.patch(model)
    before = [type(module) for _, module in fused_modules(model)]
    fully_shard(model.lm_head, mesh=mesh)
    with pytest.raises(PatchError, match=r"lm_head is a FSDPPorterLinear, .*\n  expected: the PorterLinear"):
        porter.unpatch(model)
    assert [type(module) for _, module in fused_modules(model)][:-1] == before[:-1]
