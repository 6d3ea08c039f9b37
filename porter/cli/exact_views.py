"""What porter specs exact runs and prints: a line a model, a closing line, and the same as JSON."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from porter.comparison.exact_table import ExactRun, ModelRow
from porter.comparison.exactness import ExactRow
from porter.specs.family import find_model
from porter.specs.tree import builtin_spec_names

SCHEMA = "porter.exact/1"
_DEMO = ("gemma-3-270m", "smollm2-135m")


def exact_runs(names: Iterable[str], *, demo: bool) -> list[ExactRun]:
    """The runs that porter specs exact means: families at tiny, sizes as they are, then the real checkpoints."""
    found = [
        (family, size or family.default_size) for family, size in map(find_model, tuple(names) or builtin_spec_names())
    ]
    runs = [
        ExactRun(str(family.path), size, "random:stress", 320) for family, size in found if not (demo and size in _DEMO)
    ]
    for name in _DEMO if demo else ():
        family, _ = find_model(name)
        runs.append(ExactRun(family.name, name, "demo", 640))
    return runs


def exact_line(row: ModelRow) -> str:
    """One row: the model, what was compared, and bit-equal or the difference."""
    called = row.model_type if row.size == "tiny" else f"{row.model_type} {row.size}"
    return f"{called:<24} {row.tokens} tokens  {_compared(row):<22} {_verdict(row)}"


def _compared(row: ModelRow) -> str:
    return f"{row.results[0].num_layers} layers and logits" if row.results else "nothing"


def _verdict(row: ModelRow) -> str:
    if not row.results:
        return f"cannot be run: {row.problem}"
    if row.exact:
        return f"{' and '.join(each.dtype for each in row.results)} bit-equal"
    return "; ".join(f"{each.dtype} {_difference(each)}" for each in row.results)


def _difference(row: ExactRow) -> str:
    if row.exact:
        return "bit-equal"
    return f"{row.layers} of {row.num_layers} layers: {row.first} differs first, by {row.difference:.1e} relative"


def closing_line(rows: Sequence[ModelRow]) -> str:
    """How many model types are exact: 62 model types: 62 bit-equal in bfloat16, 61 in float32."""
    types = {row.model_type for row in rows}
    unequal = {dtype: {row.model_type for row in rows if not row.exact_in(dtype)} for dtype in ("bfloat16", "float32")}
    bf16, fp32 = (len(types) - len(unequal[dtype]) for dtype in ("bfloat16", "float32"))
    return f"{len(types)} model type{'s' * (len(types) != 1)}: {bf16} bit-equal in bfloat16, {fp32} in float32"


def to_text(rows: Sequence[ModelRow]) -> str:
    """The rows as JSON, with the versions they hold for."""
    import torch
    import transformers

    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    document = {"schema": SCHEMA, "versions": versions, "rows": [_row_to_json(row) for row in rows]}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _row_to_json(row: ModelRow) -> dict[str, Any]:
    about = {"family": row.family, "model_type": row.model_type, "size": row.size, "weights": row.weights}
    results = {
        each.dtype: {"exact": each.exact, "layers": each.layers, "of": each.num_layers, "logits": each.logits,
                     "first": each.first, "difference": each.difference}
        for each in row.results
    }  # fmt: skip
    return {**about, "tokens": row.tokens, "spec_sha256": row.spec_hash, "problem": row.problem, **results}
