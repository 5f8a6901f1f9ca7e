#!/usr/bin/env python3
"""GGUF files of model families in llama.cpp, which is not ours: the random models of
tests/data/models as floats, the same file in both programs, the same tokens. Logits differ by no more
than ERROR of the largest (or what ERRORS says), and the largest logit is that of the same token wherever its lead in
llama.cpp is more than twice the difference allowed. llama.cpp keeps keys and values in float32 here.

usage: llama_test.py MOEPAGER MAKE_TWIN [FAMILY...]

llama.cpp is that of LLAMA_DIR, or of the folder that tests/interpose/harness.py uses; where there is
none, or it has a family not, that is skipped by name.
"""
import json
import os
import random
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tools/bench"), str(ROOT / "tests/interpose")]
from bench_lib import BenchError, build_llama_driver, llama_command  # noqa: E402
from harness import packages_folder  # noqa: E402

MODELS = ROOT / "tests/data/models"
PROMPT, GEN = 8, 17
ERROR = 2e-4
# llama.cpp's GELU is a table of 16-bit floats; lengths of queries and keys of delta networks are at
# least 1e-6 there, where 1e-6 is added to their squares here, as in the model's own code.
ERRORS = {"gemma4": 4e-3, "qwen35moe": 1e-3, "qwen3next": 1e-3}
LISTS = {"rope_type": "longrope", "short_factor": [1, 1.1, 1.5, 2.25, 3.5], "long_factor": [1, 2, 4.5, 8, 16]}
# Directory, general.architecture, and keys of config.json that are not as there.
FAMILIES = [
    ("qwen2moe-tiny", "qwen2moe"), ("qwen3moe-tiny", "qwen3moe"), ("mixtral-tiny", "llama"), ("olmoe-a", "olmoe"),
    ("granitemoe-a", "granitemoe"), ("glm4_moe-a", "glm4moe"), ("glm4_moe-b", "glm4moe"),
    ("minimax_m2-a", "minimax-m2"), ("gpt_oss-a", "gpt-oss"), ("deepseek-a", "deepseek"),
    ("deepseek_v3-b", "deepseek2"), ("glm4_moe_lite-a", "deepseek2"), ("glm4_moe_lite-b", "deepseek2"),
    ("qwen3_next-a", "qwen3next"), ("qwen3_5_moe_text-a", "qwen35moe"), ("gemma4_text-a", "gemma4"),
    ("lfm2_moe-a", "lfm2moe"),
    ("mixtral-tiny", "llama", {"rope_scaling": {
        "rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
        "original_max_position_embeddings": 16}}),
    # llama.cpp's contexts are of at least 256 positions: long for the first model, short for the second one.
    ("mixtral-tiny", "llama", {"rope_scaling": {**LISTS, "original_max_position_embeddings": 16}}),
    ("granitemoe-a", "granitemoe", {"rope_scaling": {**LISTS, "original_max_position_embeddings": 300}}),
]


def find_llama():
    for place in (os.environ.get("LLAMA_DIR"), packages_folder()):
        folder = Path(place) / "debian" if place else None
        if folder and (folder / "ready").exists():
            return folder
    return None


def rows_of(data):
    """GEN rows of float32."""
    values = array("f", data)
    columns, rest = divmod(len(values), GEN)
    assert columns > 1 and rest == 0, len(values)
    return [list(values[i * columns:(i + 1) * columns]) for i in range(GEN)]


def run_ours(moepager, model, ids, folder):
    out = folder / "ours.npy"
    subprocess.run([moepager, "bench", "--model", model, "--tokens-file", ids, "--prompt-tokens",
                    str(PROMPT), "--gen-tokens", str(GEN), "--ctx", "64", "--threads", "1",
                    "--repeat", "1", "--json", "--budget", "all", "--math", "f32", "--logits-out",
                    out], check=True, stdout=subprocess.DEVNULL)
    npy = out.read_bytes()
    return rows_of(npy[10 + int.from_bytes(npy[8:10], "little"):])


def run_llama(command, model, ids, folder):
    out = folder / "theirs.f32"
    done = subprocess.run([*command, model, ids, str(PROMPT), str(GEN), "1", "1", out, "cache32"],
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        return None, done.stderr.strip().splitlines()
    return rows_of(out.read_bytes()), []


def check(ours, theirs, error):
    """The largest difference by the largest logit, rows with a clear winner, is all as it must be."""
    largest = max(abs(x) for row in theirs for x in row)
    off = max(abs(x - y) for a, b in zip(ours, theirs, strict=True)
              for x, y in zip(a, b, strict=True)) / largest
    clear = [i for i, row in enumerate(theirs)
             if max(row) - sorted(row)[-2] > 2 * error * largest]
    same = all(ours[i].index(max(ours[i])) == theirs[i].index(max(theirs[i])) for i in clear)
    return off, len(clear), off <= error and same


def scaling(changes):
    return f"  ({changes[0]['rope_scaling']['rope_type']})" if changes else ""


def main():
    moepager, make_twin = map(Path, sys.argv[1:3])
    llama = find_llama()
    if llama is None:
        print("skipped: no llama.cpp in LLAMA_DIR; tools/get_llama debian DIR brings it")
        return 77
    failed = 0
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        try:
            command = llama_command(llama, build_llama_driver(llama, folder))
        except BenchError as error:
            print(f"skipped: {error}")
            return 77
        rng = random.Random(5)
        for name, arch, *changes in FAMILIES:
            if sys.argv[3:] and name not in sys.argv[3:] and arch not in sys.argv[3:]:
                continue
            model, ids = folder / f"{name}.gguf", folder / "tokens.txt"
            subprocess.run([make_twin, MODELS / name, arch, model, *map(json.dumps, changes)], check=True)
            tokens = [rng.randrange(4, 70) for _ in range(PROMPT + GEN)]
            ids.write_text("\n".join(map(str, tokens)) + "\n")
            theirs, errors = run_llama(command, model, ids, folder)
            if theirs is None and any("unknown model architecture" in line for line in errors):
                print(f"{name:20} skipped: this llama.cpp has no '{arch}'")
                continue
            if theirs is None:
                print(f"{name:20} FAILED in llama.cpp: {errors[:3]}")
                failed += 1
                continue
            off, clear, good = check(run_ours(moepager, model, ids, folder), theirs,
                                     ERRORS.get(arch, ERROR))
            print(f"{name:20} {arch:12} differs by {off:.1e} of the largest logit, {clear} of {GEN} "
                  f"clear  {'ok' if good else 'DIFFERS'}{scaling(changes)}", flush=True)
            failed += not good
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
