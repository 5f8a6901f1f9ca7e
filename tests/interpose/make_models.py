#!/usr/bin/env python3
"""Writes small GGUF files of Mixture-of-Experts models, for programs that are not ours.

usage: make_models.py DIR [NAME...]

  tiny     models/tiny-moe with its tokenizer: it writes words; experts of 72 KiB in BF16
  qwen     Qwen3-MoE's shape with made-up BF16 weights, 256 channels, so that every quantised type
           fits; experts of 384 KiB
  fused    Hunyuan 3's shape: gate and up of an expert in one tensor, sigmoid routing with a bias
  oss      gpt-oss' shape: experts with biases, attention with sinks
  odd      as qwen; 88 channels in an expert, so that none begins or ends on a page
  shared   Qwen2-MoE's shape: an expert that every token uses beside those that a router chooses

Needs nothing but python3; DIR/NAME.gguf depends on the name only, never on the machine. What is
there already is kept.
"""
import json
import math
import os
import random
import struct
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "models/tiny-moe"
F32, BF16 = 0, 30  # ggml's numbers of types
ALIGN = 32
U32, I32, FLOAT, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9  # GGUF's numbers of types of values
CONTROL, NORMAL = 3, 1  # kinds of tokens
SIZES = {"hidden": 256, "ffn": 256, "layers": 4, "experts": 32, "used": 4, "heads": 4, "kv": 2,
         "head": 64, "vocab": 2048}


class Gguf:
    """A GGUF file: values first, then tensors, whose bytes come from functions."""

    def __init__(self, arch):
        self.arch, self.values, self.tensors = arch, [], []
        self.add("general.architecture", arch)

    def add(self, key, value):
        """Under the architecture's name if the key begins with a dot."""
        self.values.append((self.arch + key if key.startswith(".") else key, value))

    def tensor(self, name, shape, kind, data):
        """`shape` with the longest stride first; data() gives chunks of bytes."""
        self.tensors.append((name, shape, kind, data))

    def write(self, path):
        part, at, table = path.with_name(path.name + ".part"), 0, b""
        for name, shape, kind, _ in self.tensors:
            table += text(name) + struct.pack("<I", len(shape))
            table += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack("<IQ", kind, at)
            at += -(-math.prod(shape) * (4 if kind == F32 else 2) // ALIGN) * ALIGN
        with open(part, "wb") as file:
            file.write(b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.values)))
            for key, value in self.values:
                file.write(text(key) + typed(value))
            file.write(table)
            for _, _, _, data in self.tensors:
                file.write(bytes(-file.tell() % ALIGN))
                for chunk in data():
                    file.write(chunk)
            file.write(bytes(-file.tell() % ALIGN))
        os.replace(part, path)


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def typed(value):
    """A value behind the number of its type; a list is of words or of signed numbers."""
    if isinstance(value, list):
        kind = STRING if isinstance(value[0], str) else I32
        return struct.pack("<IIQ", ARRAY, kind, len(value)) + b"".join(
            text(item) if kind == STRING else struct.pack("<i", item) for item in value)
    if isinstance(value, bool):
        return struct.pack("<IB", BOOL, value)
    if isinstance(value, str):
        return struct.pack("<I", STRING) + text(value)
    if isinstance(value, float):
        return struct.pack("<If", FLOAT, value)
    return struct.pack("<II", U32, value)


def widen(chunk):
    """BF16 -> F32: the upper half of it."""
    both = bytearray(2 * len(chunk))
    both[2::4], both[3::4] = chunk[0::2], chunk[1::2]
    return bytes(both)


def add_tokenizer(out):
    """tiny-moe's."""
    data = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))
    config = json.loads((TINY / "config.json").read_text(encoding="utf-8"))
    names = {at: (name, NORMAL) for name, at in data["model"]["vocab"].items()}
    names |= {token["id"]: (token["content"], CONTROL) for token in data["added_tokens"]}
    count = config["vocab_size"]
    names = [names.get(at, (f"[unused{at}]", CONTROL)) for at in range(count)]
    merges = [pair if isinstance(pair, str) else " ".join(pair)
              for pair in data["model"]["merges"]]
    out.add("tokenizer.ggml.model", "gpt2")
    out.add("tokenizer.ggml.pre", "qwen2")
    out.add("tokenizer.ggml.tokens", [name for name, _ in names])
    out.add("tokenizer.ggml.token_type", [kind for _, kind in names])
    out.add("tokenizer.ggml.merges", merges)
    out.add("tokenizer.ggml.bos_token_id", config["bos_token_id"])
    out.add("tokenizer.ggml.eos_token_id", config["eos_token_id"])


def add_shape(out, s):
    for key, name in (("block_count", "layers"), ("embedding_length", "hidden"),
                      ("feed_forward_length", "ffn"), ("attention.head_count", "heads"),
                      ("attention.head_count_kv", "kv"), ("attention.key_length", "head"),
                      ("attention.value_length", "head"), ("expert_count", "experts"),
                      ("expert_used_count", "used"), ("expert_feed_forward_length", "ffn"),
                      ("vocab_size", "vocab")):
        out.add("." + key, s[name])
    out.add(".context_length", 2048)
    out.add(".rope.freq_base", 10000.0)
    out.add(".attention.layer_norm_rms_epsilon", 1e-6)
    add_tokenizer(out)


class Noise:
    """Made-up values: BF16 with a root mean square near 1 / sqrt(row), which keeps what passes
    through a layer in range; norms around 1."""

    def __init__(self, seed):
        self.seed = seed

    def bf16(self, name, shape, scale=1.0):
        """Sign and mantissa at random, the exponent one of two beside each other."""
        exponent = 127 + round(math.log2(scale / math.sqrt(shape[-1])))
        upper = bytes((b & 0x80) | exponent - (b >> 3 & 1) >> 1 for b in range(256))
        lower = bytes((exponent & 1) << 7 | b & 0x7f for b in range(256))

        def data():
            rng, left = random.Random(f"{self.seed} {name}"), 2 * math.prod(shape)
            while left > 0:
                noise = rng.randbytes(min(left, 1 << 20))
                left -= len(noise)
                values = bytearray(noise)
                values[1::2] = noise[1::2].translate(upper)
                values[0::2] = noise[0::2].translate(lower)
                yield bytes(values)
        return data

    def f32(self, name, shape, middle=0.0, spread=1.0):
        def data():
            rng = random.Random(f"{self.seed} {name}")
            count = math.prod(shape)
            yield struct.pack(f"<{count}f", *(middle + spread * (rng.random() - 0.5)
                                              for _ in range(count)))
        return data


def add_weights(out, noise, s, biases=False):
    """Everything but the experts; what gpt-oss has beside it if `biases`."""
    def add(name, *shape, scale=1.0):
        out.tensor(name + ".weight", shape, BF16, noise.bf16(name, shape, scale))

    def wide(name, *shape, **how):
        out.tensor(name, shape, F32, noise.f32(name, shape, **how))

    query, key = s["heads"] * s["head"], s["kv"] * s["head"]
    add("token_embd", s["vocab"], s["hidden"], scale=math.sqrt(s["hidden"]))
    for layer in range(s["layers"]):
        block = f"blk.{layer}."
        wide(block + "attn_norm.weight", s["hidden"], middle=1.0, spread=0.2)
        for name, rows in (("attn_q", query), ("attn_k", key), ("attn_v", key)):
            add(block + name, rows, s["hidden"])
            if biases or s.get("qkv_biases"):
                wide(f"{block}{name}.bias", rows)
        add(block + "attn_output", s["hidden"], query)
        if biases:
            wide(block + "attn_output.bias", s["hidden"])
            wide(block + "attn_sinks.weight", s["heads"])
            wide(block + "ffn_gate_inp.bias", s["experts"])
        elif not s.get("qkv_biases"):
            wide(block + "attn_q_norm.weight", s["head"], middle=1.0, spread=0.2)
            wide(block + "attn_k_norm.weight", s["head"], middle=1.0, spread=0.2)
        norm = "post_attention_norm.weight" if biases else "ffn_norm.weight"
        wide(block + norm, s["hidden"], middle=1.0, spread=0.2)
        wide(block + "ffn_gate_inp.weight", s["experts"], s["hidden"],
             spread=8 / math.sqrt(s["hidden"]))
    wide("output_norm.weight", s["hidden"], middle=1.0, spread=0.2)
    add("output", s["vocab"], s["hidden"], scale=2.0)


def add_experts(out, noise, s, fused=False, biases=False):
    parts = {"gate": (s["ffn"], s["hidden"]), "up": (s["ffn"], s["hidden"]),
             "down": (s["hidden"], s["ffn"])}
    if fused:
        parts = {"gate_up": (2 * s["ffn"], s["hidden"]), "down": parts["down"]}
    for layer in range(s["layers"]):
        for part, shape in parts.items():
            name = f"blk.{layer}.ffn_{part}_exps"
            shape = (s["experts"], *shape)
            out.tensor(name + ".weight", shape, BF16, noise.bf16(name, shape, 2.0))
            if biases:
                out.tensor(name + ".bias", shape[:2], F32,
                           noise.f32(name + ".bias", shape[:2], spread=0.2))


def add_shared(out, noise, s):
    """The expert of every layer that every token uses."""
    for layer in range(s["layers"]):
        for part, shape in (("gate", (s["ffn"], s["hidden"])), ("up", (s["ffn"], s["hidden"])),
                            ("down", (s["hidden"], s["ffn"]))):
            name = f"blk.{layer}.ffn_{part}_shexp.weight"
            out.tensor(name, shape, BF16, noise.bf16(name, shape))


def make_qwen(path, **sizes):
    s = SIZES | sizes
    out, noise = Gguf("qwen3moe"), Noise(path.stem)
    add_shape(out, s)
    add_weights(out, noise, s)
    add_experts(out, noise, s)
    out.write(path)


def make_fused(path):
    out, noise = Gguf("hy_v3"), Noise(path.stem)
    add_shape(out, SIZES)
    out.add(".expert_shared_feed_forward_length", SIZES["ffn"])
    out.add(".expert_weights_norm", True)
    add_weights(out, noise, SIZES)
    add_experts(out, noise, SIZES, fused=True)
    add_shared(out, noise, SIZES)
    for layer in range(SIZES["layers"]):
        name = f"blk.{layer}.exp_probs_b"
        out.tensor(name, (SIZES["experts"],), F32,
                   noise.f32(name, (SIZES["experts"],), spread=0.2))
    out.write(path)


def make_oss(path):
    out, noise = Gguf("gpt-oss"), Noise(path.stem)
    add_shape(out, SIZES)
    out.add(".attention.sliding_window", 128)
    add_weights(out, noise, SIZES, biases=True)
    add_experts(out, noise, SIZES, biases=True)
    out.write(path)


def make_shared(path):
    s = SIZES | {"qkv_biases": True}
    out, noise = Gguf("qwen2moe"), Noise(path.stem)
    add_shape(out, s)
    out.add(".expert_shared_feed_forward_length", s["ffn"])
    add_weights(out, noise, s)
    add_experts(out, noise, s)
    add_shared(out, noise, s)
    for layer in range(s["layers"]):
        name = f"blk.{layer}.ffn_gate_inp_shexp.weight"
        out.tensor(name, (s["hidden"],), F32, noise.f32(name, (s["hidden"],), spread=0.1))
    out.write(path)


class Safetensors:
    """The tensors of one file, by name."""

    def __init__(self, path):
        self.path = path
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            self.entries = json.loads(file.read(size))
        self.base = 8 + size

    def read(self, name):
        begin, end = self.entries[name]["data_offsets"]
        with open(self.path, "rb") as file:
            file.seek(self.base + begin)
            return file.read(end - begin)


def make_tiny(path):
    config = json.loads((TINY / "config.json").read_text(encoding="utf-8"))
    source, out = Safetensors(TINY / "model.safetensors"), Gguf("qwen3moe")
    add_shape(out, {"hidden": config["hidden_size"], "ffn": config["moe_intermediate_size"],
                    "layers": config["num_hidden_layers"], "experts": config["num_experts"],
                    "used": config["num_experts_per_tok"], "heads": config["num_attention_heads"],
                    "kv": config["num_key_value_heads"], "head": config["head_dim"],
                    "vocab": config["vocab_size"]})

    def add(name, names, wide=False):
        """`names` of one tensor, or of those of all experts, which become one."""
        shape = source.entries[names[0]]["shape"]
        shape = (len(names), *shape) if len(names) > 1 else tuple(shape)
        out.tensor(name + ".weight", shape, F32 if wide else BF16, lambda: (
            widen(source.read(n)) if wide else source.read(n) for n in names))

    add("token_embd", ["model.embed_tokens.weight"])
    for layer in range(config["num_hidden_layers"]):
        base, block = f"model.layers.{layer}.", f"blk.{layer}."
        for name, short in (("input_layernorm", "attn_norm"), ("self_attn.q_norm", "attn_q_norm"),
                            ("self_attn.k_norm", "attn_k_norm"), ("mlp.gate", "ffn_gate_inp"),
                            ("post_attention_layernorm", "ffn_norm")):
            add(block + short, [f"{base}{name}.weight"], wide=True)
        for name, short in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output")):
            add(f"{block}attn_{short}", [f"{base}self_attn.{name}_proj.weight"])
        for part in ("gate", "up", "down"):
            add(f"{block}ffn_{part}_exps", [f"{base}mlp.experts.{e}.{part}_proj.weight"
                                            for e in range(config["num_experts"])])
    add("output_norm", ["model.norm.weight"], wide=True)
    out.write(path)


MAKERS = {"tiny": make_tiny, "qwen": make_qwen, "oss": make_oss, "shared": make_shared,
          "fused": make_fused,
          "odd": lambda path: make_qwen(path, ffn=88)}


def main():
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(MAKERS):
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or MAKERS:
        path = folder / f"{name}.gguf"
        if not path.exists():
            MAKERS[name](path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
