"""What the simulator needs to know of a test bed, measured, and what it then says.

Of one machine: a layer and its experts from a timeline, a read from a run with less memory, which
experts each server's users choose from a trace. Of the links: what a message takes, from a run in
which one server's users ask and the other servers are idle.
"""
import json
import math
import statistics
import subprocess

LEAST = 0.001  # us: keys that must not be 0
HEAD_BYTES = 48
GROUP_BYTES = 12  # an expert's number and rows, and the number of a row


def bench(args, *more):
    words = [str(args.program), "bench", "--model", args.model, "--threads", "1", "--json",
             "--profile", "lru", *map(str, more)]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def solve_layer(forwards, experts, layers, k):
    """us of an expert, its token, a layer, its token, from steps of one token and of a prompt."""
    seen = {}
    for forward in forwards:
        end = forward["ts"] + forward["dur"]
        inside = [e for e in experts if forward["ts"] <= e["ts"] < end]
        seen.setdefault(forward["args"]["tokens"], []).append(
            (forward["dur"] / layers, sum(e["dur"] for e in inside) / layers,
             sum(e["args"]["experts"] for e in inside) / layers))
    tokens = max(seen)
    all_1, work_1, _ = (statistics.median(x) for x in zip(*seen[1]))
    all_n, work_n, used = (statistics.median(x) for x in zip(*seen[tokens][-3:]))
    token = max(LEAST, (work_n - used * work_1 / k) / (tokens * k - used))
    layer_token = max(LEAST, (all_n - work_n - all_1 + work_1) / (tokens - 1))
    return {"expert_us": max(LEAST, work_1 / k - token), "expert_token_us": token,
            "layer_us": max(LEAST, all_1 - work_1 - layer_token), "layer_token_us": layer_token}


def measure_machine(args, config, folder):
    """Times of one server with nothing to wait for, and of reading an expert."""
    shape = ("--prompt-tokens", args.prompt, "--gen-tokens", args.gen, "--repeat", 4)
    whole = bench(args, *shape, "--budget", "all", "--timeline", f"{folder}/timeline")
    events = [e for e in json.loads((folder / "timeline").read_text())["traceEvents"] if "dur" in e]
    times = solve_layer([e for e in events if e["name"] == "forward"],
                        [e for e in events if e["name"] == "experts"],
                        config["num_hidden_layers"], config["num_experts_per_tok"])
    part = bench(args, *shape, "--budget", "35%")
    extra = [1e3 * (a["tpot_ms"] - whole["median"]["tpot_ms"]) * (args.gen - 1) /
             max(1, a["decode_counters"]["misses"]) for a in part["runs"][1:]]
    times["load_us"] = max(LEAST, statistics.median(extra))
    return times


def draw_weight(share):
    """k experts are drawn one after the other; one that is chosen with this probability has about
    this weight."""
    return -math.log(1 - min(share, 0.999)) + 1e-6


def measure_shares(args, config, requests, servers, folder):
    """[2 * servers][layers][experts]: what texts of each server choose, before and after a shift."""
    layers, experts = config["num_hidden_layers"], config["num_experts"]
    domains = []
    for server in range(servers):
        tokens = []
        for number, words in enumerate(w for w in requests if int(w[0]) == server):
            if args.shift == 0 or number < args.shift:
                tokens += words[3:]
        tokens = tokens[:1024]
        (folder / "text").write_text(" ".join(tokens))
        bench(args, "--prompt-tokens", len(tokens) - 1, "--gen-tokens", 1, "--repeat", 1, "--ctx",
              len(tokens) + 8, "--tokens-file", folder / "text", "--budget", "all", "--trace",
              folder / "trace")
        count = [[0] * experts for _ in range(layers)]
        for line in (folder / "trace").read_text().splitlines():
            words = line.split()
            for word in words[4:] if words[0] != "#" else ():
                count[int(words[1])][int(word.split(":")[0])] += 1
        domains.append([[draw_weight(n / len(tokens)) for n in layer] for layer in count])
    return domains + domains[1:] + domains[:1]


def message_us(args, config, times, line):
    """A message there and back without its bytes on the link and the work at the other end."""
    groups = (config["num_hidden_layers"] * args.gen * config["num_experts_per_tok"] *
              line["own_requests"] * (1 - line["local_share"]) / line["calls"])
    row = 4 * config["hidden_size"]
    wire = (2 * HEAD_BYTES + GROUP_BYTES * groups + row * (1 + groups)) * 8 / args.mbit
    fixed = statistics.mean(us for us in line["call_us"] if us > 0)
    return max(0, fixed - wire - groups * (times["expert_us"] + times["expert_token_us"]))


def write_files(args, config, cluster, times, shares, call_us, folder):
    """The cluster file of the ranks, with models and machines that have the measured times."""
    each = 3 * config["hidden_size"] * config["moe_intermediate_size"] * 2
    model = {"layers": config["num_hidden_layers"], "experts": config["num_experts"],
             "top_k": config["num_experts_per_tok"], "hidden": config["hidden_size"],
             "expert_ffn": config["moe_intermediate_size"], "vocabulary": 1,
             "attention_params": 1, "kv_bytes": 0}
    machine = {"link_gbps": 1, "copy_us": 0, "device_gbps": 1e6, "device_gflops": 1e7,
               "launch_us": 0, "device_gib": 1000, "step_us": LEAST, **times}
    for name, values in (("model", model), ("machine", machine)):
        (folder / f"bed.{name}").write_text("".join(f"{k} {v:.6f}\n" if isinstance(v, float)
                                                    else f"{k} {v}\n" for k, v in values.items()))
    other = 2 * (2 * config["hidden_size"] + model["layers"] *
                 (1 + config["hidden_size"] * config["num_experts"]))
    for server in cluster["servers"]:
        server.update(machine=f"{folder}/bed.machine",
                      device_gib=(other + (server.pop("slots") + 1.5) * each) / 2 ** 30)
    cluster.update(model=f"{folder}/bed.model", requests=args.requests, latency_us=0,
                   call_us=call_us, value_bytes=4, head_bytes=HEAD_BYTES + GROUP_BYTES,
                   rows_once=1, shares=shares, known=0, shift_after=args.shift)
    (folder / "simulated").write_text(json.dumps(cluster))


def simulate(args, folder, places):
    done = subprocess.run([str(args.program), "simulate", "--json", "--cluster",
                           f"{folder}/simulated", "--requests", f"{folder}/requests", "--place",
                           places], capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"simulate: {done.stderr.strip()}")
    return {row["place"]: row for row in json.loads(done.stdout)["rows"]}
