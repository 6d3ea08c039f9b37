"""Qwen3 in plain torch, as someone ports it by hand: weights from a checkpoint folder, one class for each part."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.scale * wide.to(x.dtype)


def rotate(x, cos, sin):
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, c: dict) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.width = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        hidden, eps, bias = c["hidden_size"], c["rms_norm_eps"], c["attention_bias"]
        self.wq = nn.Linear(hidden, self.heads * self.width, bias)
        self.wk = nn.Linear(hidden, self.kv_heads * self.width, bias)
        self.wv = nn.Linear(hidden, self.kv_heads * self.width, bias)
        self.wo = nn.Linear(self.heads * self.width, hidden, bias)
        self.norm_q, self.norm_k = RMSNorm(self.width, eps), RMSNorm(self.width, eps)

    def forward(self, x, cos, sin, mask):
        batch, length, _ = x.shape
        q = self.normalized(self.norm_q, self.wq(x).view(batch, length, self.heads, self.width)).transpose(1, 2)
        k = self.normalized(self.norm_k, self.wk(x).view(batch, length, self.kv_heads, self.width)).transpose(1, 2)
        v = self.wv(x).view(batch, length, self.kv_heads, self.width).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return self.wo(y.transpose(1, 2).reshape(batch, length, -1))

    def normalized(self, norm, x):
        return norm(x)


class FeedForward(nn.Module):
    def __init__(self, c: dict) -> None:
        super().__init__()
        self.w1 = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.w3 = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.w2 = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, c: dict, window: int | None) -> None:
        super().__init__()
        self.window = window
        self.attention, self.mlp = Attention(c), FeedForward(c)
        self.norm1 = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.norm2 = RMSNorm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, x, cos, sin):
        position = torch.arange(x.shape[1])
        mask = position[:, None] >= position
        if self.window is not None:
            mask = mask & (position[:, None] - position < self.window)
        x = x + self.attention(self.norm1(x), cos, sin, mask)
        return x + self.mlp(self.norm2(x))


class Qwen3(nn.Module):
    def __init__(self, c: dict) -> None:
        super().__init__()
        self.width, self.theta = c["head_dim"], c["rope_theta"]
        self.embedding = nn.Embedding(c["vocab_size"], c["hidden_size"])
        first = c["max_window_layers"] if c["use_sliding_window"] else c["num_hidden_layers"]
        windows = [c["sliding_window"] if i >= first else None for i in range(c["num_hidden_layers"])]
        self.blocks = nn.ModuleList(Block(c, window) for window in windows)
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)

    def forward(self, ids):
        x = self.embedding(ids)
        frequencies = 1.0 / self.theta ** (torch.arange(0, self.width, 2).float() / self.width)
        angles = torch.arange(ids.shape[1]).float()[:, None] * frequencies
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


NAMES = {  # part of the checkpoint's name -> ours
    "model.embed_tokens": "embedding", "model.layers": "blocks", "model.norm.weight": "norm.scale", "lm_head": "head",
    "self_attn.q_norm.weight": "attention.norm_q.scale", "self_attn.k_norm.weight": "attention.norm_k.scale",
    "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "mlp.w1", "mlp.up_proj": "mlp.w3", "mlp.down_proj": "mlp.w2",
    "input_layernorm.weight": "norm1.scale", "post_attention_layernorm.weight": "norm2.scale",
}  # fmt: skip


def load(folder: Path, dtype: torch.dtype) -> nn.Module:
    """What porter calls: the model with the checkpoint's weights."""
    config = json.loads((folder / "config.json").read_text())
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        for theirs, mine in NAMES.items():
            name = name.replace(theirs, mine)
        tensors[name] = tensor
    tensors.setdefault("head.weight", tensors["embedding.weight"])
    model = Qwen3(config)
    model.load_state_dict(tensors)
    return model.to(dtype)


class WithoutNorm(Attention):
    """The mistake: q and k go to the rotation as they are."""

    def normalized(self, norm, x):
        return x


def load_without_qk_norm(folder: Path, dtype: torch.dtype) -> nn.Module:
    model = load(folder, dtype)
    for block in model.blocks:
        block.attention.__class__ = WithoutNorm
    return model
