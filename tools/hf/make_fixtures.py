#!/usr/bin/env python3
"""Writes tiny random models in the form of published checkpoints, and expected logits for them.

Each model directory holds config.json, safetensors and expect/ with what Hugging Face transformers
computes in float32 on the CPU (files: tests/data/models/README.md). Weights are drawn by seed and
tensor name alone and rounded to the stored type before anything is computed with them.
"""
import argparse
import json
import shutil
import sys
import zlib
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

import hf_reference

STEPS = 16                                     # tokens after the prompt; STEPS + 1 rows of logits
PROMPTS = {"b1": [7], "b4": [5, 9, 1, 13]}     # prompt lengths of the random models
TEXT_PROMPTS = {"b1": [24], "b4": [6, 19, 1, 40]}
SAFE_MARGIN = 1e-4                             # wanted; rows under 1e-5 are counted apart
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}

MIXTRAL = {
    "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 40, "initializer_range": 0.02,
    "intermediate_size": 136, "max_position_embeddings": 512, "model_type": "mixtral",
    "num_attention_heads": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "num_local_experts": 5, "output_router_logits": False,
    "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02,
    "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.36.0.dev0", "use_cache": True, "vocab_size": 97,
}
QWEN2 = {
    "architectures": ["Qwen2MoeForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 318,
    "decoder_sparse_step": 1, "eos_token_id": 318, "hidden_act": "silu", "hidden_size": 40,
    "initializer_range": 0.02, "intermediate_size": 200, "max_position_embeddings": 512,
    "max_window_layers": 4, "mlp_only_layers": [1], "model_type": "qwen2_moe",
    "moe_intermediate_size": 24, "norm_topk_prob": False, "num_attention_heads": 5,
    "num_experts": 8, "num_experts_per_tok": 3, "num_hidden_layers": 3, "num_key_value_heads": 1,
    "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 136, "sliding_window": 512,
    "tie_word_embeddings": False, "torch_dtype": "float16", "transformers_version": "4.39.0.dev0",
    "use_cache": True, "use_sliding_window": False, "vocab_size": 320,
}
QWEN3 = {
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 157, "decoder_sparse_step": 1, "eos_token_id": 159, "head_dim": 16,
    "hidden_act": "silu", "hidden_size": 40, "initializer_range": 0.02, "intermediate_size": 96,
    "max_position_embeddings": 512, "max_window_layers": 4, "mlp_only_layers": [],
    "model_type": "qwen3_moe", "moe_intermediate_size": 24, "norm_topk_prob": True,
    "num_attention_heads": 4, "num_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 4,
    "num_key_value_heads": 2, "output_router_logits": False, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
    "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False,
    "vocab_size": 160,
}
# As transformers 5 saves it: dtype, rope_parameters, and the number of experts renamed.
QWEN3_V5 = {
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": None, "decoder_sparse_step": 2, "dtype": "float32", "eos_token_id": 126,
    "head_dim": 10, "hidden_act": "silu", "hidden_size": 48, "initializer_range": 0.02,
    "intermediate_size": 72, "max_position_embeddings": 512, "mlp_only_layers": [],
    "model_type": "qwen3_moe", "moe_intermediate_size": 24, "norm_topk_prob": False,
    "num_attention_heads": 6, "num_experts_per_tok": 3, "num_hidden_layers": 4,
    "num_key_value_heads": 2, "num_local_experts": 5, "output_router_logits": False,
    "pad_token_id": None, "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "router_aux_loss_coef": 0.001, "sliding_window": None, "tie_word_embeddings": True,
    "transformers_version": "5.23.0", "use_cache": True, "use_sliding_window": False,
    "vocab_size": 128,
}
# name: configuration, first tensors of the second and later shards, generation_config.json
MODELS = {
    "mixtral-tiny": (MIXTRAL, [], None),
    "qwen2moe-tiny": (QWEN2, [], None),
    "qwen3moe-tiny": (QWEN3, [], {
        "bos_token_id": 157, "do_sample": True, "eos_token_id": [159, 157], "pad_token_id": 157,
        "temperature": 0.6, "top_k": 20, "top_p": 0.95, "transformers_version": "4.51.0"}),
    "qwen3moe-tiny-nonorm": (QWEN3_V5, ["model.layers.1.mlp.experts.2.up_proj.weight",
                                        "model.layers.3.mlp.experts.1.down_proj.weight"], None),
}

# Plain prose for the prompts of a model with a tokenizer; a longer text than any prompt needs.
TEXTS = [
    "The old lighthouse keeper climbed the stairs every evening, counted the lamps, and wrote the "
    "weather into a book that nobody had opened for years. When the storm came, the book was the "
    "first thing he saved, and the lamp was the second. ",
    "def count_words(path):\n    counts = {}\n    with open(path) as lines:\n        for line in "
    "lines:\n            for word in line.split():\n                counts[word] = counts.get(word,"
    " 0) + 1\n    return sorted(counts.items())\n",
    "sort: 41 7 93 15 62 -> 7 15 41 62 93\nadd: 318 + 467 = 785\ncount: 12 13 14 15 16 17 18\n"
    "sort: 8 5 77 20 31 -> 5 8 20 31 77\nadd: 1204 + 96 = 1300\nmultiply: 23 * 17 = 391\n",
    "The open() system call returns a file descriptor, a small nonnegative integer for use in "
    "subsequent system calls (read(2), write(2), lseek(2), fcntl(2), etc.). On error, -1 is "
    "returned and errno is set to indicate the error. ",
    "In Perl a scalar holds a single value of any type: a string, a number or a reference. Arrays "
    "are named with @ and hashes with %; my $total = 0; foreach my $item (@list) { $total += "
    "$item->{price} * $item->{count}; } print \"$total\\n\"; ",
]


def tensor(seed, name, shape, mean, std):
    """Values depend on seed and name alone, not on the order in which tensors are made."""
    rng = np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))
    return torch.from_numpy((mean + std * rng.standard_normal(shape)).astype(np.float32))


def is_moe_layer(cfg, layer):
    if cfg["model_type"] == "mixtral":
        return True
    return layer not in cfg["mlp_only_layers"] and (layer + 1) % cfg["decoder_sparse_step"] == 0


def ffn_names(cfg, layer, hidden):
    """(name, shape) of what follows attention in one layer, without the layer's prefix."""
    def ffn(prefix, size, names=("gate_proj", "up_proj", "down_proj")):
        return [(f"{prefix}.{names[0]}.weight", (size, hidden)),
                (f"{prefix}.{names[1]}.weight", (size, hidden)),
                (f"{prefix}.{names[2]}.weight", (hidden, size))]

    if not is_moe_layer(cfg, layer):
        return ffn("mlp", cfg["intermediate_size"])
    experts = cfg.get("num_local_experts") or cfg.get("num_experts")
    if cfg["model_type"] == "mixtral":
        out = [("block_sparse_moe.gate.weight", (experts, hidden))]
        for e in range(experts):
            out += ffn(f"block_sparse_moe.experts.{e}", cfg["intermediate_size"],
                       ("w1", "w3", "w2"))
        return out
    out = [("mlp.gate.weight", (experts, hidden))]
    for e in range(experts):
        out += ffn(f"mlp.experts.{e}", cfg["moe_intermediate_size"])
    if cfg["model_type"] == "qwen2_moe":
        out += ffn("mlp.shared_expert", cfg["shared_expert_intermediate_size"])
        out += [("mlp.shared_expert_gate.weight", (1, hidden))]
    return out


def tensor_shapes(cfg):
    """Every tensor of a published checkpoint of this architecture, in the order of the network."""
    hidden, heads, kv_heads = (cfg["hidden_size"], cfg["num_attention_heads"],
                               cfg["num_key_value_heads"])
    dim = cfg.get("head_dim") or hidden // heads
    shapes = {"model.embed_tokens.weight": (cfg["vocab_size"], hidden)}
    for layer in range(cfg["num_hidden_layers"]):
        base = f"model.layers.{layer}."
        shapes[base + "input_layernorm.weight"] = (hidden,)
        for proj, rows in (("q", heads * dim), ("k", kv_heads * dim), ("v", kv_heads * dim)):
            shapes[f"{base}self_attn.{proj}_proj.weight"] = (rows, hidden)
            if cfg["model_type"] == "qwen2_moe":
                shapes[f"{base}self_attn.{proj}_proj.bias"] = (rows,)
        shapes[base + "self_attn.o_proj.weight"] = (hidden, heads * dim)
        if cfg["model_type"] == "qwen3_moe":
            shapes[base + "self_attn.q_norm.weight"] = (dim,)
            shapes[base + "self_attn.k_norm.weight"] = (dim,)
        shapes[base + "post_attention_layernorm.weight"] = (hidden,)
        shapes.update((base + name, shape) for name, shape in ffn_names(cfg, layer, hidden))
    shapes["model.norm.weight"] = (hidden,)
    if not cfg["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (cfg["vocab_size"], hidden)
    return shapes


def draw_weights(cfg, seed):
    """Scales keep activations near 1 and routers decided; no norm or bias is trivial."""
    dtype = DTYPES[cfg.get("dtype") or cfg["torch_dtype"]]
    weights = {}
    for name, shape in tensor_shapes(cfg).items():
        if "norm" in name:
            mean, std = 1.0, 0.25
        elif name.endswith(".bias"):
            mean, std = 0.0, 0.5
        elif name.endswith("embed_tokens.weight"):
            mean, std = 0.0, 0.3 if cfg["tie_word_embeddings"] else 1.0
        elif name.endswith(("mlp.gate.weight", "moe.gate.weight", "lm_head.weight")):
            mean, std = 0.0, 2.0 / shape[-1] ** 0.5
        else:
            mean, std = 0.0, 1.3 / shape[-1] ** 0.5
        weights[name] = tensor(seed, name, shape, mean, std).to(dtype)
    return weights


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def write_model(folder, cfg, seed, cuts, generation):
    """One file, or several and an index when there are cuts; a cut may go through an expert."""
    folder.mkdir(parents=True)
    write_json(folder / "config.json", cfg)
    if generation:
        write_json(folder / "generation_config.json", generation)
    weights = draw_weights(cfg, seed)
    if not cuts:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    parts = [{}]
    for name, value in weights.items():
        if name in cuts:
            parts.append({})
        parts[-1][name] = value
    where = {}
    for i, part in enumerate(parts):
        file = f"model-{i + 1:05}-of-{len(parts):05}.safetensors"
        save_file(part, folder / file, metadata={"format": "pt"})
        where.update((name, file) for name in part)
    total = sum(value.nbytes for value in weights.values())
    write_json(folder / "model.safetensors.index.json",
               {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))})


def expect(model, sequences):
    """The expected values of one batch: sequences is a list of (prompt length, tokens)."""
    longest = max(len(tokens) for _, tokens in sequences)
    rows, vocab = STEPS + 1, model.config.vocab_size
    out = {
        "tokens": np.full((len(sequences), longest), -1, np.int32),
        "lens": np.array([prompt for prompt, _ in sequences], np.int32),
        "logits": np.empty((len(sequences), rows, vocab), np.float32),
        "margin": np.empty((len(sequences), rows), np.float32),
    }
    for i, (prompt, tokens) in enumerate(sequences):
        logits, margin = hf_reference.forward(model, tokens)
        out["tokens"][i, :len(tokens)] = tokens
        out["logits"][i] = logits[prompt - 1:]
        out["margin"][i] = np.minimum.accumulate(margin)[prompt - 1:]
    return out


def write_expect(folder, batches):
    folder.mkdir(parents=True, exist_ok=True)
    for batch, values in batches.items():
        for name, array in values.items():
            with open(folder / f"{batch}_{name}.npy", "wb") as f:
                np.lib.format.write_array(f, np.ascontiguousarray(array), version=(1, 0))


def smallest_margin(batches):
    return min(float(values["margin"].min()) for values in batches.values())


def report(name, batches, model_dir):
    """Prints scale and margin, and how far float32 is from float64 on the same weights."""
    double = hf_reference.load(model_dir, torch.float64)
    worst = 0.0
    for values in batches.values():
        again = expect(double, [(int(n), values["tokens"][i, :n + STEPS].tolist())
                                for i, n in enumerate(values["lens"])])
        worst = max(worst, hf_reference.relative_error(values["logits"], again["logits"]))
    logits = np.concatenate([v["logits"].ravel() for v in batches.values()])
    print(f"{name}: logits std {logits.std():.2f} max {np.abs(logits).max():.2f}, "
          f"smallest margin {smallest_margin(batches):.1e}, float32 against float64 {worst:.1e}")


def random_batches(model, seed):
    rng = np.random.Generator(np.random.PCG64([seed, 1]))
    return {batch: expect(model, [(n, rng.integers(0, model.config.vocab_size, n + STEPS).tolist())
                                  for n in lens])
            for batch, lens in PROMPTS.items()}


def make_model(out, name, seed):
    """Takes the first seed from the given one on whose routers are nowhere nearly undecided."""
    cfg, cuts, generation = MODELS[name]
    folder = out / name
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        write_model(folder, cfg, seed, cuts, generation)
        model = hf_reference.load(folder)
        batches = random_batches(model, seed)
        if smallest_margin(batches) >= SAFE_MARGIN:
            break
        seed += 1
    write_expect(folder / "expect", batches)
    used = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    report(f"{name} (seed {seed}, {used // 1024} KiB)", batches, folder)


def text_sequence(model, ids, prompt):
    """(prompt, tokens) from the first window of the text whose routers are decided, and its margin.

    With many experts nearly every long text has some close decision: the widest window wins then.
    """
    best = None
    for start in range(0, len(ids) - prompt - STEPS + 1):
        tokens = ids[start:start + prompt + STEPS]
        margin = float(hf_reference.forward(model, tokens)[1].min())
        if best is None or margin > best[0]:
            best = (margin, tokens)
        if margin >= SAFE_MARGIN:
            break
    return prompt, best[1]


def expect_for_model(model_dir, out):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    model = hf_reference.load(model_dir)
    texts = iter(TEXTS)
    batches = {}
    for batch, lens in TEXT_PROMPTS.items():
        sequences = []
        for prompt in lens:
            ids = tokenizer.encode(next(texts) * 2, add_special_tokens=False).ids
            sequences.append(text_sequence(model, ids, prompt))
        batches[batch] = expect(model, sequences)
    write_expect(out, batches)
    report(str(model_dir), batches, model_dir)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
               "  python3 tools/hf/make_fixtures.py --out tests/data/models\n"
               "  python3 tools/hf/make_fixtures.py --model models/tiny-moe "
               "--out tests/data/models/tiny-moe-expect\n"
               "needs torch, transformers, safetensors; --model also tokenizers")
    parser.add_argument("--out", type=Path, required=True,
                        help="folder of the model directories, or of the support/npy files with --model")
    parser.add_argument("--model", type=Path,
                        help="only expected values, for this model directory with tokenizer.json")
    parser.add_argument("--only", choices=sorted(MODELS), help="only this one of the random models")
    parser.add_argument("--seed", type=int, default=1, help="first seed to try (default 1)")
    args = parser.parse_args()
    if args.model:
        expect_for_model(args.model, args.out)
        return 0
    for name in [args.only] if args.only else MODELS:
        make_model(args.out, name, args.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
