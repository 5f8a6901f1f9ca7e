#!/usr/bin/env python3
"""programs.py BUILD: the programs of this folder run on the driver without a device, with both
runtimes, the launch entries of both, and with a runtime inside, and compute the same."""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
import models

BUILD = Path(sys.argv[1])
WAYS = ((12, 12), (13, 13), (13, "ex"), ("static", 12))     # runtime, way of launching


def run(program, args, runtime, env=None, code=0):
    libraries = f"{BUILD}/fakecudart/{runtime}:{BUILD}/fakecuda"
    done = subprocess.run([BUILD / f"device_interpose_{program}_{runtime}", *map(str, args)],
                          env=dict(os.environ, LD_LIBRARY_PATH=libraries, **(env or {})),
                          capture_output=True, text=True, timeout=300)
    if done.returncode == 77:
        sys.exit(77)
    if done.returncode != code:
        sys.exit(f"{program} {args} {runtime}: exit code {done.returncode}, expected {code}\n"
                 f"{done.stderr}")
    return done.stdout, done.stderr


def cases(folder):
    """(program, arguments without the way of launching)"""
    models.gguf(folder / "model.gguf")
    models.safetensors(folder / "model.safetensors")
    return [("llama_like", [folder / "model.gguf", 12]),
            ("torch_like", [folder / "model.safetensors", 12, 4]),
            ("vllm_like", [folder / "model.safetensors", 16])]


def main():
    with tempfile.TemporaryDirectory() as name:
        for program, args in cases(Path(name)):
            said = {run(program, [*args, launches], runtime)[0]
                    for runtime, launches in WAYS}
            if len(said) != 1 or "" in said:
                sys.exit(f"{program}: its runs differ, or print nothing: {said}")


if __name__ == "__main__":
    main()
