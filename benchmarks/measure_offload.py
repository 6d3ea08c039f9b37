"""Offloaded checkpointing beside plain checkpointing on a GPU: memory, time, overlap, and the bits of gradients.

A model of Llama-3-8B's shapes with 8 layers, 4 x 4096 tokens, bf16, random weights. For each way (plain; offloaded;
torch's save_on_cpu, which copies on the computing stream): what is allocated at the end of forward, the peak, and whole
steps in turns. Then a profile of an offloaded step: how long the copies run, and how much of that beside computation.
Then the gradients of one backward each, under deterministic algorithms, plain twice and offloaded.

    CUBLAS_WORKSPACE_CONFIG=:4096:8 python benchmarks/measure_offload.py --patch --out benchmarks/results/offload.json
    python benchmarks/measure_offload.py --tiny --out /tmp/offload.json                 # on a CPU: the same, no copies
"""

import argparse
import gc
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from porter.bench.clock import summarize
from porter.bench.environment import describe_environment
from porter.bench.files import write_whole
from porter.bench.training.clock import StepClock, find_step_clock
from porter.bench.training.models import draw_batch, make_model
from porter.bench.training.overlap import measure_overlap
from porter.patching.offload import OffloadedCheckpointing
from porter.specs.shapes import find_shape
from porter_kernels import use_interpreter_on_cpu

Way = Callable[[], AbstractContextManager[Any]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="llama-3-8b")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--patch", action="store_true", help="porter's kernels in the model.")
    parser.add_argument("--tiny", action="store_true", help="Llama's tiny size, 2 x 32 tokens, float32, on the CPU.")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/offload.json"))
    parser.add_argument("--commit")
    options = parser.parse_args()
    use_interpreter_on_cpu()
    if options.tiny:
        options.batch, options.tokens, options.layers = 2, 32, 4
    bench = Bench(options)
    document: dict[str, Any] = {
        "schema": "porter.bench.offload/1", "environment": describe_environment((), options.commit),
        "model": bench.shape.title, "batch": options.batch, "tokens": options.tokens, "patched": options.patch,
        "layer_inputs_bytes": bench.input_bytes * options.layers,
    }  # fmt: skip
    for name, part in (("memory", bench.memory), ("steps", bench.steps), ("profile", bench.profile),
                       ("gradients", bench.gradients)):  # fmt: skip
        document[name] = part()
        write_whole(options.out, json.dumps(document, indent=1) + "\n")
        print(name, json.dumps(document[name]), flush=True)
    document["verdict"] = verdict(document)
    write_whole(options.out, json.dumps(document, indent=1) + "\n")
    print("\n".join(f"{name}: {text}" for name, text in document["verdict"].items()))


class Bench:
    """The model, and the ways to checkpoint it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.clock: StepClock = find_step_clock()
        self.device = torch.device("cpu") if options.tiny else self.clock.place
        self.turns = options.turns
        self.shape = find_shape(
            "llama" if options.tiny else options.model, "tiny" if options.tiny else None, options.layers
        )
        dtype = torch.float32 if options.tiny else torch.bfloat16
        self.model = make_model(self.shape, dtype=dtype, device=self.device)
        if options.patch:
            from porter.patching.patch import patch  # once main has chosen Triton's interpreter, on a CPU

            print(patch(self.model))
        self.ids_BT = draw_batch(self.shape, options.batch, options.tokens, self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self.input_bytes = options.batch * options.tokens * self.shape.blueprint.dims.hidden * dtype.itemsize
        self.offloaded = OffloadedCheckpointing()
        self.ways: dict[str, Way] = {
            "plain": self._plain,
            "offloaded": lambda: self.offloaded.applied_to(self.model),
            "save_on_cpu": self._save_on_cpu,
        }

    @contextmanager
    def _plain(self, function: Callable[..., Any] = checkpoint) -> Iterator[None]:
        self.model._set_gradient_checkpointing(gradient_checkpointing_func=partial(function, use_reentrant=False))
        try:
            yield
        finally:
            self.model._set_gradient_checkpointing(enable=False)

    def _save_on_cpu(self) -> AbstractContextManager[Any]:
        def saved(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            with save_on_cpu(pin_memory=self.device.type == "cuda"):
                return checkpoint(function, *args, **kwargs)

        return self._plain(saved)

    def forward(self) -> Tensor:
        loss: Tensor = self.model(input_ids=self.ids_BT, labels=self.ids_BT, use_cache=False).loss
        return loss

    def step(self) -> None:
        self.forward().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def memory(self) -> dict[str, dict[str, int | None]]:
        """What is allocated at the end of forward above what was before, what of it is saved inputs, and the peak."""
        found = {}
        for name, way in self.ways.items():
            with way():
                self.step()
                before = self._allocated()
                loss = self.forward()
                kept = self._allocated() - before
                held = self.offloaded.device_bytes if name == "offloaded" else None
                loss.backward()  # type: ignore[no-untyped-call]
                del loss
                self.optimizer.zero_grad(set_to_none=True)
                found[name] = {"kept": kept, "held": held, "peak": self.clock.peak_bytes(self.step)}
            self._clean()
        return found

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated() if self.device.type == "cuda" else 0

    def _clean(self) -> None:
        gc.collect()
        self.clock.clear()

    def steps(self) -> dict[str, dict[str, float]]:
        """Milliseconds of whole steps, in turns: the median, the 20th and the 80th percentile."""
        times: dict[str, list[float]] = {name: [] for name in self.ways}
        for turn in range(self.turns):
            names = [*self.ways]
            for name in [*names[turn % 3 :], *names[: turn % 3]]:
                with self.ways[name]():
                    times[name] += self.clock.time_ms([self.step] * 4)[1:]
        found = {name: summarize(each) for name, each in times.items()}
        return {name: {"median": t.median, "low": t.low, "high": t.high, "steps": t.runs} for name, t in found.items()}

    def profile(self) -> dict[str, float]:
        """Milliseconds of copies in an offloaded step, and how much of them lies beside kernels."""
        with self.ways["offloaded"]():
            self.step()
            return measure_overlap(self.step)

    def gradients(self) -> dict[str, Any]:
        """Parameters whose gradient differs from plain checkpointing's, in a second plain backward and offloaded."""
        torch.use_deterministic_algorithms(True)  # flash attention takes a warning for leave to be fast
        try:
            first = self._gradients("plain")
            differing = {}
            for name, way in (("plain again", "plain"), ("offloaded", "offloaded")):
                found = self._gradients(way)
                differing[name] = [each for each, tensor in found.items() if not torch.equal(tensor, first[each])]
                del found
        finally:
            torch.use_deterministic_algorithms(False)
        return {"parameters": len(first), "differing": differing}

    def _gradients(self, way: str) -> dict[str, Tensor]:
        torch.manual_seed(0)
        in_order = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]  # cuDNN adds in any
        with self.ways[way](), sdpa_kernel(in_order):
            self.forward().backward()  # type: ignore[no-untyped-call]
        found = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}
        self.optimizer.zero_grad(set_to_none=True)
        self._clean()
        return found


def verdict(document: dict[str, Any]) -> dict[str, str]:
    """The three targets: inputs on the device at most 40 % of plain's, a step at most 3 % longer, the same bits."""
    memory, steps, differing = document["memory"], document["steps"], document["gradients"]["differing"]
    saved = memory["plain"]["kept"] - memory["offloaded"]["kept"]
    inputs = document["layer_inputs_bytes"]
    left = f"{1 - saved / inputs:.1%} of plain's {inputs / 1e9:.3f} GB"
    longer = steps["offloaded"]["median"] / steps["plain"]["median"] - 1
    equal = "bit-equal" if not differing["offloaded"] else f"{len(differing['offloaded'])} differ"
    again = "bit-equal" if not differing["plain again"] else f"{len(differing['plain again'])} differ"
    return {
        "layer inputs on the device at the end of forward": left,
        "step": f"{longer:+.2%} beside plain, {steps['plain']['median']:.1f} ms",
        "gradients": f"{equal}; plain beside itself {again}; {document['gradients']['parameters']} parameters",
        "copies": f"{document['profile']['share']:.0%} of {document['profile']['copy_ms']:.1f} ms beside kernels",
    }


if __name__ == "__main__":
    main()
