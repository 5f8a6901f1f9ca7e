#!/usr/bin/env python3
"""Usage: cluster_mpi_test.py [--full] PROGRAM [MPIRUN]

Ranks under mpirun compute what one process computes: every request's digest of all logits is the
same, for several placements and while they change. With an MPI that survives (MPIRUN of Open MPI 5
and a module built with its mpicc) a rank is killed in the middle, too. With --full, and only that,
a rank stands still for 7 s. Skipped (77) without mpirun.
"""
import glob
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SERVER = {"machine": "a100-32gb-xeon6230r", "device_gib": 0.0095, "mbit": 500, "arrival_s": 1}


def write_inputs(folder, requests, gen, gen_0=None):
    draw = random.Random(3)
    with open(f"{folder}/requests", "w") as out:
        out.write("# made up\n")
        for i in range(requests):
            tokens = [draw.randrange(1, 2000) for _ in range(12 + i)]
            own = gen_0 if gen_0 is not None and i % 3 == 0 else gen
            print(i % 3, i * 0.02, own, *tokens, file=out)
    cluster = {"model": "deepseek-v2-lite", "requests": 1, "prompt": 1, "gen": 1, "latency_us": 100,
               "domains": 3, "epoch_s": 0.2,
               "servers": [SERVER, SERVER, {**SERVER, "devices": 2}]}
    with open(f"{folder}/cluster", "w") as out:
        json.dump(cluster, out)


def command(program, folder, *more):
    return [program, "bench", "--model", "models/tiny-moe", "--cluster", f"{folder}/cluster",
            "--requests", f"{folder}/requests", "--threads", "1", "--json", *more]


def lines_of(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def digests(lines):
    for line in lines:
        if "all_requests" in line:
            return {r["request"]: r["digest"] for r in line["requests"] if not r["failed"]}
    sys.exit(f"no rank has the results: {lines}")


def mpi(mpirun, folder, *more):
    """Each rank writes a file of its own: mpirun mixes long lines of several."""
    own = f'exec "$@" > "{folder}/out.$OMPI_COMM_WORLD_RANK"'
    for old in glob.glob(f"{folder}/out.*"):
        os.remove(old)
    return [mpirun, "--allow-run-as-root", "--oversubscribe", *more, "--mca", "btl", "tcp,self",
            "sh", "-c", own, "sh"]


def printed(folder):
    lines = []
    for name in sorted(glob.glob(f"{folder}/out.*")):
        with open(name) as file:
            lines += lines_of(file.read())
    return lines


def run(words, folder=None):
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: {done.returncode}\n{done.stderr}")
    return printed(folder) if folder is not None else lines_of(done.stdout)


def children(mark):
    """Ranks whose command line has `mark`, in the order of their numbers."""
    found = []
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/environ", "rb") as env, open(f"/proc/{name}/cmdline") as line:
                words = dict(w.split(b"=", 1) for w in env.read().split(b"\0") if b"=" in w)
                rank = words.get(b"OMPI_COMM_WORLD_RANK")
                if rank is not None and line.read().find(mark) >= 0:
                    found.append((int(rank), int(name)))
        except (OSError, ValueError):
            continue
    return [pid for _, pid in sorted(found)]


def kill_one(program, mpirun, folder, victim, alone, name="mark"):
    """The others' requests end with the digests of one machine."""
    mark = f"{folder}/{name}{victim}"
    os.symlink(folder, mark)
    words = command(program, folder, "--ctx", "1024")
    words[words.index("--requests") + 1] = f"{mark}/requests"
    job = subprocess.Popen(mpi(mpirun, folder, "--with-ft", "ulfm", "-n", "3") + words,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.time() + 30
    while len(children(mark)) < 3 and time.time() < deadline:
        time.sleep(0.05)
    time.sleep(1.5)
    pids = children(mark)
    if len(pids) == 3:
        os.kill(pids[victim], signal.SIGKILL)
    start = time.time()
    err = job.communicate(timeout=100)[1]
    lines = printed(folder)
    left = [line for line in lines if line["rank"] != victim]
    got = digests(lines)
    others = {r for r in alone if r % 3 != victim}
    if len(pids) != 3 or len(left) != 2 or any(line["lost"] < 1 for line in left):
        sys.exit(f"rank {victim} killed: {len(pids)} ranks, {lines}\n{err}")
    if not others <= set(got) or any(got[r] != alone[r] for r in got):
        sys.exit(f"rank {victim} killed: {got}, alone {alone}\n{err}")
    print(f"rank {victim} killed: {len(got)} requests ended as alone, {time.time() - start:.1f} s")


def stop_one(program, mpirun, folder, victim, alone):
    """A rank stands still: the others do without it; when it goes on it ends its own requests."""
    mark = f"{folder}/stop{victim}"
    os.symlink(folder, mark)
    words = command(program, folder, "--ctx", "1024", "--place", "uniform")
    words[words.index("--requests") + 1] = f"{mark}/requests"
    job = subprocess.Popen(mpi(mpirun, folder, "-n", "3") + words,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.time() + 30
    while len(children(mark)) < 3 and time.time() < deadline:
        time.sleep(0.05)
    time.sleep(1.5)
    pids = children(mark)
    if len(pids) == 3:
        os.kill(pids[victim], signal.SIGSTOP)
        time.sleep(7)
        os.kill(pids[victim], signal.SIGCONT)
    err = job.communicate(timeout=100)[1]
    lines = printed(folder)
    got = {}  # the others end without the results of one who is silent then, and it reports them
    for line in lines:
        if "all_requests" in line:
            got.update(digests([line]))
    if job.returncode != 0 or len(lines) != 3 or got != alone:
        sys.exit(f"rank {victim} stopped: {job.returncode}, {lines}, alone {alone}\n{err}")
    redone = sum(line["redone"] for line in lines if line["rank"] != victim)
    if redone == 0:
        sys.exit(f"rank {victim} stopped: nothing was computed again: {lines}\n{err}")
    print(f"rank {victim} stopped for 7 s: all as alone, {redone} calls computed again")


def long_requests(program, folder):
    write_inputs(folder, 9, 200)
    return digests(run(command(program, folder, "--ctx", "1024")))


def compare(program, mpirun, folder):
    write_inputs(folder, 9, 6)
    alone = digests(run(command(program, folder)))
    for place in ("uniform", "prism", "united"):
        lines = run(mpi(mpirun, folder, "-n", "3") +
                    command(program, folder, "--place", place), folder)
        if len(lines) != 3 or digests(lines) != alone:
            sys.exit(f"{place}: {lines}, alone {alone}")
        if sum(line["calls"] for line in lines) == 0 and place != "united":
            sys.exit(f"{place}: nobody asked anybody")
    if not lines[0]["survives"]:
        return
    alone = long_requests(program, folder)
    for victim in range(3):
        kill_one(program, mpirun, folder, victim, alone)
    # Rank 0 dies long after the others have ended their requests and sent it the results.
    write_inputs(folder, 9, 3, 900)
    alone = digests(run(command(program, folder, "--ctx", "1024")))
    kill_one(program, mpirun, folder, 0, alone, "late")


def main():
    words = [word for word in sys.argv[1:] if word != "--full"]
    program = words[0]
    mpirun = words[1] if len(words) > 1 else shutil.which("mpirun")
    if mpirun is None or not os.path.exists(f"{os.path.dirname(program)}/libmoepager-mpi.so"):
        print("no mpirun, or no module for MPI")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        if len(words) == len(sys.argv) - 1:
            compare(program, mpirun, folder)
        else:
            stop_one(program, mpirun, folder, 1, long_requests(program, folder))


if __name__ == "__main__":
    main()
