#!/usr/bin/env python3
"""Routing statistics of tiny-moe on held-out text, as Markdown tables.

  entropy   of the distribution of choices over a layer's experts, in bits (all equal: 5 for 32)
  reuse     part of a token's experts that the previous token chose too, per layer
  overlap   sum over experts of min(share in domain A, share in domain B), per layer
            (1: the domains use the experts alike, 0: no expert in common)

The choices are computed here with PyTorch from the first windows of the held-out files.
"""
import argparse
import itertools
from pathlib import Path

import numpy as np
import torch

from export import read_state
from make_corpus import DOMAINS
from tiny_moe import TinyMoe


@torch.no_grad()
def torch_choices(model, corpus, domain, windows, length):
    """[sequences, tokens, layers, top_k] chosen experts on evenly spaced held-out windows."""
    data = np.load(corpus / f"{domain}.heldout.npy").astype(np.int64)
    stride = (len(data) - length) // max(1, windows - 1)
    ids = torch.stack([torch.from_numpy(data[i * stride:i * stride + length])
                       for i in range(windows)])
    _, _, chosen = model(ids)
    return torch.stack(chosen, 1).view(windows, length, len(chosen), -1).numpy()


def shares(choices, experts):
    """[layers, experts]: part of the choices of a layer that went to each expert."""
    layers = choices.shape[2]
    counts = np.stack([np.bincount(choices[:, :, i].ravel(), minlength=experts)
                       for i in range(layers)])
    return counts / counts.sum(1, keepdims=True)


def entropy(share):
    return -(share * np.log2(np.maximum(share, 1e-12))).sum(1)


def reuse(choices):
    """[layers]: mean over tokens of the part of the experts that the token before had too."""
    now, before = choices[:, 1:, :, :, None], choices[:, :-1, :, None, :]
    return (now == before).any(-1).mean(axis=(0, 1, 3))


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
    top_k = next(iter(choices.values())).shape[3]
    table(f"Reuse from the previous token (by chance: {top_k / experts:.3f} for equal use)",
          list(choices), np.stack([reuse(c) for c in choices.values()], 1))
    pairs = list(itertools.combinations(choices, 2))
    table("Overlap between domains", [f"{a}, {b}" for a, b in pairs],
          np.stack([np.minimum(share[a], share[b]).sum(1) for a, b in pairs], 1))


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--model", type=Path, required=True)
    args.add_argument("--corpus", type=Path, required=True)
    args.add_argument("--windows", type=int, default=16)
    args.add_argument("--length", type=int, default=512)
    args = args.parse_args()
    torch.set_num_threads(1)

    config, state = read_state(args.model)
    model = TinyMoe(config)
    model.load_state_dict(state)
    choices = {d: torch_choices(model, args.corpus, d, args.windows, args.length) for d in DOMAINS}
    report(choices, config.experts)


if __name__ == "__main__":
    main()
