#!/usr/bin/env python3
"""Compares the logits of `moepager run` with those of Hugging Face transformers in float32.

moepager writes tokens greedily; transformers is then given the prompt and these very tokens, so
each row is compared after the same text. A prompt passes when max|d| / max|logit| is within the
bound and the tokens are the largest logits of their rows. A row beyond the bound is excused when a
router decision closer than 1e-5 came before it; excused rows may be 1 % of all.
Exit code 0: all passed, 1: not, 2: could not run.

A model directory without tokenizer.json is run with a stand-in that has one token per byte.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

import hf_reference

BOUND = 1e-4
CLOSE_MARGIN = 1e-5
PROMPTS = [
    "T",
    "The old lighthouse keeper climbed the stairs every evening and counted the lamps.",
    "def add(a, b):\n    return a + b\n\n\ndef multiply(a, b):\n    return",
    "sort: 41 7 93 15 62 -> 7 15 41 62 93\nadd: 318 + 467 =",
]


def byte_alphabet():
    """The 256 characters of byte-level vocabularies, printable bytes first."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    chars = [chr(b) for b in plain] + [chr(256 + i) for i in range(len(rest))]
    return sorted(chars, key=lambda c: (c > "~", c != "\u0120", c != "\u010a", c))


def with_tokenizer(model_dir, folder):
    """A directory of links to the model's files plus a tokenizer.json of single bytes.

    Small vocabularies have the printable bytes only; ids beyond the bytes are fillers that no text
    can give but the model can write.
    """
    for file in model_dir.iterdir():
        if file.is_file():
            (folder / file.name).symlink_to(file.resolve())
    rows = json.loads((model_dir / "config.json").read_text())["vocab_size"]
    names = ["<unk>", *byte_alphabet(), *(f"<{i}>" for i in range(rows))][:rows]
    vocab = {name: i for i, name in enumerate(names)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>",
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": []}}))
    return folder


def run_moepager(args, model_dir, prompt, folder):
    """(generated tokens, logits) of one run."""
    prompt_file, logits_file = folder / "prompt.txt", folder / "logits.npy"
    prompt_file.write_text(prompt)
    logits_file.unlink(missing_ok=True)
    command = [str(args.moepager), "run", "--model", str(model_dir), "--prompt-file",
               str(prompt_file), "--max-tokens", str(args.max_tokens), "--temperature", "0",
               "--logits-out", str(logits_file), "--json", *args.flags]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {' '.join(command)}")
    return json.loads(done.stdout)["tokens"], np.load(logits_file)


def compare(args, model, tokenizer, model_dir, prompt, folder):
    """(passed, rows, excused rows); prints one line."""
    tokens, got = run_moepager(args, model_dir, prompt, folder)
    ids = tokenizer.encode(prompt).ids
    if not tokens or got.shape != (len(tokens), model.config.vocab_size):
        print(f"FAIL  {len(tokens)} tokens, but logits of shape {got.shape}")
        return False, 0, 0
    logits, margin = hf_reference.forward(model, ids + tokens[:-1])
    want = logits[len(ids) - 1:]
    close = np.minimum.accumulate(margin)[len(ids) - 1:] < CLOSE_MARGIN
    errors = np.abs(got.astype(np.float64) - want).max(-1) / np.abs(want).max()
    excused = close & ~(errors <= args.bound)
    error = errors[~excused].max(initial=0.0)
    greedy = got.argmax(-1).tolist() == tokens
    passed = bool(error <= args.bound) and greedy
    print(f"{'pass' if passed else 'FAIL'}  max|d|/max|logit| {error:.2e}  "
          f"prompt {len(ids)} tokens, {len(tokens)} rows, {close.sum()} close, "
          f"{excused.sum()} excused{'' if greedy else ', tokens are not the largest logits'}")
    return passed, len(tokens), int(excused.sum())


def parse_args():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example, with a quarter of the experts in memory:\n"
               "  python3 tools/hf/compare_hf.py --model models/tiny-moe "
               "--moepager build/release/moepager -- --budget 25%\n"
               "needs torch, transformers, tokenizers")
    p.add_argument("--model", type=Path, required=True, help="model directory")
    p.add_argument("--moepager", type=Path, default=Path("build/release/moepager"),
                   help="the program (default build/release/moepager)")
    p.add_argument("--prompt-file", type=Path, action="append",
                   help="use this prompt instead of the built-in ones; may be repeated")
    p.add_argument("--max-tokens", type=int, default=17, help="rows per prompt (default 17)")
    p.add_argument("--bound", type=float, default=BOUND, help=f"default {BOUND}")
    p.add_argument("flags", nargs="*", help="further flags for moepager, after --")
    return p.parse_args()


def main():
    args = parse_args()
    prompts = ([f.read_text() for f in args.prompt_file] if args.prompt_file else PROMPTS)
    model = hf_reference.load(args.model)
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        folder, model_dir = Path(scratch), args.model
        if not (model_dir / "tokenizer.json").exists():
            (folder / "model").mkdir()
            model_dir = with_tokenizer(model_dir, folder / "model")
            print(f"{args.model}: no tokenizer.json, one token per byte")
        tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        for prompt in prompts:
            try:
                results.append(compare(args, model, tokenizer, model_dir, prompt, folder))
            except (OSError, RuntimeError, ValueError, KeyError) as error:
                print(f"compare_hf: {error}", file=sys.stderr)
                return 2
    passed, rows, excused = (sum(r[i] for r in results) for i in range(3))
    ok = passed == len(prompts) and excused * 100 <= rows
    print(f"{'pass' if ok else 'FAIL'}: {args.model}: {passed} of {len(prompts)} prompts, "
          f"{excused} of {rows} rows excused")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
