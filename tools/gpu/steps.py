"""The steps of tools/gpu/run: what each runs and how its results read; no program of its own.

A step gets the Run and adds rows: what, verdict, figure, bound, ratio. What goes wrong in one part
of a step (Run.attempt) is a row, and the others go on.
"""
import array
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
# Shapes of made-up models, with the trace's six experts per token. 8 layers of the first are 9 GiB
# of experts.
SYNTHETIC = {
    "qwen3-30b-a3b": ["--experts", "128", "--top-k", "6", "--hidden", "2048", "--ffn", "768",
                      "--heads", "32", "--kv-heads", "4", "--head-dim", "128", "--vocab", "32000"],
    "small": ["--experts", "128", "--top-k", "6", "--hidden", "64", "--ffn", "64", "--heads", "2",
              "--kv-heads", "1", "--head-dim", "32", "--vocab", "256"],
}
# What is compared on the model of real shape. Static placement is measured with whole layers on the
# device, and with the experts that the replayed routing itself chooses most: it then knows what is
# to come, which in use it does not. "HOT" stands for the table.
CONFIGS = {"cost": ["--profile", "auto", "--assign", "cost"],
           "layers": ["--profile", "static"],
           "hot": ["--profile", "static", "--partition", "hot-table", "--hot-table-buffers", "2",
                   "--calibration", "HOT"],
           "demand": ["--profile", "lru", "--assign", "gpu-only"]}
# Further ways of the step: the host queues each layer; the gate's guess of the next one is loaded
# ahead, by the model's own routing.
WAYS = {"host": ["--profile", "lru", "--assign", "gpu-only", "--graphs", "off"],
        "gate": ["--profile", "lru", "--assign", "gpu-only", "--predict", "gate", "--prefetch",
                 "top"]}
PROMPT, GEN = 8, 48     # tokens of each sequence there
PREFILL = 512           # of the prompt where prefill is measured
NO_CUBLAS = 2           # moepager's exit code where it cannot be loaded
GEMM_FAR = 0.05         # of the largest logit, where products of many tokens round activations
APART = 17              # steps of the trace between sequences (engine/forward/forced_routing.h)
MEMORY_LEFT = 6 << 30   # for programs, beside the model and its copy in pinned memory


class Stop(Exception):
    """This cannot go on; `late`: for want of time, so that another call may."""

    def __init__(self, why, late=False):
        super().__init__(why)
        self.late = late


class NoDriver(Exception):
    """Nothing can."""


def verdict(run, good):
    """Of what is measured: figures of a dry run mean nothing."""
    return "" if run.args.dry_run else "met" if good else "missed"


def device(run):
    return f"cuda:{run.args.device}"


# ---- the machine

def meminfo(name):
    for line in open("/proc/meminfo"):
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10
    return 0


def gpu_says(run, fields):
    text = run.command(["nvidia-smi", f"--id={run.args.device}", f"--query-gpu={','.join(fields)}",
                        "--format=csv,noheader"], 20)[1]
    return [value.strip() for value in text.strip().splitlines()[-1].split(",")]


def gpu_rows(run):
    name, driver, memory = gpu_says(run, ["name", "driver_version", "memory.total"])
    run.row("GPU", "", f"{name}, {memory}, driver {driver}")
    now = gpu_says(run, ["pcie.link.gen.current", "pcie.link.width.current", "pcie.link.gen.max",
                         "pcie.link.width.max"])
    run.row("PCIe link", "", f"generation {now[0]} x{now[1]} (idle)", f"{now[2]} x{now[3]}")


def open_rows(run):
    """How long opening takes with compiled kernels, and with a driver that compiles them."""
    program = [run.bin / "gpu_check_kernels", str(run.args.device), "--open"]
    code, text = run.command(program, 60, (0, 77))
    if code == 77:
        raise NoDriver("CUDA is off: no driver responds; all.log says why")
    found = json.loads(text[text.index("{"):].splitlines()[0])
    run.row("device and kernels opened", "", f"{found['open_ms']:.0f} ms, from "
            + ("PTX" if found["image"] == "PTX" else Path(found["image"]).name))
    bare = run.json(program, 60, env={"MOEPAGER_CUDA_CUBINS": "", "CUDA_CACHE_DISABLE": "1"})
    run.row("the same, PTX compiled by the driver", "", f"{bare['open_ms']:.0f} ms")


def machine(run):
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo")
                if line.startswith("model name")), "?")
    run.row("commit", "", run.kept["key"][0])
    run.row("CPU", "", f"{os.cpu_count()} x {cpu}")
    run.row("memory", "", f"{meminfo('MemAvailable') >> 30} of {meminfo('MemTotal') >> 30} GiB")
    for name, command in (("lscpu.txt", ["lscpu"]), ("meminfo.txt", ["cat", "/proc/meminfo"]),
                          ("df.txt", ["df", "-h", "/dev/shm", str(run.out), str(run.work)])):
        run.look(name, command)
    if run.args.dry_run:
        run.row("GPU", "", "none: the fake driver")
    else:
        run.look("nvidia-smi.txt", ["nvidia-smi", "-q"])
        run.attempt("GPU", gpu_rows, run)
    open_rows(run)


# ---- is it right?

def laws(run):
    code, text = run.command([run.bin / "gpu_driver_laws", str(run.args.device)], 30, (0, 1))
    run.file("driver_laws.txt", text)
    fake = TOP / "tests/data/driver/laws/fakecuda.txt"
    figure = text.strip().splitlines()[-1]
    if fake.exists():
        figure += ", as the fake" if fake.read_text() == text else ", not as the fake"
    run.row("driver's laws", "ok" if code == 0 else "WRONG", figure)


def tensor_is_right(text):
    """Did check_kernels launch all kernels for tensor cores, and find each within its tolerance?"""
    right = {"": set(), "up_": set(), "down_": set()}
    for kind, of, cases, wrong in re.findall(r"^mp_tensor_(up_|down_|)(\w+) +(\d+) cases, (\d+) wrong",
                                             text, re.M):
        if cases == "0" or wrong != "0":
            return False
        right[kind].add(of)
    return {"bf16", "f16"} <= right[""] == right["up_"] == right["down_"]


# Of a decoding step of the models here (BF16, and F32 for keys and values). There is no older path
# that would do without them.
NEEDED = re.compile(r"mp_(embed|place|combine|resolve|sample\w*|attend_\w+"
                    r"|(gemv|project|route|experts_up|experts_down)[1248]_(bf16|f32))$")


def needed_that_are_wrong(text):
    found = re.findall(r"^(mp_\w+) +(\d+) cases, (\d+) wrong", text, re.M)
    return [name for name, cases, wrong in found if (cases == "0" or wrong != "0") and NEEDED.match(name)]


def is_invalid(kept, step):
    """Are figures of this step those of kernels that check_kernels has found wrong, or died of?"""
    if step not in ("graph", "model"):
        return False
    failed = any(row[0] == "kernels" and row[2] == "WRONG" for row in kept["rows"])
    return failed and kept["data"].get("kernels", {}).get("wrong") != []


def kernels(run):
    run.data.pop("wrong", None)
    few = ["--few"] if run.args.dry_run else []
    program = run.bin / "gpu_check_kernels"
    code, text = run.command([program, str(run.args.device), *few], 60, (0, 1))
    run.row("bits as on the CPU", "ok" if code == 0 else "WRONG", text.strip().splitlines()[-1])
    run.data["tensor"] = tensor_is_right(text)
    run.data["wrong"] = needed_that_are_wrong(text)
    for line in text.splitlines():
        if line.startswith("mp_") and " 0 wrong" not in line:
            run.row(line.split()[0], "WRONG", line.split(None, 1)[1])
        elif line.endswith(" were never launched"):
            run.row("launched", "WRONG", line)


def generated(run, flags):
    result = run.json([run.bin / "moepager", "run", "--model", "models/tiny-moe", "--prompt",
                       "sort 5 3 9 1 ->", "--max-tokens", "12", "--json", *flags], 30)
    return result["tokens"]


def tiny(run):
    cpu = generated(run, ["--device", "cpu"])
    same = 0
    for budget in ("100%", "25%"):
        for addressing in ("window", "table"):
            for residency in ("inclusive", "exclusive"):
                flags = ["--device", device(run), "--budget", budget, "--addressing", addressing,
                         "--residency", residency]
                name = f"{budget} {addressing} {residency}"
                tokens = run.attempt(name, generated, run, flags)
                same += tokens == cpu
                if tokens is not None and tokens != cpu:
                    run.row(name, "WRONG", "other tokens than the CPU")
    run.row("tokens as on the CPU", "ok" if same == 8 else "WRONG", f"{same} of 8 settings")


def logits_of(run, model, flags):
    """(tokens, bytes of the logits)"""
    path = run.work / "logits.npy"
    path.unlink(missing_ok=True)
    result = run.json([run.bin / "moepager", "run", "--model", model, "--prompt", "sort 5 3 9 1 ->",
                       "--max-tokens", "8", "--logits-out", path, "--json", *flags], 15)
    return result["tokens"], path.read_bytes()


def one_way(run, name, model, kv, budget):
    """The device's logits with all experts and graphs are those of every other way, by the bit."""
    off, gate = ["--graphs", "off"], ["--budget", budget, "--predict", "gate", "--prefetch", "top"]
    ways = [off + gate] if kv == "f16" else [off, gate]
    kv = ["--kv-type", kv]
    tokens = logits_of(run, model, ["--device", "cpu", *kv])[0]
    whole = logits_of(run, model, ["--device", device(run), "--budget", "100%", *kv])
    same = [logits_of(run, model, ["--device", device(run), *kv, *way])[1] == whole[1] for way in ways]
    good = whole[0] == tokens and all(same)
    run.row(name, "ok" if good else "WRONG",
            f"{'the same' if whole[0] == tokens else 'other'} tokens as the CPU; graphs off, gate at "
            f"{budget}: {'the same logits' if all(same) else 'other logits'}")


def gemms(run):
    """Ways to multiply many tokens. Tensor cores only where `kernels` has found them right."""
    if run.kept["data"].get("kernels", {}).get("tensor"):
        return ("own", "cublas", "tensor")
    run.row("prefill, tensor", "", "left out: check_kernels has not found these kernels right here")
    return ("own", "cublas")


def prefill_logits(run, model, gemm):
    """Behind a prompt of 80 tokens; None: there is no cuBLAS."""
    path = run.work / "logits.npy"
    path.unlink(missing_ok=True)
    # cuBLAS refuses the driver without a device, as it must.
    allowed = (0,) if gemm != "cublas" else (0, NO_CUBLAS, 5) if run.args.dry_run else (0, NO_CUBLAS)
    code = run.command([run.bin / "moepager", "bench", "--model", model, "--device", device(run),
                        "--prompt-tokens", "80", "--gen-tokens", "1", "--cuda-gemm", gemm,
                        "--logits-out", path], 15, allowed)[0]
    if code != 0:
        return None
    data = path.read_bytes()
    return array.array("f", data[10 + int.from_bytes(data[8:10], "little"):])


def one_gemm(run, own, model, gemm):
    found = prefill_logits(run, model, gemm)
    if found is None:
        run.row(f"prefill, {gemm}", "", "no cuBLAS that works here")
        return
    far = max(abs(a - b) for a, b in zip(own, found, strict=True)) / max(map(abs, own))
    run.row(f"prefill, {gemm}", "ok" if far <= GEMM_FAR else "WRONG", "largest distance from own",
            f"<= {GEMM_FAR} of the largest logit", f"{far:.1e}")


def ways(run):
    tiny_model = TOP / "models/tiny-moe"
    for kv in ("f32", "bf16", "f16"):
        run.attempt(f"KV cache {kv}", one_way, run, f"KV cache {kv}", tiny_model, kv, "25%")
    path = run.work / "tiny-q4_k_m.gguf"
    made = run.attempt("Q4_K_M", run.command, [run.bin / "moepager", "repack", "--model", tiny_model,
                                               "--out", path, "--type", "q4_k_m", "--force"], 15)
    if made:
        run.attempt("Q4_K_M", one_way, run, "Q4_K_M", path, "f32", "75%")
    own = run.attempt("prefill, own", prefill_logits, run, tiny_model, "own")
    for gemm in gemms(run)[1:] if own is not None else ():
        run.attempt(f"prefill, {gemm}", one_gemm, run, own, tiny_model, gemm)


def remap(run):
    memory = {"FAKECUDA_MEMORY": str(24 << 20)} if run.args.dry_run else {}     # smaller frames
    few = ["--few"] if run.args.dry_run else []
    text = run.command([run.bin / "gpu_check_remap", str(run.args.device), *few], 25, (0, 1),
                       env=memory)[1]
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        good, _, note = rest.strip().partition(": ")
        figure = note.rsplit(", ", 1)[-1] if name == "beside" else note.split(",")[0]
        run.row(name, "ok" if good == "ok" else "WRONG", figure)


def codes(run):
    # The fake driver ends a program that broke its laws, as this one does on purpose, with 97.
    text = run.command([run.bin / "gpu_driver_codes", str(run.args.device)], 30,
                       (0, 97) if run.args.dry_run else (0,))[1]
    run.file("driver_codes.txt", text)
    run.row("driver's error codes", "", f"{len(text.splitlines())} recorded")
    for path in sorted((TOP / "tests/data/driver").glob("*.txt")):
        run.row(f"as {path.stem}", "", "same" if path.read_text() == text else "other")


def sanitizer(run):
    places = [shutil.which("compute-sanitizer")]
    places += sorted(Path("/usr/local").glob("cuda*/bin/compute-sanitizer"))
    tool = next((place for place in places if place), None)
    if tool is None:
        run.row("compute-sanitizer", "", "not on this machine")
        return
    for check in ("memcheck", "racecheck"):
        clean = run.attempt(check, run.command, [
            tool, "--tool", check, "--error-exitcode", "9", run.bin / "gpu_check_kernels",
            str(run.args.device), "--few"], 40)
        if clean:
            run.row(check, "ok", "clean")


# ---- how fast is it?

def probe(run):
    shape = ["--hidden", "64", "--channels", "64"] if run.args.dry_run else []
    found = run.json([run.bin / "moepager", "probe", "--device", device(run), "--fresh", "--json",
                      *shape], 50)
    run.file("probe.json", json.dumps(found, indent=1) + "\n")
    v = run.data["values"] = found["values"]

    def show(what, *keys, unit):
        values = [v.get(key) for key in keys]
        run.row(what, "", " / ".join("-" if x is None else f"{x:.1f}" for x in values) + f" {unit}")

    show("host to device 256K/1M/4M/16M", "copy_256k_1", "copy_1m_1", "copy_4m_1", "copy_16m_1",
         unit="GB/s")
    show("device read / copy / in place", "device_read", "device_copy", "in_place_read",
         unit="GB/s")
    show("map+access+unmap busy 2/16/64 MiB", "remap_busy_2m", "remap_busy_16m", "remap_busy_64m",
         unit="us")
    show("launch / graph / hand-off", "launch", "graph_launch", "handoff", unit="us")
    show("expert GPU / in place / CPU", "expert_1", "in_place_1", "cpu_1", unit="us")
    if found.get("trouble"):
        run.row("trouble", "", found["trouble"])


# What a layer is to reach of the speed of reading, for one token: 110 MB in 8 launches. Experts alone
# are to have 0.85 of copying; a launch that costs 1.2 us leaves less, about 0.7.
LAYER_SHARE = 0.7
# What a whole step of one token is to reach of the speed of copying.
STEP_SHARE = 0.6


def speed(run):
    found = run.json([run.bin / "gpu_bench_kernels", "--device", str(run.args.device), "--json"]
                     + (["--small"] if run.args.dry_run else []), 40)
    run.file("kernels.json", json.dumps(found, indent=1) + "\n")
    run.row("read / copy", "", f"{found['read_gbps']:.0f} / {found['copy_gbps']:.0f} GB/s")
    run.data["copy_gbps"] = found["copy_gbps"]
    of_layer = {}
    for item in found["kernels"]:
        if item["name"].startswith("layer, ") and not item["headline"]:
            of_layer[item["name"].removeprefix("layer, ")] = item["us"]
        elif item["name"].startswith("layer, "):
            run.row(f"{item['name']}: bytes over time",
                    verdict(run, item["ratio_read"] >= LAYER_SHARE),
                    f"{item['us']:.1f} us, {item['gbps']:.0f} GB/s", f">= {LAYER_SHARE} of read",
                    f"{item['ratio_read']:.2f}")
            run.row("layer, launch by launch", "",
                    " + ".join(f"{name} {us:.1f}" for name, us in of_layer.items())
                    + f" = {sum(of_layer.values()):.1f} us")
        elif item["name"].startswith("sample_list, sample"):
            run.row(item["name"], "", f"{item['us']:.1f} us")
        elif item["headline"]:
            aimed = "experts" in item["name"]
            run.row(item["name"], verdict(run, item["ratio"] >= 0.85) if aimed else "",
                    f"{item['us']:.1f} us, {item['gbps']:.0f} GB/s",
                    ">= 0.85 of copy" if aimed else "of copy", f"{item['ratio']:.2f}")


def layer_bytes(shape):
    """Of the experts of a layer, BF16."""
    value = dict(zip(shape[::2], map(int, shape[1::2])))
    return value["--experts"] * 3 * value["--hidden"] * value["--ffn"] * 2


def place_model(layers, one_bytes, shm_free, memory_free, disk_free):
    """(in memory?, layers): in /dev/shm, else on disk, else the same with fewer layers. There is
    also to be room for the pinned copy of all experts. layers 0: not even one fits."""
    for count in range(layers, 0, -1):
        need = int(1.05 * count * one_bytes) + (300 << 20)
        if need <= shm_free and 2 * need + MEMORY_LEFT <= memory_free:
            return True, count
        if need <= disk_free and need + MEMORY_LEFT <= memory_free:
            return False, count
    return False, 0


def free_bytes(path):
    return shutil.disk_usage(path).free if Path(path).is_dir() else 0


def make_model(run):
    """The folder of the model, which is made if it is not there."""
    kept = run.kept["data"].setdefault("made", {})
    if Path(kept.get("path", "/nowhere"), "config.json").exists():
        return kept["path"]
    shape = SYNTHETIC[run.args.synthetic]
    in_memory, layers = place_model(run.args.layers, layer_bytes(shape), free_bytes("/dev/shm"),
                                    meminfo("MemAvailable"), free_bytes(run.work))
    if run.args.dry_run:
        in_memory, layers = False, run.args.layers
    if layers == 0:
        raise Stop(f"no room for a layer of {layer_bytes(shape) >> 20} MiB and its copy in memory; "
                   f"/dev/shm and {run.work} were asked")
    path = (Path("/dev/shm") if in_memory else run.work) / "moepager-gpu-model"
    shutil.rmtree(path, ignore_errors=True)
    kept.update(path=str(path), layers=layers)
    try:
        run.command([sys.executable, "tools/make_bench_model", "--out", path, "--layers", layers,
                     *shape], 60)
    except BaseException:
        remove_model(run, always=True)
        raise
    return kept["path"]


def remove_model(run, always=False):
    """Where no step wants it any more."""
    kept = run.kept["data"].get("made", {})
    if "path" in kept and (always or {"graph", "model"} <= set(run.kept["done"])):
        shutil.rmtree(kept.pop("path"), ignore_errors=True)


def model_row(run):
    layers = run.kept["data"]["made"]["layers"]
    run.row("made-up model", "", f"{run.args.synthetic}, {layers} layers")


def of_copy(run, r):
    """A step's bytes over its time, of the speed of copying."""
    copy = run.kept["data"].get("speed", {}).get("copy_gbps")
    if copy is None:
        raise Stop("`speed` has not measured copying", late=True)
    gbps = r["bytes"] / r["pager_ms"] / 1e6
    run.row("batch 1, bytes over time", verdict(run, gbps >= STEP_SHARE * copy),
            f"{r['bytes'] / 1e6:.0f} MB, {gbps:.0f} GB/s", f">= {STEP_SHARE} of copy",
            f"{gbps / copy:.2f}")


def graph(run):
    """What the pager costs when everything is there, against memory that no pager knows."""
    path = make_model(run)
    model_row(run)

    def step(batch, early):
        return run.json([run.bin / "gpu_bench_step", "--model", path,
                         "--device", str(run.args.device), "--batch", str(batch),
                         *(["--rounds", "1", "--steps", "2"] if run.args.dry_run else [])], 30,
                        env={"MOEPAGER_CUDA_PDL": early})

    def early(batch, off):
        """Programmatic dependent launch: the same logits, and what a graph takes with it."""
        on = step(batch, "on")
        if not on["early"]:
            run.row(f"batch {batch}, kernels begin early", "", "left out: needs 9.0 and driver 12.3")
            return
        run.row(f"batch {batch}, graph: early / not",
                "ok" if on["logits"] == off["logits"] else "WRONG",
                f"{on['graph_ms']:.3f} / {off['graph_ms']:.3f} ms", "same logits",
                f"{on['graph_ms'] / off['graph_ms']:.3f}")

    def one(batch):
        r = step(batch, "off")
        run.row(f"batch {batch}, all resident: pager / plain", verdict(run, r["ratio"] <= 1.02),
                f"{r['pager_ms']:.3f} / {r['plain_ms']:.3f} ms", "<= 1.02", f"{r['ratio']:.3f}")
        if batch == 1:
            run.attempt("batch 1, bytes over time", of_copy, run, r)
        run.attempt(f"batch {batch}, kernels begin early", early, batch, r)

    for batch in (1, 8):
        run.attempt(f"batch {batch}", one, batch)


# ---- the model at several budgets

def plan(run):
    """(configuration, batch, prompt, budgets): one process each, the most telling first."""
    if run.args.dry_run:
        return [(name, 1, PROMPT, (100, 50)) for name in CONFIGS] + [
            (gemm, 1, 16, (100,)) for gemm in gemms(run)] + [
            (name, 1, PROMPT, (100,)) for name in WAYS]
    return ([(name, 1, PROMPT, (100, 25)) for name in CONFIGS]
            + [(gemm, 1, PREFILL, (100, 25)) for gemm in gemms(run)]
            + [(name, 1, PROMPT, (100, 25)) for name in WAYS]
            + [(name, 8, PROMPT, (100, 25)) for name in CONFIGS]
            + [(name, batch, PROMPT, (50, 12)) for batch in (1, 8) for name in CONFIGS])


def key_of(name, batch, prompt, budget):
    return f"{name} b{batch} p{prompt} {budget:g}"


def bench(run, path, name, batch, prompt, budgets, more):
    """One process; every budget that it has measured is kept, also if it is killed at the next."""
    cells = run.data.setdefault("cells", {})
    key = key_of(name, batch, prompt, budgets[0])

    def keep(line):
        if line.startswith("{"):
            cell = json.loads(line)
            if "error" in cell:
                run.row(key_of(name, batch, prompt, cell["budget"]), "WRONG", cell["error"])
            else:
                cells[key_of(name, batch, prompt, cell["budget"])] = cell

    def try_to_keep(line):
        try:
            keep(line)
        except (ValueError, KeyError, TypeError):
            run.row(key, "WRONG", f"no JSON: {line.strip()[:60]}")

    gen = 4 if run.args.dry_run else GEN if prompt == PROMPT else 2
    # cuBLAS may not be there (77), and refuses the driver without a device, as it must.
    allowed = ((0, 1, 77) if run.args.dry_run else (0, 77)) if name == "cublas" else (0,)
    short = ["--repeats", "1", "--warm", "1"] if run.args.dry_run else []
    code = run.command([run.bin / "gpu_bench_model", "--model", path, "--device", device(run),
                        "--budgets", ",".join(map(str, budgets)), "--batch", str(batch), "--prompt-tokens",
                        str(prompt), "--gen-tokens", str(gen), *short, *more], 60, allowed,
                       on_line=try_to_keep)[0]
    if code != 0:
        run.row(key, "", "no cuBLAS that works here")


def hot_table(run, path, trace, batch):
    """Which experts are chosen most in the very steps that `batch` sequences replay."""
    table = run.work / f"hot-{batch}.safetensors"
    if not table.exists():
        run.command([run.bin / "moepager", "calibrate", "--model", path, "--device", "cpu",
                     "--from-trace", trace, "--tokens", str(PROMPT + GEN + APART * (batch - 1)),
                     "--out", table], 60)
    return table


def own_trace(run, path):
    """The made-up model's own routing, recorded once."""
    trace = run.work / "own.trace"
    if not trace.exists():
        run.command([run.bin / "moepager", "bench", "--model", path, "--device", device(run),
                     "--budget", "50%", "--profile", "static", "--trace", trace, "--repeat", "1",
                     "--prompt-tokens", str(PROMPT), "--gen-tokens",
                     str(4 if run.args.dry_run else GEN), "--json"], 60)
    return trace


def flags_of(run, path, trace, name, batch):
    if name == "gate":
        return WAYS[name]
    if name in WAYS:
        return ["--from-trace", trace, *WAYS[name]]
    if name not in CONFIGS:
        return ["--cuda-gemm", name]
    table = hot_table(run, path, trace, batch) if name == "hot" else None
    return ["--from-trace", trace,
            *(str(table) if flag == "HOT" else flag for flag in CONFIGS[name])]


def compare(run, batch, budget, cells, link_gbps):
    """Rows of what was measured; `cost` is held against the better one of the static ones."""
    figures = [f"{name} {cell['tpot_ms']:.2f} ms ({100 * cell['hit_rate']:.0f} % hits, "
               f"{100 * cell['graphs']:.0f} % graphs)" for name, cell in cells.items()]
    good, ratio = "", ""
    if {"cost", "layers", "hot"} <= set(cells):
        static = min(cells["layers"]["tpot_ms"], cells["hot"]["tpot_ms"])
        ratio = cells["cost"]["tpot_ms"] / static
        good, ratio = verdict(run, ratio <= 1.02), f"{ratio:.2f}"
    run.row(f"batch {batch}, {budget:g} %", good, ", ".join(figures), "cost/static <= 1.02", ratio)
    cost = cells.get("cost", {"bytes_per_step": 0})
    if link_gbps and cost["bytes_per_step"] > 0:
        bound = cost["bytes_per_step"] / (link_gbps * 1e6)
        over = cost["wait_ms_per_step"] / bound
        run.row(f"batch {batch}, {budget:g} %: cost's exposed wait", verdict(run, over <= 1.10),
                f"{cost['wait_ms_per_step']:.3f} ms", f"<= 1.10 of {bound:.3f} ms", f"{over:.2f}")


def model_rows(run):
    cells = run.data.get("cells", {})
    link = run.kept["data"].get("probe", {}).get("values", {}).get("copy_4m_1")
    for batch in (1, 8):
        for budget in (100, 50, 25, 12):
            found = {name: cells[key_of(name, batch, PROMPT, budget)] for name in CONFIGS
                     if key_of(name, batch, PROMPT, budget) in cells}
            if found:
                compare(run, batch, budget, found, link)
            found |= {name: cells[key_of(name, batch, PROMPT, budget)] for name in WAYS
                      if key_of(name, batch, PROMPT, budget) in cells}
            if found.keys() & WAYS.keys():
                run.row(f"batch {batch}, {budget} %: graphs off, gate", "", ", ".join(
                    f"{name} {found[name]['tpot_ms']:.2f} ms" for name in WAYS if name in found))
            if found:
                run.row(f"batch {batch}, {budget} %: waits of the host", "", ", ".join(
                    f"{name} {cell['waits']:.1f}" for name, cell in found.items()) + " per step")
    for key, cell in cells.items():
        if cell["prompt"] != PROMPT:
            run.row(f"prefill, {key}", "", f"{cell['prefill_per_s']:.0f} tokens/s, "
                    f"{cell['ttft_ms']:.1f} ms")


def model(run):
    path = make_model(run)
    model_row(run)
    trace = Path(run.args.trace or run.bin / "trace.csv")
    if not trace.exists():
        trace = own_trace(run, path)
        run.row("routing", "", "the made-up model's own: no trace was given")
    else:
        run.row("routing", "", f"{trace.name}; hot: table of the steps that are replayed")
    cells = run.data.setdefault("cells", {})
    for name, batch, prompt, budgets in plan(run):
        missing = [b for b in budgets if key_of(name, batch, prompt, b) not in cells]
        if missing:
            run.attempt(f"{name}, batch {batch}, prompt {prompt}", lambda: bench(
                run, path, name, batch, prompt, missing, flags_of(run, path, trace, name, batch)))
    run.file("model.json", json.dumps(cells, indent=1) + "\n")
    model_rows(run)


def baseline(run):
    """llama.cpp with its experts on the CPU, and on the device, where it and a model are there."""
    program = run.args.llama_bench or shutil.which("llama-bench")
    if not program or not run.args.gguf:
        run.row("llama.cpp", "", "not here (--llama-bench, --gguf); `layers` places as it does")
        return
    for name, experts in (("experts on the CPU", "999"), ("all on the device", "0")):
        def one(experts=experts):
            text = run.command([program, "-m", run.args.gguf, "-ngl", "999", "-ncmoe", experts,
                                "-p", str(PREFILL), "-n", str(GEN), "-r", "3", "-o", "json"],
                               60)[1]
            return json.JSONDecoder().raw_decode(text, text.index("["))[0]
        for item in run.attempt(name, one) or []:
            what = "prefill" if item.get("n_prompt") else "decoding"
            run.row(f"{name}, {what}", "", f"{item['avg_ts']:.1f} tokens/s")


def preload_cases(run):
    """(name, command, variables, what the library says when it did something)"""
    windows = {"MOEPAGER_GPU_BUDGET": "60%"}
    slots = {"MOEPAGER_BUDGET": "50%", "MOEPAGER_REPORT": "1"}
    made, copied = r"windows \d+ made [1-9]", r"[1-9]\d* copies from [0-9.]+ MiB of pinned slots"
    if run.args.dry_run:
        sys.path.insert(0, str(TOP / "tests/device/interpose"))
        import models
        path = run.work / "preload.gguf"
        models.gguf(path)
        small = {"MOEPAGER_GPU_BUDGET": "4M", "MOEPAGER_GPU_WINDOW": "1M",
                 "MOEPAGER_GPU_UNIT": "2M"}
        return [("weights on the device", [run.bin / "device_interpose_llama_like_13", path, "8",
                                           "13"], small, made),
                ("experts on the CPU", [run.bin / "device_interpose_experts_on_host_13", path, "8",
                                        "turns", "13"], slots, copied)]
    program = run.args.llama_cli or shutil.which("llama-cli")
    if not program or not run.args.gguf:
        return []
    command = [program, "-m", run.args.gguf, "-ngl", "999", "-p", "The capital of France is",
               "-n", str(GEN), "--temp", "0", "--seed", "1", "-no-cnv", "--no-warmup"]
    return [("weights on the device", command, windows, made),
            ("experts on the CPU", [*command, "-ncmoe", "999"], slots, copied)]


def preload(run):
    """A CUDA program that nobody changed says the same with moepager beneath it."""
    library = run.bin / "libmoepager_preload.so"
    cases = preload_cases(run) if library.exists() else []
    if not cases:
        run.row("llama.cpp", "", "not here (--llama-cli, --gguf)")
        return
    found = {}
    if run.args.dry_run:
        found["LD_LIBRARY_PATH"] = f"{run.bin / 'fakecudart/13'}:{run.env['LD_LIBRARY_PATH']}"
    for name, command, variables, did in cases:
        def one(command=command, variables=variables):
            begin = time.monotonic()
            plain = run.command(command, 60, env=found)[1]
            middle = time.monotonic()
            beneath = run.command(command, 60, env=dict(
                found, LD_PRELOAD=str(library), MOEPAGER_LOG="info",
                MOEPAGER_LOG_FILE=str(run.work / "preload.log"), **variables))[1]
            return plain, beneath, middle - begin, time.monotonic() - middle
        log = run.work / "preload.log"
        log.unlink(missing_ok=True)
        said = run.attempt(name, one)
        if said is None:
            continue
        plain, beneath, before, after = said
        text = (log.read_text() if log.exists() else "") + run.last_err
        run.row(f"{name}: text", "ok" if plain == beneath and plain else "WRONG",
                f"{len(plain)} bytes")
        run.row(f"{name}: took part", "ok" if re.search(did, text) else "WRONG", "", "",
                verdict(run, True) and f"{before / after:.2f} of the time without")


# Name, share of the time in seconds, what it does. What may leave the device in a bad state is
# last.
STEPS = [("machine", 35, machine), ("laws", 10, laws), ("kernels", 60, kernels), ("tiny", 40, tiny),
         ("ways", 30, ways), ("remap", 25, remap), ("probe", 40, probe), ("speed", 35, speed),
         ("graph", 70, graph), ("model", 130, model), ("baseline", 20, baseline),
         ("preload", 20, preload), ("codes", 10, codes), ("sanitizer", 45, sanitizer)]
