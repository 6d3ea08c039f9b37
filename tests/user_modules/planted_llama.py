"""my_llama.py with mistakes in its code or its tensors, as a module, or recorded as a dump of what it computed."""

from collections.abc import Callable
from pathlib import Path

import torch
from my_llama import Layer, Transformer, apply_rotary, load
from torch.nn import functional as F

from porter.references.recorder import Recorder


class Planted(Layer):
    """A layer whose steps may each be replaced; `steps` maps a step's name to what takes its place."""

    steps: dict[str, Callable]
    noted: dict

    def step(self, name: str, right: Callable, *given):
        return self.steps.get(name, lambda right, *given: right(*given))(right, *given)

    def forward(self, h, freqs_cis):
        x = self.note("attn.norm", self.step("attn_norm", self.attention_norm, h))
        both = self.wqkv(x).unflatten(-1, (-1, self.width))
        counts = [self.heads, self.kv_heads, self.kv_heads]
        q, k, v = self.step("split", lambda both: both.split(counts, dim=2), both)
        q, k, v = self.step("qkv", lambda q, k, v: (q, k, v), q, k, v)
        q, k = self.step("rotate", lambda q, k, f: (apply_rotary(q, f), apply_rotary(k, f)), q, k, freqs_cis)
        k, v = self.step("repeat", self.repeated, k, v)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        out = self.step("attend", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v)
        ctx = self.step("ctx", lambda out: out.transpose(1, 2).flatten(2), out)
        a = self.note("attn.out", self.wo(self.note("attn.ctx", ctx)))
        mid = self.note("resid_mid", self.step("add", lambda h, a: h + a, h, a))
        y = self.note("mlp.norm", self.step("mlp_norm", self.ffn_norm, mid))
        act = self.note("mlp.act", self.step("act", self.gated, self.w13(y)))
        m = self.note("mlp.out", self.w2(act))
        return self.note("resid_post", self.step("add2", lambda mid, m, h: mid + m, mid, m, h))

    def repeated(self, k, v):
        times = self.heads // self.kv_heads
        return k.repeat_interleave(times, dim=2), v.repeat_interleave(times, dim=2)

    def note(self, name: str, value):
        self.noted[name] = value
        return value


def plant(folder: Path, steps: dict[str, Callable], layers: tuple[int, ...] | None = None, spoil=None) -> Transformer:
    """The module with steps replaced, in some layers or in all, its tensors spoiled by `spoil` after they were read."""
    model = load(folder)
    for i, layer in enumerate(model.layers):
        layer.__class__ = Planted
        layer.steps, layer.noted = (steps if layers is None or i in layers else {}), {}
    if spoil is not None:
        with torch.no_grad():
            spoil(dict(model.named_parameters()))
    return model


@torch.no_grad()
def record(model: Transformer, ids: list[int], folder: Path, weights: Path) -> Path:
    """A dump of all that its layers note."""
    with Recorder(folder, ids=ids, dtype="float32", weights=weights) as recorder:
        tokens = torch.tensor([ids])
        logits = model(tokens)
        recorder("embed.out", model.tok_embeddings(tokens).numpy())
        for i, layer in enumerate(model.layers):
            for name, value in layer.noted.items():
                recorder(f"layers.{i}.{name}", value.contiguous().numpy())
        recorder("final.norm", model.norm(model.layers[-1].noted["resid_post"]).numpy())
        recorder("logits", logits.numpy())
    return folder
