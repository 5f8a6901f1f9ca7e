#!/usr/bin/env python3
"""Trains tiny-moe for a given number of minutes of wall clock, then stops with a finished schedule.

Each row of a batch is a window of one domain, domains in turn. The learning rate is driven by the
fraction of the time that is used up: warm-up, constant, then linear decay to zero. The last part
of the time uses longer windows. A checkpoint is written every few minutes and --resume goes on
from it (time already spent counts).
"""
import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import torch

from make_corpus import DOMAINS
from tiny_moe import Config, Experts, Layer, TinyMoe


class Batches:
    """Windows drawn without replacement: each epoch of a domain is a shuffled list of offsets."""

    def __init__(self, folder, part, seed):
        self.data = {d: torch.from_numpy(np.load(folder / f"{d}.{part}.npy").astype(np.int64))
                     for d in DOMAINS}
        self.rng = np.random.default_rng(seed)
        self.queue = {d: [] for d in DOMAINS}
        self.length = dict.fromkeys(DOMAINS, 0)  # window length of the queue
        self.turn = 0

    def window(self, domain, length):
        data, queue = self.data[domain], self.queue[domain]
        if not queue or self.length[domain] != length:
            start = int(self.rng.integers(length))
            offsets = np.arange(start, len(data) - length - 1, length)
            self.rng.shuffle(offsets)
            queue[:] = offsets.tolist()
            self.length[domain] = length
        at = queue.pop()
        return data[at:at + length + 1]

    def next(self, rows, length):
        """One batch [rows, length + 1]; row i is of the next domain in turn."""
        out = []
        for _ in range(rows):
            out.append(self.window(DOMAINS[self.turn % len(DOMAINS)], length))
            self.turn += 1
        return torch.stack(out)


def learning_rate(args, fraction, step):
    warm = min(1.0, (step + 1) / args.warmup_steps)
    if fraction > 1 - args.decay:
        return args.lr * warm * max(0.0, (1 - fraction) / args.decay)
    return args.lr * warm


def make_optimizer(model, args):
    decay = [p for n, p in model.named_parameters() if p.dim() >= 2 and n != "embed"]
    plain = [p for n, p in model.named_parameters() if p.dim() < 2 or n == "embed"]
    groups = [{"params": decay, "weight_decay": args.weight_decay},
              {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98), eps=1e-9, fused=True)


def save(path, state):
    torch.save(state, f"{path}.tmp")
    os.replace(f"{path}.tmp", path)


@torch.no_grad()
def heldout_loss(model, folder, rows=4, length=256):
    """Nats per token on the first windows of the held-out part, per domain."""
    result = {}
    for domain in DOMAINS:
        data = torch.from_numpy(np.load(folder / f"{domain}.heldout.npy").astype(np.int64))
        stride = (len(data) - length - 1) // (3 * rows)
        windows = torch.stack([data[i * stride:i * stride + length + 1] for i in range(3 * rows)])
        result[domain] = round(model.loss(windows)[0].item(), 3)
    return result


def parse():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--corpus", type=Path, required=True)
    args.add_argument("--out", type=Path, required=True, help="folder of checkpoint and log")
    args.add_argument("--minutes", type=float, default=95)
    args.add_argument("--tokens", type=int, default=2048, help="tokens per step")
    args.add_argument("--length", type=int, default=256)
    args.add_argument("--long-length", type=int, default=1024)
    args.add_argument("--long-from", type=float, default=0.85, help="fraction of the time")
    args.add_argument("--lr", type=float, default=3e-3)
    args.add_argument("--warmup-steps", type=int, default=100)
    args.add_argument("--decay", type=float, default=0.4, help="last fraction of the time")
    args.add_argument("--weight-decay", type=float, default=0.05)
    args.add_argument("--balance", type=float, default=0.01)
    args.add_argument("--threads", type=int, default=1)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--save-minutes", type=float, default=4)
    args.add_argument("--no-compile", dest="compile", action="store_false")
    args.add_argument("--resume", action="store_true")
    return args.parse_args()


def main():
    args = parse()
    torch.set_num_threads(args.threads)
    if args.compile:  # all but the experts, whose group sizes change with every step
        Experts.apply = torch._dynamo.disable(Experts.apply)
        Layer.forward = torch.compile(Layer.forward, dynamic=False)
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint = args.out / "checkpoint.pt"
    model = TinyMoe(Config())
    model.init_weights(args.seed)
    optimizer = make_optimizer(model, args)
    step, spent, seen = 0, 0.0, 0
    if args.resume and checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, spent, seen = state["step"], state["spent"], state["seen"]
    batches = Batches(args.corpus, "train", (args.seed, step))
    print(f"parameters {sum(p.numel() for p in model.parameters())}, step {step}", flush=True)

    budget = args.minutes * 60
    start = time.monotonic() - spent
    saved, shown, shown_seen, shown_loss = spent, spent, seen, []
    with open(args.out / "log.jsonl", "a") as log:
        while (spent := time.monotonic() - start) < budget:
            fraction = spent / budget
            length = args.length if fraction < args.long_from else args.long_length
            lr = learning_rate(args, fraction, step)
            for group in optimizer.param_groups:
                group["lr"] = lr
            ids = batches.next(args.tokens // length, length)
            loss, balance = model.loss(ids)
            (loss + args.balance * balance).backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step, seen = step + 1, seen + ids.shape[0] * length
            shown_loss.append(loss.item())
            now = time.monotonic() - start
            if now - shown > 30:
                line = {"step": step, "tokens": seen, "minutes": round(now / 60, 2),
                        "loss": round(float(np.mean(shown_loss)), 4),
                        "balance": round(balance.item(), 3), "norm": round(norm.item(), 2),
                        "lr": round(lr, 6),
                        "tokens_per_s": round((seen - shown_seen) / (now - shown)),
                        "eta_minutes": round((budget - now) / 60, 1)}
                print(json.dumps(line), file=log, flush=True)
                print(json.dumps(line), flush=True)
                shown, shown_seen, shown_loss = now, seen, []
            if now - saved > args.save_minutes * 60:
                print("held out, nats per token:", heldout_loss(model, args.corpus), flush=True)
                save(checkpoint, {"model": model.state_dict(), "step": step, "seen": seen,
                                  "optimizer": optimizer.state_dict(), "spent": now})
                saved = now
    print("held out, nats per token:", heldout_loss(model, args.corpus), flush=True)
    save(checkpoint, {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                      "step": step, "seen": seen, "spent": spent})
    print(f"done: {step} steps, {seen} tokens, {spent / 60:.1f} minutes", flush=True)


if __name__ == "__main__":
    main()
