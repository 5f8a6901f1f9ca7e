"""What ptxas makes of the kernels (tools/make_ptx --report, --assemble); no program of its own.

Usage: ptx_report.py PTXAS report|assemble

report: the table of docs/kernels.md. assemble: nothing but errors, and quantised types for two
architectures only, as all take minutes. Both end with 1 if an architecture is refused, a kernel has a
stack frame or spills a register, or one for few tokens takes more than 64.
"""
import glob
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

MAIN, TENSOR = "kernels/cuda/kernels.ptx", "kernels/cuda/tensor.ptx"  # the latter from 8.0 on
FILES = sorted(glob.glob("kernels/cuda/*.ptx"))
FEW_ARCHES = (75, 90)  # the fewest registers that are left, and what is written for
REGISTERS = 65536  # of a multiprocessor; warps get them by 256
# Compute capability: threads, blocks and KiB of shared memory of a multiprocessor, by NVIDIA's
# programming guide (technical specifications per compute capability).
ARCHES = {75: (1024, 16, 64), 80: (2048, 32, 164), 86: (1536, 16, 100), 89: (1536, 24, 100),
          90: (2048, 32, 228), 100: (2048, 32, 228), 120: (1536, 24, 100)}
# Kernels that wait for memory: the bytes that a thread has asked for before it needs the first of
# them (kernels/cuda/dot.cuh, attend.cuh with keys of eight heads of 128, measure.cuh): those that it
# loads, and of the second-level cache those that it loads after.
IN_FLIGHT = {"gemv1_bf16": 64, "gemv2_bf16": 32 + 64, "gemv4_bf16": 32 + 64, "gemv8_bf16": 32 + 64,
             "gemv1_f32": 64 + 128, "gemv8_f32": 32 + 64,
             "project1_bf16": 64, "project2_bf16": 32 + 64, "project4_bf16": 32 + 64,
             "project8_bf16": 32 + 64, "project1_f32": 64 + 128, "project8_f32": 32 + 64,
             "route1_bf16": 64, "route8_bf16": 32 + 64, "experts_up1_bf16": 64,
             "experts_down1_bf16": 64, "experts_up8_bf16": 32 + 64, "experts_down8_bf16": 32 + 64,
             "experts_up8_f32": 64 + 128,
             "gemv1_q8_0": 34 + 68, "gemv1_q4_k": 18 + 36, "gemv1_q6_k": 26 + 52,
             "gemv8_q8_0": 17 + 34, "gemv8_q4_k": 9 + 18, "gemv8_q6_k": 13 + 26,
             "project1_q8_0": 17 + 34, "project1_q4_k": 9 + 18, "project1_q6_k": 13 + 26,
             "experts_up1_q8_0": 34 + 68, "experts_up1_q4_k": 18 + 36, "experts_up1_q6_k": 26 + 52,
             "experts_up8_q8_0": 17, "experts_up8_q4_k": 9, "experts_up8_q6_k": 13, "attend_f32": 16 + 64,
             "attend_bf16": 16 + 64, "read": 64}
# Those of a step of few tokens keep to so many registers.
FEW = re.compile(r"(gemv|project|route|experts_up|experts_down)[1248]_")
FEW_REGISTERS = 64
SHOWN = list(IN_FLIGHT) + ["experts_up_bf16", "experts_down_bf16", "gemm_bf16", "gemm_q4_k", "combine", "place", "sample_list", "sample",
                           "tensor_bf16", "tensor_up_bf16", "tensor_down_bf16"]
ATTEND_SHARED = (1024 + 80 + 8 * (9 * (2 + 128) + 64)) * 4  # dynamic, that counts here
TENSOR_SHARED = 2 * (64 + 64) * (32 // 2 + 4) * 4  # MP_TENSOR_SHARED
SHARED = {"attend_f32": ATTEND_SHARED, "attend_bf16": ATTEND_SHARED, "tensor_bf16": TENSOR_SHARED,
          "tensor_up_bf16": TENSOR_SHARED, "tensor_down_bf16": TENSOR_SHARED}


def assemble(ptxas, arch, every):
    registers = {}
    for ptx in FILES:
        if arch < 80 if ptx == TENSOR else ptx != MAIN and not every and arch not in FEW_ARCHES:
            continue
        registers |= assemble_one(ptxas, arch, ptx)
    return registers


def assemble_one(ptxas, arch, ptx):
    run = subprocess.run([ptxas, "-v", f"-arch=sm_{arch}", "-o", "/dev/null", ptx],
                         capture_output=True, text=True, check=False)
    if run.returncode != 0:
        print(run.stdout + run.stderr, file=sys.stderr)
        sys.exit(f"ptx_report: ptxas refuses {ptx} for sm_{arch}")
    registers, name = {}, ""
    for line in run.stderr.splitlines():
        if found := re.search(r"entry function 'mp_(\w+)'", line):
            name = found[1]
        if found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", line):
            if found[1] != "0" or found[2] != "0":
                sys.exit(f"ptx_report: {name} for sm_{arch}: {line.strip()}")
        if found := re.search(r"Used (\d+) registers", line):
            registers[name] = int(found[1])
            if FEW.match(name) and registers[name] > FEW_REGISTERS:
                sys.exit(f"ptx_report: {name} for sm_{arch}: {found[1]} registers, "
                         f"more than {FEW_REGISTERS}")
    return registers


def threads_of():
    text = "".join(open(ptx).read() for ptx in FILES)
    found = re.findall(r"\.entry mp_(\w+)\(.*?\.maxntid (\d+)", text, re.S)
    return {name: int(threads) for name, threads in found}


def blocks(arch, registers, threads, shared):
    most, limit, shared_kib = ARCHES[arch]
    of_warp = (registers * 32 + 255) // 256 * 256
    counts = [limit, most // threads, REGISTERS // of_warp // (threads // 32)]
    if shared > 0:
        counts.append(shared_kib * 1024 // (shared + 1024))
    return min(counts)


def main():
    ptxas, what = sys.argv[1:]
    with ThreadPoolExecutor(2) as pool:
        used = dict(zip(ARCHES, pool.map(lambda arch: assemble(ptxas, arch, what == "report"), ARCHES)))
    if what == "assemble":
        return
    threads = threads_of()
    print("| kernel | threads | " + " | ".join(f"sm_{arch}" for arch in ARCHES) + " |")
    print("|---|---|" + "---|" * len(ARCHES))
    for name in SHOWN:
        cells = []
        for arch in ARCHES:
            if name not in used[arch]:
                cells.append("-")
                continue
            count = blocks(arch, used[arch][name], threads[name], SHARED.get(name, 0))
            flight = count * threads[name] * IN_FLIGHT.get(name, 0) // 1024
            cells.append(f"{used[arch][name]}, {count}" + (f", {flight}" if flight else ""))
        print(f"| `{name}` | {threads[name]} | " + " | ".join(cells) + " |")


main()
