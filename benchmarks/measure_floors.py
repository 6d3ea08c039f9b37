"""How far ports without a fault are from the reference: ρ and ρ_tok of every node, the evidence for THRESHOLDS in
porter/comparison/verdicts.py.

    python benchmarks/measure_floors.py --device cpu --out /tmp/floors_cpu.csv
    python benchmarks/measure_floors.py --families gemma3,llama --real none --ports executor,sdpa --out /tmp/two.csv
    python benchmarks/measure_floors.py --real gemma-3-270m=model.gguf --device cuda --resume --seconds 150 --out o.csv

OUT has a row a node. Beside it, .md has quantiles of each port, stage and dtype, and .json those of each model too.
"""

import argparse
import csv
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from clean_ports import PORTS, STAGE, Model, NoSuchPort, Unit, compare, real, tiny
from floor_tables import COLUMNS, read_rows, write_summary

from porter.comparison.report import NodeDiff
from porter.errors import PorterError
from porter.specs import builtin_spec_names

REAL = ("gemma-3-270m", "smollm2-135m")


def main() -> int:
    options = _options()
    device = "cuda" if options.device == "auto" and torch.cuda.is_available() else options.device.replace("auto", "cpu")
    table = Table(options.out, options.resume, where(device), commit())
    end = time.monotonic() + options.seconds
    models = [*map(tiny, options.families), *_find_real(options.real)]
    units = [unit for unit in plan(models, options.ports, options.dtypes) if unit.key not in table.done]
    failed = 0
    try:
        for number, unit in enumerate(units):
            if time.monotonic() > end:
                say(f"time is up, {len(units) - number} comparisons left: go on with --resume")
                break
            failed += not _measure(unit, device, options.tokens, table)
    finally:  # Ctrl-C too
        rows = read_rows(options.out)
        if rows:
            print(write_summary(rows, options.out))
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    def names(known: Sequence[str] | None = None) -> Callable[[str], list[str]]:
        def read(text: str) -> list[str]:
            found = [] if text == "none" else text.split(",")
            wrong = [each for each in found if known is not None and each not in known]
            if wrong:
                raise argparse.ArgumentTypeError(f"{wrong[0]!r} is none of {', '.join(known or ())}")
            return found

        return read

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    families, dtypes, demos = builtin_spec_names(), list(STAGE), ",".join(REAL)
    parser.add_argument("--families", type=names(families), default=families, help="at size tiny, or none [all]")
    parser.add_argument("--real", type=names(), default=REAL, help=f"SIZE or SIZE=WEIGHTS, or none [{demos}]")
    parser.add_argument("--ports", type=names(PORTS), default=PORTS, help=f"of {','.join(PORTS)} [all]")
    parser.add_argument("--dtypes", type=names(dtypes), default=dtypes, help=f"of {','.join(dtypes)} [all]")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--tokens", type=int, default=640)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.csv")
    parser.add_argument("--resume", action="store_true", help="go on with FILE.csv, without what it already has")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no comparison later than that")
    return parser.parse_args()


def _find_real(texts: Sequence[str]) -> Iterator[Model]:
    for text in texts:
        try:
            yield real(text)
        except PorterError as error:
            say(f"skipped {text}: {error.wrong}")


def plan(models: Sequence[Model], ports: Sequence[str], dtypes: Sequence[str]) -> Iterator[Unit]:
    """Every comparison; flex last, whose compilation takes longer than all others together."""
    for port in sorted(ports, key=PORTS.index):
        for dtype in dtypes:
            yield from (Unit(model, port, dtype) for model in models)


class Table:
    """The CSV; a comparison's rows are written when it is whole."""

    def __init__(self, path: Path, resume: bool, where: str, commit: str) -> None:
        self.path, self.where, self.commit = path, where, commit
        earlier = read_rows(path) if resume and path.exists() else []
        self.done = {(row.model, row.port, row.dtype) for row in earlier}
        if not earlier:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append([COLUMNS], "w")

    def add(self, unit: Unit, nodes: Sequence[NodeDiff]) -> None:
        self._append(self._rows(unit, nodes), "a")

    def _rows(self, unit: Unit, nodes: Sequence[NodeDiff]) -> Iterator[Sequence[str]]:
        for node in nodes:
            if node.local is None:  # NOT_COMPARED
                continue
            local = node.local
            numbers = [f"{value:.4g}" for value in (local.e_ref, local.e_port, local.rho, local.rho_tok)]
            what = (unit.port, unit.model.name, unit.model.weights, node.stage, node.dtype, node.name, node.kind)
            yield *what, *numbers, node.status, self.where, versions(), self.commit

    def _append(self, rows: Iterable[Sequence[str]], mode: str) -> None:
        with self.path.open(mode, encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(list(rows))


def _measure(unit: Unit, device: str, tokens: int, table: Table) -> bool:
    """Whether the comparison could be made, or is one that does not exist."""
    name, start = ", ".join(unit.key), time.monotonic()
    try:
        nodes = compare(unit, device, tokens)
    except NoSuchPort as missing:
        say(f"skipped {name}: {missing}")
        return True
    except (PorterError, RuntimeError) as error:  # torch's compiler, of flex
        say(f"FAILED {name}: {error}")
        return False
    table.add(unit, nodes)
    say(f"{name}: {len(nodes)} nodes, {time.monotonic() - start:.1f} s")
    return True


def where(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"


def versions() -> str:
    """torch 2.13.0, transformers 5.24.0, triton 3.9.0"""
    found = []
    for name in ("torch", "transformers", "triton"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return " ".join(found)


def commit() -> str:
    """The commit of this checkout, or unknown where there is no git."""
    try:
        ran = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return ran.stdout.strip()


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
