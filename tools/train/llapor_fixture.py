#!/usr/bin/env python3
"""Write networks with random weights, a few inputs, and what PyTorch computes for them, into
tests/data/llapor: tests/model/predict_test.c compares the C arithmetic with them. The shapes are
those of tests/data/models/qwen3moe-tiny; nothing else of that model matters."""
import argparse
from pathlib import Path

import numpy as np
import torch

from llapor import Predictor, write_safetensors

LAYERS, EXPERTS, TOP_K, HIDDEN, TOKENS = 4, 8, 2, 40, 6
ROUTER = "0123456789abcdef"


def predictor(layer):
    """Layers 1 and 3 shallow, 2 deep; sizes differ and are no multiples of a vector's."""
    components, width = 4 + layer, 17 + layer
    pca = 0.3 * torch.randn(components, HIDDEN), torch.randn(components)
    model = Predictor(pca, EXPERTS, width, layer == 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn_like(parameter))
    return model.eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=Path(__file__).parents[2] / "tests/data/llapor")
    out = Path(parser.parse_args().out)
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(5)
    x = torch.randn(TOKENS, HIDDEN)
    weights, chosen = torch.softmax(torch.randn(TOKENS, EXPERTS), dim=1).topk(TOP_K, dim=1)
    tensors, scores = {}, []
    with torch.no_grad():
        for layer in range(1, LAYERS):
            model = predictor(layer)
            tensors.update(model.tensors(layer))
            scores.append(torch.sigmoid(model(*model.features(x, chosen, weights))).numpy())
    metadata = {"moepager": "llapor 1", "layers": str(LAYERS), "experts": str(EXPERTS),
                "top_k": str(TOP_K), "hidden": str(HIDDEN), "router": ROUTER, "tokens": "0"}
    write_safetensors(str(out / "llapor.safetensors"), metadata, tensors)
    np.save(out / "input.npy", x.numpy())
    np.save(out / "experts.npy", chosen.numpy().astype(np.int32))
    np.save(out / "weights.npy", weights.numpy())
    np.save(out / "scores.npy", np.stack(scores))


if __name__ == "__main__":
    main()
