"""porter specs draft: a family file for a checkpoint that no family describes."""

from pathlib import Path

import click


@click.command()
@click.argument("checkpoint", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the file there.  [default: stdout]")
@click.pass_context
def draft(ctx: click.Context, checkpoint: Path, out: Path | None) -> None:
    """Write a family file for an unknown checkpoint, and say what could not be decided.

    CHECKPOINT is a folder with config.json and safetensors; their headers, or their index, will do. It starts from the
    nearest family, fits names and shapes and, if transformers knows the model_type, changes axes until HuggingFace's
    bits agree. Exits with 0 when the file is bit-equal, 1 when it is not, 4 when nothing was run or code is needed.
    """
    from porter.cli.freed_memory import keep_freed_memory

    keep_freed_memory()
    from porter.cli.draft_views import exit_code, print_notes
    from porter.explanation.draft.draft import draft as make

    if out is not None:
        from porter.reports.write import check_writable

        check_writable(out.parent)
    found = make(checkpoint)
    if found.text and out is not None:
        from porter.reports.write import write_file

        write_file(out, found.text.encode())
    elif found.text:
        click.echo(found.text, nl=False)
    print_notes(found, out)
    ctx.exit(exit_code(found))
