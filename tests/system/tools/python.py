#!/usr/bin/env python3
"""usage: python.py PROGRAM VERSION

The package of tools/python as pip installs it: into a virtual environment and without the network; the
examples of docs/python.md run there, and what the program refuses is an exception. Skipped (77)
without venv.
"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CHECKS = r'''
import moepager, os, pathlib, sys
folder = pathlib.Path(sys.argv[1])
assert moepager.__version__ == sys.argv[2], moepager.__version__
assert "site-packages" in moepager.__file__, moepager.__file__

def refused(code, exit_code, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except moepager.Error as error:
        assert (error.code, error.exit_code) == (code, exit_code), (error.code, error.exit_code, error)
        return error
    raise AssertionError("nothing was refused")

# texts are values whatever they begin with; paths may be objects; what is off is left out
assert moepager.run(pathlib.Path("models/tiny-moe"), "--help", max_tokens=1, ctx=None, ignore_eos=True)["finish"] == "length"
assert moepager.run("models/tiny-moe", "ä → 5", max_tokens=1, special=False)["prompt_tokens"] > 1
assert moepager.run("models/tiny-moe", "--version", max_tokens=1)["prompt_tokens"] > 1
assert moepager.command("tokenize", model="models/tiny-moe", prompt="sort")
assert moepager.simulate("host-disk", "qwen1.5-moe", profile="lru", budget="50%", gen_tokens=4)["rows"]
refused("E_CKPT_DIR", 3, moepager.run, "/nonexistent", "x")
assert "budgt" in refused("E_OPTION", 2, moepager.bench, "models/tiny-moe", budgt=1).message
moepager.program = "/nonexistent"
assert "cannot start" in str(refused("", 127, moepager.plan, "models/tiny-moe"))
moepager.program = folder / "killed"
moepager.program.write_text("#!/bin/sh\necho last words >&2\nkill -9 $$\n")
moepager.program.chmod(0o755)
assert "last words" in str(refused("", -9, moepager.replay, "trace"))
moepager.program = None
del os.environ["MOEPAGER_PROGRAM"]
os.environ["PATH"] = ""
assert "no program moepager" in str(refused("", 127, moepager.run, "m", "x"))
'''


def main():
    program, version = os.path.abspath(sys.argv[1]), sys.argv[2]
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)
    assert len(examples) == 3, len(examples)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        made = subprocess.run([sys.executable, "-m", "venv", folder / "venv"], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            print(f"skipped: no venv here: {made.stdout}{made.stderr}")
            sys.exit(77)
        python = folder / "venv/bin/python"
        environment = {**os.environ, "MOEPAGER_PROGRAM": program, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        environment.pop("PYTHONPATH", None)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", ROOT / "tools/python"],
                       check=True, env=environment, cwd=folder)
        for script in (*examples, CHECKS):
            subprocess.run([python, "-c", script, folder, version], check=True, env=environment, cwd=ROOT, timeout=300)
        subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "moepager"], check=True, env=environment)
        left = list((folder / "venv").rglob("moepager*"))
        assert not left, left
    print("python: passed")


main()
