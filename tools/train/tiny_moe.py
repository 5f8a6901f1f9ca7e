"""tiny-moe in PyTorch: the arithmetic of Qwen3-MoE, written for training on a CPU.

Experts run as one autograd function: rows are sorted by expert, each expert is two dense products
over its rows, and the backward pass is spelled out. There is no loop over tokens and no padding.
"""
import dataclasses
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass
class Config:
    layers: int = 8
    hidden: int = 128
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    experts: int = 32
    top_k: int = 4
    inner: int = 96
    vocab: int = 2048
    max_position: int = 2048
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6

    @classmethod
    def from_dir(cls, folder):
        raw = json.loads((Path(folder) / "config.json").read_text())
        return cls(layers=raw["num_hidden_layers"], hidden=raw["hidden_size"],
                   heads=raw["num_attention_heads"], kv_heads=raw["num_key_value_heads"],
                   head_dim=raw["head_dim"], experts=raw["num_experts"],
                   top_k=raw["num_experts_per_tok"], inner=raw["moe_intermediate_size"],
                   vocab=raw["vocab_size"], max_position=raw["max_position_embeddings"],
                   rope_theta=raw["rope_theta"], norm_eps=raw["rms_norm_eps"])


class Experts(torch.autograd.Function):
    """sum over ranks r of weight[t, r] * down(silu(gate(x[t])) * up(x[t])), expert chosen[t, r]."""

    @staticmethod
    def forward(ctx, x, chosen, weight, gate_up, down):
        top_k = chosen.shape[1]
        flat = chosen.reshape(-1)
        order = torch.argsort(flat, stable=True)
        token = order // top_k
        ends = torch.bincount(flat, minlength=gate_up.shape[0]).cumsum(0).tolist()
        rows = x.index_select(0, token)
        inner = down.shape[2]
        both = x.new_empty(len(order), 2 * inner)
        begin = 0
        for expert, end in enumerate(ends):
            if end > begin:
                torch.mm(rows[begin:end], gate_up[expert].t(), out=both[begin:end])
            begin = end
        gate, up = both[:, :inner], both[:, inner:]
        sigmoid = torch.sigmoid(gate)
        act = gate * sigmoid
        mid = act * up
        scale = weight.reshape(-1).index_select(0, order).unsqueeze(1)
        scaled = mid * scale
        result = x.new_empty(len(order), x.shape[1])
        begin = 0
        for expert, end in enumerate(ends):
            if end > begin:
                torch.mm(scaled[begin:end], down[expert].t(), out=result[begin:end])
            begin = end
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        out = result.index_select(0, back).view(x.shape[0], top_k, -1).sum(1)
        ctx.save_for_backward(rows, both, sigmoid, act, mid, scaled, scale, token, back, gate_up,
                              down)
        ctx.ends, ctx.top_k = ends, top_k
        return out

    @staticmethod
    def backward(ctx, grad_out):
        (rows, both, sigmoid, act, mid, scaled, scale, token, back, gate_up,
         down) = ctx.saved_tensors
        inner = down.shape[2]
        gate, up = both[:, :inner], both[:, inner:]
        grad_rows = grad_out.index_select(0, token)
        grad_scaled = torch.empty_like(mid)
        grad_down = torch.zeros_like(down)
        begin = 0
        for expert, end in enumerate(ctx.ends):
            if end > begin:
                part = grad_rows[begin:end]
                torch.mm(part, down[expert], out=grad_scaled[begin:end])
                torch.mm(part.t(), scaled[begin:end], out=grad_down[expert])
            begin = end
        grad_weight = (grad_scaled * mid).sum(1).index_select(0, back).view(-1, ctx.top_k)
        grad_mid = grad_scaled.mul_(scale)
        grad_both = torch.empty_like(both)
        torch.mul(grad_mid, act, out=grad_both[:, inner:])
        slope = sigmoid + act * (1 - sigmoid)
        torch.mul(grad_mid.mul_(up), slope, out=grad_both[:, :inner])
        grad_gate_up = torch.zeros_like(gate_up)
        grad_x = torch.empty_like(rows)
        begin = 0
        for expert, end in enumerate(ctx.ends):
            if end > begin:
                part = grad_both[begin:end]
                torch.mm(part.t(), rows[begin:end], out=grad_gate_up[expert])
                torch.mm(part, gate_up[expert], out=grad_x[begin:end])
            begin = end
        grad_x = grad_x.index_select(0, back).view(-1, ctx.top_k, rows.shape[1]).sum(1)
        return grad_x, None, grad_weight, grad_gate_up, grad_down


class Norm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rope_tables(config, length):
    half = config.head_dim // 2
    freq = config.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = torch.outer(torch.arange(length, dtype=torch.float32), freq)
    angle = torch.cat((angle, angle), dim=1)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        c = config
        self.norm_attention = Norm(c.hidden, c.norm_eps)
        self.norm_experts = Norm(c.hidden, c.norm_eps)
        self.norm_q = Norm(c.head_dim, c.norm_eps)
        self.norm_k = Norm(c.head_dim, c.norm_eps)
        self.qkv = nn.Parameter(torch.empty((c.heads + 2 * c.kv_heads) * c.head_dim, c.hidden))
        self.out = nn.Parameter(torch.empty(c.hidden, c.heads * c.head_dim))
        self.router = nn.Parameter(torch.empty(c.experts, c.hidden))
        self.gate_up = nn.Parameter(torch.empty(c.experts, 2 * c.inner, c.hidden))
        self.down = nn.Parameter(torch.empty(c.experts, c.hidden, c.inner))

    def attention(self, x, cos, sin):
        c = self.config
        batch, length, _ = x.shape
        qkv = F.linear(x, self.qkv).view(batch, length, -1, c.head_dim)
        q, k, v = qkv.split((c.heads, c.kv_heads, c.kv_heads), dim=2)
        q = rotate(self.norm_q(q).transpose(1, 2), cos, sin)
        k = rotate(self.norm_k(k).transpose(1, 2), cos, sin)
        v = v.transpose(1, 2)
        group = c.heads // c.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.linear(mixed.transpose(1, 2).reshape(batch, length, -1), self.out)

    def forward(self, x, cos, sin):
        """Returns the new x, the balance loss and the chosen experts [tokens, top_k]."""
        c = self.config
        x = x + self.attention(self.norm_attention(x), cos, sin)
        flat = self.norm_experts(x).view(-1, c.hidden)
        prob = F.linear(flat, self.router).softmax(dim=-1)
        weight, chosen = prob.topk(c.top_k, dim=-1)
        weight = weight / weight.sum(dim=-1, keepdim=True)
        with torch.no_grad():
            share = torch.bincount(chosen.view(-1), minlength=c.experts) / chosen.numel()
        balance = c.experts * (share * prob.mean(0)).sum()
        mixed = Experts.apply(flat, chosen, weight, self.gate_up, self.down)
        return x + mixed.view_as(x), balance, chosen


class TinyMoe(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed = nn.Parameter(torch.empty(config.vocab, config.hidden))
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = Norm(config.hidden, config.norm_eps)

    def init_weights(self, seed):
        generator = torch.Generator().manual_seed(seed)
        depth = (2 * self.config.layers) ** -0.5
        for name, weight in self.named_parameters():
            if weight.dim() < 2:
                continue
            std = weight.shape[-1] ** -0.5
            if name == "embed":
                std = 0.04
            elif name.endswith((".out", ".down")):
                std *= depth
            elif name.endswith(".router"):
                std = 0.02
            nn.init.trunc_normal_(weight, std=std, a=-3 * std, b=3 * std, generator=generator)

    def forward(self, ids):
        """ids [batch, length] -> hidden [batch, length, hidden], mean balance loss, chosen."""
        cos, sin = rope_tables(self.config, ids.shape[1])
        x = F.embedding(ids, self.embed)
        balance, chosen = 0.0, []
        for layer in self.layers:
            x, layer_balance, layer_chosen = layer(x, cos, sin)
            balance = balance + layer_balance
            chosen.append(layer_chosen)
        return self.norm(x), balance / len(self.layers), chosen

    def logits(self, ids):
        hidden, _, _ = self(ids)
        return F.linear(hidden, self.embed)

    def loss(self, ids):
        """ids [batch, length + 1] -> (cross entropy in nats per token, balance loss)."""
        hidden, balance, _ = self(ids[:, :-1])
        logits = F.linear(hidden.reshape(-1, hidden.shape[-1]), self.embed)
        return F.cross_entropy(logits, ids[:, 1:].reshape(-1)), balance
