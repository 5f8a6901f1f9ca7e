"""What the simulator needs to know of a test bed, measured there, and what it then says.

All times are those of ranks on the bed, from the timelines of short runs in which one server's users
ask and the other servers are idle: with calls (uniform, before and after each placement, as a machine
does not always take the same time) what a layer, an expert and a message take, with reads (local) what
a read adds. Which experts each token chooses is from a trace of the run of one process.
"""
import json
import math
import statistics
import subprocess

LEAST = 0.001  # us: keys that must not be 0
HEAD_BYTES = 48
ONCE_BYTES = 65536  # Open MPI's btl_tcp_eager_limit
GROUP_BYTES = 12  # an expert's number and rows, and the number of a row


def read_events(path):
    """Spans of a timeline in the order of time, us."""
    events = [e for e in json.loads(path.read_text())["traceEvents"] if "dur" in e]
    return sorted(events, key=lambda e: e["ts"])


def end_of(event):
    return event["ts"] + event["dur"]


def read_forwards(events):
    """Of each forward pass that asked somebody or not: its tokens, and its parts by name."""
    passes = [{"tokens": f["args"]["tokens"], "at": f["ts"], "end": end_of(f), "send": [], "take": [],
               "experts": []} for f in events if f["name"] == "forward"]
    at = 0
    for event in events:
        while at < len(passes) and passes[at]["end"] <= event["ts"]:
            at += 1
        if at < len(passes) and event["ts"] >= passes[at]["at"] and event["name"] in passes[at]:
            passes[at][event["name"]].append(event)
    return passes


def read_windows(one):
    """The layers of a pass that asked somebody: from the first message on until all answers are
    there and own experts are computed."""
    windows, open_calls = [], 0
    for event in sorted(one["send"] + one["take"], key=end_of):
        if event["name"] == "send" and open_calls == 0:
            windows.append({"at": event["ts"], "sends": [], "takes": []})
        open_calls += 1 if event["name"] == "send" else -1
        windows[-1]["sends" if event["name"] == "send" else "takes"].append(event)
    for window in windows:
        window["end"] = end_of(window["takes"][-1])
        window["experts"] = [e for e in one["experts"] if window["at"] <= e["ts"] < window["end"]]
    return windows


def mean_of(events, key=None):
    return statistics.mean(e["dur"] if key is None else e["args"][key] for e in events)


def is_small(event):
    """Of a step of one token."""
    return event["args"]["rows"] == event["args"]["experts"]


def measure_experts(events):
    experts = [e for e in events if e["name"] == "experts"]
    few = [e for e in experts if is_small(e)]
    many = [e for e in experts if not is_small(e)]
    each = sum(e["dur"] for e in few) / sum(e["args"]["experts"] for e in few)
    more = sum(e["args"]["rows"] - e["args"]["experts"] for e in many)
    token = max(LEAST, sum(e["dur"] - each * e["args"]["experts"] for e in many) / more)
    return {"expert_us": max(LEAST, each - token), "expert_token_us": token}


def expert_work(times, event):
    return times["expert_us"] * event["args"]["experts"] + times["expert_token_us"] * event["args"]["rows"]


def measure_layer(passes, layers):
    """What a layer takes beside experts and messages."""
    seen = {}
    for one in passes:
        windows = read_windows(one)
        busy = sum(w["end"] - w["at"] for w in windows)
        busy += sum(e["dur"] for e in one["experts"]
                    if not any(w["at"] <= e["ts"] < w["end"] for w in windows))
        seen.setdefault(one["tokens"], []).append((one["end"] - one["at"] - busy) / layers)
    tokens = max(seen)
    one, all_of = statistics.mean(seen[1]), statistics.mean(seen[tokens])
    token = max(LEAST, (all_of - one) / (tokens - 1))
    return {"layer_us": max(LEAST, one - token), "layer_token_us": token}


def rows_there(args, event):
    """Rows that a call sends: each token's once."""
    return 1 if is_small(event) else min(event["args"]["rows"], args.prompt)


def link_us(args, config, event):
    """Rows there and back on the link."""
    row, groups, rows = 4 * config["hidden_size"], event["args"]["experts"], event["args"]["rows"]
    return (2 * HEAD_BYTES + GROUP_BYTES * groups + row * (rows_there(args, event) + rows)) * 8 / args.mbit


def measure_rest(args, config, passes, times):
    """(us, rows, messages): what layers that asked somebody take beside experts and the link, and
    how many rows were handled for it one after the other: all that are sent, and at the other end
    and back those of the message that takes longest."""
    seen = []
    for one in passes:
        for window in read_windows(one):
            ways = [(link_us(args, config, e) + expert_work(times, e),
                     rows_there(args, e) + 2 * e["args"]["rows"]) for e in window["sends"]]
            seen.append((window["end"] - window["at"] - max(ways)[0],
                         sum(rows_there(args, e) for e in window["sends"]) + max(ways)[1],
                         len(window["sends"])))
    return [statistics.mean(x) for x in zip(*seen)]


def measure_messages(args, config, asking, answering, passes, times):
    """What a message takes at both ends, of one row and of each further one, and between them."""
    def mean_of(events, name, work=lambda e: 0):
        return statistics.mean(e["dur"] - work(e) for e in events
                               if e["name"] == name and is_small(e))

    one = measure_rest(args, config, [p for p in passes if p["tokens"] == 1], times)
    all_of = measure_rest(args, config, [p for p in passes if p["tokens"] > 1], times)
    row = max(0, (all_of[0] - one[0]) / (all_of[1] - one[1]))
    calls = {"row_us": row, "send_us": max(0, mean_of(asking, "send") - row),
             "take_us": max(0, mean_of(asking, "take") - row),
             "serve_us": max(0, mean_of(answering, "serve", lambda e: expert_work(times, e)) - 2 * row)}
    return {**calls, "call_us": max(0, one[0] - row * one[1] - one[2] * calls["send_us"] -
                                    calls["take_us"] - calls["serve_us"])}


def measure_calls(args, config, folder, runs):
    """(times of a machine, times of calls) from runs with calls; rank 0 asked."""
    by_rank = [[read_events(folder / f"timeline.{run}.uniform.{n}") for run in runs] for n in (0, 1, 2)]
    asking, answering = sum(by_rank[0], []), sum(by_rank[1] + by_rank[2], [])
    passes = sum(map(read_forwards, by_rank[0]), [])
    times = measure_experts(asking + answering)
    times.update(measure_layer(passes, config["num_hidden_layers"]))
    return times, measure_messages(args, config, asking, answering, passes, times)


def measure_passes(folder, run):
    """us of all forward passes of the run with reads."""
    return sum(one["end"] - one["at"]
               for one in read_forwards(read_events(folder / f"timeline.{run}.local.0")))


def measure_overlap(folder, times, run):
    """(us, us): what a layer of one token waits because it reads at all, and for each expert that it
    reads. Reads of one layer are on their way together, so that two take less than one and one more;
    what is there is computed meanwhile, what is read behind the last one. From medians: a mean of so
    few layers is that of the longest."""
    took, expert = {}, times["expert_us"] + times["expert_token_us"]
    events = read_events(folder / f"timeline.{run}.local.0")
    demands = [e["ts"] for e in events if e["name"] == "demand"]
    computed = [e for e in events if e["name"] == "experts"]
    for layer in (e for e in events if e["name"] == "MoE layer" and e["args"]["tokens"] == 1):
        reads = sum(layer["ts"] <= ts < end_of(layer) for ts in demands)
        behind = expert * reads if reads > 0 else \
            sum(e["dur"] for e in computed if layer["ts"] <= e["ts"] < end_of(layer))
        took.setdefault(reads, []).append(layer["dur"] - behind)
    nothing = statistics.median(took.pop(0, [0]))
    if not took:
        return 0, LEAST  # all is kept
    points = [(n, statistics.median(us) - nothing, len(us)) for n, us in took.items()]
    weight = sum(w for _, _, w in points)
    mean_n = sum(n * w for n, _, w in points) / weight
    mean_us = sum(us * w for _, us, w in points) / weight
    spread = sum(w * (n - mean_n) ** 2 for n, _, w in points)
    each = sum(w * (n - mean_n) * us for n, us, w in points) / spread if spread > 0 else 0
    each = min(max(each, LEAST), mean_us / mean_n)
    return max(0, mean_us - each * mean_n), each


def write_trace(folder, name, counts):
    """Of the trace of all requests, the first ones of each server's users, so many as `counts` says."""
    servers = [int(line.split()[0]) for line in (folder / "requests").read_text().splitlines()]
    lines, request, left = [], -1, list(counts) + [0] * len(set(servers))
    for line in (folder / "trace").read_text().splitlines():
        if line.startswith("0 0 0 0 "):  # step, layer, sequence, position
            request += 1
            left[servers[request]] -= 1
        if line.startswith("#") or left[servers[request]] >= 0:
            lines.append(line)
    (folder / name).write_text("\n".join(lines) + "\n")


def write_machine(times, folder):
    machine = {"link_gbps": 1, "copy_us": 0, "device_gbps": 1e6, "device_gflops": 1e7,
               "launch_us": 0, "device_gib": 1000, "step_us": LEAST, **times}
    (folder / "bed.machine").write_text("".join(f"{k} {v:.6f}\n" for k, v in machine.items()))


def write_files(args, config, cluster, times, calls, processors, own_requests, folder):
    """The cluster file of the ranks, with a model and a machine that have the measured times."""
    each = 3 * config["hidden_size"] * config["moe_intermediate_size"] * 2
    model = {"layers": config["num_hidden_layers"], "experts": config["num_experts"],
             "top_k": config["num_experts_per_tok"], "hidden": config["hidden_size"],
             "expert_ffn": config["moe_intermediate_size"], "vocabulary": 1,
             "attention_params": 1, "kv_bytes": 0}
    (folder / "bed.model").write_text("".join(f"{k} {v}\n" for k, v in model.items()))
    write_machine(times, folder)
    other = 2 * (2 * config["hidden_size"] + model["layers"] *
                 (1 + config["hidden_size"] * config["num_experts"]))
    servers = [{"machine": f"{folder}/bed.machine", "mbit": server["mbit"],
                "arrival_s": server["arrival_s"],
                "device_gib": (other + (server["slots"] + 1.5) * each) / 2 ** 30}
               for server in cluster["servers"]]
    file = dict(cluster, servers=servers)
    file.update(model=f"{folder}/bed.model", requests=args.requests, latency_us=0, **calls,
                   processors=processors, value_bytes=4, head_bytes=HEAD_BYTES + GROUP_BYTES,
                   rows_once=1, once_bytes=ONCE_BYTES, known=-1)
    (folder / "simulated").write_text(json.dumps(file))
    file.update(requests=own_requests)
    (folder / "simulated_every").write_text(json.dumps(file))
    file.update(servers=servers[:1])
    (folder / "simulated_one").write_text(json.dumps(file))


def measure_processors(folder, run, place, processors):
    """From the first forward pass to the end of the last one of all ranks: seconds, those of processors
    that had something to do, and those of each rank's first thread. None: too short to be measured."""
    passes = sum((read_forwards(read_events(folder / f"timeline.{run}.{place}.{n}")) for n in (0, 1, 2)), [])
    at, end = min(one["at"] for one in passes), max(one["end"] for one in passes)
    seen = [s for s in json.loads((folder / f"idle.{run}.{place}").read_text()) if at <= s["us"] <= end]
    if len(seen) < 10:
        return None
    first, last = seen[0], seen[-1]
    wall = (last["us"] - first["us"]) / 1e6
    share = (end - at) / 1e6 / wall
    busy = processors * wall - (last["idle_s"] - first["idle_s"]) - (last["look_s"] - first["look_s"])
    return share * wall, share * busy, [share * (b - a) for a, b in zip(first["ranks_s"], last["ranks_s"])]


def measure_looking(folder, runs, processors):
    """The share of a processor that a rank takes which looks for messages and gets none."""
    seen = [measure_processors(folder, run, "local", processors) for run in runs]
    return statistics.mean([ranks_s[n] / wall for wall, _, ranks_s in filter(None, seen) for n in (1, 2)]
                           or [0])


def measure_rest_of(row, folder, runs, place, processors, looking):
    """What processors did in these runs beside what the simulator knows of (work_s), s: not what
    ranks took to look for messages while they had nothing else to do."""
    rest = []
    for seen in (measure_processors(folder, run, place, processors) for run in runs):
        if seen is not None:
            wall, busy, ranks_s = seen
            rest.append(busy - row["work_s"] - looking * max(0, len(ranks_s) * wall - row["work_s"]))
    return max(0, statistics.mean(rest or [0]))


def put_way(args, folder, runs, reading_runs, processors):
    """What processors do for a message on its way, from runs in which all ask: where processors are
    idle, waking them is part of what was counted."""
    row = simulate(args, folder, "uniform", "simulated_every", runs[0], "every_trace")["uniform"]
    looking = measure_looking(folder, reading_runs, processors)
    keys = {"way_us": 1e6 * measure_rest_of(row, folder, runs, "uniform", processors, looking) /
            max(1, row["messages"])}
    set_keys(folder, keys)
    return keys


def set_keys(folder, keys):
    for name in ("simulated", "simulated_one"):
        file = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(dict(file, **keys)))


def measure_load_work(args, folder, runs, processors):
    """What processors do for each expert that is read."""
    row = simulate(args, folder, "local", "simulated_one", runs[0], "own_trace")["local"]
    looking = measure_looking(folder, runs, processors)
    return {"load_work_us": 1e6 * measure_rest_of(row, folder, runs, "local", processors, looking) /
            max(1, row["reads"] + row["filled"])}


def put_load(args, times, folder, runs, processors):
    """What a read takes of the disk, from medians; of processors; and how long it makes a layer wait
    beside that: so long that the passes of the run with reads take in the simulator what they took.
    Few reads take far longer than most; those keep nobody else from the disk. It does not go into
    other runs."""
    times["load_us"] = statistics.mean(measure_overlap(folder, times, run)[1] for run in runs)
    passes_us = statistics.mean(measure_passes(folder, run) for run in runs)
    write_machine(times, folder)
    keys = measure_load_work(args, folder, runs, processors)
    low, high = 0.0, 10000.0
    for _ in range(16):
        keys["read_us"] = (low + high) / 2
        set_keys(folder, keys)
        row = simulate(args, folder, "local", "simulated_one", runs[0], "own_trace")["local"]
        if row["busy_share"] * row["end_s"] * 1e6 < passes_us:
            low = keys["read_us"]
        else:
            high = keys["read_us"]
    return keys


def simulate(args, folder, places, cluster="simulated", requests="requests", trace="trace"):
    done = subprocess.run([str(args.program), "simulate", "--json", "--cluster",
                           f"{folder}/{cluster}", "--requests", f"{folder}/{requests}", "--from-trace",
                           f"{folder}/{trace}", "--place", places], capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"simulate: {done.stderr.strip()}")
    return {row["place"]: row for row in json.loads(done.stdout)["rows"]}
