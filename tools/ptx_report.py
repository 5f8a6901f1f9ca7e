"""What ptxas makes of the kernels (tools/make_ptx --report, --assemble); no program of its own.

Usage: ptx_report.py PTXAS report|tables
       ptx_report.py PTXAS assemble [NAME...]
       ptx_report.py PROGRAM grids

report: the tables of docs/kernels.md; for the last one build/release/gpu_bench_kernels says what is
launched. tables: nothing; ends with 1 unless those tables are there, with 77 if they were made with
another ptxas. grids: ends with 1 unless that one is there, by PROGRAM (gpu_bench_kernels) and the table of
registers. assemble: nothing but errors, of kernels/cuda/NAME.ptx and tensor_NAME.ptx if names are given.
Both of PTXAS assemble for all architectures and end with 1 if one is refused, a kernel has a stack frame
or spills a register, or one for few tokens takes more than 64.
"""
import glob
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import ptxas as assembler

MAIN, TENSOR = "kernels/cuda/kernels.ptx", "kernels/cuda/tensor.ptx"  # the latter, tensor_*.ptx: from 8.0 on
FILES = sorted(glob.glob("kernels/cuda/*.ptx"))
PROGRAM, DOCS = "build/release/gpu_bench_kernels", "docs/kernels.md"
REGISTERS = 65536  # of a multiprocessor; warps get them by 256
# Compute capability: threads, blocks and KiB of shared memory of a multiprocessor, by NVIDIA's
# programming guide (technical specifications per compute capability).
ARCHES = {75: (1024, 16, 64), 80: (2048, 32, 164), 86: (1536, 16, 100), 89: (1536, 24, 100),
          90: (2048, 32, 228), 100: (2048, 32, 228), 120: (1536, 24, 100)}
# Name: compute capability, multiprocessors.
GPUS = {"H200": (90, 132), "RTX 4090": (89, 128), "RTX 3060": (86, 28)}
# Launches of a layer, and the head, that read weights (tools/gpu/layer.h).
LAUNCHES = ("project", "o-projection", "route", "experts_up", "experts_down", "head")
# Kernels that wait for memory: the bytes that a thread has asked for before it needs the first of
# them (kernels/cuda/dot.cuh, attend.cuh with keys of eight heads of 128, measure.cuh): those that it
# loads, and of the second-level cache those that it loads after.
IN_FLIGHT = {"gemv1_bf16": 64, "gemv2_bf16": 32 + 64, "gemv4_bf16": 32 + 64, "gemv8_bf16": 32 + 64,
             "gemv1_f32": 64 + 128, "gemv8_f32": 32 + 64,
             "project1_bf16": 64, "project2_bf16": 32 + 64, "project4_bf16": 32 + 64,
             "project8_bf16": 32 + 64, "project1_f32": 64 + 128, "project8_f32": 32 + 64,
             "route1_bf16": 64, "route2_bf16": 32 + 64, "route4_bf16": 32 + 64,
             "route8_bf16": 32 + 64, "experts_up1_bf16": 64, "experts_down1_bf16": 64,
             "experts_up2_bf16": 32 + 64, "experts_down2_bf16": 32 + 64,
             "experts_up4_bf16": 32 + 64, "experts_down4_bf16": 32 + 64,
             "experts_up8_bf16": 32 + 64, "experts_down8_bf16": 32 + 64,
             "experts_up8_f32": 64 + 128,
             "attend_f32": 16 + 64, "attend_bf16": 16 + 64, "read": 64}
# Of quantised types, all of which are listed: rows that a warp reads at once; 0: not counted.
QUANT_ROWS = {"gemv1": 4, "gemv8": 2, "project1": 2, "project8": 2, "experts_up1": 4, "experts_up8": 2,
              "experts_down1": 4, "experts_down8": 2, "gemm": 0, "experts_up": 0}
ASK_STEPS, ASK_BYTES, STEP_COLS, LANES = 2, 512, 256, 32  # kernels/cuda/tiles.h
# Those of a step of few tokens keep to so many registers.
FEW = re.compile(r"(gemv|project|route|experts_up|experts_down)[1248]_")
FEW_REGISTERS = 64
SHOWN = list(IN_FLIGHT) + ["experts_up_bf16", "experts_down_bf16", "gemm_bf16", "combine", "place", "sample_list", "sample",
                           "tensor_bf16", "tensor_up_bf16", "tensor_down_bf16"]
ATTEND_SHARED = (1024 + 80 + 8 * (9 * (2 + 128) + 64)) * 4  # dynamic, that counts here
TENSOR_SHARED = 2 * (64 + 64) * (32 // 2 + 4) * 4  # MP_TENSOR_SHARED
SHARED = {"attend_f32": ATTEND_SHARED, "attend_bf16": ATTEND_SHARED, "tensor_bf16": TENSOR_SHARED,
          "tensor_up_bf16": TENSOR_SHARED, "tensor_down_bf16": TENSOR_SHARED}


def files_of(names):
    """All, or those of these names."""
    wanted = [f"kernels/cuda/{tensor}{name}.ptx" for name in names for tensor in ("", "tensor_")]
    found = [ptx for ptx in FILES if ptx in wanted or not names]
    for name in names:
        if f"kernels/cuda/{name}.ptx" not in found:
            sys.exit(f"ptx_report: there is no kernels/cuda/{name}.ptx")
    return found


def assemble(ptxas, arch, files):
    registers = {}
    for ptx in files:
        if arch >= 80 or not ptx.startswith(TENSOR.removesuffix(".ptx")):
            registers |= assemble_one(ptxas, arch, ptx)
    return registers


def assemble_one(ptxas, arch, ptx):
    status, said = assembler.run(ptxas, arch, ["-v"], open(ptx).read(), os.path.basename(ptx))
    if status != 0:
        print(said, file=sys.stderr)
        sys.exit(f"ptx_report: ptxas refuses {ptx} for sm_{arch}")
    registers, name = {}, ""
    for line in said.splitlines():
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


def quant_types():
    """Bytes of a step of a row of each quantised type."""
    rows = re.findall(r"X\(\w+, (\w+), (\d+), (\d+)\)", open("kernels/cpu/types.h").read())
    return {name: STEP_COLS // int(elements) * int(size) for name, elements, size in rows}


def steps_ahead(kernel, name, step_bytes):
    """That are asked for, as kernels/cuda/dot.cuh has it."""
    if name in ("q5_1", "q5_k"):
        return 0 if kernel in ("experts_up8", "experts_down8") else ASK_STEPS
    return max(ASK_STEPS, ASK_BYTES // step_bytes)


def span(values):
    return " to ".join(str(value) for value in sorted({min(values), max(values)}))


def quant_table(used, threads):
    """Registers on all architectures, the fewest and the most, and KiB in flight on the worst one."""
    lines = ["| type | " + " | ".join(f"`{kernel}_*`" for kernel in QUANT_ROWS) + " |",
             "|---|" + "---|" * len(QUANT_ROWS)]
    for name, step_bytes in quant_types().items():
        cells = []
        for kernel, rows in QUANT_ROWS.items():
            full = f"{kernel}_{name}"
            registers = [used[arch][full] for arch in ARCHES]
            resident = min(blocks(arch, used[arch][full], threads[full], 0) for arch in ARCHES)
            flight = rows * step_bytes * (1 + steps_ahead(kernel, name, step_bytes)) / LANES
            kib = resident * threads[full] * flight / 1024
            cells.append(span(registers) + (f", {kib:.0f}" if rows else ""))
        lines.append(f"| {name.upper()} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def grid_table(program, resident):
    """What is in flight of each launch for one token: a multiprocessor has resident(arch, kernel) blocks
    at a time, and no more than its share of those that are launched."""
    said = subprocess.run([program, "--grids"], capture_output=True, text=True, check=True).stdout
    found = {launch["name"]: launch for launch in json.loads(said)}
    lines = ["| launch | kernel | blocks | " + " | ".join(f"{name}, {of[1]}" for name, of in GPUS.items())
             + " |", "|---|---|---|" + "---|" * len(GPUS)]
    for launch in (found[name] for name in LAUNCHES):
        kernel, cells = launch["kernel"].removeprefix("mp_"), []
        for arch, count in GPUS.values():
            share = launch["blocks"] / count
            kib = min(share, resident(arch, kernel)) * launch["threads"] * IN_FLIGHT[kernel] / 1024
            cells.append(f"{share:.1f}, {kib:.0f}")
        lines.append(f"| {launch['name']} | `{kernel}` | {launch['blocks']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def check_grids(program):
    """Is the table written down, as the table of registers has the blocks?"""
    text = open(DOCS).read()
    cells = {name: rest.split("|") for name, rest in re.findall(r"^\| `(\w+)` \| \d+ \|(.*)\|$", text, re.M)}
    at = list(ARCHES).index
    table = grid_table(program, lambda arch, kernel: int(cells[kernel][at(arch)].split(",")[1]))
    if table not in text:
        sys.exit(f"ptx_report: {DOCS} has not this table:\n{table}")


def register_table(used, threads):
    lines = ["| kernel | threads | " + " | ".join(f"sm_{arch}" for arch in ARCHES) + " |",
             "|---|---|" + "---|" * len(ARCHES)]
    for name in SHOWN:
        cells = []
        for arch in ARCHES:
            if name not in used[arch]:
                cells.append("-")
                continue
            count = blocks(arch, used[arch][name], threads[name], SHARED.get(name, 0))
            flight = count * threads[name] * IN_FLIGHT.get(name, 0) // 1024
            cells.append(f"{used[arch][name]}, {count}" + (f", {flight}" if flight else ""))
        lines.append(f"| `{name}` | {threads[name]} | " + " | ".join(cells) + " |")
    lines += [types_line(kind, used, threads) for kind in ("tensor", "tensor_up", "tensor_down")]
    return "\n".join(lines) + "\n"


def types_line(kind, used, threads):
    """Of the kernels of all quantised types."""
    names = [f"{kind}_{ptx.removesuffix('.ptx').split('/tensor_')[1]}" for ptx in FILES if "/tensor_" in ptx]
    cells, worst = [], max(names, key=lambda name: max(used[arch].get(name, 0) for arch in ARCHES))
    for arch in ARCHES:
        few, most = (f(used[arch].get(name, 0) for name in names) for f in (min, max))
        count = blocks(arch, most, threads[worst], TENSOR_SHARED) if most else 0
        cells.append(f"{few}-{most}, {count}" if most else "-")
    return (f"| `{kind}_*` of {len(names)} quantised types, most: `{worst}` | {threads[worst]} | " +
            " | ".join(cells) + " |")


def check_tables(tables):
    """Are they written down?"""
    text = open(DOCS).read()
    lines = [line for table in tables for line in table.splitlines() if table not in text and line not in text]
    if lines or not all(table in text for table in tables):
        sys.exit(f"ptx_report: {DOCS} has not the tables of tools/make_ptx --report, for one:\n" + "\n".join(lines))


def main():
    ptxas, what, *names = sys.argv[1:]
    if what == "grids":
        check_grids(ptxas)
        return
    if what == "tables":
        made_with = re.search(r"--report` with ptxas of CUDA ([0-9.]+)", open(DOCS).read())[1]
        if f"V{made_with}\n" not in assembler.version(ptxas):
            print(f"ptx_report: the tables are of ptxas {made_with}, {ptxas} is another")
            sys.exit(77)
    files = files_of(names)
    with ThreadPoolExecutor(2) as pool:
        used = dict(zip(ARCHES, pool.map(lambda arch: assemble(ptxas, arch, files), ARCHES)))
    if what == "assemble":
        return
    threads = threads_of()
    tables = [register_table(used, threads), quant_table(used, threads), grid_table(PROGRAM, lambda arch, kernel: blocks(
        arch, used[arch][kernel], threads[kernel], SHARED.get(kernel, 0)))]
    if what == "tables":
        check_tables(tables)
    else:
        print("\n".join(tables), end="")


main()
