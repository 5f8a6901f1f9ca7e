#!/usr/bin/env python3
"""tools/gpu/check_kernels on the driver without a device: right kernels pass, and a single wrong
bit of each of them fails that kernel and no other: the lowest one, and the sign where there is a
tolerance.

usage: tests/system/tools/check_kernels.py BUILD
"""
import os
import re
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[3]


def run(build, *args, **env):
    env = dict(os.environ, FAKECUDA_MEMORY=str(600 << 20),
               LD_LIBRARY_PATH=str(build / "fakecuda"), **env)
    process = subprocess.run([build / "gpu_check_kernels", "0", *args], capture_output=True,
                             text=True, check=False, env=env)
    rows = re.findall(r"^(mp_\w+) +(\d+) cases, (\d+) wrong", process.stdout, re.M)
    return process, {name: (int(cases), int(wrong)) for name, cases, wrong in rows}


def check(what, good, process):
    if not good:
        sys.exit(f"check_kernels: {what}\n{process.stdout[-3000:]}{process.stderr[-1000:]}")


def main():
    build = Path(sys.argv[1]).resolve()
    header = (TOP / "kernels/cuda/cuda_kernels.h").read_text()
    names = re.findall(r"^    X\((\w+), mp_cuda_\w+\)", header, re.M)
    types = re.findall(r"^    MP_CUDA_QUANT_KERNELS\(X, (\w+)\)", header, re.M)
    of_tensor = re.findall(r"^    MP_CUDA_TENSOR_KERNELS\(X, (\w+)\)", header, re.M)
    of_type = re.findall(r"^    X\((\w+)_##type, ", header, re.M)
    tensor = [name for name in of_type if name.startswith("tensor")]
    of_type = [name for name in of_type if name not in tensor]
    names += [f"{name}_{of}" for of in types for name in of_type]
    names += [f"{name}_{of}" for of in of_tensor for name in tensor]
    kernels = ["mp_" + name for name in names]
    # Types differ in how they are read alone: all kernels of one, one kernel of another.
    same = {f"mp_{name}_{of}" for of in types[1:] for name in of_type + tensor}
    same -= {f"mp_{of_type[0]}_{types[-1]}", f"mp_{tensor[0]}_{types[-1]}"}

    process, rows = run(build, "--few")
    check("right kernels fail", process.returncode == 0, process)
    check("not all kernels", list(rows) == kernels, process)
    check("a kernel has no case", all(cases > 0 for cases, _ in rows.values()), process)

    process, rows = run(build, "--few", FAKECUDA_WRONG="mp_embed")
    check("others are wrong, too", {name for name, (_, wrong) in rows.items() if wrong > 0} ==
          {"mp_embed"}, process)

    for kernel in [name for name in kernels if name not in same]:
        bit = 31 if kernel.startswith("mp_tensor_") else 0
        process, rows = run(build, "--only", kernel, FAKECUDA_WRONG=f"{kernel}+{bit}")
        cases, wrong = rows.get(kernel, (0, 0))
        check(f"{kernel} is wrong and passes", process.returncode == 1 and 0 < cases == wrong,
              process)
    print(f"{len(kernels)} kernels, {len(kernels) - len(same)} of them made wrong")


if __name__ == "__main__":
    main()
