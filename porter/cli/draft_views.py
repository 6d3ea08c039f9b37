"""What porter specs draft says beside the file: how sure it is, what is undecided, what needs code."""

from pathlib import Path

import click

from porter.explanation.draft.draft import Draft


def print_notes(found: Draft, out: Path | None) -> None:
    """On stderr, so that stdout is the file alone."""
    for what, tensor in found.blockers.items():
        click.echo(f"needs code: {what}, as {tensor} shows; a draft changes axes, and this is none", err=True)
    for each in found.undecided:
        click.echo(f"undecided: {each}", err=True)
    click.echo(conclusion(found), err=True)
    if out is not None and found.text:
        click.echo(f"wrote {out}; next: porter specs check {out}", err=True)


def conclusion(found: Draft) -> str:
    """The last line."""
    if found.blockers:
        return f"no file: {found.model_type} needs code"
    if not found.text:
        return f"no file: {found.model_type} is like no known family"
    if found.exact is None:
        return f"{found.model_type}, from {found.parent}: nothing was run"
    equal = "bit-equal with HF in float32 and bfloat16" if found.exact else "not bit-equal with HF"
    return f"{found.model_type}, from {found.parent}, {found.tried} specs tried: {equal}"


def exit_code(found: Draft) -> int:
    """0: bit-equal; 1: not; 4: nothing was run, or there is no file."""
    return 4 if not found.text or found.exact is None else int(not found.exact)
