"""Train LLaPor, the layer-aware predictors of PreScope (section 4.2): one network for each MoE layer
but the first, from what the layer before it saw and chose. docs/calibration.md has commands, data
and results; engine/model/sidecar/llapor.h has the arithmetic.

    moepager calibrate --model DIR --text train.txt --features
    python3 llapor.py --dir DIR

DIR holds moepager-calibration.safetensors (for the layer groups) and
moepager-features.safetensors; moepager-llapor.safetensors is written beside them.

From the paper: PCA to d/16 for input and output group and d/8 for the middle; linear blocks with
GELU and dropout; shallow networks outside, a gated residual block in the middle; expert-balancing
plus focal loss outside; AdamW, 30 epochs, warm-up of 5 epochs and cosine outside, higher rate and
decay in the middle; Gaussian noise and masking. Not given there and chosen here: lambda 0.5, gamma 2,
BCE in the middle, a cosine without warm-up in the middle, all sizes and rates below.
"""
import argparse
import json
import math
import os
import struct
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

FOCAL_WEIGHT, FOCAL_GAMMA = 0.5, 2.0
EPOCHS, WARMUP = 30, 5
RATE = {"outer": 2e-3, "middle": 4e-3}
DECAY = {"outer": 0.01, "middle": 0.05}
NOISE, MASK, DROPOUT = 0.05, 0.1, 0.1
HELD_OUT = 0.05


class SafeTensors:
    """The tensors of a file, mapped; and its metadata."""

    KINDS = {"F32": np.dtype("<f4"), "I32": np.dtype("<i4"), "BF16": np.dtype("<u2")}

    def __init__(self, path):
        with open(path, "rb") as f:
            length = struct.unpack("<Q", f.read(8))[0]
            self.header = json.loads(f.read(length))
        self.metadata = self.header.pop("__metadata__", {})
        self.data = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + length)

    def __getitem__(self, name):
        entry = self.header[name]
        begin, end = entry["data_offsets"]
        flat = self.data[begin:end].view(self.KINDS[entry["dtype"]])
        if entry["dtype"] == "BF16":
            flat = (flat.astype(np.uint32) << 16).view(np.float32)
        return np.array(flat).reshape(entry["shape"])


def write_safetensors(path, metadata, tensors):
    """Write float32 arrays; the name appears when the file is whole."""
    header, at = {"__metadata__": metadata}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape),
                        "data_offsets": [at, at + 4 * array.size]}
        at += 4 * array.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path) or ".", delete=False) as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            f.write(np.ascontiguousarray(array, dtype="<f4").tobytes())
        f.flush()
        os.fsync(f.fileno())
    os.chmod(f.name, 0o644)
    os.replace(f.name, path)


def fit_pca(x, components):
    """Weight (components, d) and bias of a projection to components of variance 1."""
    mean = x.mean(dim=0)
    values, vectors = torch.linalg.eigh((x - mean).T @ (x - mean) / len(x))
    values, vectors = values.flip(0)[:components], vectors.flip(1)[:, :components]
    weight = (vectors / values.clamp_min(1e-12).sqrt()).T
    return weight, -weight @ mean


class Predictor(nn.Module):
    """One layer's network; f = [z w c]."""

    def __init__(self, pca, experts, width, deep):
        super().__init__()
        weight, bias = pca
        self.pca = nn.Linear(weight.shape[1], weight.shape[0])
        with torch.no_grad():
            self.pca.weight.copy_(weight)
            self.pca.bias.copy_(bias)
        self.pca.requires_grad_(False)
        self.input = nn.Linear(weight.shape[0] + 2 * experts, width)
        self.out = nn.Linear(width, experts)
        self.deep = deep
        if deep:
            self.a = nn.Linear(width, width)
            self.b = nn.Linear(width, width)
            self.gate = nn.Linear(weight.shape[0], width)
        self.dropout = nn.Dropout(DROPOUT)

    def features(self, x, experts, weights):
        count = self.out.out_features
        shares = weights / weights.sum(dim=1, keepdim=True)
        w = torch.zeros(len(x), count).scatter_(1, experts, shares)
        c = torch.zeros(len(x), count).scatter_(1, experts, 1.0)
        return self.pca(x), torch.cat([w, c], dim=1)

    def forward(self, z, choices):
        if self.training:
            z = z + NOISE * torch.randn_like(z)
        f = torch.cat([z, choices], dim=1)
        if self.training:
            f = f * (torch.rand_like(f) >= MASK)
        h = self.dropout(F.gelu(self.input(f)))
        if self.deep:
            inner = self.dropout(F.gelu(self.a(h)))
            h = h + torch.sigmoid(self.gate(z)) * self.b(inner)
        return self.out(h)

    def tensors(self, layer):
        parts = {"pca": self.pca, "in": self.input, "out": self.out}
        if self.deep:
            parts.update(a=self.a, b=self.b, gate=self.gate)
        return {f"layer.{layer}.{name}.{what}": getattr(part, what).detach().numpy()
                for name, part in parts.items() for what in ("weight", "bias")}


def outer_loss(logits, truth, balance):
    """Expert-balancing loss plus focal loss."""
    bce = F.binary_cross_entropy_with_logits(logits, truth, reduction="none")
    right = torch.exp(-bce)
    return (balance * bce).mean() + FOCAL_WEIGHT * ((1 - right) ** FOCAL_GAMMA * bce).mean()


def middle_loss(logits, truth, balance):
    del balance
    return F.binary_cross_entropy_with_logits(logits, truth)


def rate_at(epoch, epochs, middle):
    warmup = 0 if middle else min(WARMUP, epochs - 1)
    if epoch < warmup:
        return (epoch + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (epoch - warmup) / max(1, epochs - warmup)))


def recall(logits, truth_ids):
    best = logits.topk(truth_ids.shape[1], dim=1).indices
    return (best.unsqueeze(2) == truth_ids.unsqueeze(1)).any(dim=1).float().mean().item()


def train_layer(before, after_experts, experts, middle, args):
    """A predictor of the layer that chose `after_experts`, and its recall on held-out tokens."""
    x, chosen, weights = before
    kept = int(len(x) * (1 - HELD_OUT))
    components = max(1, x.shape[1] // (args.middle_divisor if middle else args.outer_divisor))
    model = Predictor(fit_pca(x[:kept], components), experts, args.width, middle)
    with torch.no_grad():
        z, choices = model.features(x, chosen, weights)
    truth = torch.zeros(len(x), experts).scatter_(1, after_experts, 1.0)
    balance = 1 / truth[:kept].mean(dim=0).clamp_min(1e-4)
    balance = balance / balance.mean()
    kind = "middle" if middle else "outer"
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad],
                                  lr=RATE[kind], weight_decay=DECAY[kind])
    loss_of = middle_loss if middle else outer_loss
    for epoch in range(args.epochs):
        model.train()
        for group in optimizer.param_groups:
            group["lr"] = RATE[kind] * rate_at(epoch, args.epochs, middle)
        for rows in torch.randperm(kept).split(args.batch):
            loss = loss_of(model(z[rows], choices[rows]), truth[rows], balance)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        return model, recall(model(z[kept:], choices[kept:]), after_experts[kept:])


def load_layer(features, layer, rows):
    return (torch.from_numpy(features[f"layer.{layer}.input"])[rows],
            torch.from_numpy(features[f"layer.{layer}.experts"])[rows].long(),
            torch.from_numpy(features[f"layer.{layer}.weights"])[rows])


def main():
    parser = argparse.ArgumentParser(description="Train LLaPor from recorded features.")
    parser.add_argument("--dir", required=True, help="with calibration and features")
    parser.add_argument("--out", help="file (moepager-llapor.safetensors in --dir)")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--tokens", type=int, default=128 * 512, help="sampled at random")
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--width", type=int, default=0, help="of a network (twice the experts)")
    parser.add_argument("--outer-divisor", type=int, default=16, help="d/16 components outside")
    parser.add_argument("--middle-divisor", type=int, default=8, help="d/8 components in the middle")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    features = SafeTensors(os.path.join(args.dir, "moepager-features.safetensors"))
    calibration = SafeTensors(os.path.join(args.dir, "moepager-calibration.safetensors"))
    if features.metadata["router"] != calibration.metadata["router"]:
        raise SystemExit("features and calibration are of different models")
    groups = calibration["group"].astype(int)
    layers, experts = int(features.metadata["layers"]), int(features.metadata["experts"])
    args.width = args.width or 2 * experts
    rows = torch.randperm(int(features.metadata["tokens"]))[:args.tokens]
    tensors, start = {}, time.time()
    for layer in range(1, layers):
        middle = groups.max() == 2 and groups[layer] == 1
        before = load_layer(features, layer - 1, rows)
        after = load_layer(features, layer, rows)[1]
        model, right = train_layer(before, after, experts, middle, args)
        tensors.update(model.tensors(layer))
        print(f"layer {layer} ({'middle' if middle else 'outer'}, {model.pca.out_features} "
              f"components): recall {100 * right:.1f} % of held-out choices, "
              f"{time.time() - start:.0f} s", flush=True)
    keys = ("layers", "experts", "top_k", "hidden", "router", "tokens")
    metadata = {"moepager": "llapor 1", **{k: features.metadata[k] for k in keys}}
    out = args.out or os.path.join(args.dir, "moepager-llapor.safetensors")
    write_safetensors(out, metadata, tensors)
    print(f"{out}: {os.path.getsize(out)} bytes")


if __name__ == "__main__":
    main()
