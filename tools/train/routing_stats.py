#!/usr/bin/env python3
"""Routing statistics of tiny-moe on held-out text, as Markdown tables.

  entropy   of the distribution of choices over a layer's experts, in bits (all equal: 5 for 32)
  reuse     part of a token's experts that the previous token chose too, per layer
  overlap   sum over experts of min(share in domain A, share in domain B), per layer
            (1: the domains use the experts alike, 0: no expert in common)

The choices are those of `moepager run --trace` with the held-out passages as prompts, or, without
--engine, of the PyTorch model on the same passages.
"""
import argparse
import itertools
import json
import re
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch

from export import read_state
from make_corpus import DOMAINS, texts
from tiny_moe import TinyMoe

CONVERSATION = re.compile(r"(<\|im_start\|>.*?<\|im_end\|>\n)+", re.DOTALL)


def passages(corpus, domain, count, size):
    """Evenly spaced parts of `size` characters of the held-out text, from the start of a line.

    Conversations are left out: a plain prompt has no special tokens.
    """
    text = CONVERSATION.sub("", "".join(texts(corpus, domain, "heldout")))
    for i in range(count):
        at = text.index("\n", i * (len(text) - 2 * size) // max(1, count - 1)) + 1
        yield text[at:at + size]


def torch_choices(folder, prompts):
    """For each prompt [tokens, layers, top_k]: the chosen experts, best first."""
    from tokenizers import Tokenizer

    config, state = read_state(folder)
    model = TinyMoe(config)
    model.load_state_dict(state)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    with torch.no_grad():
        for prompt in prompts:
            ids = tokenizer.encode(prompt, add_special_tokens=False).ids
            yield torch.stack(model(torch.tensor([ids]))[2], 1).numpy()


def read_trace(path, layers, top_k):
    """[tokens, layers, top_k] of the prompt (step 0) of a trace of one sequence."""
    rows = {}
    with open(path) as lines:
        assert next(lines) == "# moepager trace v1\n"
        shape = dict(part.split("=", 1) for part in next(lines)[2:].split())
        assert (int(shape["layers"]), int(shape["top_k"])) == (layers, top_k)
        for line in lines:
            if line.startswith("#"):
                continue
            step, layer, sequence, position, *chosen = line.split()
            if step == "0":
                assert sequence == "0"
                rows[int(position), int(layer)] = [int(c.split(":")[0]) for c in chosen]
    tokens = len(rows) // layers
    return np.array([[rows[t, i] for i in range(layers)] for t in range(tokens)])


def engine_choices(engine, folder, prompts):
    raw = json.loads((folder / "config.json").read_text())
    with tempfile.TemporaryDirectory() as scratch:
        prompt_file, trace = Path(scratch) / "prompt", Path(scratch) / "trace"
        for prompt in prompts:
            prompt_file.write_text(prompt)
            subprocess.run([engine, "run", "--model", folder, "--prompt-file", prompt_file,
                            "--max-tokens", "1", "--trace", trace], check=True,
                           capture_output=True)
            yield read_trace(trace, raw["num_hidden_layers"], raw["num_experts_per_tok"])


def shares(choices, experts):
    """[layers, experts]: part of the choices of a layer that went to each expert."""
    every = np.concatenate(choices)
    counts = np.stack([np.bincount(every[:, i].ravel(), minlength=experts)
                       for i in range(every.shape[1])])
    return counts / counts.sum(1, keepdims=True)


def entropy(share):
    return -(share * np.log2(np.maximum(share, 1e-12))).sum(1)


def reuse(choices):
    """[layers]: mean over tokens of the part of the experts that the token before had too."""
    same = [(c[1:, :, :, None] == c[:-1, :, None, :]).any(-1) for c in choices]
    return np.concatenate(same).mean(axis=(0, 2))


def table(title, columns, rows):
    print(f"\n{title}\n")
    print("| layer | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for layer, row in enumerate(rows):
        print(f"| {layer} | " + " | ".join(f"{value:.2f}" for value in row) + " |")
    print("| mean | " + " | ".join(f"{value:.2f}" for value in np.mean(rows, axis=0)) + " |")


def report(choices, experts):
    share = {d: shares(c, experts) for d, c in choices.items()}
    pooled = sum(share.values()) / len(share)
    used = [(pooled[i] > 0.1 / experts).sum() for i in range(len(pooled))]
    columns = [entropy(share[d]) for d in choices] + [entropy(pooled), used]
    table("Entropy in bits, and experts used at least a tenth as often as the mean",
          [*choices, "all", "experts used"], np.stack(columns, 1))
    top_k = next(iter(choices.values()))[0].shape[2]
    table(f"Reuse from the previous token (by chance: {top_k / experts:.3f} for equal use)",
          list(choices), np.stack([reuse(c) for c in choices.values()], 1))
    pairs = list(itertools.combinations(choices, 2))
    table("Overlap between domains", [f"{a}, {b}" for a, b in pairs],
          np.stack([np.minimum(share[a], share[b]).sum(1) for a, b in pairs], 1))


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--model", type=Path, required=True)
    args.add_argument("--corpus", type=Path, required=True)
    args.add_argument("--engine", help="the program moepager")
    args.add_argument("--passages", type=int, default=16, help="per domain")
    args.add_argument("--characters", type=int, default=1500, help="per passage")
    args = args.parse_args()
    torch.set_num_threads(1)

    choices = {}
    for domain in DOMAINS:
        prompts = passages(args.corpus, domain, args.passages, args.characters)
        choices[domain] = list(engine_choices(args.engine, args.model, prompts) if args.engine
                               else torch_choices(args.model, prompts))
        print(f"{domain}: {sum(map(len, choices[domain]))} tokens")
    report(choices, json.loads((args.model / "config.json").read_text())["num_experts"])


if __name__ == "__main__":
    main()
