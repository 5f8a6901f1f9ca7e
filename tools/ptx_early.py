"""Do kernels that may begin early wait before they touch memory?

Usage: ptx_early.py [PTXAS [NAME...]]

Makes of each kernels/cuda/*.ptx what engine/gpu/gpu_image.c makes for programmatic dependent launch,
and looks at each entry: one griddepcontrol.wait, which no branch passes by, and before it nothing
that reads or writes memory but parameters. With PTXAS the texts are assembled, too, without the
optimisations that ptx_report.py looks at. With names only NAME.ptx and tensor_NAME.ptx are looked at.
Exit status 1 if something is wrong.
"""
import glob
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import ptxas as assembler

ARCHES = (90, 100, 120)
WAIT = "griddepcontrol.wait"
TOUCH = re.compile(r"(@!?%\w+\s+)?(ld\.(?!param)|st\.|atom\.|red\.|cp\.|bar\.|call|ret|exit)")


def early(text):
    for what, by in ((r"\.version 7\.4", ".version 7.8"), (r"\.target sm_(75|80)", ".target sm_90")):
        text, count = re.subn(what, by, text, count=1)
        if count != 1:
            sys.exit(f"ptx_early: no {what}")
    return text.replace("//>", "   ")


def wrong_of(body):
    """Why this entry must not begin early, or None."""
    lines = [line.strip() for line in body.splitlines()]
    waits = [i for i, line in enumerate(lines) if line.startswith(WAIT)]
    if len(waits) != 1:
        return f"{len(waits)} {WAIT}"
    labels = {line.rstrip(":"): i for i, line in enumerate(lines) if line.endswith(":")}
    for line in lines[:waits[0]]:
        if TOUCH.match(line):
            return f"'{line}' before {WAIT}"
        target = re.match(r"(?:@!?%\w+\s+)?bra(?:\.uni)?\s+(\S+);", line)
        if target and labels[target[1]] > waits[0]:
            return f"'{line}' passes {WAIT} by"
    return None


def check(path):
    """Entries of the file, and what is wrong with them."""
    text = early(open(path).read())
    entries = re.findall(r"\.entry (\w+)\((.*?)^\}", text, re.S | re.M)
    found = [f"{path}: {name}: {why}" for name, body in entries if (why := wrong_of(body))]
    return len(entries), found


def assemble(ptxas, path, arch):
    status, said = assembler.run(ptxas, arch, ["-O0"], early(open(path).read()),
                                 os.path.basename(path) + "-early")
    return [f"{path} for sm_{arch}: {said}"] if status != 0 else []


def main():
    names = sys.argv[2:]
    wanted = [f"kernels/cuda/{tensor}{name}.ptx" for name in names for tensor in ("", "tensor_")]
    paths = [path for path in sorted(glob.glob("kernels/cuda/*.ptx")) if path in wanted or not names]
    count, wrong = 0, []
    for path in paths:
        entries, found = check(path)
        count += entries
        wrong += found
    for ptxas in sys.argv[1:2]:
        pairs = [(path, arch) for path in paths for arch in ARCHES]
        with ThreadPoolExecutor(2) as pool:
            for found in pool.map(lambda pair: assemble(ptxas, *pair), pairs):
                wrong += found
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"ptx_early: {count} kernels in {len(paths)} files, {len(wrong)} wrong")
    return 1 if wrong or count == 0 else 0


sys.exit(main())
