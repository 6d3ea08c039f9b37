"""porter patch: which kernels a HuggingFace model would have, and the proof that it is still the same model."""

import json
import shlex
import sys
from pathlib import Path

import click

from porter.cli.freed_memory import keep_freed_memory
from porter.cli.options import report_options
from porter.errors import UsageError

_OPS = ("rms_norm", "layer_norm", "rope", "glu", "linear_cross_entropy")


@click.command()
@click.argument("model", required=False)
@click.option("--size", help="Size of a family, or the path of its YAML.")
@click.option("--weights", help="Hub id, folder, .gguf, demo, random or random:stress.  [default: the size's hub id]")
@click.option("--dtype", type=click.Choice(["bfloat16", "float16", "float32"]), help="Dtype.  [default: bfloat16]")
@click.option("--device", help="cpu, cuda, or auto.  [default: auto]")
@click.option("--without", default="", metavar="LIST", help=f"Ops to leave out, of {', '.join(_OPS)}.")
@click.option("--verify", is_flag=True, help="Compare the patched model with the unpatched one.")
@click.option("--layers", default="all", show_default=True, help="With --verify: all, first-bad, or a list: 0-3,7.")
@click.option("--prompt", help="Text, or the path of a text file.")
@click.option("--tokens", type=int, help="Cut the prompt to so many tokens.")
@report_options
@click.pass_context
def patch(
    ctx: click.Context,
    /,
    model: str | None,
    size: str | None,
    weights: str | None,
    dtype: str | None,
    device: str | None,
    without: str,
    verify: bool,
    layers: str,
    prompt: str | None,
    tokens: int | None,
    out: Path,
    json_path: str | None,
    html_path: Path | None,
) -> None:
    """List the kernels that porter.patch puts into a HuggingFace model, and prove that it stays the same model.

    MODEL is what porter build takes; without it, the build just made. With --verify the patched model is compared with
    the unpatched one, layer by layer, forward and gradients, and a report is written; exit codes are porter diff's.
    --json writes that report, or without --verify the list.
    """
    keep_freed_memory()
    from porter.comparison.request import find_build
    from porter.patching.plan import read_ops
    from porter.patching.verify import preview_patch, verify_patch
    from porter.reports.write import write_text

    if not verify:
        chosen = None if layers == "all" else layers
        _refuse({"--html": html_path, "--prompt": prompt, "--tokens": tokens, "--layers": chosen})
    build = find_build(model, size, weights, (), dtype, "reference", device)
    wanted = read_ops(without)
    planned = preview_patch(build, wanted)
    if json_path != "-":
        click.echo(str(planned))
    if json_path and not verify:
        write_text(json.dumps(planned.to_json(), indent=2), json_path)
    if verify:
        from porter.cli.progress import stage_progress
        from porter.reports.present import present

        with stage_progress(quiet=json_path == "-") as progress:
            report = verify_patch(
                build, wanted, layers=layers, tokens=tokens, prompt=prompt, progress=progress,
                command=shlex.join(["porter", *sys.argv[1:]]),
            )  # fmt: skip
        present(report, out, json_path=json_path, html_path=html_path, timings=False, axes=False)
        ctx.exit(report.exit_code)


def _refuse(given: dict[str, object]) -> None:
    for name, value in given.items():
        if value is not None:
            wrong = f"{name} without --verify"
            raise UsageError(wrong, "a comparison that it says more of", "Add --verify, or leave it out.")
