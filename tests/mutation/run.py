#!/usr/bin/env python3
"""Do the tests notice? Changes the product in one place at a time, and runs the tests about it.

usage: tests/mutation/run.py [--jobs N] [--host | --cuda] [NUMBER...]
       tests/mutation/run.py [--jobs N] --sample N [--seed SEED]... [--only GLOB]
       tests/mutation/run.py --list
       tests/mutation/run.py --check BUILD

Seeded bugs (seeded.py) are of the kind "wrong weights, good exit code". --host: those of a run on
the CPU; --cuda: those in the order of things on a device, which the driver without a device
(tests/device/fakecuda) has to see; numbers count in the list that was chosen.

--check: changes nothing. Do the lists still fit the sources, and the tests of this build, does each
seeded bug compile, and does docs/testing.md list them all? A text that moved or a test with another name
would else show hours later.

--sample: N mutants that are picked by SEED (sample.py), in files whose name or path fits GLOB. Without
arguments: all seeded bugs, 12 mutants of seed 1, and 6 of today's date, which are only reported.

All happens in copies of the tree in build/mutation, one for each processor, each with a build of
its own, which share the changes. Each change is made,
what depends on it built again, and its tests run, the nearest first, until one fails or takes
longer than SECONDS; every test that failed has to pass in the end without a change. A change that
none fails on is a hole in the tests, or goes into equivalent.txt with the reason why it cannot be
noticed.

The last line is `N passed, N failed, N skipped`: noticed, not noticed (or the change does not apply
any more), and those whose tests this machine skips or that do not compile. Ends with 1 if one
failed.
"""
import argparse
import datetime
import fcntl
import json
import multiprocessing
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import sample
import seeded

ROOT = Path(__file__).resolve().parents[2]
COPIES = ROOT / "build" / "mutation"
COPY = COPIES / "0"  # of this process
BUILD = COPY / "build"
SECONDS = 60  # for a test
BYTES_MOST = 4 << 30  # of its memory


def call(*command):
    return subprocess.run(command, cwd=COPY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False)


def started(command, **more):
    try:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                stdin=subprocess.DEVNULL, start_new_session=True, **more)
    except OSError as error:
        sys.exit(f"{command[0]} does not start: {error}")


class Tree:
    """The copy, its build and its tests."""

    def __init__(self):
        self.names = []
        self.jobs = 1
        self.tests = {}  # of ctest, by name
        self.failed = set()  # tests that noticed something

    def prepare(self, workers):
        self.jobs = max(1, os.cpu_count() // workers)
        os.environ.setdefault("CCACHE_BASEDIR", str(COPY))
        COPY.mkdir(parents=True, exist_ok=True)
        self.copy()
        result = call("cmake", "-S", ".", "-B", str(BUILD), "-G", "Ninja", "-DMP_WERROR=OFF",
                      *(["-DCMAKE_C_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []))
        if result.returncode != 0:
            sys.exit(f"the tree does not configure:\n{result.stdout[-2000:]}")
        self.list_tests()
        for tests in sample.all_tests():  # a name that is gone shows in every run
            self.resolve(tests)

    def list_tests(self):
        """A test has a command once its program is there."""
        listed = subprocess.run(["ctest", "--test-dir", str(BUILD), "--show-only=json-v1"],
                                stdout=subprocess.PIPE, check=True).stdout
        self.tests = {test["name"]: test for test in json.loads(listed)["tests"]}
        for line in (BUILD / "CTestTestfile.cmake").read_text().split("\n"):
            match = re.match(r"add_test\(\[=\[(.*?)\]=\] (.*)\)$", line)
            if match is not None and match[1] in self.tests:
                self.tests[match[1]]["words"] = re.findall(r'"([^"]*)"', match[2])

    def list_sources(self):
        listed = subprocess.run(["git", "ls-files", "-zco", "--exclude-standard"], cwd=ROOT, check=True,
                                stdout=subprocess.PIPE).stdout.decode().split("\0")
        self.names = [name for name in listed if name and (ROOT / name).is_file()]

    def copy(self):
        self.list_sources()
        for name in self.names:
            source, target = ROOT / name, COPY / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists() or target.read_bytes() != source.read_bytes():
                shutil.copy(source, target)  # and its mode: tests run scripts
        known = set(self.names)
        for folder, folders, files in os.walk(COPY):
            folders[:] = [name for name in folders if Path(folder, name) != BUILD]
            for path in (Path(folder, name) for name in files):
                if str(path.relative_to(COPY)) not in known:
                    path.unlink()  # what was moved or removed since

    def path_of(self, name):
        """A file of the product, or under the whole path of one of tests, the driver without a device."""
        found = [path for path in self.names if path == name or f"/{path}".endswith(f"/{name}")
                 and path.startswith(sample.FOLDERS)]
        if len(found) != 1:
            sys.exit(f"{len(found)} files are called {name}")
        return found[0]

    def resolve(self, wanted):
        """Full names of tests; each may lack folders in front and the variant behind."""
        names = []
        for name in wanted:
            whole = [test for test in self.tests
                     if f"/{test if ':' in name else test.partition(':')[0]}".endswith(f"/{name}")]
            if not whole:
                sys.exit(f"there is no test {name}")
            names += whole
        return names

    def build(self, tests):
        targets = set()
        for name in tests:
            for word in self.tests[name]["words"]:
                if Path(word).parent == BUILD:
                    targets.add(Path(word).name)
        if not targets:  # ninja would build everything
            return subprocess.CompletedProcess([], 0, "")
        return call("ninja", f"-j{self.jobs}", "-C", str(BUILD), *sorted(targets))

    def run(self, name, seconds):
        """passed, skipped, failed or too long"""
        test = self.tests[name]
        known = {entry["name"]: entry["value"] for entry in test["properties"]}
        environment = dict(os.environ, **dict(e.split("=", 1) for e in known.get("ENVIRONMENT", [])))
        limit = lambda: resource.setrlimit(resource.RLIMIT_DATA, (BYTES_MOST, BYTES_MOST))
        process = started(test["command"], cwd=known.get("WORKING_DIRECTORY", COPY), env=environment,
                          preexec_fn=limit)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return "too long"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        skip = known.get("SKIP_RETURN_CODE", 77)
        return "passed" if code == 0 else "skipped" if code == int(skip) else "failed"

    def check_good(self):
        """Those that failed under a change, once more without."""
        result = self.build(self.failed)
        if result.returncode != 0:
            sys.exit(f"the tree does not build:\n{result.stdout[-2000:]}")
        wrong = [name for name in sorted(self.failed)
                 if self.run(name, 5 * SECONDS) not in ("passed", "skipped")]
        if wrong:
            print(f"also fail without any change: {', '.join(wrong)}")
        return not wrong

    def judge(self, path, tests, change):
        """What noticed, or None and why not. change: of the file's text, may raise ValueError."""
        file = COPY / path
        good = file.read_text()
        try:
            file.write_text(change(good))
            result = self.build(tests)
            if result.returncode != 0:
                return "does not compile", result.stdout[-2000:]
            self.list_tests()
            ended = set()
            for name in tests:
                how = self.run(name, SECONDS)
                ended.add(how)
                if how not in ("passed", "skipped"):
                    self.failed.add(name)
                    return f"{name} ({how})", ""
            return ("skipped", "") if ended <= {"skipped"} else (None, "no test failed")
        except ValueError as error:
            return None, str(error)
        finally:
            file.write_text(good)


def replaced(text, path, old, new):
    if text.count(old) != 1:
        raise ValueError(f"{path} has the text {text.count(old)} times")
    return text.replace(old, new)


def seeded_jobs(tree, host, cuda, numbers):
    """(title, path, tests, change, must be noticed)"""
    faults = (seeded.HOST if host else []) + (seeded.CUDA if cuda else [])
    for number in numbers or range(1, len(faults) + 1):
        if not 1 <= number <= len(faults):
            sys.exit(f"there is no seeded bug {number}, there are {len(faults)}")
        what, tests, name, old, new = faults[number - 1]
        yield (f"{number:2} {what}", tree.path_of(name), tree.resolve(tests),
               lambda text, name=name, old=old, new=new: replaced(text, name, old, new), True)


def sample_jobs(tree, count, seed, only, must):
    for site in sample.choose(COPY, tree.names, count, seed, only):
        yield (f"seed {seed} {site.path}:{site.line + 1}: {sample.name_of(site)}", site.path,
               tree.resolve(sample.tests_of(site.path)) if sample.runs_here(site.path) else [],
               lambda text, site=site: sample.mutate(text, site), must)


def run(tree, jobs):
    """How many passed, failed, were skipped."""
    passed = failed = skipped = 0
    for title, path, tests, change, must in jobs:
        start = time.monotonic()
        noticed, why = tree.judge(path, tests, change)
        away = noticed in ("skipped", "does not compile")
        if noticed == "does not compile" and title.startswith("seed "):
            why = ""
        elif noticed == "does not compile":
            noticed, away = None, False
        skipped += away
        passed += noticed is not None and not away
        failed += noticed is None and must
        verdict = noticed or f"{'NOT NOTICED' if must else 'not noticed'}: {why}"
        print(f"{title}: {verdict} ({time.monotonic() - start:.0f} s)", flush=True)
    failed += not tree.check_good()
    return passed, failed, skipped


def list_jobs(tree, args):
    if args.sample is not None:
        return [job for seed in args.seed or ["1"]
                for job in sample_jobs(tree, args.sample, seed, args.only, True)]
    both = not args.host and not args.cuda
    jobs = list(seeded_jobs(tree, args.host or both, args.cuda or both, args.numbers))
    if both and not args.numbers:
        jobs += sample_jobs(tree, 12, "1", "*", True)
        jobs += sample_jobs(tree, 6, datetime.date.today().isoformat(), "*", False)
    return jobs


def work(number, args):
    """Every args.jobs-th change, in copy `number`."""
    global COPY, BUILD
    COPY = COPIES / str(number)
    BUILD = COPY / "build"
    tree = Tree()
    try:
        tree.prepare(args.jobs)
        return run(tree, list_jobs(tree, args)[number::args.jobs])
    except SystemExit as error:  # which a pool would wait for
        print(error, flush=True)
        return 0, 1, 0


def list_sources():
    tree = Tree()
    tree.prepare(1)
    for path, text in sample.sources(COPY, tree.names):
        count = len(list(sample.sites_of(path, text)))
        print(f"{path}: {count} sites: {' '.join(tree.resolve(sample.tests_of(path)))}")
    return 0


def compiled(commands, path, text):
    """The file with another text, compiled beside itself."""
    command = next((c["command"] for c in commands if c["file"] == str(ROOT / path)), None)
    if command is None:
        raise ValueError(f"{path} is not compiled in this build")
    words = shlex.split(command)
    words = words[:words.index("-o")] + [f"-I{(ROOT / path).parent}", "-fsyntax-only", "-w", "-x", "c", "-"]
    result = subprocess.run(words, cwd=BUILD, input=text, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, check=False)
    if result.returncode != 0:
        raise ValueError(f"{path}, changed, does not compile: {result.stdout[:500]}")


def written(tree):
    """What docs/testing.md says of the seeded bugs: their number, their names in order, who notices."""
    text = (ROOT / "docs" / "testing.md").read_text()
    count = len(seeded.HOST + seeded.CUDA)
    if f"the {count} seeded bugs" not in text:
        yield f"docs/testing.md does not say that these are the {count} seeded bugs"
    for heading, faults in (("bug", seeded.HOST), ("fault", seeded.CUDA)):
        table = text.partition(f"| seeded {heading} | noticed by |\n|---|---|\n")[2].partition("\n\n")[0]
        rows = [line.strip("| ").split(" | ") for line in table.split("\n") if line]
        names = [row[0] for row in rows]
        wanted = [fault[0] for fault in faults]
        for name in [n for n in wanted if n not in names] + [n for n in names if n not in wanted]:
            yield f"docs/testing.md and seeded.py do not both have '{name}'"
        if sorted(names) == sorted(wanted) and names != wanted:
            yield f"docs/testing.md has the seeded {heading}s in another order than seeded.py"
        tests = {fault[0]: fault[1] for fault in faults}
        for name, by in rows:
            test = by.split(": ")[0]
            if name in tests and not any(test in (one, one.partition(":")[0])
                                         for one in tree.resolve(tests[name])):
                yield f"docs/testing.md: '{name}' is not judged by {test}"


def check(build):
    """What no longer fits, one a line."""
    global COPY, BUILD
    COPY, BUILD = ROOT, Path(build).resolve()
    tree = Tree()
    tree.list_sources()
    tree.list_tests()
    problems = []

    def try_to(function, *args):
        try:
            return function(*args)
        except (SystemExit, ValueError) as error:
            problems.append(str(error))
        return None

    commands = json.loads((BUILD / "compile_commands.json").read_text())
    for tests in sample.all_tests():
        try_to(tree.resolve, tests)
    for what, tests, name, old, new in seeded.HOST + seeded.CUDA:
        path = try_to(tree.path_of, name)
        try_to(tree.resolve, tests)
        if path is not None:
            text = try_to(replaced, (ROOT / path).read_text(), f"'{what}': {name}", old, new)
            if text is not None and path.endswith(".c"):
                try_to(compiled, commands, path, text)
    problems += try_to(lambda: list(written(tree))) or []
    names = set()
    for path, text in sample.sources(ROOT, tree.names):
        try_to(sample.tests_of, path)
        names |= {sample.name_of(site) for site in sample.sites_of(path, text)}
    problems += [f"equivalent.txt: there is no {name}" for name in sample.equivalents() - names]
    print("\n".join(problems) or "all lists fit")
    return 1 if problems else 0


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--host", action="store_true")
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", action="append")
    parser.add_argument("--only", default="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", metavar="BUILD")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("numbers", type=int, nargs="*")
    args = parser.parse_args()
    if args.check:
        return check(args.check)
    COPIES.mkdir(parents=True, exist_ok=True)
    lock = open(f"{COPIES}.lock", "w", encoding="ascii")  # as long as this process lives
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"another run is at work in {COPIES}")
    if args.list:
        return list_sources()
    args.jobs = min(args.jobs, len(args.numbers) or args.jobs)
    with multiprocessing.Pool(args.jobs) as pool:
        counts = pool.starmap(work, [(number, args) for number in range(args.jobs)], chunksize=1)
    passed, failed, skipped = (sum(column) for column in zip(*counts))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
