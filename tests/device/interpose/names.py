#!/usr/bin/env python3
"""names.py LIBRARY: hooks have the names of functions that there are, and all are exported.

Held against a toolkit's libraries, where one is installed: the runtime's, and the driver's stub."""
import re
import shutil
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[3]


def symbols(library):
    text = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True,
                          check=True).stdout
    return {line.split()[-1].split("@")[0] for line in text.splitlines()}


def hooks():
    folder = TOP / "interpose/cuda/hooks"
    runtime = re.findall(r"X\(((?:__)?cuda\w+)\)", (folder / "hooks.h").read_text())
    texts = [(folder / file).read_text() for file in ("driver.h", "gate.c")]
    driver = [name for text in texts for name in re.findall(r"X\((cu[A-Z]\w+),", text)]
    return set(runtime), set(driver) | {"cuGetProcAddress", "cuGetProcAddress_v2"}


def main():
    runtime, driver = hooks()
    missing = (runtime | driver | {"dlsym"}) - symbols(sys.argv[1])
    if len(runtime) < 30 or len(driver) < 50 or missing:
        sys.exit(f"hooks that are not exported: {missing}, of {len(runtime)} and {len(driver)}")
    folders = [Path(nvcc).resolve().parents[1] for nvcc in [shutil.which("nvcc")] if nvcc]
    folders.append(Path("/usr/local/cuda"))
    for folder in folders:
        libraries = [*folder.glob("lib64/libcudart.so.1?"), *folder.glob("lib64/stubs/libcuda.so")]
        if len(libraries) < 2:
            continue
        known = set().union(*map(symbols, libraries))
        unknown = (runtime | driver) - known
        if unknown:
            sys.exit(f"{folder} has no {sorted(unknown)}")
        return
    print("no toolkit here to hold the names against")
    sys.exit(77)


if __name__ == "__main__":
    main()
