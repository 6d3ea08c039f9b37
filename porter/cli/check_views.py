"""What porter specs check prints: a line a size, then what HF's classes say of the family."""

import click

from porter.errors import SpecError
from porter.specs.check import check_family
from porter.specs.family import find_model


def print_check(name: str, *, hf: bool) -> None:
    """Audits what a name means: all sizes of a family, or one.

    Raises:
        PorterError: a size fails, or HF's classes disagree: all that does so, in one error.
    """
    family, size = find_model(name)
    for row in check_family(family, size):
        counts = f"{row.layers} layers, {row.tensors} tensors, {row.parameters:,} parameters"
        click.echo(f"{family.name:<12} {row.size:<18} OK  {counts}")
    if not hf or size not in (None, "tiny"):
        return
    from porter.references.audit import audit_family
    from porter.references.unknown import is_known

    found = list(audit_family(family))
    if found:
        rest = "".join(f"\n{error}" for error in found[1:])
        raise SpecError(found[0].wrong, found[0].expected, found[0].fix + rest)
    if is_known(str(family.tree["model_type"])):
        told = "OK  config keys, absent and null keys, and tensors are HuggingFace's"
    else:
        told = f"--  transformers has no causal model of model_type {family.tree['model_type']}"
    click.echo(f"{family.name:<12} {'HF':<18} {told}")
