"""What the measuring scripts share: the machine, cold files, runs of moepager and of llama.cpp."""
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from memory_group import MemoryGroup  # noqa: E402, F401


class BenchError(Exception):
    """Something that a person can put right."""


def read_size(text):
    """Bytes of 3GiB, 512M, 1.5G or 4096."""
    units = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    number = text.rstrip("iBkKmMgGtT")
    unit = text[len(number):].upper().rstrip("B").rstrip("I")
    try:
        return int(float(number) * units[unit])
    except (ValueError, KeyError):
        raise BenchError(f"'{text}' is no size such as 3GiB") from None


def lines_with(path, key):
    with open(path, encoding="utf-8", errors="replace") as file:
        return [line.split(":", 1)[1].strip() for line in file if line.startswith(key)]


# Of bench_machine, in bytes per second: the best moment, and the mean.
SPEEDS = ("disk_bytes_per_s", "memory_bytes_per_s", "disk_bytes_per_s_mean",
          "memory_bytes_per_s_mean")


class Machine:
    """Processor and memory, and how fast they read: measured before and after each run.

    Best moments and means (of a second or two). The best of all is kept, so that a slow moment of
    the machine does not make a bound easy; and the better of the two measurements beside a run,
    because a virtual machine is not that fast always.
    """

    def __init__(self, moepager, model):
        self.program = moepager.with_name("bench_machine")
        if not self.program.exists():
            raise BenchError(f"{self.program} is not there: "
                             f"ninja -C {moepager.parent} bench_machine")
        self.file = max(model.glob("*.safetensors"), key=lambda path: path.stat().st_size,
                        default=None)
        if self.file is None:
            raise BenchError(f"{model}: no *.safetensors")
        self.facts = {
            "cpu": (lines_with("/proc/cpuinfo", "model name") or ["?"])[0],
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": int(lines_with("/proc/meminfo", "MemTotal")[0].split()[0]) * 1024,
            "samples": 0}
        self.last, self.last_s = None, 0

    def sample(self):
        """5 to 8 seconds. Disk and memory, the better of now and the time before."""
        now = run_json([self.program, self.file])
        before, self.last, self.last_s = self.last or now, now, time.monotonic()
        self.facts["samples"] += 1
        for key, value in now.items():
            if key != "disk_threads":
                self.facts[key] = max(value, self.facts.get(key, 0))
        if now["disk_bytes_per_s"] == self.facts["disk_bytes_per_s"]:
            self.facts["disk_threads"] = now["disk_threads"]
        return {key: max(before[key], now[key]) for key in SPEEDS}

    def around(self, run):
        """What run() returns, and the speeds before and after it."""
        if self.last is None or time.monotonic() - self.last_s > 1:
            self.sample()
        result = run()
        return {**result, "speeds": self.sample()}


def read_trace(path):
    """{(step, MoE layer): experts that its tokens chose}"""
    chosen = {}
    with open(path, encoding="ascii") as file:
        for line in file:
            if not line.startswith("#"):
                step, layer, _, _, *pairs = line.split()
                chosen.setdefault((int(step), int(layer)), set()).update(
                    int(pair.split(":")[0]) for pair in pairs)
    return chosen


def read_moves(timeline, trace, info):
    """What each decoded token's layers had to move: [[(hits, guesses, demands), ...], ...], units.

    Of what the router chose: hits are there; guesses were read since the layer before was routed,
    not for this layer's router; demands began to be read after it had chosen. `timeline` and
    `trace` are of one run with one sequence, `info` is the model's. Also the bytes of a unit.
    """
    reads, layers, bytes_ = {}, [], 0
    for event in json.loads(Path(timeline).read_text())["traceEvents"]:
        if event["ph"] == "X" and event["name"] in ("demand", "prefetch", "MoE layer"):
            span, args = (event["ts"], event["ts"] + event["dur"]), event["args"]
            if event["name"] == "MoE layer":
                layers.append((*span, args["layer"], args["tokens"]))
            else:
                reads.setdefault(args["unit"], []).append(span)
                bytes_ = max(bytes_, args["bytes"])
    chosen, slices = read_trace(trace), info["slices"]
    tokens, step, routed = [], 0, 0
    for start, end, layer, count in sorted(layers):
        if count == 1:
            if layer == 0:
                step += 1
                tokens.append([])
            moves = [0, 0, 0]
            for unit in (expert * slices + i for expert in chosen[step, layer]
                         for i in range(slices)):
                last = max((span for span in reads.get(layer * info["experts"] * slices + unit, [])
                            if span[0] < end), default=(0, 0))
                moves[2 if last[0] >= start else 1 if last[1] >= routed > 0 else 0] += 1
            tokens[-1].append(tuple(moves))
        routed = start
    if not tokens or not bytes_:
        raise BenchError(f"{timeline}: no token was decoded, or nothing was read for one")
    return tokens, bytes_


def read_idle(timeline):
    """Seconds of the first step in which nothing was being read."""
    events = [event for event in json.loads(Path(timeline).read_text())["traceEvents"]
              if event["ph"] == "X" and event["name"] in ("forward", "demand", "prefetch")]
    begin, dur = min((event["ts"], event["dur"]) for event in events if event["name"] == "forward")
    idle, known = 0, begin
    for start, end in sorted((event["ts"], event["ts"] + event["dur"]) for event in events
                             if event["name"] != "forward"):
        if start < begin + dur:
            idle += max(0, start - known)
            known = max(known, end)
    return (idle + max(0, begin + dur - known)) / 1e6


def guess_all(tokens):
    """As if every miss had been named by the layer before; who names the first layer's is the token."""
    return [[token[0], *((hits, guesses + demands, 0) for hits, guesses, demands in token[1:])]
            for token in tokens]


def print_machine(m):
    print(f"machine       {m['cpu']}, {m['cores']} cores, {m['memory_bytes'] / 2**30:.0f} GiB; reads "
          f"{m['memory_bytes_per_s_one_thread'] / 1e9:.1f} GB/s of memory with one thread, "
          f"{m['memory_bytes_per_s'] / 1e9:.1f} with {m['threads']}; "
          f"{m['disk_bytes_per_s'] / 1e9:.2f} GB/s of disk (O_DIRECT, {m['disk_threads']} threads)")


class RunError(BenchError):
    """A program that ended otherwise than well, with its exit status."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


def run_json(command, group=None, env=None, seconds=None):
    """Runs to the end; its standard output as JSON. `env` comes on top of the environment. Who takes
    longer than `seconds` is killed, as subprocess.TimeoutExpired says."""
    done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=seconds,
                          env=os.environ | (env or {}), preexec_fn=group.enter if group else None)
    if done.returncode != 0:
        raise RunError(done.returncode, f"exit {done.returncode}: {' '.join(map(str, command))}\n"
                         f"{done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout)


def touch(moepager, touch_bytes):
    """Another process takes so much memory and gives it back; at how many bytes per second."""
    return run_json([moepager.with_name("bench_machine"), "--touch",
                     touch_bytes])["new_memory_bytes_per_s"]


def drop_cache(paths):
    """Takes files out of the page cache; how, in words."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    try:
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
            file.write("1\n")
        return "posix_fadvise(DONTNEED) and drop_caches"
    except OSError:
        return "posix_fadvise(DONTNEED)"


def median(values):
    return statistics.median(values)


def interval(ratios):
    """Geometric mean of ratios, and its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    pick = random.Random(1)
    means = sorted(math.fsum(pick.choices(logs, k=len(logs))) / len(logs) for _ in range(10000))
    return {"mean": math.exp(math.fsum(logs) / len(logs)), "low": math.exp(means[250]),
            "high": math.exp(means[9749]), "pairs": ratios}


def speed(first, this):
    """How fast, as a multiple of the first: pairs of times -> mean, 95 % interval, each pair."""
    return interval([a / b for a, b in zip(first, this)])


def run_movement(models, file, tokens, unit_bytes, slots, group, folder):
    """Seconds per token of a program that moves the same bytes and computes nothing."""
    info, moves = models.info, folder / "moves"
    moves.write_text("".join(" ".join("%d:%d:%d" % layer for layer in token) + "\n"
                             for token in tokens))
    head = 2 * info["vocabulary"] * info["hidden"]
    layer = (models.token_bytes - info["token_cycle_bytes"] - head) // len(tokens[0])
    return run_json([models.moepager.with_name("bench_movement"), file, unit_bytes, slots, layer,
                     head, models.threads, moves], group)["s_per_token"]


def build_llama_driver(prefix, folder):
    """The driver, linked with libllama below an install prefix."""
    prefix = Path(prefix).resolve()
    headers = list(prefix.glob("**/llama.h"))
    libraries = sorted(prefix.glob("**/libllama.so*"))
    if not headers or not libraries:
        raise BenchError(f"{prefix}: no llama.h or no libllama.so; README.md says how to get them")
    lib, program = libraries[0].parent, folder / "llama_forced"
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise BenchError("no C compiler: set CC")
    names = [f"-l:{sorted(lib.glob(f'lib{name}.so*'))[0].name}" for name in ("llama", "ggml",
                                                                            "ggml-base")]
    # The old kind of run path also holds for the libraries that libllama needs, which may need a
    # newer C library than this machine's.
    done = subprocess.run(
        [compiler, "-O2", "-std=gnu11", ROOT / "tools/bench/llama_forced.c", "-I",
         headers[0].parent, "-L", lib, *names, f"-Wl,-rpath-link,{lib},-rpath,{lib}",
         "-Wl,--disable-new-dtags,--allow-shlib-undefined", "-o", program],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise BenchError(f"cannot build the driver:\n{done.stdout}")
    return program


def llama_command(prefix, program):
    """How a program that was linked with it is started: by a loader of its own if it has one, as
    in what tools/get_llama unpacks."""
    loader = Path(prefix).resolve() / "modules/ld.so"
    return [loader, "--library-path", loader.parents[1] / "lib", program] if loader.exists() \
        else [program]


class Models:
    """The two forms of one model, and the work: a prompt and what follows it."""

    def __init__(self, moepager, model, gguf, tokens, prompt, gen, threads):
        self.moepager, self.model, self.gguf = Path(moepager), Path(model), Path(gguf)
        self.tokens = Path(tokens) if tokens else self.model / "tokens.txt"
        self.prompt, self.gen, self.threads = prompt, gen, threads
        for path in (self.moepager, self.model, self.gguf, self.tokens):
            if not path.exists():
                raise BenchError(f"{path} is not there")
        info = run_json([self.moepager, "info", "--model", self.model, "--json"])["model"]
        self.info = info
        config = json.loads((self.model / "config.json").read_text())
        tied = config.get("tie_word_embeddings", False)
        embedding = 0 if tied else 2 * info["vocabulary"] * info["hidden"]  # one row is read
        self.token_bytes = info["weights_bytes"] - embedding + info["token_cycle_bytes"]

    def files(self):
        return [*self.model.glob("*.safetensors"), self.gguf]

    def run_moepager(self, repeat, flags=(), group=None):
        command = [self.moepager, "bench", "--model", self.model, "--tokens-file", self.tokens,
                   "--prompt-tokens", self.prompt, "--gen-tokens", self.gen, "--threads",
                   self.threads, "--ctx", self.prompt + self.gen, "--repeat", repeat, "--json",
                   *flags]
        return run_json(command, group)

    def run_llama(self, driver, repeat, group=None, logits=None):
        return run_json([driver, self.gguf, self.tokens, self.prompt, self.gen, self.threads,
                         repeat, *([logits] if logits else [])], group)


def read_locality(path):
    """Of the experts that a token chose in a layer, the shares that the token before it had chosen
    too, and any of the eight before it; from a routing trace."""
    before, uses, last, last8 = {}, 0, 0, 0
    with open(path, encoding="ascii") as file:
        for line in file:
            if line.startswith("#"):
                continue
            _, layer, _, _, *pairs = line.split()
            chosen = {int(pair.split(":")[0]) for pair in pairs}
            past = before.setdefault(layer, [])
            if past:
                uses += len(chosen)
                last += len(chosen & past[-1])
                last8 += len(chosen & set().union(*past[-8:]))
            past.append(chosen)
    return {"last_token": last / max(uses, 1), "last_8_tokens": last8 / max(uses, 1)}


class Steps:
    """A process that runs a batch of tokens on command: bench_steps_* or llama_forced.

    A step's threads wait awake for less than rest_s before they sleep.
    """

    def __init__(self, command, env=None, rest_s=0.001):
        self.rest_s = rest_s
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True,
                                        env=os.environ | (env or {}))

    def command(self, first, count, *right):
        print(first, count, *right, file=self.process.stdin, flush=True)

    def forward(self, first, count, *right):
        """Milliseconds. right: of a draft's step, with bench_steps_* alone."""
        time.sleep(self.rest_s)
        self.command(first, count, *right)
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.process.args[0]} ended early")
        return int(line) * 1e-6

    def end(self):
        """Misses, nanoseconds of decisions and of layers."""
        self.process.stdin.close()
        figures = [int(word) for word in self.process.stdout.read().split()]
        if self.process.wait() != 0:
            sys.exit(f"{self.process.args[0]} failed")
        return figures


def compare_logits(models, driver):
    """Rows of both engines: worst and median of max|d| / max|logit|, and equal largest logits; and
    the locality of the text."""
    with tempfile.TemporaryDirectory(prefix="moepager-logits-") as folder:
        ours, theirs, trace = (Path(folder, name) for name in ("ours.npy", "theirs", "trace"))
        models.run_moepager(1, ["--budget", "all", "--logits-out", ours, "--trace", trace])
        models.run_llama(driver, 1, logits=theirs)
        data = ours.read_bytes()
        a = array("f", data[10 + int.from_bytes(data[8:10], "little"):])
        b = array("f", theirs.read_bytes())
        locality = read_locality(trace)
    vocab = models.info["vocabulary"]
    if len(a) != len(b) or len(a) != models.gen * vocab:
        raise BenchError(f"{len(a)} logits and {len(b)}, not {models.gen} x {vocab}")
    errors, same = [], 0
    for row in range(models.gen):
        x, y = a[row * vocab:(row + 1) * vocab], b[row * vocab:(row + 1) * vocab]
        errors.append(max(abs(p - q) for p, q in zip(x, y)) / max(map(abs, x)))
        same += x.index(max(x)) == y.index(max(y))
    return {"logits": {"rows": models.gen, "worst": max(errors), "median": median(errors),
                       "same_largest": same}, "locality": locality}
