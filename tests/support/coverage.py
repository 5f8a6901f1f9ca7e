#!/usr/bin/env python3
"""Prints how many lines of each folder ran; ends with 1 if a layer has less than it should.

usage: coverage.py LINES.json PERCENT

LINES.json is what gcovr --json writes. A layer is a folder at the top (vmm, policy, engine) with
all that is in it.
"""
import collections
import json
import os
import sys


def main():
    path, least = sys.argv[1], float(sys.argv[2])
    folders = collections.defaultdict(lambda: [0, 0])
    layers = collections.defaultdict(lambda: [0, 0])
    with open(path, encoding="utf-8") as file:
        sources = json.load(file)["files"]
    for source in sources:
        lines = [line for line in source["lines"] if not line.get("gcovr/noncode")]
        ran = sum(line["count"] > 0 for line in lines)
        for table, name in ((folders, os.path.dirname(source["file"])),
                            (layers, source["file"].split("/")[0])):
            table[name][0] += len(lines)
            table[name][1] += ran
    print(f"{'folder':28}{'lines':>8}{'run':>8}{'%':>6}")
    for name, (lines, ran) in sorted(folders.items()):
        print(f"{name:28}{lines:8}{ran:8}{100 * ran / max(lines, 1):6.0f}")
    low = not layers
    for name, (lines, ran) in sorted(layers.items()):
        enough = 100 * ran >= least * lines
        low |= not enough
        print(f"{'all of ' + name:28}{lines:8}{ran:8}{100 * ran / max(lines, 1):6.0f}"
              f"{'' if enough else f'   less than {least:g} %'}")
    sys.exit(low)


if __name__ == "__main__":
    main()
