#!/usr/bin/env python3
"""Writes a Qwen3-MoE model of any size with random BF16 weights, for tests of memory and speed.

The text it writes is noise, but every value is finite, activations stay in range and the routers
spread over all experts. Needs nothing but python3: weights are windows of a pool of random bytes
whose exponents were mapped to the wanted scale, so a gigabyte takes seconds and little memory.
"""
import argparse
import json
import math
import os
import random
import shutil
import sys
import zlib
from pathlib import Path

POOL_BYTES = 8 << 20
PAGE_BYTES = 4096
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                   "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja")


def tensors_of_expert(args, layer, expert):
    base = f"model.layers.{layer}.mlp.experts.{expert}."
    return [(base + "gate_proj.weight", (args.ffn, args.hidden)),
            (base + "up_proj.weight", (args.ffn, args.hidden)),
            (base + "down_proj.weight", (args.hidden, args.ffn))]


def other_tensors(args):
    """Everything that is not paged, in the order of the network."""
    query, key = args.heads * args.head_dim, args.kv_heads * args.head_dim
    out = [("model.embed_tokens.weight", (args.vocab, args.hidden))]
    for layer in range(args.layers):
        base = f"model.layers.{layer}."
        out += [(base + "input_layernorm.weight", (args.hidden,)),
                (base + "self_attn.q_proj.weight", (query, args.hidden)),
                (base + "self_attn.k_proj.weight", (key, args.hidden)),
                (base + "self_attn.v_proj.weight", (key, args.hidden)),
                (base + "self_attn.o_proj.weight", (args.hidden, query)),
                (base + "self_attn.q_norm.weight", (args.head_dim,)),
                (base + "self_attn.k_norm.weight", (args.head_dim,)),
                (base + "post_attention_layernorm.weight", (args.hidden,)),
                (base + "mlp.gate.weight", (args.experts, args.hidden))]
    return out + [("model.norm.weight", (args.hidden,)),
                  ("lm_head.weight", (args.vocab, args.hidden))]


def nbytes(shape):
    return 2 * math.prod(shape)


def order(args):
    """(name, shape) of all tensors, experts among them, in the order of the file."""
    experts = [t for layer in range(args.layers) for e in range(args.experts)
               for t in tensors_of_expert(args, layer, e)]
    if args.aligned:
        return experts + other_tensors(args)
    return sorted(experts + other_tensors(args))


def header(tensors, align):
    """Length and text of a safetensors header, padded so that data starts aligned."""
    entries, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors:
        end = at + nbytes(shape)
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % align)
    return len(text).to_bytes(8, "little") + text


def pool_of_scale(noise, rms):
    """Random BF16 values with the given root mean square, both signs.

    The upper byte of a BF16 is the sign and seven bits of the exponent; the lower one, left random,
    gives the last exponent bit and the mantissa. Values with upper exponent bits q have the mean
    square 4^(2q - 127) * 35/6. The share of q against q - 1 is set so that the mix is right.
    """
    def square(q):
        return 4.0 ** (2 * q - 127) * 35 / 6

    q = 1
    while square(q) < rms * rms:
        q += 1
    share = (rms * rms - square(q - 1)) / (square(q) - square(q - 1))
    table = bytes((b & 0x80) | (q if (b & 0x7f) < round(share * 128) else q - 1)
                  for b in range(256))
    pool = bytearray(noise)
    pool[1::2] = pool[1::2].translate(table)
    return pool


def pool_of_norms(noise):
    """BF16 values from 0.875 to 1.25: upper byte fixed, the lower one around that of 1.0."""
    pool = bytearray(noise)
    pool[0::2] = pool[0::2].translate(bytes(0x60 + (b & 0x3f) for b in range(256)))
    pool[1::2] = b"\x3f" * (len(pool) // 2)
    return pool


class Pools:
    """The pool for each kind of tensor; all come from the same random bytes."""

    def __init__(self, seed):
        self.noise = random.Random(seed).randbytes(POOL_BYTES)
        self.pools = {}

    def get(self, name, shape):
        if "norm" in name:
            kind = "norm"
        elif name.endswith("embed_tokens.weight"):
            kind = 1.0
        elif name.endswith(("mlp.gate.weight", "lm_head.weight")):
            kind = 2.0 / math.sqrt(shape[-1])
        else:
            kind = 1.0 / math.sqrt(shape[-1])
        if kind not in self.pools:
            self.pools[kind] = (pool_of_norms(self.noise) if kind == "norm"
                                else pool_of_scale(self.noise, kind))
        return memoryview(self.pools[kind])


def write_weights(path, tensors, pools, align):
    """Streams to a temporary name first: a file with the right name is whole.

    A window depends on the name of its tensor: both orders of the file hold the same model.
    """
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as f:
        f.write(header(tensors, align))
        for name, shape in tensors:
            pool, left = pools.get(name, shape), nbytes(shape)
            at = zlib.crc32(name.encode()) * 2 % POOL_BYTES
            while left > 0:
                take = min(left, POOL_BYTES - at)
                f.write(pool[at:at + take])
                left, at = left - take, 0
    os.replace(part, path)
    return path.stat().st_size


def config(args):
    """No end token: a run writes as many tokens as it was asked for."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "bos_token_id": None, "decoder_sparse_step": 1,
        "eos_token_id": None, "head_dim": args.head_dim, "hidden_act": "silu",
        "hidden_size": args.hidden, "initializer_range": 0.02, "intermediate_size": 4 * args.ffn,
        "max_position_embeddings": 32768, "max_window_layers": args.layers, "mlp_only_layers": [],
        "model_type": "qwen3_moe", "moe_intermediate_size": args.ffn, "norm_topk_prob": True,
        "num_attention_heads": args.heads, "num_experts": args.experts,
        "num_experts_per_tok": args.top_k, "num_hidden_layers": args.layers,
        "num_key_value_heads": args.kv_heads, "output_router_logits": False,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001, "sliding_window": None, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": True,
        "use_sliding_window": False, "vocab_size": args.vocab,
    }


def tokenizer_size(folder):
    """One more than the largest token id of a tokenizer.json."""
    data = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    ids = list(data["model"]["vocab"].values())
    return max(ids + [token["id"] for token in data.get("added_tokens", [])]) + 1


def parse_args():
    def positive(text):
        if int(text) < 1:
            raise argparse.ArgumentTypeError("must be at least 1")
        return int(text)

    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example (1.1 GiB of experts):\n"
               "  python3 tools/make_random_model.py --tokenizer models/tiny-moe --out /tmp/big")
    p.add_argument("--out", type=Path, required=True, help="folder of the model; made if missing")
    p.add_argument("--layers", type=positive, default=12, help="default 12")
    p.add_argument("--experts", type=positive, default=32, help="per layer, default 32")
    p.add_argument("--hidden", type=positive, default=512, help="default 512")
    p.add_argument("--ffn", type=positive, default=1024, help="channels per expert, default 1024")
    p.add_argument("--top-k", type=positive, default=4, help="experts per token, default 4")
    p.add_argument("--vocab", type=positive,
                   help="default: the tokenizer's size, or 2048 without one")
    p.add_argument("--seed", type=int, default=1, help="default 1")
    p.add_argument("--tokenizer", type=Path, help="folder whose tokenizer files are copied")
    p.add_argument("--aligned", action="store_true",
                   help="experts first, each at a multiple of 4096 bytes; without it the order "
                        "is by name as in published files")
    args = p.parse_args()
    size = tokenizer_size(args.tokenizer) if args.tokenizer else 1
    args.vocab = args.vocab or (size if args.tokenizer else 2048)
    args.head_dim = 64 if args.hidden >= 256 else 16
    args.heads = max(4, args.hidden // args.head_dim // 4 * 4)
    args.kv_heads = args.heads // 4
    args.expert_bytes = sum(nbytes(shape) for _, shape in tensors_of_expert(args, 0, 0))
    if args.vocab < size:
        p.error(f"--vocab {args.vocab} is less than the tokenizer's {size}")
    if args.top_k > args.experts:
        p.error(f"--top-k {args.top_k} is more than --experts {args.experts}")
    if args.aligned and args.expert_bytes % PAGE_BYTES != 0:
        p.error(f"--aligned: an expert has {args.expert_bytes} bytes, no multiple of {PAGE_BYTES}; "
                "choose --hidden x --ffn divisible by 2048")
    return args


def main():
    args = parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    tensors = order(args)
    file_bytes = write_weights(args.out / "model.safetensors", tensors, Pools(args.seed),
                               PAGE_BYTES if args.aligned else 8)
    (args.out / "config.json").write_text(json.dumps(config(args), indent=2) + "\n")
    for name in TOKENIZER_FILES if args.tokenizer else ():
        if (args.tokenizer / name).exists():
            shutil.copyfile(args.tokenizer / name, args.out / name)
    paged = args.expert_bytes * args.experts * args.layers
    print(f"expert_bytes {args.expert_bytes}")
    print(f"all_experts_bytes {paged}")
    print(f"other_bytes {sum(nbytes(shape) for _, shape in tensors) - paged}")
    print(f"token_cycle_bytes {args.expert_bytes * args.top_k * args.layers}")
    print(f"file_bytes {file_bytes}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
