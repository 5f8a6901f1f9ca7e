#!/usr/bin/env python3
"""GGUF files of model families in llama.cpp, which is not ours: the random models of
tests/data/models as floats, and models/tiny-moe in the types that `repack` writes; the same file in
both programs, the same tokens. Logits differ by no more than ERROR of the largest (or what ERRORS
says), with TYPES but for STRAYS of the tokens, and the largest logit is that of the same token
wherever its lead in llama.cpp is more than twice the difference allowed. llama.cpp keeps keys and values in float32 here.

usage: llama_test.py MOEPAGER MAKE_TWIN [FAMILY|TYPE...]

llama.cpp is that of LLAMA_DIR, an install prefix, or without that what tools/get_llama brings, as in
tests/interpose/harness.py; where there is none, or it has a family not, that is skipped by name.
"""
import json
import os
import random
import subprocess
import sys
import tempfile
from array import array
from collections import namedtuple
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tools/bench"), str(ROOT / "tests/interpose")]
from bench_lib import BenchError, build_llama_driver, llama_command  # noqa: E402
from harness import Llama, Skip  # noqa: E402

MODELS = ROOT / "tests/data/models"
PROMPT, GEN = 8, 17
ERROR = 2e-4
# llama.cpp's GELU is a table of 16-bit floats; lengths of queries and keys of delta networks are at
# least 1e-6 there, where 1e-6 is added to their squares here, as in the model's own code.
ERRORS = {"gemma4": 4e-3, "qwen35moe": 1e-3, "qwen3next": 1e-3}
# What is multiplied is rounded to F16 or BF16 in llama.cpp, or to 8 bits in both programs, where a
# last bit may choose another step. By a little more or less a token may choose another expert: so
# many of the tokens may be further off.
TYPES = {"f16": 1e-2, "bf16": 2e-2, "q8_0": 2e-2, "q4_k_m": 2e-2, "mxfp4": 2e-2}
STRAYS = GEN // 3
LISTS = {"rope_type": "longrope", "short_factor": [1, 1.1, 1.5, 2.25, 3.5], "long_factor": [1, 2, 4.5, 8, 16]}
# Directory, general.architecture, and keys of config.json that are not as there.
FAMILIES = [
    ("qwen2moe-tiny", "qwen2moe"), ("qwen3moe-tiny", "qwen3moe"), ("mixtral-tiny", "llama"), ("olmoe-a", "olmoe"),
    ("granitemoe-a", "granitemoe"), ("glm4_moe-a", "glm4moe"), ("glm4_moe-b", "glm4moe"),
    ("minimax_m2-a", "minimax-m2"), ("gpt_oss-a", "gpt-oss"), ("deepseek-a", "deepseek"),
    ("deepseek_v3-b", "deepseek2"), ("glm4_moe_lite-a", "deepseek2"), ("glm4_moe_lite-b", "deepseek2"),
    ("qwen3_next-a", "qwen3next"), ("qwen3_5_moe_text-a", "qwen35moe"), ("gemma4_text-a", "gemma4"),
    ("lfm2_moe-a", "lfm2moe"), ("gpt_oss-mxfp4", "gpt-oss"),
    # llama.cpp has no model of which every second layer has experts; and takes the best two experts
    # of a group for its score, V2 the best one.
    ("ernie4_5_moe-a", "ernie4_5-moe", {"num_hidden_layers": 3}),
    ("deepseek_v2-b", "deepseek2", {"n_group": 1, "topk_group": 1, "topk_method": "greedy"}),
    # Of models without a latent of queries it knows V2-Lite, by its 27 layers.
    ("deepseek_v2-a", "deepseek2", {"num_hidden_layers": 27, "rope_scaling": {
        "type": "yarn", "factor": 4, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707,
        "mscale_all_dim": 0.707, "original_max_position_embeddings": 128}}),
    ("mixtral-tiny", "llama", {"rope_scaling": {
        "rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
        "original_max_position_embeddings": 16}}),
    # llama.cpp's contexts are of at least 256 positions: long for the first model, short for the second one.
    ("mixtral-tiny", "llama", {"rope_scaling": {**LISTS, "original_max_position_embeddings": 16}}),
    ("granitemoe-a", "granitemoe", {"rope_scaling": {**LISTS, "original_max_position_embeddings": 300}}),
]


Case = namedtuple("Case", "name arch make tokens error strays")


def find_llama():
    place = os.environ.get("LLAMA_DIR")
    return Path(place) if place else Llama("debian").folder


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


def check(ours, theirs, error, strays):
    """The largest difference by the largest logit, rows beyond the error, rows with a clear winner, is
    all as it must be."""
    largest = max(abs(x) for row in theirs for x in row)
    offs = [max(abs(x - y) for x, y in zip(a, b, strict=True)) / largest
            for a, b in zip(ours, theirs, strict=True)]
    clear = [i for i, row in enumerate(theirs)
             if max(row) - sorted(row)[-2] > 2 * error * largest]
    beyond = [i for i, off in enumerate(offs) if off > error]
    same = all(ours[i].index(max(ours[i])) == theirs[i].index(max(theirs[i]))
               for i in clear if i not in beyond)
    return max(offs), len(beyond), len(clear), len(beyond) <= strays and same and len(clear) > 0


def deepen(model, out, layers):
    """The model with its layers behind the first one again and again, under its own config.json."""
    data = (model / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = json.loads(data[8:start])
    own = json.loads((model / "config.json").read_text())["num_hidden_layers"]
    names = {name: name for name in tensors if "model.layers." not in name and name != "__metadata__"}
    for n in range(layers):
        source = f"model.layers.{n if n < own else 1 + (n - 1) % (own - 1)}."
        names.update({name.replace(source, f"model.layers.{n}."): name for name in tensors
                      if name.startswith(source)})
    header, weights = {}, b""
    for name, source in names.items():
        first, end = tensors[source]["data_offsets"]
        header[name] = {**tensors[source],
                        "data_offsets": [len(weights), len(weights) + end - first]}
        weights += data[start + first:start + end]
    text = json.dumps(header).encode()
    out.mkdir()
    (out / "config.json").write_bytes((model / "config.json").read_bytes())
    (out / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + weights)
    return out


def scaling(changes):
    kinds = [c["rope_scaling"] for c in changes if "rope_scaling" in c]
    return f"  ({kinds[0].get('rope_type') or kinds[0]['type']})" if kinds else ""


def twin(make_twin, name, arch, changes, out):
    """The command that makes it."""
    model = MODELS / name
    layers = max([c.get("num_hidden_layers", 0) for c in changes], default=0)
    if layers > json.loads((model / "config.json").read_text())["num_hidden_layers"]:
        model = deepen(model, out.parent / "deep", layers)
    return [make_twin, model, arch, out, *map(json.dumps, changes)]


def cases(moepager, make_twin, chosen):
    for name, arch, *changes in FAMILIES:
        if not chosen or name in chosen or arch in chosen:
            yield Case(name + scaling(changes), arch, partial(twin, make_twin, name, arch, changes),
                       70, ERRORS.get(arch, ERROR), 0)
    for kind, error in TYPES.items():
        if not chosen or kind in chosen:
            yield Case(f"tiny-moe {kind}", "qwen3moe", lambda out, kind=kind: [
                moepager, "repack", "--model", ROOT / "models/tiny-moe", "--out", out, "--force",
                "--type", kind], 2000, error, STRAYS)


def run_case(case, moepager, command, folder):
    """True: as it must be, or llama.cpp does not know the family."""
    rng = random.Random(5)
    model, ids = folder / "model.gguf", folder / "tokens.txt"
    subprocess.run(case.make(model), check=True, stdout=subprocess.DEVNULL)
    tokens = [rng.randrange(4, case.tokens) for _ in range(PROMPT + GEN)]
    ids.write_text("\n".join(map(str, tokens)) + "\n")
    theirs, errors = run_llama(command, model, ids, folder)
    if theirs is None and any("unknown model architecture" in line for line in errors):
        print(f"{case.name:30} skipped: this llama.cpp has no '{case.arch}'")
        return True
    if theirs is None:
        print(f"{case.name:30} FAILED in llama.cpp: {errors[:3]}")
        return False
    off, beyond, clear, good = check(run_ours(moepager, model, ids, folder), theirs, case.error,
                                     case.strays)
    print(f"{case.name:30} {case.arch:12} differs by {off:.1e} of the largest logit, {beyond} of "
          f"{GEN} beyond {case.error:.0e}, {clear} clear  {'ok' if good else 'DIFFERS'}", flush=True)
    return good


def main():
    moepager, make_twin = map(Path, sys.argv[1:3])
    failed = 0
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        try:
            llama = find_llama()
            command = llama_command(llama, build_llama_driver(llama, folder))
        except (BenchError, Skip) as error:
            print(f"skipped: {error}")
            return 77
        for case in cases(moepager, make_twin, sys.argv[3:]):
            failed += not run_case(case, moepager, command, folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
