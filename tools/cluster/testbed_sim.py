"""What the simulator needs to know of a test bed, measured there, and what it then says.

Times are those of ranks on the bed, medians of short runs, one in each round: with one server's users,
while the other servers are idle, what a layer, an expert and a message take (uniform) and a read adds
(local), from timelines; with all, what they share adds. Which experts each token chooses is from a
trace of the run of one process.
"""
import json
import math
import statistics
import subprocess

LEAST = 0.001  # us: keys that must not be 0
CLEARLY = 1.1  # more than from one run to the next
MOST = 1e5  # us: no number that is looked for is as high
HEAD_BYTES = 48
ONCE_BYTES = 65536  # Open MPI's btl_tcp_eager_limit
BURST_BYTES = 16384  # of the bed's links
GROUP_BYTES = 12  # an expert's number and rows, and the number of a row


def read_events(path):
    """Spans of a timeline in the order of time, us."""
    events = [e for e in json.loads(path.read_text())["traceEvents"] if "dur" in e]
    return sorted(events, key=lambda e: e["ts"])


def end_of(event):
    return event["ts"] + event["dur"]


def within(spans, events):
    """For each span, one after the other, what begins during it."""
    found, at = [[] for _ in spans], 0
    for event in events:
        while at < len(spans) and end_of(spans[at]) <= event["ts"]:
            at += 1
        if at < len(spans) and event["ts"] >= spans[at]["ts"]:
            found[at].append(event)
    return found


def named(events, name):
    return [e for e in events if e["name"] == name]


def read_forwards(events):
    """Of each forward pass that asked somebody or not: its tokens, and its parts by name."""
    spans = named(events, "forward")
    return [{"tokens": span["args"]["tokens"], "at": span["ts"], "end": end_of(span),
             **{name: named(own, name) for name in ("send", "take", "experts")}}
            for span, own in zip(spans, within(spans, events))]


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


def is_small(event):
    """Of a step of one token."""
    return event["args"]["rows"] == event["args"]["experts"]


def measure_experts(events):
    experts = named(events, "experts")
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


class Link:
    """One direction of a server's link, as policy/sim/cluster/cluster_link.c."""

    def __init__(self, mbit):
        self.mbit, self.free = mbit, -math.inf
        self.burst = self.us(BURST_BYTES)

    def us(self, count):
        return count * 8 / self.mbit

    def send(self, at, count):
        self.free = max(self.free, at - self.burst) + self.us(count)
        return max(at, self.free)

    def get(self, left, count):
        return max(left, self.send(left - max(0, self.us(count) - self.burst), count))


def simulate_window(args, config, window, times):
    """(us, event): when the last answer would be there if only links and experts took time, and
    which call that is."""
    row, up, down = 4 * config["hidden_size"], Link(args.mbit), Link(args.mbit)
    back = []
    for event in window["sends"]:
        head = HEAD_BYTES + GROUP_BYTES * event["args"]["experts"]
        there, answer = head + row * rows_there(args, event), HEAD_BYTES + row * event["args"]["rows"]
        served = Link(args.mbit).get(up.send(0, there), there) + expert_work(times, event)
        back.append((Link(args.mbit).send(served, answer), answer, event))
    back.sort(key=lambda answer: answer[0])
    return max(((down.get(left, answer), event) for left, answer, event in back), key=lambda end: end[0])


def measure_rest(args, config, passes, times):
    """(us, rows, messages): what layers that asked somebody take beside experts and the links, and
    how many rows were handled for it one after the other: all that are sent, and at the other end
    and back those of the message that takes longest."""
    seen = []
    for one in passes:
        for window in read_windows(one):
            us, last = simulate_window(args, config, window, times)
            seen.append((window["end"] - window["at"] - us,
                         sum(rows_there(args, e) for e in window["sends"]) +
                         rows_there(args, last) + 2 * last["args"]["rows"],
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


def medians(all_of):
    """Of dicts with the same keys."""
    return {key: statistics.median(one[key] for one in all_of) for key in all_of[0]}


def measure_calls(args, config, folder, runs):
    """(times of a machine, times of calls) from runs with calls; rank 0 asked."""
    all_times, all_calls = [], []
    for run in runs:
        asking, *others = (read_events(folder / f"timeline.{run}.uniform.{n}") for n in (0, 1, 2))
        answering, passes = sum(others, []), read_forwards(asking)
        times = measure_experts(asking + answering)
        times.update(measure_layer(passes, config["num_hidden_layers"]))
        all_times.append(times)
        all_calls.append(measure_messages(args, config, asking, answering, passes, times))
    return medians(all_times), medians(all_calls)


def measure_read_work(config, folder, runs, times):
    """us of processors for a read, if one server's users ask: what the rank took of them beside layers
    and experts."""
    seen = []
    for run in runs:
        events = read_events(folder / f"timeline.{run}.local.0")
        took = json.loads((folder / f"said.{run}.local.0").read_text())["cpu_s"] * 1e6
        for one in read_forwards(events):
            took -= sum(e["dur"] for e in one["experts"])
            took -= config["num_hidden_layers"] * (times["layer_us"] + times["layer_token_us"] * one["tokens"])
        reads = sum(e["name"] in ("demand", "prefetch") for e in events)
        seen.append(max(0, took / reads) if reads > 0 else 0)
    return statistics.median(seen)


def measure_disk(folder, runs):
    """us of the disk for a read, if one server's users ask: how much longer a layer's reads take for
    each that it has (least squares)."""
    slopes = []
    for run in runs:
        events = read_events(folder / f"timeline.{run}.local.0")
        reads = within(named(events, "MoE layer"), named(events, "demand"))
        points = [(len(r), max(map(end_of, r)) - r[0]["ts"]) for r in reads if r]
        if len({count for count, _ in points}) > 1:
            slopes.append(max(0, statistics.linear_regression(*zip(*points)).slope))
    return statistics.median(slopes) if slopes else 0


def service_s(path, requests):
    """Seconds that a request of the file is computed, a mean: a server computes those of its users one
    after the other. Not so with redirect."""
    servers = [int(line.split()[0]) for line in path.read_text().splitlines()]
    ends, total = {}, 0.0
    for request in sorted(requests, key=lambda r: r["end_s"]):
        server = servers[request["request"]]
        total += request["end_s"] - max(request["arrival_s"], ends.get(server, 0))
        ends[server] = request["end_s"]
    return total / len(requests)


def requests_of(folder, run, place):
    """All requests of a run, as its ranks told them."""
    said = [json.loads(path.read_text()) for path in folder.glob(f"said.{run}.{place}.*")]
    return next(line["requests"] for line in said if "all_requests" in line)


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
                   rows_once=1, once_bytes=ONCE_BYTES, burst_bytes=BURST_BYTES, known=-1)
    (folder / "simulated").write_text(json.dumps(file))
    file.update(requests=own_requests)
    (folder / "simulated_every").write_text(json.dumps(file))
    file.update(servers=servers[:1])
    (folder / "simulated_one").write_text(json.dumps(file))


def set_keys(folder, keys):
    for name in ("simulated", "simulated_one", "simulated_every"):
        file = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(dict(file, **keys)))


def computed(args, folder, who, place, runs):
    """Seconds that a request of these runs was computed, and what the simulation says of the same."""
    cluster = "simulated_every" if who == "every" else "simulated_one"
    measured = statistics.median(service_s(folder / run, requests_of(folder, run, place)) for run in runs)

    def simulated():
        row = simulate(args, folder, place, cluster, runs[0], f"{who}_trace")[place]
        return row["busy_share"] * row["end_s"] / args.own

    return measured, simulated


def fit(put, measured, simulated):
    """The number with which so much is simulated as was measured, which grows with it."""
    low, high = 0.0, 16.0
    put(high)
    while high < MOST and simulated() < measured:
        low, high = high, 2 * high
        put(high)
    for _ in range(6):
        put((low + high) / 2)
        if simulated() < measured:
            low = (low + high) / 2
        else:
            high = (low + high) / 2
    put((low + high) / 2)


def put_waits(args, config, times, folder, own, every):
    """What a read takes of processors and of the disk, which all servers share, and what is fitted to
    seconds that requests took: how long reads make a layer wait beside that, in runs in which one
    server's users ask; and in those in which all ask at once, what processors do for a message on
    its way, and how long a rank that has read waits for one, for each other rank that computes. A
    disk that serves several servers faster than one is as fast as requests of all say."""
    keys = {}
    own_local, all_local = (computed(args, folder, who, "local", runs) for who, runs in
                            (("own", own), ("every", every)))

    def put(key, us):
        keys[key] = us
        set_keys(folder, {key: us})

    def put_disk(us):
        times["load_us"] = max(LEAST, us)
        write_machine(times, folder)
        fit(lambda us: put("read_us", us), *own_local)

    put("load_work_us", measure_read_work(config, folder, own, times))
    put_disk(measure_disk(folder, own))
    fit(lambda us: put("way_us", us), *computed(args, folder, "every", "uniform", every))
    put("wake_us", 0)
    if all_local[1]() > CLEARLY * all_local[0]:
        fit(put_disk, *all_local)
    else:
        fit(lambda us: put("wake_us", us), *all_local)
    return keys


def simulate(args, folder, places, cluster="simulated", requests="requests", trace="trace"):
    done = subprocess.run([str(args.program), "simulate", "--json", "--cluster",
                           f"{folder}/{cluster}", "--requests", f"{folder}/{requests}", "--from-trace",
                           f"{folder}/{trace}", "--place", places], capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"simulate: {done.stderr.strip()}")
    return {row["place"]: row for row in json.loads(done.stdout)["rows"]}
