"""Llama 3.1 in the layout of Meta's own code: rotation of neighbouring channels by complex numbers, so that the rows of
q and k stand in another order than in a HuggingFace checkpoint; qkv and gate/up are one product each.
"""

import json
import math
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F


def frequencies(c: dict):
    scaling, width = c["rope_scaling"], c["head_dim"]
    plain = 1.0 / c["rope_theta"] ** (torch.arange(0, width, 2).float() / width)
    context, low, high = (
        scaling[name] for name in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    found = []
    for each in plain:
        wavelength = 2 * math.pi / each
        share = (context / wavelength - low) / (high - low)
        if wavelength < context / high:
            found.append(each)
        elif wavelength > context / low:
            found.append(each / scaling["factor"])
        else:
            found.append((1 - share) * each / scaling["factor"] + share * each)
    return torch.stack(found)


def apply_rotary(x, freqs_cis):
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * freqs_cis[:, None]).flatten(3).type_as(x)


class Layer(nn.Module):
    def __init__(self, c: dict) -> None:
        super().__init__()
        hidden, width, ffn = c["hidden_size"], c["head_dim"], c["intermediate_size"]
        self.heads, self.kv_heads, self.width = c["num_attention_heads"], c["num_key_value_heads"], width
        self.wqkv = nn.Linear(hidden, (self.heads + 2 * self.kv_heads) * width, bias=True)
        self.wo = nn.Linear(self.heads * width, hidden, bias=True)
        self.w13 = nn.Linear(hidden, 2 * ffn, bias=True)
        self.w2 = nn.Linear(ffn, hidden, bias=True)
        self.attention_norm = nn.RMSNorm(hidden, eps=c["rms_norm_eps"])
        self.ffn_norm = nn.RMSNorm(hidden, eps=c["rms_norm_eps"])

    def forward(self, h, freqs_cis):
        q, k, v = self.wqkv(self.attention_norm(h)).unflatten(-1, (-1, self.width)).split(
            [self.heads, self.kv_heads, self.kv_heads], dim=2
        )  # fmt: skip
        q, k = apply_rotary(q, freqs_cis), apply_rotary(k, freqs_cis)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
        )
        h = h + self.wo(out.transpose(1, 2).flatten(2))
        return h + self.w2(self.gated(self.w13(self.ffn_norm(h))))

    def gated(self, both):
        gate, up = both.chunk(2, dim=-1)
        return F.silu(gate) * up


class Transformer(nn.Module):
    def __init__(self, c: dict) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        self.output = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        self.inv_freq = frequencies(c)

    def forward(self, tokens):
        angles = torch.outer(torch.arange(tokens.shape[1]).float(), self.inv_freq)
        freqs_cis = torch.polar(torch.ones_like(angles), angles)
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h, freqs_cis)
        return self.output(self.norm(h))


def neighbours(tensor, width: int):
    """Rows of q or k, from HuggingFace's halves to pairs."""
    return tensor.unflatten(0, (-1, 2, width // 2)).transpose(1, 2).flatten(0, 2)


def load(folder: Path) -> Transformer:
    config = json.loads((folder / "config.json").read_text())
    theirs = load_file(folder / "model.safetensors")
    model = Transformer(config)
    mine = {
        "tok_embeddings.weight": theirs["model.embed_tokens.weight"], "norm.weight": theirs["model.norm.weight"],
        "output.weight": theirs["lm_head.weight"],
    }  # fmt: skip
    for i in range(config["num_hidden_layers"]):
        at, to = f"model.layers.{i}", f"layers.{i}"
        mine[f"{to}.attention_norm.weight"] = theirs[f"{at}.input_layernorm.weight"]
        mine[f"{to}.ffn_norm.weight"] = theirs[f"{at}.post_attention_layernorm.weight"]
        for kind in ("weight", "bias"):
            q, k, v = (theirs[f"{at}.self_attn.{name}_proj.{kind}"] for name in "qkv")
            q, k = (neighbours(each, config["head_dim"]) for each in (q, k))
            mine[f"{to}.wqkv.{kind}"] = torch.cat((q, k, v))
            mine[f"{to}.wo.{kind}"] = theirs[f"{at}.self_attn.o_proj.{kind}"]
            both = [theirs[f"{at}.mlp.{name}_proj.{kind}"] for name in ("gate", "up")]
            mine[f"{to}.w13.{kind}"] = torch.cat(both)
            mine[f"{to}.w2.{kind}"] = theirs[f"{at}.mlp.down_proj.{kind}"]
    model.load_state_dict(mine)
    return model


class Swapped(Layer):
    """The mistake: the fused product is taken apart the wrong way round."""

    def gated(self, both):
        up, gate = both.chunk(2, dim=-1)
        return F.silu(gate) * up


def load_swapped(folder: Path) -> Transformer:
    model = load(folder)
    for layer in model.layers:
        layer.__class__ = Swapped
    return model
