"""Records what mlx-lm computes for a HF-layout folder, for porter diff --port dump:DIR.

    python record_mlx.py FOLDER --like DUMP --dtype float32 --out DIR
        [--config rope_theta=100000] [--embed-scale float32] [--layers 2]

Needs mlx, mlx-cpu (or Metal), mlx-lm and numpy; not porter, whose recorder.py is imported as a file. DUMP is a dump of
the same prompt, as porter capture writes it: its token ids are run.
"""

import argparse
import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_lm.utils import load_model

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "porter" / "references"))
from recorder import Recorder

Note = Callable[[str, Any], None]


def main() -> None:
    options = _options()
    ids = json.loads((options.like / "manifest.json").read_text())["ids"]
    model, _ = load_model(options.folder, model_config=dict(options.config))
    model.update(tree_map(lambda w: w.astype(getattr(mx, options.dtype)), model.parameters()))
    versions = {name: version(name) for name in ("mlx", "mlx-lm")}
    with Recorder(
        options.out, ids=ids, dtype=options.dtype, weights=options.folder, versions=versions,
        framework=f"mlx-lm {versions['mlx-lm']} on mlx {versions['mlx']}",
    ) as record:  # fmt: skip

        def note(name: str, value: mx.array) -> None:
            record(name, np.array(value.astype(mx.float32)))

        if options.layers is not None:
            model.model.layers = model.layers[: options.layers]
        for index, layer in enumerate(model.layers):
            tap_layer(layer, index, note)
        if options.layers is None:
            tap(model.model.norm, note, gives="final.norm")
        if options.embed_scale == "float32":
            scale_in_float32(model)
        if options.layers is None:
            note("logits", model(mx.array([ids])))
        else:
            model.model(mx.array([ids]))


def tap(module: Any, note: Note, *, takes: str = "", gives: str = "", heads: int = 0) -> None:
    """Makes a module note its input, and its output; with heads, [B, H, T, K] or [B, T, H * K] as [B, T, H, K]."""
    kind = type(module)

    def shaped(value: mx.array) -> mx.array:
        if not heads:
            return value
        return value.transpose(0, 2, 1, 3) if value.ndim == 4 else value.reshape(*value.shape[:2], heads, -1)

    def call(self: Any, x: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        if takes:
            note(takes, x)
        y = kind.__call__(self, x, *args, **kwargs)
        if gives:
            note(gives, shaped(y))
        return y

    module.__class__ = type(kind.__name__, (kind,), {"__call__": call})


def tap_layer(layer: Any, index: int, note: Note) -> None:
    at, attn, mlp = f"layers.{index}", layer.self_attn, layer.mlp
    tap(layer, note, takes="embed.out" if index == 0 else "", gives=f"{at}.resid_post")
    tap(layer.input_layernorm, note, gives=f"{at}.attn.norm")
    for name, heads in (("q", attn.n_heads), ("k", attn.n_kv_heads), ("v", attn.n_kv_heads)):
        tap(attn[f"{name}_proj"], note, gives=f"{at}.attn.{name}", heads=heads)
        if f"{name}_norm" in attn:
            tap(attn[f"{name}_norm"], note, gives=f"{at}.attn.{name}_norm", heads=heads)
    tap_rope(attn, at, note)
    tap(attn.o_proj, note, takes=f"{at}.attn.ctx", gives=f"{at}.attn.out")
    if "pre_feedforward_layernorm" in layer:  # Gemma 3: norms after the branches too
        tap(layer.post_attention_layernorm, note, gives=f"{at}.attn.post_norm")
        tap(layer.pre_feedforward_layernorm, note, takes=f"{at}.resid_mid", gives=f"{at}.mlp.norm")
        tap(layer.post_feedforward_layernorm, note, gives=f"{at}.mlp.post_norm")
    else:
        tap(layer.post_attention_layernorm, note, takes=f"{at}.resid_mid", gives=f"{at}.mlp.norm")
    tap(mlp.gate_proj, note, gives=f"{at}.mlp.gate")
    tap(mlp.up_proj, note, gives=f"{at}.mlp.up")
    tap(mlp.down_proj, note, takes=f"{at}.mlp.act", gives=f"{at}.mlp.out")


def tap_rope(attn: Any, at: str, note: Note) -> None:
    """One module rotates queries, then keys: they differ in the number of heads, or come in that order."""
    kind, seen = type(attn.rope), []

    def call(self: Any, x: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        y = kind.__call__(self, x, *args, **kwargs)
        note(f"{at}.attn.{'k' if seen else 'q'}_rope", y.transpose(0, 2, 1, 3))
        seen.append(True)
        return y

    attn.rope.__class__ = type(kind.__name__, (kind,), {"__call__": call})


def scale_in_float32(model: Any) -> None:
    """Gives Gemma's embedding the scale √D unrounded, where mlx-lm has it in bfloat16 whatever the dtype."""
    inner, width = model.model, model.args.hidden_size
    rounded = mx.array(width**0.5, mx.bfloat16).astype(mx.float32)
    kind = type(inner.embed_tokens)

    def call(self: Any, ids: mx.array) -> mx.array:
        return kind.__call__(self, ids) * (width**0.5 / rounded)

    inner.embed_tokens.__class__ = type(kind.__name__, (kind,), {"__call__": call})


def _options() -> argparse.Namespace:
    def pair(text: str) -> tuple[str, Any]:
        key, _, value = text.partition("=")
        return key, json.loads(value)

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--like", type=Path, required=True)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", type=pair, action="append", default=[], metavar="KEY=JSON")
    parser.add_argument("--layers", type=int, help="the first so many alone, without the head")
    parser.add_argument("--embed-scale", choices=["own", "float32"], default="own")
    return parser.parse_args()


if __name__ == "__main__":
    main()
