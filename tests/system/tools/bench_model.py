#!/usr/bin/env python3
"""Models of tools/make_bench_model and tools/bench/sweep: moepager runs them, a seed is a model, both files hold the same.

usage: bench_model.py MOEPAGER

Ends with 77, after everything else has passed, if numpy or gguf is missing: then neither a topical
model nor a GGUF file can be made.
"""
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bench_table import load_tool  # also the path to bench_lib

ROOT = Path(__file__).resolve().parents[3]
SHAPE = ["--layers", "2", "--experts", "8", "--top-k", "2", "--hidden", "256", "--ffn", "64",
         "--heads", "4", "--kv-heads", "2", "--head-dim", "32", "--vocab", "300", "--topics", "7",
         "--text-tokens", "40"]


def make(out, *flags):
    return subprocess.run([sys.executable, ROOT / "tools/make_bench_model", "--out", out, *SHAPE,
                           *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def expect(condition, text):
    if not condition:
        print(f"FAILED: {text}")
        sys.exit(1)


def made(out, *flags):
    done = make(out, *flags)
    expect(done.returncode == 0, f"{out.name}: exit {done.returncode}: {done.stderr}")
    expect(not list(out.parent.glob("**/*.part")), "an unfinished file is left")
    return out


def check_runs(moepager, model):
    done = subprocess.run([moepager, "info", "--model", model, "--check-values", "--json"],
                          stdout=subprocess.PIPE)
    expect(done.returncode == 0, f"{model.name}: bad values")
    done = subprocess.run([moepager, "bench", "--model", model, "--tokens-file",
                           model / "tokens.txt", "--prompt-tokens", "30", "--gen-tokens", "10",
                           "--repeat", "1", "--ctx", "64", "--json"], stdout=subprocess.PIPE)
    expect(done.returncode == 0, f"{model.name}: bench failed")
    run = json.loads(done.stdout)["runs"][0]
    expect((run["prompt_tokens"], run["generated_tokens"]) == (30, 10), f"{model.name}: {run}")


def check_uniform(moepager, work):
    first = made(work / "first")
    weights = (first / "model.safetensors").read_bytes()
    same = (made(work / "same") / "model.safetensors").read_bytes()
    other = (made(work / "other", "--seed", "2") / "model.safetensors").read_bytes()
    expect(weights == same, "the same seed gave other weights")
    expect(len(weights) == len(other) and weights != other, "another seed gave the same weights")
    done = make(first)
    expect(done.returncode == 2 and "nothing is overwritten" in done.stderr,
           f"a model was overwritten: {done.stderr}")
    check_runs(moepager, first)


def read_safetensors(path):
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    return {name: (entry["shape"], data[start + entry["data_offsets"][0]:
                                        start + entry["data_offsets"][1]])
            for name, entry in header.items() if name != "__metadata__"}


# The names that llama.cpp documents for the architecture qwen3moe, on the left.
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
         "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
         "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm",
         "ffn_gate_inp": "mlp.gate"}


def sources(name, experts):
    """Names of the tensors that a GGUF tensor consists of."""
    parts = name.split(".")
    if parts[0] != "blk":
        return [f"{NAMES[parts[0]]}.weight"]
    base = f"model.layers.{parts[1]}"
    if parts[2].endswith("_exps"):
        kind = parts[2].split("_")[1]
        return [f"{base}.mlp.experts.{e}.{kind}_proj.weight" for e in range(experts)]
    return [f"{base}.{NAMES[parts[2]]}.weight"]


def check_gguf(model, path):
    import gguf
    import numpy as np

    tensors = read_safetensors(model / "model.safetensors")
    for tensor in gguf.GGUFReader(path).tensors:
        names = sources(tensor.name, 8)
        shapes, parts = zip(*(tensors.pop(name) for name in names))
        whole, shape = b"".join(parts), [int(n) for n in reversed(tensor.shape)]
        wanted = shapes[0] if len(names) == 1 else [len(names), *shapes[0]]
        expect(shape == wanted, f"{tensor.name}: shape {shape}, not {wanted}")
        if tensor.tensor_type == gguf.GGMLQuantizationType.F32:
            wide = np.frombuffer(whole, "<u2").astype("<u4") << 16
            whole = wide.astype("<u4").tobytes()
        else:
            expect(tensor.tensor_type == gguf.GGMLQuantizationType.BF16, f"{tensor.name}: type")
        expect(tensor.data.tobytes() == whole, f"{tensor.name}: other bytes than {names[0]}")
    expect(not tensors, f"not in the GGUF file: {sorted(tensors)}")


def check_topical(moepager, work):
    import numpy as np

    model = made(work / "topical", "--kind", "topical", "--gguf")
    check_runs(moepager, model)
    check_gguf(model, work / "topical.gguf")
    shape, data = read_safetensors(model / "model.safetensors")["model.embed_tokens.weight"]
    rows = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").reshape(shape)
    topic = np.arange(shape[0]) * 7 // shape[0]
    alike = (rows @ rows.T) / shape[1]
    inside, outside = (float(alike[(topic[:, None] == topic) == same].mean())
                       for same in (True, False))
    expect(inside > 0.4 and abs(outside) < 0.1, f"alike {inside} in a topic, {outside} beyond it")


def check_sweep(moepager, work):
    """A file of a shape and a type has its layers and experts, routers that differ, and runs."""
    import gguf
    import numpy as np

    sweep, folder = load_tool("sweep"), work / "sweep"
    shape = {"hidden": 768, "ffn": 512, "experts": 10, "top_k": 3, "layers": 4}
    folder.mkdir()
    source, tokens = sweep.write_seed_model(folder, shape, "q8_0", moepager)
    embedding = sweep.write_model(source, folder / "model.gguf", shape)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(folder / "model.gguf").tensors}
    experts = tensors["blk.3.ffn_down_exps.weight"]
    expect([int(n) for n in experts.shape] == [512, 768, 10], f"experts {experts.shape}")
    expect(experts.tensor_type == gguf.GGMLQuantizationType.Q8_0, "experts' type")
    expect((experts.data[0] == experts.data[9]).all(), "experts differ")
    routers = [tensors[f"blk.{i}.ffn_gate_inp.weight"].data for i in range(4)]
    expect(len({bytes(router.tobytes()) for router in routers}) == 4, "routers are the same")
    expect(np.unique(routers[0], axis=0).shape[0] == 10, "a router's rows are the same")
    expect(embedding == tensors["token_embd.weight"].n_bytes, "bytes of the embedding")
    done = subprocess.run([moepager, "bench", "--model", folder / "model.gguf", "--tokens-file",
                           tokens, "--prompt-tokens", "8", "--gen-tokens", "3", "--repeat", "1",
                           "--ctx", "16", "--json"], stdout=subprocess.DEVNULL)
    expect(done.returncode == 0, "the file of a sweep does not run")


def main():
    moepager = sys.argv[1]
    with tempfile.TemporaryDirectory(prefix="bench-model-") as work:
        check_uniform(moepager, Path(work))
        for package in ("numpy", "gguf"):
            if importlib.util.find_spec(package) is None:
                print(f"skipped: topical models and GGUF files, for want of {package}")
                return 77
        check_topical(moepager, Path(work))
        check_sweep(moepager, Path(work))
    print("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
