"""What comparisons with dumps measure, clean and with faults: the evidence for SELF_FED of verdicts.py.

    python benchmarks/measure_self_fed.py --out benchmarks/results/self_fed.csv
    python benchmarks/measure_self_fed.py --families gemma3,llama --real none --out /tmp/two.csv

Ports without a fault: HuggingFace's sdpa, and the executor a precision wider, rounded at each node (as fused kernels
are). Faults: axes of the spec in one layer, and weights, at most --faults a model. Each port is dumped, and judged once
against HuggingFace run on the dump's hidden states (shared), once against HuggingFace's own dump (apart). OUT has a row
a node of clean ports, and of faults the row of the first node that FAILs; beside it, .md has the largest and smallest.
"""

import argparse
import csv
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from clean_ports import Model, real, tiny
from measure_floors import REAL, commit, say, versions
from torch import Tensor

from porter.comparison.capture import write_dump
from porter.comparison.dump_diff import Dumps, open_sides
from porter.comparison.faults import Fault, axis_faults, weight_faults
from porter.comparison.lanes import Lane, Nodes, PortLane
from porter.comparison.preflight import load_tokenizer
from porter.comparison.prompts import read_prompts
from porter.comparison.report import NodeDiff
from porter.comparison.self_fed import run_self_fed
from porter.comparison.stages import Lanes, run_stage, select_layers
from porter.errors import PorterError
from porter.models.build import Build, plan_build
from porter.models.decoder import Decoder, Streamed
from porter.models.ops import make_ops
from porter.references.dump import open_dump
from porter.references.hf import HfReference
from porter.specs import builtin_spec_names
from porter.weights.reader import SharedTensors, WeightReader

STAGE = {"float32": "semantics", "bfloat16": "precision", "float16": "precision"}
COLUMNS = ("model", "dtype", "fed", "port", "node", "kind", "e_ref", "e_port", "rho", "rho_tok", "status", "live_first")
CPU = torch.device("cpu")


class Wide:
    """The executor in float32 on weights rounded to the dtype, every node rounded once: what fused kernels do."""

    def __init__(self, build: Build, dtype: torch.dtype) -> None:
        reader = build.reader()
        narrow = _Narrow(reader.checkpoint, reader.ledger, None, dtype)
        decoder = Decoder(build.blueprint, Streamed(build.blueprint, make_ops("reference"), narrow, torch.float32, CPU))
        self.inner, self.dtype, self.device = PortLane(decoder, torch.float32, CPU), dtype, CPU

    def start(self, ids_BT: Tensor) -> None:
        self.inner.start(ids_BT)

    def embed(self) -> Nodes:
        return self._round(self.inner.embed())

    def layer(self, index: int, x_BTD: Tensor) -> Nodes:
        return self._round(self.inner.layer(index, x_BTD.float()))

    def head(self, x_BTD: Tensor) -> Nodes:
        return self._round(self.inner.head(x_BTD.float()))

    def release(self) -> None:
        self.inner.release()

    def _round(self, nodes: Nodes) -> Nodes:
        return {name: value.to(self.dtype) for name, value in nodes.items()}


class _Narrow(WeightReader):
    """Reads in one dtype and widens."""

    def __init__(self, checkpoint: object, ledger: object, shared: object, narrow: torch.dtype) -> None:
        super().__init__(checkpoint, ledger, shared)
        object.__setattr__(self, "narrow", narrow)

    def read(self, parameter: str, dtype: torch.dtype, device: torch.device) -> Tensor:
        return super().read(parameter, self.narrow, device).to(dtype)

    def rows(self, parameter: str, rows_N: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
        return super().rows(parameter, rows_N, self.narrow, device).to(dtype)

    def chunks(self, parameter: str, dtype: torch.dtype, device: torch.device) -> Iterator[Tensor]:
        for chunk in super().chunks(parameter, self.narrow, device):
            yield chunk.to(dtype)


def main() -> int:
    options = _options()
    models = [*map(tiny, options.families), *map(real, options.real)]
    with options.out.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for model in models:
            for dtype in options.dtypes:
                try:
                    for row in measure(model, dtype, options):
                        table.writerow(row)
                except PorterError as error:
                    say(f"FAILED {model.name} {dtype}: {error}")
                file.flush()
    write_summary(options.out, f"{versions()}, commit {commit()}")
    return 0


def measure(model: Model, dtype: str, options: argparse.Namespace) -> Iterator[list[str]]:
    """The rows of one model in one dtype."""
    small = model.size == "tiny"
    build = plan_build(
        model.name, size=model.size, weights=model.weights, overrides=(), dtype=dtype, ops="reference", device="cpu",
        prompt=None, tokens=options.tokens if small else options.real_tokens,
    )  # fmt: skip
    folder, kind = build.checkpoint(), getattr(torch, dtype)
    (prompt,) = read_prompts(build.blueprint, load_tokenizer(folder), None, None, build.tokens)
    ids_BT, layers = torch.tensor([prompt.ids]), select_layers("all" if small else options.layers, build.blueprint.dims.layers)  # fmt: skip  # noqa: E501
    with tempfile.TemporaryDirectory() as place:
        held = Path(place)

        def dumped(name: str, lane: Lane) -> Path:
            write_dump(held / name, lane, prompt.ids, build, framework=name, weights=None)
            return held / name

        tensors = SharedTensors(build.reader().checkpoint)
        hf = dumped("hf", HfReference(build.blueprint, folder, kind, CPU, tensors=tensors))
        for name, lane, fault in ports(build, folder, kind, options.faults if small else options.faults // 2):
            port = dumped("port", lane)
            live = _live_first(build, folder, kind, fault, ids_BT, layers) if fault is not None else ""
            for fed, reference in (("shared", None), ("apart", hf)):
                dumps = Dumps(open_dump(f"dump:{port}"), open_dump(f"dump:{reference}") if reference else None)
                sides = open_sides(dumps, build, build.reader(), folder, CPU)
                found = run_self_fed(STAGE[dtype], dtype, sides, ids_BT, layers).nodes
                for node in found if fault is None else _first_or_largest(found):
                    if node.local is not None:
                        yield _row(model, dtype, fed, name, node, live)
            for file in port.iterdir():
                file.unlink()
            port.rmdir()
            say(f"{model.name} {dtype} {name}: live {live or '-'}")


def ports(build: Build, folder: Path, kind: torch.dtype, limit: int) -> Iterator[tuple[str, Lane, Fault | None]]:
    """Clean ones, then faults spread over those there are."""
    sdpa = HfReference(build.blueprint, folder, kind, CPU)
    if sdpa.model._supports_sdpa and build.blueprint.model_type != "gemma2":  # whose softcap sdpa drops
        sdpa.model.config._attn_implementation = "sdpa"
        yield "sdpa", sdpa, None
    if kind != torch.float32:
        yield "wide", Wide(build, kind), None
    axes = [each for each in axis_faults(build.blueprint) if not each.rounding]
    faults = [*axes, *weight_faults(build.blueprint, range(build.blueprint.dims.layers))]
    step = max(1, len(faults) // limit)
    for fault in faults[::step][:limit]:
        what = f"{fault.path} {fault.value} → {fault.tried}".replace("  ", " ")
        yield f"fault: {what} in {fault.unit}", _lane(fault, build, kind), fault


def _lane(fault: Fault, build: Build, kind: torch.dtype) -> PortLane:
    streamed = Streamed(fault.blueprint, make_ops("reference"), fault.reader(build.reader()), kind, CPU)
    return PortLane(Decoder(fault.blueprint, streamed), kind, CPU)


def _live_first(build: Build, folder: Path, kind: torch.dtype, fault: Fault, ids_BT: Tensor, layers: object) -> str:
    """The first node that the ordinary, golden-fed run fails at."""
    reference = HfReference(build.blueprint, folder, kind, CPU)
    lane = _lane(fault, build, kind)
    lanes = Lanes(build.blueprint.dims, reference.golden_of(folder), reference, lane, lane)
    nodes = run_stage(STAGE[build.dtype], build.dtype, lanes, ids_BT, replace(layers, first_bad=True)).nodes
    return next((node.name for node in nodes if node.status == "FAIL"), "none")


def _first_or_largest(nodes: list[NodeDiff]) -> list[NodeDiff]:
    """The first FAIL; where there is none, the observable node with the largest ρ."""
    seen = [node for node in nodes if node.local is not None and node.kind == "observable"]
    first = next((node for node in seen if node.status == "FAIL"), None)
    return [first or max(seen, key=lambda node: node.local.rho)]


def _row(model: Model, dtype: str, fed: str, port: str, node: NodeDiff, live: str) -> list[str]:
    local = node.local
    numbers = [f"{value:.4g}" for value in (local.e_ref, local.e_port, local.rho, local.rho_tok)]
    return [model.name, dtype, fed, port, node.name, node.kind, *numbers, node.status, live]


def write_summary(path: Path, made_by: str) -> None:
    """OUT.md: the largest ρ of clean ports, and the smallest of faults that the live run fails."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    lines = [
        "| dtype | fed | clean nodes | ρ median | ρ max | ρ_tok max | FAIL | WARN |",
        "|---|---|---|---|---|---|---|---|",
    ]
    groups = sorted({(row["dtype"], row["fed"]) for row in rows})
    for dtype, fed in groups:
        clean = [row for row in rows if (row["dtype"], row["fed"]) == (dtype, fed)
                 and not row["port"].startswith("fault") and row["kind"] == "observable"]  # fmt: skip
        rho = sorted(float(row["rho"]) for row in clean if row["status"] != "INCONCLUSIVE")
        tok = max((float(row["rho_tok"]) for row in clean if row["status"] != "INCONCLUSIVE"), default=0.0)
        count = [sum(row["status"] == status for row in clean) for status in ("FAIL", "WARN")]
        middle, last = (rho[len(rho) // 2], rho[-1]) if rho else (0.0, 0.0)
        lines.append(
            f"| {dtype} | {fed} | {len(clean)} | {middle:.2f} | {last:.2f} | {tok:.2f} | {count[0]} | {count[1]} |"
        )
    lines += ["", "| dtype | fed | faults | fail live | fail here | same first node |", "|---|---|---|---|---|---|"]
    for dtype, fed in groups:
        faults = [row for row in rows if (row["dtype"], row["fed"]) == (dtype, fed) and row["port"].startswith("fault")]
        live = [row for row in faults if row["live_first"] != "none"]
        here = [row for row in faults if row["status"] == "FAIL"]
        same = sum(row["live_first"] == (row["node"] if row["status"] == "FAIL" else "none") for row in faults)
        lines.append(f"| {dtype} | {fed} | {len(faults)} | {len(live)} | {len(here)} | {same} of {len(faults)} |")
    lines += ["", made_by]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def _options() -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return [] if text == "none" else text.split(",")

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", type=names, default=builtin_spec_names(), help="at size tiny, or none [all]")
    parser.add_argument("--real", type=names, default=list(REAL), help=f"sizes, or none [{','.join(REAL)}]")
    parser.add_argument("--dtypes", type=names, default=list(STAGE))
    parser.add_argument("--tokens", type=int, default=320, help="of a tiny model")
    parser.add_argument("--real-tokens", type=int, default=640)
    parser.add_argument("--layers", default="0-5", help="of a real model")
    parser.add_argument("--faults", type=int, default=8, help="of a tiny model; half of it of a real one")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.csv")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
