#!/usr/bin/env python3
"""The Python module of `moepager preload`, with a made-up transformers: no torch is needed.

usage: module_test.py FOLDER     with sitecustomize.py and moepager_experts.py
"""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

FOLDER = Path(sys.argv.pop()).resolve()

# What moepager_experts uses of torch and of transformers 5, and no more.
TORCH = """
int64, float32 = "int64", "float32"
class Device:
    def __init__(self, type): self.type = type
class Tensor:
    def __init__(self, shape, dtype=float32, device="cpu", at=4096):
        self.shape, self.dtype, self.device, self.at = shape, dtype, Device(device), at
    def dim(self): return len(self.shape)
    def stride(self, i): return self.shape[1] * self.shape[2]
    def element_size(self): return 2
    def data_ptr(self): return self.at
    def numel(self): return self.shape[0]
    def detach(self): return self
    def contiguous(self): return self
"""
MOE = """
import torch
compiling = False
def is_torchdynamo_compiling(): return compiling
def grouped(experts, hidden, ids, weights): return ("grouped", hidden, ids, weights)
class ExpertsInterface:
    def get_interface(self, name, default):
        if name == "wrong": raise KeyError(name)
        return grouped if name == "grouped" else default
"""
# The library is not loaded: its function is put there by the program before transformers comes.
PROGRAM = """
import sys
sys.path.insert(0, {packages!r})
sys.path.insert(0, {folder!r})
import moepager_experts
sys.path.remove({folder!r})
told = []
moepager_experts._library_function = lambda: lambda *args: told.append(args)
import torch, transformers.integrations.moe as moe
class Experts:
    gate_up_proj = torch.Tensor([8, 4, 16], at=8192)
    down_proj = torch.Tensor([8, 16, 2])
ids = torch.Tensor([6], torch.int64, at=64)
def own(experts, hidden, top_k_index, weights): return ("own", hidden, top_k_index, weights)
interface = moe.ExpertsInterface()
"""


class Module(unittest.TestCase):
    def setUp(self):
        self.made = tempfile.TemporaryDirectory()
        self.packages = Path(self.made.name)
        (self.packages / "torch.py").write_text(TORCH)
        self.put("transformers/integrations/moe.py", MOE)

    def tearDown(self):
        self.made.cleanup()

    def put(self, path, text):
        path = self.packages / path
        path.parent.mkdir(parents=True, exist_ok=True)
        for parent in path.parents:
            if parent == self.packages:
                break
            (parent / "__init__.py").touch()
        path.write_text(text)

    def python(self, code, budget="1MiB", path=None, flags=()):
        env = {"PYTHONPATH": path or str(FOLDER), "PATH": "/usr/bin:/bin"}
        if budget is not None:
            env["MOEPAGER_BUDGET"] = budget
        done = subprocess.run([sys.executable, *flags, "-c", code], env=env, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def program(self, code, **how):
        return self.python(PROGRAM.format(packages=str(self.packages), folder=str(FOLDER)) + code,
                           **how)

    def test_every_implementation_says_its_ids_first(self):
        out = self.program(
            "print(interface.get_interface('grouped', own)(Experts(), 1, ids, 2)[0])\n"
            "print(interface.get_interface('eager', own)(Experts(), 1, top_k_index=ids, weights=2)[0])\n"
            "print(told)\n")
        call = (8192, 128, 64, 6)
        self.assertEqual(out, f"grouped\nown\n{[call, call]}\n")

    def test_what_it_does_not_know_is_left_alone(self):
        out = self.program(
            "class Other: up_proj = torch.Tensor([8, 4])\n"
            "class Far: up_proj = torch.Tensor([8, 4, 16], device='cuda')\n"
            "f = interface.get_interface('eager', own)\n"
            "for experts in (Other(), Far(), object()): f(experts, 1, ids, 2)\n"
            "f(Experts(), 1, torch.Tensor([6]), 2); f(Experts(), 1, [3], 2); f(Experts(), 1, None, 2)\n"
            "moe.compiling = True; f(Experts(), 1, ids, 2)\n"
            "try: interface.get_interface('wrong', own)\n"
            "except KeyError: print('raised')\n"
            "print(told)\n")
        self.assertEqual(out, "raised\n[]\n")

    def test_a_failing_library_does_not_stop_the_program(self):
        out = self.program(
            "def fail(*args): raise OSError\n"
            "moepager_experts._library_function = lambda: fail\n"
            "moepager_experts.attach(moe)\n"
            "print(interface.get_interface('eager', own)(Experts(), 1, ids, 2)[0])\n")
        self.assertEqual(out, "own\n")

    def test_without_the_library_nothing_is_changed(self):
        out = self.python(
            f"import sys; sys.path.insert(0, {str(self.packages)!r})\n"
            "import transformers.integrations.moe as moe\n"
            "print(moe.ExpertsInterface.get_interface.__qualname__, "
            "hasattr(moe.ExpertsInterface.get_interface, '__wrapped__'))")
        self.assertEqual(out, "ExpertsInterface.get_interface False\n")

    def test_another_transformers_is_imported_as_it_is(self):
        self.put("transformers/integrations/moe.py", "import torch\nprint('imported')")
        self.assertEqual(self.python(
            f"import sys; sys.path.insert(0, {str(self.packages)!r})\n"
            "import transformers.integrations.moe"), "imported\n")

    def test_it_waits_only_if_there_is_a_budget(self):
        code = "import sys; print(sum(hasattr(finder, 'folder') for finder in sys.meta_path))"
        for budget, count in ((None, 0), ("all", 0), ("1GiB", 1), ("auto", 1)):
            self.assertEqual(self.python(code, budget), f"{count}\n")

    def test_the_path_and_the_next_sitecustomize_are_the_programs(self):
        (self.packages / "sitecustomize.py").write_text("print('next')")
        code = f"import sys; print({str(FOLDER)!r} in sys.path, sys.modules['sitecustomize'].__file__)"
        out = self.python(code, path=f"{FOLDER}:{self.packages}")
        self.assertEqual(out, f"next\nFalse {self.packages}/sitecustomize.py\n")
        theirs = subprocess.run([sys.executable, "-c", "import sitecustomize as s; print(s.__file__)"],
                                capture_output=True, text=True, check=False).stdout.strip()
        self.assertEqual(self.python(code), f"False {theirs or f'{FOLDER}/sitecustomize.py'}\n")


if __name__ == "__main__":
    unittest.main()
