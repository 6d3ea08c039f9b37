"""Mistral in the manner of nanoGPT: fused qkv, attention written out, a mask of its own, weights moved by hand."""

import json
import math
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F


def turn(x, angles):
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    half = x.shape[-1] // 2
    return torch.cat((x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin), -1)


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd: int, n_head: int, n_kv: int, window: int, theta: float, head_dim: int) -> None:
        super().__init__()
        self.n_head, self.n_kv, self.head_dim, self.window, self.theta = n_head, n_kv, head_dim, window, theta
        self.c_attn = nn.Linear(n_embd, (n_head + 2 * n_kv) * head_dim, bias=False)
        self.c_proj = nn.Linear(n_head * head_dim, n_embd, bias=False)

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = self.c_attn(x).split([n * self.head_dim for n in (self.n_head, self.n_kv, self.n_kv)], dim=-1)
        q, k, v = (t.view(B, T, -1, self.head_dim).transpose(1, 2) for t in (q, k, v))
        inv = self.theta ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        angles = torch.outer(torch.arange(T).float(), inv)
        q, k = turn(q, angles), turn(k, angles)
        k, v = (t.repeat_interleave(self.n_head // self.n_kv, dim=1) for t in (k, v))
        att = (q @ k.transpose(-2, -1)) / math.sqrt(self.head_dim)
        far = torch.ones(T, T, dtype=torch.bool).tril(-self.window)
        hidden = torch.ones(T, T, dtype=torch.bool).triu(1) | far
        att = F.softmax(att.masked_fill(hidden, float("-inf")).float(), dim=-1).to(q.dtype)
        return self.c_proj((att @ v).transpose(1, 2).reshape(B, T, -1))


class Norm(nn.Module):
    def __init__(self, n_embd: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(n_embd)), eps

    def forward(self, x):
        return F.rms_norm(x.float(), x.shape[-1:], eps=self.eps).to(x.dtype) * self.weight


class Block(nn.Module):
    def __init__(self, c: dict) -> None:
        super().__init__()
        self.ln_1 = Norm(c["hidden_size"], c["rms_norm_eps"])
        self.attn = CausalSelfAttention(
            c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["sliding_window"], c["rope_theta"],
            c["head_dim"],
        )  # fmt: skip
        self.ln_2 = Norm(c["hidden_size"], c["rms_norm_eps"])
        self.mlp = nn.ModuleDict({
            "gate": nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False),
            "up": nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False),
            "down": nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False),
        })  # fmt: skip

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        h = self.ln_2(x)
        return x + self.mlp["down"](F.silu(self.mlp["gate"](h)) * self.mlp["up"](h)), None


class GPT(nn.Module):
    def __init__(self, c: dict) -> None:
        super().__init__()
        self.wte = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.h = nn.ModuleList(Block(c) for _ in range(c["num_hidden_layers"]))
        self.ln_f = Norm(c["hidden_size"], c["rms_norm_eps"])
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)

    def forward(self, idx):
        x = self.wte(idx)
        for block in self.h:
            x, _ = block(x)
        return {"logits": self.lm_head(self.ln_f(x))}


def load(folder: Path) -> GPT:
    config = json.loads((folder / "config.json").read_text())
    theirs = load_file(folder / "model.safetensors")
    model = GPT(config)
    with torch.no_grad():
        model.wte.weight.copy_(theirs["model.embed_tokens.weight"])
        model.ln_f.weight.copy_(theirs["model.norm.weight"])
        model.lm_head.weight.copy_(theirs["lm_head.weight"])
        for i, block in enumerate(model.h):
            at = f"model.layers.{i}"
            qkv = [theirs[f"{at}.self_attn.{name}_proj.weight"] for name in "qkv"]
            block.attn.c_attn.weight.copy_(torch.cat(qkv))
            block.attn.c_proj.weight.copy_(theirs[f"{at}.self_attn.o_proj.weight"])
            for name, module in block.mlp.items():
                module.weight.copy_(theirs[f"{at}.mlp.{name}_proj.weight"])
            block.ln_1.weight.copy_(theirs[f"{at}.input_layernorm.weight"])
            block.ln_2.weight.copy_(theirs[f"{at}.post_attention_layernorm.weight"])
    return model


def load_with_a_wider_window(folder: Path) -> GPT:
    """The mistake: the window is taken to be the number of tokens before a query."""
    model = load(folder)
    for block in model.h:
        block.attn.window += 1
    return model
