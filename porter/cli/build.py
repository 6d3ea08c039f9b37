"""porter build: a model from its spec and weights, checked tensor by tensor and recorded for porter diff."""

from pathlib import Path

import click

from porter.cli.options import build_options


@click.command()
@click.argument("model")
@build_options
@click.option("--save", type=click.Path(path_type=Path), help="Write the weights there as a HF-layout checkpoint.")
@click.option("--dry-run", is_flag=True, help="Resolve and print only; nothing is fetched, allocated or recorded.")
def build(
    model: str,
    size: str | None,
    weights: str | None,
    overrides: tuple[str, ...],
    dtype: str | None,
    ops: str | None,
    device: str | None,
    prompt: str | None,
    tokens: int | None,
    save: Path | None,
    dry_run: bool,
) -> None:
    """Build a port. MODEL is a size (gemma-7b), a family with --size, a spec file, or a folder with a checkpoint."""
    from porter.cli.summary import print_build
    from porter.models.build import build as make
    from porter.models.choices import DEFAULT_DTYPE

    made = make(
        model, size=size, weights=weights, overrides=overrides, dtype=dtype or DEFAULT_DTYPE, ops=ops or "auto",
        device=device or "auto", prompt=prompt, tokens=tokens, save=save, dry_run=dry_run,
    )  # fmt: skip
    print_build(made, recorded=not dry_run)
