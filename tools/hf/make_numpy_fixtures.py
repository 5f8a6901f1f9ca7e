#!/usr/bin/env python3
"""Writes tiny random models of the first DeepSeek family and of XVERSE's with experts, and expected
logits for them.

The transformers library has no such models. They are computed here in NumPy in double: both are
Llama's attention with experts (shared ones, softmax, the best k of many), as the paper of DeepSeekMoE
has it; names and sizes are those of the published config.json of DeepSeek-MoE-16B, and of what is
published about XVERSE-MoE-A4.2B. The files are those of make_family_fixtures.py.
"""
import argparse
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

import make_fixtures
from make_family_fixtures import SIZES, draw
from make_fixtures import DTYPES, PROMPTS, SAFE_MARGIN, STEPS, write_json

# The names of what both have.
NAMES = {
    "deepseek": {"experts": "n_routed_experts", "chosen": "num_experts_per_tok", "shared": "n_shared_experts",
                 "channels": "moe_intermediate_size", "router": "gate"},
    "xverse": {"experts": "num_experts", "chosen": "moe_top_k", "shared": "num_shared_experts",
               "channels": "intermediate_size", "router": "router"},
}
DEEPSEEK = {"architectures": ["DeepseekForCausalLM"], "model_type": "deepseek", "hidden_act": "silu",
          "tie_word_embeddings": False, "moe_layer_freq": 1, "rms_norm_eps": 1e-6,
          "scoring_func": "softmax"}
XVERSE = {"architectures": ["XverseForCausalLM"], "model_type": "xverse", "hidden_act": "silu",
          "tie_word_embeddings": False, "rms_norm_eps": 1e-6}
DEEPSEEK_SHAPES = {
    "a": {"n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2,
          "moe_intermediate_size": 24, "intermediate_size": 72, "first_k_dense_replace": 1,
          "norm_topk_prob": False, "attention_bias": False, "rope_theta": 10000.0,
          "num_key_value_heads": 4},
    "b": {"n_routed_experts": 5, "num_experts_per_tok": 2, "n_shared_experts": None,
          "moe_intermediate_size": 40, "intermediate_size": 56, "first_k_dense_replace": 0,
          "norm_topk_prob": True, "attention_bias": True, "rope_theta": 5000.0,
          "num_key_value_heads": 2},
}
XVERSE_SHAPES = {
    "a": {"num_experts": 8, "moe_top_k": 3, "num_shared_experts": 2, "intermediate_size": 24,
          "rope_theta": 500000.0, "num_key_value_heads": 4},
    "b": {"architectures": ["XverseMoeForCausalLM"], "num_experts": 5, "moe_top_k": 2,
          "num_shared_experts": None, "intermediate_size": 40, "norm_topk_prob": True,
          "rope_theta": 10000.0, "num_key_value_heads": 2},
}
FAMILIES = {"deepseek": (DEEPSEEK, DEEPSEEK_SHAPES), "xverse": (XVERSE, XVERSE_SHAPES)}


def ffn_shapes(prefix, hidden, channels):
    return {f"{prefix}.gate_proj.weight": (channels, hidden),
            f"{prefix}.up_proj.weight": (channels, hidden),
            f"{prefix}.down_proj.weight": (hidden, channels)}


def shapes_of(cfg):
    names = NAMES[cfg["model_type"]]
    hidden, heads, channels = cfg["hidden_size"], cfg["num_attention_heads"], cfg[names["channels"]]
    keys = hidden // heads * cfg["num_key_value_heads"]
    out = {"model.embed_tokens.weight": (cfg["vocab_size"], hidden), "model.norm.weight": (hidden,),
           "lm_head.weight": (cfg["vocab_size"], hidden)}
    for i in range(cfg["num_hidden_layers"]):
        at = f"model.layers.{i}."
        out[at + "input_layernorm.weight"] = out[at + "post_attention_layernorm.weight"] = (hidden,)
        for name, rows in (("q", hidden), ("k", keys), ("v", keys), ("o", hidden)):
            out[f"{at}self_attn.{name}_proj.weight"] = (rows, hidden)
            if cfg.get("attention_bias"):
                out[f"{at}self_attn.{name}_proj.bias"] = (rows,)
        if i < cfg.get("first_k_dense_replace", 0):
            out.update(ffn_shapes(at + "mlp", hidden, cfg["intermediate_size"]))
            continue
        out[f"{at}mlp.{names['router']}.weight"] = (cfg[names["experts"]], hidden)
        for e in range(cfg[names["experts"]]):
            out.update(ffn_shapes(f"{at}mlp.experts.{e}", hidden, channels))
        if cfg[names["shared"]]:
            out.update(ffn_shapes(at + "mlp.shared_experts", hidden, cfg[names["shared"]] * channels))
    return out


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Model:
    """One sequence at a time; `w` has every tensor in double."""

    def __init__(self, cfg, w):
        self.cfg, self.w = cfg, w

    def linear(self, name, x):
        return x @ self.w[name + ".weight"].T + self.w.get(name + ".bias", 0)

    def norm(self, name, x):
        square = (x * x).mean(-1, keepdims=True)
        return x / np.sqrt(square + self.cfg["rms_norm_eps"]) * self.w[name + ".weight"]

    def ffn(self, name, x):
        gate = self.linear(name + ".gate_proj", x)
        return self.linear(name + ".down_proj",
                           gate / (1 + np.exp(-gate)) * self.linear(name + ".up_proj", x))

    def heads(self, name, x, count, rotate):
        dim = self.cfg["hidden_size"] // self.cfg["num_attention_heads"]
        y = self.linear(name, x).reshape(len(x), count, dim).transpose(1, 0, 2)
        if not rotate:
            return y
        angle = np.outer(np.arange(len(x)), self.cfg["rope_theta"] ** -(np.arange(0, dim, 2) / dim))
        a, b = y[..., :dim // 2], y[..., dim // 2:]
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle),
                               b * np.cos(angle) + a * np.sin(angle)], -1)

    def attention(self, name, x):
        heads, kv_heads = self.cfg["num_attention_heads"], self.cfg["num_key_value_heads"]
        q = self.heads(name + ".q_proj", x, heads, True)
        k = self.heads(name + ".k_proj", x, kv_heads, True).repeat(heads // kv_heads, 0)
        v = self.heads(name + ".v_proj", x, kv_heads, False).repeat(heads // kv_heads, 0)
        scores = q @ k.transpose(0, 2, 1) / q.shape[-1] ** 0.5
        scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
        return self.linear(name + ".o_proj", (softmax(scores) @ v).transpose(1, 0, 2)
                           .reshape(len(x), -1))

    def experts(self, name, x, margin):
        names = NAMES[self.cfg["model_type"]]
        k = self.cfg[names["chosen"]]
        scores = softmax(self.linear(f"{name}.{names['router']}", x))
        out = self.ffn(name + ".shared_experts", x) if self.cfg[names["shared"]] else 0 * x
        for t, row in enumerate(scores):
            order = np.argsort(-row)
            margin[t] = min(margin[t], row[order[k - 1]] - row[order[k]])
            total = row[order[:k]].sum() if self.cfg.get("norm_topk_prob") else 1
            for e in order[:k]:
                out[t] += row[e] / total * self.ffn(f"{name}.experts.{e}", x[t])
        return out

    def run(self, tokens):
        x, margin = self.w["model.embed_tokens.weight"][tokens], np.ones(len(tokens))
        for i in range(self.cfg["num_hidden_layers"]):
            at = f"model.layers.{i}."
            x = x + self.attention(at + "self_attn", self.norm(at + "input_layernorm", x))
            y = self.norm(at + "post_attention_layernorm", x)
            dense = i < self.cfg.get("first_k_dense_replace", 0)
            x = x + (self.ffn(at + "mlp", y) if dense else self.experts(at + "mlp", y, margin))
        return self.linear("lm_head", self.norm("model.norm", x)), np.minimum.accumulate(margin)


def expect(model, sequences):
    tokens = np.full((len(sequences), max(len(t) for _, t in sequences)), -1, np.int32)
    logits, margins = [], []
    for i, (prompt, ids) in enumerate(sequences):
        tokens[i, :len(ids)] = ids
        got, margin = model.run(ids)
        logits.append(got[prompt - 1:].astype(np.float32))
        margins.append(margin[prompt - 1:].astype(np.float32))
    return {"tokens": tokens, "lens": np.array([n for n, _ in sequences], np.int32),
            "logits": np.stack(logits), "margin": np.stack(margins)}


def make(out, family, shape, seed):
    common, shapes = FAMILIES[family]
    cfg = {**common, **SIZES[shape], **shapes[shape]}
    folder = out / f"{family}-{shape}"
    dtype = DTYPES[cfg.get("dtype") or cfg["torch_dtype"]]
    while True:
        weights = {name: draw(seed, name, size, cfg).to(dtype)
                   for name, size in shapes_of(cfg).items()}
        model = Model(cfg, {name: w.to(torch.float64).numpy() for name, w in weights.items()})
        rng = np.random.Generator(np.random.PCG64([seed, 1]))
        batches = {batch: expect(model, [(n, rng.integers(0, cfg["vocab_size"], n + STEPS).tolist())
                                         for n in lens]) for batch, lens in PROMPTS.items()}
        if make_fixtures.smallest_margin(batches) >= SAFE_MARGIN:
            break
        seed += 1
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", {key: cfg[key] for key in sorted(cfg)})
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    make_fixtures.write_expect(folder / "expect", batches)
    print(f"{folder.name} (seed {seed}): smallest margin "
          f"{make_fixtures.smallest_margin(batches):.1e}", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python3 tools/hf/make_numpy_fixtures.py --out tests/data/models\n"
               "needs numpy, torch, transformers, safetensors")
    parser.add_argument("--out", type=Path, required=True, help="folder of the model directories")
    parser.add_argument("--seed", type=int, default=1, help="first seed to try (default 1)")
    args = parser.parse_args()
    for family, (_, shapes) in FAMILIES.items():
        for shape in shapes:
            make(args.out, family, shape, args.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
