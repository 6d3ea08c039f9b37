"""Records what keras-hub on jax computes for a HF-layout folder, for porter diff --port dump:DIR.

    python record_keras.py FOLDER --like DUMP --dtype float32 --out DIR [--eps 1e-5]

Needs keras-hub, jax and numpy; not porter, whose recorder.py is imported as a file. DUMP is a dump of the same prompt,
as porter capture writes it: its token ids are run. --eps puts another epsilon into every norm, after loading.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = "cpu"

import keras_hub
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "porter" / "references"))
from recorder import Recorder

Note = Callable[[str, Any], None]


def main() -> None:
    options = _options()
    ids = json.loads((options.like / "manifest.json").read_text())["ids"]
    backbone = keras_hub.models.Backbone.from_preset(str(options.folder), dtype=options.dtype)
    versions = {name: version(name) for name in ("keras", "keras-hub", "jax")}
    with Recorder(
        options.out, ids=ids, dtype=options.dtype, weights=options.folder, versions=versions,
        framework=f"keras-hub {versions['keras-hub']} on jax {versions['jax']}",
    ) as record:  # fmt: skip

        def note(name: str, value: Any) -> None:
            record(name, np.asarray(value).astype(np.float32))

        for index, layer in enumerate(backbone.transformer_layers):
            (tap_gemma if hasattr(layer, "gating_ffw") else tap_llama)(layer, index, note)
            if options.eps is not None:
                set_eps(layer, options.eps)
        final = backbone.layer_norm
        if options.eps is not None:
            final.epsilon = options.eps
        tap(final, note, gives="final.norm")
        x = backbone({"token_ids": np.array([ids]), "padding_mask": np.ones((1, len(ids)), "int32")})
        note("logits", backbone.token_embedding(x, reverse=True))


def tap(module: Any, note: Note, *, takes: str = "", gives: str = "") -> None:
    """Makes a layer note its first input, and its output. Heads are [B, T, H, K] in Keras already."""
    kind = type(module)

    def call(self: Any, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        given = kwargs.pop("hidden_states", x)
        if takes:
            note(takes, given)
        y = kind.__call__(self, given, *args, **kwargs)
        if gives:
            note(gives, y)
        return y

    module.__class__ = type(kind.__name__, (kind,), {"__call__": call})


def tap_rope(module: Any, at: str, note: Note) -> None:
    """One layer rotates queries, then keys."""
    kind, seen = type(module), []

    def call(self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        y = kind.__call__(self, x, *args, **kwargs)
        note(f"{at}.attn.{'k' if seen else 'q'}_rope", y)
        seen.append(True)
        return y

    module.__class__ = type(kind.__name__, (kind,), {"__call__": call})


def tap_llama(layer: Any, index: int, note: Note) -> None:
    at, attn = f"layers.{index}", layer._self_attention_layer
    tap(layer, note, takes="embed.out" if index == 0 else "", gives=f"{at}.resid_post")
    tap(layer._self_attention_layernorm, note, gives=f"{at}.attn.norm")
    for node, name in (("q", "query"), ("k", "key"), ("v", "value")):
        tap(getattr(attn, f"_{name}_dense"), note, gives=f"{at}.attn.{node}")
    tap_rope(attn.rotary_embedding_layer, at, note)
    tap(attn._dropout_layer, note, gives=f"{at}.attn.ctx")  # [B, T, H, K]; dropout is off
    tap(attn, note, gives=f"{at}.attn.out")
    tap(layer._feedforward_layernorm, note, takes=f"{at}.resid_mid", gives=f"{at}.mlp.norm")
    tap(layer._feedforward_gate_dense, note, gives=f"{at}.mlp.gate")
    tap(layer._feedforward_intermediate_dense, note, gives=f"{at}.mlp.up")
    tap(layer._feedforward_output_dense, note, takes=f"{at}.mlp.act", gives=f"{at}.mlp.out")


def tap_gemma(layer: Any, index: int, note: Note) -> None:
    at, attn = f"layers.{index}", layer.attention
    tap(layer, note, takes="embed.out" if index == 0 else "", gives=f"{at}.resid_post")
    tap(layer.pre_attention_norm, note, gives=f"{at}.attn.norm")
    for node, name in (("q", "query"), ("k", "key"), ("v", "value")):
        tap(getattr(attn, f"{name}_dense"), note, gives=f"{at}.attn.{node}")
    tap(attn.query_norm, note, gives=f"{at}.attn.q_norm")
    tap(attn.key_norm, note, gives=f"{at}.attn.k_norm")
    tap_rope(attn.rope_layer, at, note)
    tap(attn.output_dense, note, takes=f"{at}.attn.ctx", gives=f"{at}.attn.out")
    tap(layer.post_attention_norm, note, gives=f"{at}.attn.post_norm")
    tap(layer.pre_ffw_norm, note, takes=f"{at}.resid_mid", gives=f"{at}.mlp.norm")
    tap(layer.gating_ffw, note, gives=f"{at}.mlp.gate")
    tap(layer.gating_ffw_2, note, gives=f"{at}.mlp.up")
    tap(layer.ffw_linear, note, takes=f"{at}.mlp.act", gives=f"{at}.mlp.out")
    tap(layer.post_ffw_norm, note, gives=f"{at}.mlp.post_norm")


def set_eps(layer: Any, eps: float) -> None:
    """Puts another epsilon into every norm of a layer."""
    for module in layer._flatten_layers():
        if hasattr(module, "epsilon"):
            module.epsilon = eps


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--like", type=Path, required=True)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--eps", type=float)
    return parser.parse_args()


if __name__ == "__main__":
    main()
