#!/usr/bin/env python3
"""Bits per byte of an exported tiny-moe on the held-out files, against gzip -9 on the same text.

The model predicts every token of a file from the <|endoftext|> before it and from at least
--overlap tokens where the file has them. gzip gets each domain's held-out files as one stream. Then fresh tasks of each kind, each after
three lines of the same kind: the part whose answer the model's greedy choice gives in full.
"""
import argparse
import json
import math
import random
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

import tasks
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


@torch.no_grad()
def solved(model, tokenizer, kind, count):
    """Part of `count` tasks of a kind where every token of the answer is the likeliest one."""
    rng, right = random.Random(f"evaluate/{kind.__name__}"), 0
    for _ in range(count):
        shown = "".join(tasks.plain(rng, kind) + "\n" for _ in range(3))
        question, answer, _ = kind(rng)
        last = tasks.line(question, answer)
        text = shown + last + "\n"
        # the blank before an answer belongs to the answer's first token
        cut = len(shown) + len(last) - len(answer) - (last[-len(answer) - 1] == " ")
        prompt = tokenizer.encode(text[:cut], add_special_tokens=False).ids
        whole = tokenizer.encode(text, add_special_tokens=False).ids
        assert whole[:len(prompt)] == prompt
        best = model.logits(torch.tensor([whole]))[0].argmax(-1).tolist()
        right += best[len(prompt) - 1:-1] == whole[len(prompt):]
    return right / count


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--model", type=Path, required=True)
    args.add_argument("--corpus", type=Path, required=True)
    args.add_argument("--window", type=int, default=1024)
    args.add_argument("--overlap", type=int, default=512)
    args.add_argument("--tasks", type=int, default=100, help="fresh tasks of each kind")
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
    for kind in dict.fromkeys(tasks.KINDS):
        print(json.dumps({"task": kind.__name__,
                          "solved": solved(model, tokenizer, kind, args.tasks)}), flush=True)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
