"""porter memory in the terminal, and as JSON."""

import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from porter.bench.footprint.step import Footprint, Kind
from porter.bench.footprint.survey import Survey, Variant, to_document
from porter.reports.wide import wide_console
from porter.reports.write import write_text

MOST_NAMED = 4  # storages of a layer that are named, the largest


def print_survey(found: Survey, json_path: str | None) -> None:
    """All of it to stdout, and the JSON to a file; of "-" the JSON alone."""
    if json_path != "-":
        render_survey(found, wide_console())
    if json_path is not None:
        write_text(json.dumps(to_document(found), indent=1), json_path)


def render_survey(found: Survey, console: Console) -> None:
    """What the step holds, what layers keep, the ways to run it, the loss, and whether its fusion pays."""
    plan = found.plan
    sizes = f"{found.parameters:,} parameters in {plan.dtype}, {plan.batch} × {plan.tokens:,} tokens"
    title = Text.assemble((found.model, "bold"), f"  {sizes}, {plan.attention} attention, {plan.optimizer}")
    console.print(title, soft_wrap=True)
    for part in (_held(found), _layers(found), _ways(found), _losses(found)):
        console.print()
        console.print(part)
    console.print()
    console.print(Text(f"Fused linear cross-entropy: {found.worth.reason}"), soft_wrap=True)


def gigabytes(size: int) -> str:
    """GiB, three figures."""
    value = size / 2**30
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _table(first: str, others: Sequence[str], title: str) -> Table:
    table = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", title=title, title_style="bold",
        title_justify="left",
    )  # fmt: skip
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _plain(found: Survey) -> list[Variant]:
    return [variant for variant in found.variants if variant.plan.checkpointing == "none"]


def _held(found: Survey) -> Table:
    variants = _plain(found)
    table = _table("without checkpointing, GiB", [variant.code for variant in variants], "What a step holds")
    rows: dict[str, list[int]] = {}
    for held in (variant.held for variant in variants):
        for name, size in _parts(held).items():
            rows.setdefault(name, []).append(size)
    for name, values in rows.items():
        table.add_row(name, *map(gigabytes, values))
    table.add_row("peak", *(gigabytes(variant.held.peak.bytes) for variant in variants), style="bold")
    table.add_row("its moment", *(variant.held.peak.name for variant in variants))
    return table


def _parts(held: Footprint) -> dict[str, int]:
    head = sum(held.head.values())
    return {
        "weights": held.weights,
        "gradients": held.gradients,
        "optimizer": held.optimizer,
        "kept by layers": held.kept - head,
        "kept by head and loss": head,
        "head and loss at worst": held.loss,
        "workspace, tables, masks": held.fixed,
    }


def _layers(found: Survey) -> Table:
    table = _table("layers", ("of", "MiB a layer", "its largest"), "What layers keep")
    table.columns[1].justify = table.columns[3].justify = "left"
    table.columns[3].no_wrap = False
    for variant in _plain(found):
        for kind in variant.held.kinds:
            table.add_row(spans(kind.layers), variant.code, f"{kind.bytes / 2**20:.1f}", _largest(kind))
    return table


def spans(layers: Sequence[int]) -> str:
    """0–4, 6, 8–9 for the layers' indices."""
    parts: list[list[int]] = []
    for layer in layers:
        if parts and parts[-1][-1] == layer - 1:
            parts[-1].append(layer)
        else:
            parts.append([layer])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in parts)


def _largest(kind: Kind) -> str:
    ordered = sorted(kind.saved.items(), key=lambda each: -each[1])
    named = [f"{'layer input' if name == 'x' else name} {size / 2**20:.0f}" for name, size in ordered[:MOST_NAMED]]
    rest = sum(size for _, size in ordered[MOST_NAMED:])
    return ", ".join([*named, f"{max(len(ordered) - MOST_NAMED, 0)} more {rest / 2**20:.0f}"])


def _ways(found: Survey) -> Table:
    fits = () if found.card is None else ("batch", "context")
    title = (
        "Ways to run it, GiB"
        if found.card is None
        else f"Ways to run it, GiB, and what fits {gigabytes(found.card)} GiB"
    )
    table = _table("code", ("checkpoints", "loss", "kept", "peak", "at", *fits), title)
    for column in (1, 2, 5):
        table.columns[column].justify = "left"
    if found.card is not None:
        table.caption = f"batch: samples of {found.plan.tokens:,} tokens; context: tokens at batch {found.plan.batch}"
        table.caption_justify = "left"
    for variant in found.variants:
        held, plan = variant.held, variant.plan
        room = () if variant.batch is None else (_room(variant.batch), _room(variant.context))
        table.add_row(
            variant.code, plan.checkpointing, plan.loss, gigabytes(held.kept), gigabytes(held.peak.bytes),
            held.peak.name, *room,
        )  # fmt: skip
    return table


def _room(count: int | None) -> str:
    return f"{count:,}" if count else "none"


def _losses(found: Survey) -> Table:
    table = _table("loss, porter's kernels elsewhere", ("head and loss GiB", "peak GiB"), "The head and its loss")
    from porter_kernels.linear_cross_entropy.chunks import LEAN_ROWS  # which imports torch

    for name, (peak, loss) in found.losses.items():
        table.add_row(name, gigabytes(loss), gigabytes(peak))
    table.caption = f"fused-lean: the weight's gradient is summed in its own dtype beyond {LEAN_ROWS:,} rows, too"
    table.caption_justify = "left"
    return table
