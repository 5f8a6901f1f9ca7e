"""Runs ptxas and remembers what it said; for tools/ptx_report.py and tools/ptx_early.py.

A text that the same ptxas has accepted for the same architecture is not given to it again: what it said
lies in build/ptxas, one file for each PTX, architecture and use, with the SHA-256 of all that it
depends on in the first line. What was refused is not kept.
"""
import functools
import hashlib
import os
import subprocess

FOLDER = "build/ptxas"


@functools.cache
def version(ptxas):
    return subprocess.run([ptxas, "--version"], capture_output=True, text=True, check=True).stdout


def run(ptxas, arch, options, text, name):
    """Exit status of ptxas and what it said of the text. name: of this text's use, for the file kept."""
    words = [f"-arch=sm_{arch}", *options]
    key = hashlib.sha256("\0".join([version(ptxas), *words, text]).encode()).hexdigest() + "\n"
    kept = f"{FOLDER}/{name}-sm_{arch}.txt"
    try:
        with open(kept, encoding="utf-8") as file:
            if file.readline() == key:
                return 0, file.read()
    except OSError:
        pass
    done = subprocess.run([ptxas, *words, "-o", "/dev/null", "/dev/stdin"], input=text,
                          capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode == 0:
        os.makedirs(FOLDER, exist_ok=True)
        with open(f"{kept}.{os.getpid()}", "w", encoding="utf-8") as file:
            file.write(key + said)
        os.replace(file.name, kept)
    return done.returncode, said
