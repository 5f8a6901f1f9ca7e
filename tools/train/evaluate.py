#!/usr/bin/env python3
"""Bits per byte of an exported tiny-moe on the held-out files, against gzip -9 on the same text.

The model predicts every token of a file from the <|endoftext|> before it and from at least
--overlap tokens where the file has them. gzip gets each domain's held-out files as one stream.
"""
import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

from export import read_state
from make_corpus import DOMAINS, texts
from tiny_moe import TinyMoe


@torch.no_grad()
def nats(model, ids, window, overlap):
    """Sum of -log p of ids[1:] in windows that overlap; every token is scored once."""
    total, begin, scored = 0.0, 0, 1
    while scored < len(ids):
        end = min(begin + window, len(ids))
        part = torch.tensor([ids[begin:end]])
        loss = F.cross_entropy(model.logits(part)[0, :-1], part[0, 1:], reduction="none")
        total += loss[scored - begin - 1:].double().sum().item()
        scored, begin = end, end - overlap
    return total


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--model", type=Path, required=True)
    args.add_argument("--corpus", type=Path, required=True)
    args.add_argument("--window", type=int, default=1024)
    args.add_argument("--overlap", type=int, default=512)
    args.add_argument("--threads", type=int, default=1)
    args = args.parse_args()
    torch.set_num_threads(args.threads)
    from tokenizers import Tokenizer

    config, state = read_state(args.model)
    model = TinyMoe(config)
    model.load_state_dict(state)
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    end = tokenizer.token_to_id("<|endoftext|>")
    worse = 0
    for domain in DOMAINS:
        total, tokens, stream = 0.0, 0, []
        for text in texts(args.corpus, domain, "heldout"):
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            total += nats(model, [end, *ids], args.window, args.overlap)
            tokens += len(ids)
            stream.append(text.encode())
        size = sum(map(len, stream))
        packed = subprocess.run(["gzip", "-9"], input=b"".join(stream), capture_output=True,
                                check=True).stdout
        bits, gzip_bits = total / math.log(2) / size, 8 * len(packed) / size
        worse += bits >= gzip_bits
        print(json.dumps({"domain": domain, "files": len(stream), "bytes": size, "tokens": tokens,
                          "nats_per_token": round(total / tokens, 3),
                          "bits_per_byte": round(bits, 3), "gzip": round(gzip_bits, 3)}),
              flush=True)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
