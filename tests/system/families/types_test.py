#!/usr/bin/env python3
"""Quantised types against llama.cpp, on the same files: tools/bench/compare_quantised, of which this is the
run that tools/test --full makes, with three types and less text.

usage: types_test.py MOEPAGER [ARGUMENT of that tool...]

llama.cpp is found as in llama_test.py. Where there is none with the modules that the tool compares it with
itself by, or a Python package is missing, that is said and the test is skipped.
"""
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests/interpose"), str(ROOT / "tests/system/families")]
from harness import Skip  # noqa: E402
from llama_test import find_llama  # noqa: E402

PACKAGES = ["numpy", "gguf", "safetensors", "torch", "tokenizers"]
# A mean of differences of 0.014 in size has a standard error of 0.0003 over so many tokens; over 512 one of
# 0.0008, beside a bound of 0.001.
DEFAULTS = ["--types", "Q8_0,Q4_K_M,MXFP4_MOE", "--tokens", "3072"]


def look_for_packages():
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise Skip(f"no Python package {package}")


def look_for_parts(folder):
    for part in ("bin/llama-quantize", "modules/libggml-cpu-haswell.so", "modules/libggml-cpu-x64.so"):
        if not (folder / part).exists():
            raise Skip(f"{folder} has no {part}: tools/get_llama debian makes such a folder")


def main():
    moepager, *arguments = sys.argv[1:]
    try:
        look_for_packages()
        folder = find_llama()
        look_for_parts(folder)
    except Skip as error:
        print(f"skipped: {error}")
        return 77
    return subprocess.run(
        [ROOT / "tools/bench/compare_quantised", "--moepager", moepager, *(arguments or DEFAULTS)],
        env={**os.environ, "LLAMA_DIR": str(folder)}).returncode


if __name__ == "__main__":
    sys.exit(main())
