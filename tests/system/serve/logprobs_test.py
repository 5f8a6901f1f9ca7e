#!/usr/bin/env python3
"""Probabilities of tokens in answers: usage: logprobs_test.py MOEPAGER"""
import math
import os
import re
import struct
import tempfile

from serving import Server, run


def logits_of(folder, *flags):
    """The rows of logits that `moepager run` writes."""
    path = os.path.join(folder, "logits.npy")
    run("def main(", "--logits-out", path, *flags)
    with open(path, "rb") as file:
        data = file.read()
    head = 10 + int.from_bytes(data[8:10], "little")
    rows, columns = map(int, re.search(rb"\((\d+), (\d+)\)", data[:head]).groups())
    flat = struct.unpack(f"<{rows * columns}f", data[head:head + 4 * rows * columns])
    return [flat[r * columns:(r + 1) * columns] for r in range(rows)]


def check_logprobs(server):
    """They are those of the logits of `run`, the same streamed, and in both forms."""
    flags = ["--temperature", "0.9", "--seed", "3", "--max-tokens", "10", "--ignore-eos"]
    body = dict(prompt="def main(", temperature=0.9, seed=3, max_tokens=10, ignore_eos=True)
    with tempfile.TemporaryDirectory() as folder:
        rows = logits_of(folder, *flags)
    choice = server.post("/v1/completions", **body, logprobs=4)["choices"][0]
    got = choice["logprobs"]
    sizes = [len(got[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")]
    assert sizes == [10] * 4, sizes
    ids = server.post("/tokenize", content=choice["text"])["tokens"]
    for row, token, value, top in zip(rows, got["tokens"], got["token_logprobs"],
                                      got["top_logprobs"]):
        most = max(row)
        total = most + math.log(sum(math.exp(x - most) for x in row))
        best = sorted(row, reverse=True)[:4]
        assert 1 <= len(top) <= 4
        assert list(top.values()) == sorted(top.values(), reverse=True), top
        assert abs(max(top.values()) - (best[0] - total)) < 1e-4, (top, best, total)
        if len(top) == 4:
            assert all(abs(a - b + total) < 1e-4 for a, b in zip(top.values(), best)), (top, best)
        assert min(abs(value - x + total) for x in row) < 1e-4, (token, value)
        assert top.get(token, value) == value, (top, token, value)
    assert "".join(got["tokens"]) == choice["text"] or any("bytes:" in t for t in got["tokens"])
    assert len(ids) <= 10
    if not any("bytes:" in t for t in got["tokens"]):
        assert got["text_offset"] == [len("".join(got["tokens"][:i])) for i in range(10)], got
    parts = [e["choices"][0]["logprobs"] for e in server.stream("/v1/completions", **body,
                                                                 logprobs=4)]
    for key, wanted in got.items():
        assert sum((p[key] for p in parts), []) == wanted, key
    none = server.post("/v1/completions", **body)["choices"][0]
    assert none["logprobs"] is None and none["text"] == choice["text"]
    zero = server.post("/v1/completions", **body, logprobs=0)["choices"][0]["logprobs"]
    assert zero["token_logprobs"] == got["token_logprobs"] and zero["top_logprobs"] == [{}] * 10
    check_chat_logprobs(server)


def check_chat_logprobs(server):
    body = dict(messages=[{"role": "user", "content": "hi"}], max_tokens=12, logprobs=True)
    choice = server.post("/v1/chat/completions", **body, top_logprobs=20)["choices"][0]
    tokens = choice["logprobs"]["content"]
    text = b"".join(bytes(t["bytes"]) for t in tokens)
    assert choice["message"]["content"] in text.decode(errors="replace"), (text, choice)
    for t in tokens:
        top = t["top_logprobs"]
        assert len(top) == 20 and sum(math.exp(x["logprob"]) for x in top) < 1.0001
        assert top[0]["logprob"] == t["logprob"], t  # greedy: the likeliest was taken
        assert all("bytes:" in x["token"] or x["token"].encode() == bytes(x["bytes"]) for x in top)
    parts = [e["choices"][0]["logprobs"] for e in server.stream("/v1/chat/completions", **body,
                                                                 top_logprobs=20)]
    assert sum((p["content"] for p in parts), []) == tokens
    plain = server.post("/v1/chat/completions", **body)["choices"][0]["logprobs"]["content"]
    assert [t["logprob"] for t in plain] == [t["logprob"] for t in tokens]
    assert all(t["top_logprobs"] == [] for t in plain)


with Server("--batch", "4") as running:
    check_logprobs(running)
print("logprobs: ok")
