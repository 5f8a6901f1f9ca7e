#!/usr/bin/env python3
"""Compares an exported tiny-moe with Hugging Face transformers in float32 and prints samples."""
import argparse
import json
import sys
from pathlib import Path

import torch

from export import read_state
from tiny_moe import TinyMoe

PROMPTS = ("def __init__(self", "The following options", "7+5=", "sort 5 3 9 1 ->",
           "import os\nimport sys\n\ndef main():\n", "NAME\n       ls - ")


def check_layout(folder):
    """Every expert must be one run of whole pages."""
    from safetensors import safe_open

    with open(folder / "model.safetensors", "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__")
    assert (8 + size) % 4096 == 0
    for name, entry in header.items():
        if name.endswith("gate_proj.weight"):
            prefix = name.removesuffix("gate_proj.weight")
            begin, at = entry["data_offsets"]
            assert begin % 4096 == 0, name
            for part in ("up_proj", "down_proj"):
                next_begin, end = header[f"{prefix}{part}.weight"]["data_offsets"]
                assert next_begin == at, name
                at = end
            assert at % 4096 == 0, name
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(header)
    print(f"layout: {len(header)} tensors, data at byte {8 + size}, experts page-aligned")


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--model", type=Path, required=True)
    args.add_argument("--max-new", type=int, default=48)
    args = args.parse_args()
    torch.set_num_threads(1)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    check_layout(args.model)
    config, state = read_state(args.model)
    mine = TinyMoe(config)
    mine.load_state_dict(state)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    theirs, info = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, output_loading_info=True)
    print("transformers:", {k: sorted(v) for k, v in info.items() if v})
    bad = bool(info["missing_keys"]) or bool(info["unexpected_keys"])
    worst = 0.0
    with torch.no_grad():
        for prompt in PROMPTS:
            ids = tokenizer(prompt, return_tensors="pt").input_ids
            out = theirs.generate(ids, max_new_tokens=args.max_new, do_sample=False)
            want, got = theirs(out).logits, mine.logits(out)
            worst = max(worst, ((want - got).abs().max() / want.abs().max()).item())
            print("---", repr(tokenizer.decode(out[0])))
        chat = tokenizer.apply_chat_template([{"role": "user", "content": "What is 12+7?"}],
                                             add_generation_prompt=True, tokenize=False)
        ids = tokenizer(chat, return_tensors="pt").input_ids
        out = theirs.generate(ids, max_new_tokens=20, do_sample=False)
        print("---", repr(tokenizer.decode(out[0])))
    print(f"max |difference of logits| / max |logit|: {worst:.2e}")
    return 1 if bad or worst > 1e-4 else 0


if __name__ == "__main__":
    sys.exit(main())
