"""porter memory: what a training step of a model holds, computed from its spec."""

import click

from porter.cli.options import DTYPES


@click.command()
@click.argument("model")
@click.option("--size", help="Size of a family.")
@click.option("--layers", type=int, help="So many layers in place of the size's.")
@click.option("--batch", type=click.IntRange(max=2**20), default=1, show_default=True, help="Samples of a step.")
@click.option(
    "--seq", "tokens", type=click.IntRange(max=2**24), default=4096, show_default=True, help="Tokens of a sample."
)
@click.option("--dtype", type=DTYPES, default="bfloat16", show_default=True, help="Of weights and activations.")
@click.option("--attention", type=click.Choice(["sdpa", "eager"]), default="sdpa", show_default=True)
@click.option(
    "--optimizer",
    type=click.Choice(["adamw", "adamw-foreach", "adamw-float32", "sgd", "none"]),
    default="adamw", show_default=True,
    help="adamw: torch's fused one; adamw-float32: float32 states and a float32 copy of the weights.",
)  # fmt: skip
@click.option("--card", metavar="SIZE", help="A card to fit: 80GiB, 24GB, or a name such as h100.")
@click.option("--json", "json_path", metavar="FILE", help="Write the numbers there too; - prints them alone on stdout.")
def memory(
    model: str,
    size: str | None,
    layers: int | None,
    batch: int,
    tokens: int,
    dtype: str,
    attention: str,
    optimizer: str,
    card: str | None,
    json_path: str | None,
) -> None:
    """What a training step holds: weights, optimizer, activations layer by layer, logits, and the peak of it all.

    MODEL is a size (gemma-7b), a family with --size, or a spec file. Nothing is loaded: no weights, no GPU.
    HuggingFace's code stands beside porter's kernels, each without checkpointing, with it, and with it offloaded.
    """
    from porter.bench.footprint.cards import read_card
    from porter.bench.footprint.plan import Plan
    from porter.bench.footprint.survey import survey
    from porter.reports.footprint_tables import print_survey
    from porter.specs.shapes import find_shape

    shape = find_shape(model, size, layers)
    plan = Plan(batch, tokens, dtype, attention, optimizer=optimizer)  # type: ignore[arg-type]  # click checks both
    found = survey(shape.title, shape.blueprint, plan, None if card is None else read_card(card))
    print_survey(found, json_path)
