#!/usr/bin/env python3
"""Writes tiny random models with a layer that drafts tokens behind the others (multi-token
prediction), and expected logits of that layer.

The models are those of make_family_fixtures.py, with its files. The transformers library does not
run the layer behind them: it is computed here in NumPy in double, from the library's last states of
the model, behind the final norm, as the report of DeepSeek-V3 has it. Names are those of published
checkpoints, with the copies of embedding and head that they have.
"""
import argparse
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import hf_reference
import make_family_fixtures as families
import make_fixtures
from make_fixtures import DTYPES, SAFE_MARGIN

SHAPE = "draft"
TOKENS = 24
SIZES = {**families.SIZES["a"], "num_nextn_predict_layers": 1}
SHAPES = {"deepseek_v3": {"q_lora_rank": 24}, "glm4_moe": {}}
EPS = {"deepseek_v3": 1e-6, "glm4_moe": 1e-5}
LATENT_EPS = 1e-6


def ffn_shapes(prefix, hidden, channels):
    return {f"{prefix}.gate_proj.weight": (channels, hidden),
            f"{prefix}.up_proj.weight": (channels, hidden),
            f"{prefix}.down_proj.weight": (hidden, channels)}


def attention_shapes(cfg):
    hidden, heads = cfg["hidden_size"], cfg["num_attention_heads"]
    if cfg["model_type"] == "deepseek_v3":
        nope, rope, value = cfg["qk_nope_head_dim"], cfg["qk_rope_head_dim"], cfg["v_head_dim"]
        q_rank, kv_rank = cfg["q_lora_rank"], cfg["kv_lora_rank"]
        return {"q_a_proj.weight": (q_rank, hidden), "q_a_layernorm.weight": (q_rank,),
                "q_b_proj.weight": (heads * (nope + rope), q_rank),
                "kv_a_proj_with_mqa.weight": (kv_rank + rope, hidden),
                "kv_a_layernorm.weight": (kv_rank,),
                "kv_b_proj.weight": (heads * (nope + value), kv_rank),
                "o_proj.weight": (hidden, heads * value)}
    dim = cfg["head_dim"]
    out = {"o_proj.weight": (hidden, heads * dim), "q_norm.weight": (dim,), "k_norm.weight": (dim,)}
    for name, count in (("q", heads), ("k", cfg["num_key_value_heads"]),
                        ("v", cfg["num_key_value_heads"])):
        out[f"{name}_proj.weight"] = (count * dim, hidden)
        out[f"{name}_proj.bias"] = (count * dim,)
    return out


def shapes_of(cfg):
    """Of the layer, without its prefix."""
    hidden, channels = cfg["hidden_size"], cfg["moe_intermediate_size"]
    out = {name: (hidden,) for name in
           ("enorm.weight", "hnorm.weight", "shared_head.norm.weight", "input_layernorm.weight",
            "post_attention_layernorm.weight")}
    out["eh_proj.weight"] = (hidden, 2 * hidden)
    out.update({"self_attn." + name: shape for name, shape in attention_shapes(cfg).items()})
    out["mlp.gate.weight"] = (cfg["n_routed_experts"], hidden)
    out["mlp.gate.e_score_correction_bias"] = (cfg["n_routed_experts"],)
    for e in range(cfg["n_routed_experts"]):
        out.update(ffn_shapes(f"mlp.experts.{e}", hidden, channels))
    out.update(ffn_shapes("mlp.shared_experts", hidden, cfg["n_shared_experts"] * channels))
    return out


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Layer:
    """One sequence; `w` has the layer's tensors in double, `embed` and `head` are the model's."""

    def __init__(self, cfg, w, embed, head):
        self.cfg, self.w, self.embed, self.head = cfg, w, embed, head
        self.eps = EPS[cfg["model_type"]]
        self.margin = 1.0

    def linear(self, name, x):
        return x @ self.w[name + ".weight"].T + self.w.get(name + ".bias", 0)

    def norm(self, name, x, eps=None):
        square = (x * x).mean(-1, keepdims=True)
        return x / np.sqrt(square + (self.eps if eps is None else eps)) * self.w[name + ".weight"]

    def turn(self, a, b):
        """Pairs of all heads (heads, tokens, pairs), by position and frequency."""
        pairs = a.shape[-1]
        angle = np.outer(np.arange(a.shape[-2]),
                         self.cfg["rope_theta"] ** -(np.arange(pairs) / pairs))
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle),
                               b * np.cos(angle) + a * np.sin(angle)], -1)

    def attend(self, q, k, v):
        scores = q @ k.transpose(0, 2, 1) / q.shape[-1] ** 0.5
        scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
        out = (softmax(scores) @ v).transpose(1, 0, 2)
        return self.linear("self_attn.o_proj", out.reshape(len(out), -1))

    def latent_attention(self, x):
        cfg, heads = self.cfg, self.cfg["num_attention_heads"]
        nope, rank = cfg["qk_nope_head_dim"], cfg["kv_lora_rank"]

        def rotate(y):  # neighbours are a pair
            return self.turn(y[..., 0::2], y[..., 1::2])

        q = self.norm("self_attn.q_a_layernorm", self.linear("self_attn.q_a_proj", x), LATENT_EPS)
        q = self.linear("self_attn.q_b_proj", q).reshape(len(x), heads, -1).transpose(1, 0, 2)
        both = self.linear("self_attn.kv_a_proj_with_mqa", x)
        kv = self.linear("self_attn.kv_b_proj",
                         self.norm("self_attn.kv_a_layernorm", both[:, :rank], LATENT_EPS))
        kv = kv.reshape(len(x), heads, -1).transpose(1, 0, 2)
        shared = rotate(both[None, :, rank:]).repeat(heads, 0)
        return self.attend(np.concatenate([q[..., :nope], rotate(q[..., nope:])], -1),
                           np.concatenate([kv[..., :nope], shared], -1), kv[..., nope:])

    def plain_attention(self, x):
        cfg = self.cfg
        heads, kv_heads = cfg["num_attention_heads"], cfg["num_key_value_heads"]
        turned = int(cfg["head_dim"] * cfg["partial_rotary_factor"])

        def project(name, count):
            return self.linear(f"self_attn.{name}_proj", x).reshape(len(x), count, -1)

        def rotate(name, y):
            y = self.norm(f"self_attn.{name}_norm", y).transpose(1, 0, 2)
            return np.concatenate([self.turn(y[..., :turned // 2], y[..., turned // 2:turned]),
                                   y[..., turned:]], -1)

        k = rotate("k", project("k", kv_heads)).repeat(heads // kv_heads, 0)
        v = project("v", kv_heads).transpose(1, 0, 2).repeat(heads // kv_heads, 0)
        return self.attend(rotate("q", project("q", heads)), k, v)

    def ffn(self, name, x):
        gate = self.linear(name + ".gate_proj", x)
        return self.linear(name + ".down_proj",
                           gate / (1 + np.exp(-gate)) * self.linear(name + ".up_proj", x))

    def experts(self, x):
        k = self.cfg["num_experts_per_tok"]
        scores = 1 / (1 + np.exp(-self.linear("mlp.gate", x)))
        out = self.ffn("mlp.shared_experts", x)
        for t, row in enumerate(scores):
            choice = row + self.w["mlp.gate.e_score_correction_bias"]
            order = np.argsort(-choice)
            self.margin = min(self.margin, choice[order[k - 1]] - choice[order[k]])
            total = row[order[:k]].sum() if self.cfg["norm_topk_prob"] else 1
            for e in order[:k]:
                out[t] += (self.cfg["routed_scaling_factor"] * row[e] / total
                           * self.ffn(f"mlp.experts.{e}", x[t]))
        return out

    def run(self, tokens, states):
        """tokens[i] is the one behind that of states[i]. Returns logits, and the layer's states."""
        x = np.concatenate([self.norm("enorm", self.embed[tokens]), self.norm("hnorm", states)], -1)
        x = self.linear("eh_proj", x)
        attention = (self.latent_attention if self.cfg["model_type"] == "deepseek_v3"
                     else self.plain_attention)
        x = x + attention(self.norm("input_layernorm", x))
        x = x + self.experts(self.norm("post_attention_layernorm", x))
        own = self.norm("shared_head.norm", x)
        return own @ self.head.T, own


def expect(layer, tokens, states):
    """Logits of each position, and of one behind it whose state is the layer's own."""
    logits, own = layer.run(tokens[1:], states[:-1])
    second = [layer.run(tokens[1:i + 3], np.concatenate([states[:i + 1], own[i:i + 1]]))[0][-1]
              for i in range(len(tokens) - 2)]
    return {"tokens": np.array(tokens, np.int32), "logits": logits.astype(np.float32),
            "second": np.stack(second).astype(np.float32)}


def text_of(folder, cfg, seed):
    """Tokens by which no router is near another choice, and the model's states of them."""
    model = hf_reference.load(folder, torch.float64)
    margins = families.Margins(model)
    for stream in range(2, 100):
        rng = np.random.Generator(np.random.PCG64([seed, stream]))
        tokens = rng.integers(0, cfg["vocab_size"], TOKENS).tolist()
        with torch.no_grad():
            out = model.model(input_ids=torch.tensor([tokens]), use_cache=False)
        if margins.take().min() >= SAFE_MARGIN:
            return tokens, out.last_hidden_state[0].numpy()
    raise SystemExit(f"{folder}: every text has a router that is near another choice")


def make(out, family, seed):
    families.SIZES[SHAPE] = SIZES
    shapes = families.FAMILIES[family][1]
    shapes[SHAPE] = {**shapes["a"], **SHAPES[family]}
    families.make(out, family, SHAPE, seed)
    shutil.rmtree(out / f"{family}-{SHAPE}" / "expect")  # only the layer behind is new
    folder, cfg = out / f"{family}-{SHAPE}", families.config_of(family, SHAPE)
    weights = load_file(folder / "model.safetensors")
    prefix, dtype = f"model.layers.{cfg['num_hidden_layers']}.", DTYPES[cfg["torch_dtype"]]
    tokens, states = text_of(folder, cfg, seed)
    while True:
        own = {name: families.draw(seed, prefix + name, shape, cfg)
               .to(torch.float32 if name.endswith("e_score_correction_bias") else dtype)
               for name, shape in shapes_of(cfg).items()}
        layer = Layer(cfg, {name: w.to(torch.float64).numpy() for name, w in own.items()},
                      weights["model.embed_tokens.weight"].to(torch.float64).numpy(),
                      weights["lm_head.weight"].to(torch.float64).numpy())
        values = expect(layer, tokens, states)
        if layer.margin >= SAFE_MARGIN:
            break
        seed += 1
    own["embed_tokens.weight"] = weights["model.embed_tokens.weight"].clone()
    own["shared_head.head.weight"] = weights["lm_head.weight"].clone()
    save_file({**weights, **{prefix + name: w.contiguous() for name, w in own.items()}},
              folder / "model.safetensors", metadata={"format": "pt"})
    make_fixtures.write_expect(folder / "expect", {"draft": values})
    print(f"{folder.name}: the layer behind (seed {seed}), smallest margin {layer.margin:.1e}, "
          f"logits std {values['logits'].std():.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python3 tools/hf/make_draft_fixtures.py --out tests/data/models\n"
               "needs numpy, torch, transformers, safetensors")
    parser.add_argument("--out", type=Path, required=True, help="folder of the model directories")
    parser.add_argument("--seed", type=int, default=1, help="first seed to try (default 1)")
    args = parser.parse_args()
    for family in SHAPES:
        make(args.out, family, args.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
