#!/usr/bin/env python3
"""Writes a tiny gpt-oss whose experts are in MXFP4, as its own checkpoints have them, and expected
logits.

Nibbles and scales are random. transformers' own function makes floats of them, and transformers
computes with those: logits are those of the exact weights, without rounded activations.
"""
import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import hf_reference
import make_family_fixtures as families
import make_fixtures
from make_fixtures import SAFE_MARGIN, write_json

FAMILY = "gpt_oss"


def config():
    cfg = families.config_of(FAMILY, "a")
    cfg.update(hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_local_experts=4,
               num_experts_per_tok=2, head_dim=16,
               layer_types=["sliding_attention", "full_attention"])
    return cfg


def packed(rng, experts, rows, cols):
    """Numbers of about 1.3 / sqrt(cols): those of four bits are about 3."""
    blocks = rng.integers(0, 256, (experts, rows, cols // 32, 16), dtype=np.uint8)
    scale = 127 + round(np.log2(1.3 / cols**0.5 / 3))
    scales = rng.integers(scale - 1, scale + 2, (experts, rows, cols // 32), dtype=np.uint8)
    return torch.from_numpy(blocks), torch.from_numpy(scales)


def write(folder, plain, cfg, seed):
    """The model with floats in `plain`, with MXFP4 in `folder`."""
    rng = np.random.Generator(np.random.PCG64([seed, 4]))
    families.write_model(plain, cfg, seed)
    weights = load_file(plain / "model.safetensors")
    mixed = dict(weights)
    for name, value in weights.items():
        if value.dim() != 3:
            continue
        experts, cols, rows = value.shape
        blocks, scales = packed(rng, experts, rows, cols)
        weights[name] = convert_moe_packed_tensors(blocks, scales).contiguous()
        assert weights[name].shape == value.shape
        del mixed[name]
        mixed[name + "_blocks"], mixed[name + "_scales"] = blocks, scales
    save_file(weights, plain / "model.safetensors", metadata={"format": "pt"})
    folder.mkdir(parents=True)
    write_json(folder / "config.json", {**cfg, "quantization_config": {
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                   "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"}})
    save_file(mixed, folder / "model.safetensors", metadata={"format": "pt"})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the model directories")
    args = parser.parse_args()
    folder, cfg, seed = args.out / "gpt_oss-mxfp4", config(), 1
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        with tempfile.TemporaryDirectory() as top:
            plain = Path(top) / "plain"
            write(folder, plain, cfg, seed)
            batches = families.batches_of(hf_reference.load(plain), cfg, seed)
        if make_fixtures.smallest_margin(batches) >= SAFE_MARGIN:
            break
        seed += 1
    make_fixtures.write_expect(folder / "expect", batches)
    used = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    print(f"{folder.name} (seed {seed}, {used // 1024} KiB), smallest margin "
          f"{make_fixtures.smallest_margin(batches):.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
