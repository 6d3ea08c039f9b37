"""porter specs draft without the family it is to find, for each family: what comes of it.

Each family is hidden with all that extend it. The checkpoint is HuggingFace's own: its model of the family's tiny
config, on random weights, in the layout HuggingFace saves. A file that the draft calls bit-equal is then run on other
weights, those of porter specs exact; one that is not bit-equal there is counted as silently wrong.

    python benchmarks/draft_leave_one_out.py --out benchmarks/results/draft_leave_one_out.md
"""

import argparse
import json
import multiprocessing
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from porter.errors import PorterError
from porter.specs.family import find_family
from porter.specs.tree import builtin_spec_names


@dataclass(frozen=True)
class Row:
    """One family hidden.

    Attributes:
        verdict: bit-equal; undecided: the draft says so; needs code; silently wrong: it claims what does not hold.
    """

    family: str
    parent: str
    verdict: str
    tried: int
    cpu_s: float
    undecided: tuple[str, ...]


def leave_out(name: str) -> Row:
    """The draft of a family's tiny checkpoint by what the others know."""
    from porter.explanation.draft.draft import draft
    from porter.references.unknown import write_stress

    family, start = find_family(name), time.process_time()
    config = {**family.size("tiny").config, "model_type": family.tree["model_type"]}
    with TemporaryDirectory() as place:
        folder = Path(place)
        try:
            write_stress(config, folder, seed=1)
            about = {**config, "architectures": [family.tree["architecture"]]}
            (folder / "config.json").write_text(json.dumps(about), encoding="utf-8")
            found = draft(folder, hidden=[name])
        except PorterError as error:
            return Row(name, "", "undecided", 0, time.process_time() - start, (error.wrong,))
        verdict = "needs code" if found.blockers else "bit-equal" if found.exact else "undecided"
        undecided = [*(f"{what}: {tensor}" for what, tensor in found.blockers.items()), *found.undecided]
        if found.exact and (problem := _on_other_weights(name, found.text, folder)):
            verdict, undecided = "silently wrong", [problem, *undecided]
    return Row(name, found.parent, verdict, found.tried, time.process_time() - start, tuple(undecided))


def _on_other_weights(name: str, text: str, folder: Path) -> str:
    """What is wrong with a drafted file on the weights of porter specs exact; nothing: it is bit-equal there too."""
    from porter.comparison.exactness import check_exactness, plan_exact
    from porter.models.build import plan_build

    path = folder / "drafted.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        config = {**find_family(str(path)).size("tiny").config, "model_type": find_family(name).tree["model_type"]}
        weights = folder / "other"
        shutil.copytree(plan_exact(name, "tiny").checkpoint(), weights)
        (weights / "config.json").write_text(json.dumps(config), encoding="utf-8")
        made = plan_build(
            str(path), size=None, weights=str(weights), overrides=(), dtype="float32", ops="reference", device="cpu",
            prompt=None, tokens=None,
        )  # fmt: skip
        rows = list(check_exactness(made))
    except PorterError as error:
        return str(error.wrong)
    return "; ".join(f"{row.first} differs in {row.dtype} by {row.difference:.1e}" for row in rows if not row.exact)


def run(names: Sequence[str], jobs: int) -> list[Row]:
    rows: list[Row] = []
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(leave_out, name) for name in names]):
            row = done.result()
            print(line(row), file=sys.stderr, flush=True)
            rows.append(row)
    return sorted(rows, key=lambda row: row.family)


def line(row: Row) -> str:
    told = "; ".join(row.undecided).replace("|", "/")
    return f"| {row.family} | {row.parent} | {row.verdict} | {row.tried} | {row.cpu_s:.0f} | {told} |"


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown, with what they hold for."""
    import torch
    import transformers

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    counts = {
        verdict: sum(row.verdict == verdict for row in rows) for verdict in dict.fromkeys(r.verdict for r in rows)
    }
    return "\n".join([
        "# porter specs draft, leaving one family out",
        "",
        f"Commit {commit.strip()}, torch {torch.__version__}, transformers {transformers.__version__}, CPU. "
        "`python benchmarks/draft_leave_one_out.py`",
        "",
        "Each family is hidden with all that extend it; the checkpoint is HuggingFace's own model of its tiny config, "
        "on random weights. *bit-equal*: layers and logits, float32 and bfloat16, 320 tokens, on those and others.",
        "",
        f"{len(rows)} families: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) + ".",
        "",
        "| hidden | nearest | verdict | specs tried | CPU s | undecided |",
        "|---|---|---|---|---|---|",
        *map(line, rows),
        "",
    ])  # fmt: skip


def main() -> int:
    """Exit 1 if a draft is silently wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="families; default: all")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = run(given.names or builtin_spec_names(), given.jobs)
    text = table(rows)
    print(text)
    if given.out:
        given.out.write_text(text, encoding="utf-8")
    return int(any(row.verdict == "silently wrong" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
