#!/usr/bin/env python3
"""Usage: cluster_mpi_test.py placements|two|trace|deaths|returns|stop|stop_first|stop_lost PROGRAM [MPIRUN]

Ranks under mpirun compute what one process computes: every request's digest of all logits is the
same.

placements  for several of them, while they change, and when requests move
two         for two ranks, which is what a build with a sanitizer runs
trace       what one process records of all requests is what the simulator replays
deaths      a rank is killed in the middle: the others know it within 10 s, and where nobody else has
            its experts, requests fail within 15 s with its name
returns     a rank is killed, and started again; or it has taken another one's request
stop        a rank stands still for 30 s: the others know it within 10 s, and nothing is lost
stop_first  rank 0 does
stop_lost   a rank does, and nobody may read what only it keeps: those requests fail within 15 s with
            the names of the expert and the rank, and no bit of the others' differs

Deaths and returns need an MPI that survives (MPIRUN of Open MPI 5 and a module built with its
mpicc). What is missing skips the test (77).
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
import threading
import time

SERVER = {"machine": "a100-32gb-xeon6230r", "device_gib": 0.0095, "mbit": 500, "arrival_s": 1}
KNOWN_S, FAILED_S, STANDS_S = 10, 15, 30
LONG = 800  # tokens of a request, so that each rank is busy for seconds on a fast machine, too


def write_inputs(folder, requests, gen, gen_0=None, reads=True, restarts=0, servers=3, ranks=3):
    draw = random.Random(3)
    with open(f"{folder}/requests", "w") as out:
        out.write("# made up\n")
        for i in range(requests):
            tokens = [draw.randrange(1, 2000) for _ in range(12 + i)]
            own = gen_0 if gen_0 is not None and i % 3 == 0 else gen
            print(i % servers, i * 0.02, own, *tokens, file=out)
    cluster = {"model": "deepseek-v2-lite", "requests": 1, "prompt": 1, "gen": 1, "latency_us": 100,
               "domains": 3, "epoch_s": 0.2, "restarts": restarts,
               "servers": [{**SERVER, "reads": reads, "devices": n} for n in (1, 1, 2)[-ranks:]]}
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


class Job:
    """Three ranks that have begun, and what they say with the time at which they say it."""

    def __init__(self, program, mpirun, folder, name, mpi_words, words):
        mark, self.said = f"{folder}/{name}", []
        os.symlink(folder, mark)
        line = command(program, folder, "--ctx", "1024", *words)
        line[line.index("--requests") + 1] = f"{mark}/requests"
        self.process = subprocess.Popen(mpi(mpirun, folder, *mpi_words, "-n", "3") + line,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        deadline = time.time() + 30
        while len(children(mark)) < 3 and time.time() < deadline:
            time.sleep(0.05)
        time.sleep(1.5)
        self.pids = children(mark)
        self.start = time.time()

    def read(self):
        for line in self.process.stderr:
            self.said.append((time.time(), line))

    def signal(self, victim, number):
        if len(self.pids) == 3:
            os.kill(self.pids[victim], number)
        self.start = time.time()

    def end(self):
        """What was said. What a rank printed that was started again is in `lines`."""
        self.process.wait(timeout=150)
        self.reader.join()
        self.lines = lines_of(self.process.stdout.read())
        return "".join(line for _, line in self.said)

    def seconds_to(self, text):
        """Of each time that it was said, from the signal on."""
        return [at - self.start for at, line in self.said if text in line]


def kill_one(program, mpirun, folder, victim, alone, name="mark"):
    """The others know it soon, and their requests end with the digests of one machine."""
    job = Job(program, mpirun, folder, f"{name}{victim}", ("--with-ft", "ulfm"), ())
    job.signal(victim, signal.SIGKILL)
    err = job.end()
    known = job.seconds_to(f"rank {victim} is lost")
    pids, start = job.pids, job.start
    if len(known) != 2 or max(known) > KNOWN_S:
        sys.exit(f"rank {victim} killed: known after {known} s\n{err}")
    lines = printed(folder)
    left = [line for line in lines if line["rank"] != victim]
    got = digests(lines)
    others = {r for r in alone if r % 3 != victim}
    if len(pids) != 3 or len(left) != 2 or any(line["lost"] < 1 for line in left):
        sys.exit(f"rank {victim} killed: {len(pids)} ranks, {lines}\n{err}")
    if not others <= set(got) or any(got[r] != alone[r] for r in got):
        sys.exit(f"rank {victim} killed: {got}, alone {alone}\n{err}")
    print(f"rank {victim} killed: known after {max(known):.2f} s, {len(got)} requests ended as "
          f"alone, {time.time() - start:.1f} s")


def lose_one(program, mpirun, folder):
    """Nobody reads what it does not keep: requests that need an expert of the dead rank fail, and
    say which; the others' bits are those of one machine."""
    alone = long_requests(program, folder)
    write_inputs(folder, 9, LONG, reads=False)
    job = Job(program, mpirun, folder, "lost", ("--with-ft", "ulfm"), ("--place", "uniform"))
    job.signal(2, signal.SIGKILL)
    err = job.end()
    failed = job.seconds_to("is on no rank that answers (rank 2)")
    lines = printed(folder)
    got = digests(lines)
    if not failed or max(failed) > FAILED_S or any(got[r] != alone[r] for r in got):
        sys.exit(f"lost experts: failed after {failed} s, {got}, alone {alone}\n{err}")
    print(f"lost experts: {len(failed)} requests failed by name within {max(failed):.2f} s")


def return_one(program, mpirun, folder, victim):
    """The dead rank is started again and runs those of its requests that had not ended."""
    write_inputs(folder, 9, 300)
    alone = digests(run(command(program, folder, "--ctx", "1024")))
    write_inputs(folder, 9, 300, restarts=3)
    job = Job(program, mpirun, folder, f"back{victim}", ("--with-ft", "ulfm"), ())
    job.signal(victim, signal.SIGKILL)
    err = job.end()
    lines = printed(folder) + job.lines
    got = {}
    for line in lines:
        if "all_requests" in line:
            got.update(digests([line]))
    left = [line for line in lines if line["rank"] != victim]
    own = [line for line in lines if line["rank"] == victim]
    if got != alone or len(own) != 1 or [line["returned"] for line in left] != [1, 1] or \
            own[0]["own_requests"] == 0 or own[0]["migrations"] == 0:
        sys.exit(f"rank {victim} came back: {lines}, alone {alone}\n{err}")
    back = job.seconds_to(f"rank {victim} was started again")
    print(f"rank {victim} was started again after {max(back):.2f} s, all as alone, "
          f"{own[0]['own_requests']} requests and {own[0]['migrations']} placements there")


def redirect(program, mpirun, folder):
    """All requests are those of server 0, and others take some."""
    write_inputs(folder, 9, 60, servers=1)
    alone = digests(run(command(program, folder, "--ctx", "1024")))
    lines = run(mpi(mpirun, folder, "-n", "3") +
                command(program, folder, "--ctx", "1024", "--place", "redirect"), folder)
    taken = {line["rank"]: line["taken"] for line in lines}
    if digests(lines) != alone or taken[1] + taken[2] == 0:
        sys.exit(f"redirect: {lines}, alone {alone}")
    print(f"redirect: all as alone, {taken} requests taken")


def redirect_without_one(program, mpirun, folder):
    """One of those that have taken a request dies: it is run where it belongs."""
    write_inputs(folder, 9, 400, servers=1)  # so that none ends before it is killed
    alone = digests(run(command(program, folder, "--ctx", "1024")))
    job = Job(program, mpirun, folder, "taker", ("--with-ft", "ulfm"), ("--place", "redirect"))
    job.signal(1, signal.SIGKILL)
    err = job.end()
    lines = printed(folder)
    if digests(lines) != alone or len(lines) != 2:
        sys.exit(f"redirect, rank 1 killed: {lines}, alone {alone}\n{err}")
    print("redirect: all as alone without a rank that had taken some")


def stop_one(program, mpirun, folder, victim, alone):
    """A rank stands still: the others do without it; when it goes on it ends its own requests."""
    job = Job(program, mpirun, folder, f"stop{victim}", (), ("--place", "uniform"))
    job.signal(victim, signal.SIGSTOP)
    stopped = job.start
    time.sleep(STANDS_S)
    known = job.seconds_to(f"rank {victim} has not answered")
    job.signal(victim, signal.SIGCONT)
    err = job.end()
    lines = printed(folder)
    got = {}  # the others end without the results of one who is silent then, and it reports them
    for line in lines:
        if "all_requests" in line:
            got.update(digests([line]))
    if not known or max(known) > KNOWN_S:
        sys.exit(f"rank {victim} stopped: known after {known} s\n{err}")
    if job.process.returncode != 0 or len(lines) != 3 or got != alone:
        sys.exit(f"rank {victim} stopped: {job.process.returncode}, {lines}, alone {alone}\n{err}")
    redone = sum(line["redone"] for line in lines if line["rank"] != victim)
    if redone == 0:
        sys.exit(f"rank {victim} stopped: nothing was computed again: {lines}\n{err}")
    print(f"rank {victim} stopped for {job.start - stopped:.0f} s: known after {max(known):.2f} s, all "
          f"as alone, {redone} calls computed again")


def lose_while_stopped(program, mpirun, folder, victim, alone):
    """Nobody reads what it does not keep, and rank `victim` stands still. When it goes on, the others
    may have ended."""
    write_inputs(folder, 9, LONG, reads=False)
    job = Job(program, mpirun, folder, f"still{victim}", (), ("--place", "uniform"))
    job.signal(victim, signal.SIGSTOP)
    time.sleep(STANDS_S)
    known = job.seconds_to(f"rank {victim} has not answered")
    failed = job.seconds_to(f"is on no rank that answers (rank {victim})")
    job.signal(victim, signal.SIGCONT)
    err = job.end()
    lines = printed(folder)
    got = {}
    for line in lines:
        if "all_requests" in line:
            got.update(digests([line]))
    if not known or max(known) > KNOWN_S:
        sys.exit(f"rank {victim} stopped: known after {known} s\n{err}")
    if not failed or max(failed) > FAILED_S or f", and rank {(victim + 1) % 3} may not" not in err:
        sys.exit(f"rank {victim} stopped without reads: failed after {failed} s\n{err}")
    if any(got[r] != alone[r] for r in got):
        sys.exit(f"rank {victim} stopped without reads: {got}, alone {alone}\n{err}")
    print(f"rank {victim} stopped without reads: known after {max(known):.2f} s, {len(failed)} "
          f"requests failed by name within {max(failed):.2f} s, {len(got)} ended as alone")


def long_requests(program, folder):
    write_inputs(folder, 9, LONG)
    return digests(run(command(program, folder, "--ctx", "1024")))


def overlaps(program, mpirun, folder):
    """On rank 0's timeline calls are on tracks of their ranks, and it computes during one."""
    write_inputs(folder, 9, 6)
    words = command(program, folder, "--place", "uniform")
    own = f'exec "$@" --timeline "{folder}/line.$OMPI_COMM_WORLD_RANK" > "{folder}/out.$OMPI_COMM_WORLD_RANK"'
    line = mpi(mpirun, folder, "-n", "3")
    line[line.index("-c") + 1] = own
    run(line + words, folder)
    with open(f"{folder}/line.0") as file:
        events = json.load(file)["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = [e for e in events if "dur" in e]
    calls = [e for e in spans if e["name"] == "call"]
    if {names[e["tid"]] for e in calls} != {"rank 1", "rank 2"}:
        sys.exit(f"calls are on {sorted({names[e['tid']] for e in calls})} of {sorted(names.values())}")
    if not any(e["name"] == "experts" and c["ts"] <= e["ts"] and e["ts"] + e["dur"] <= c["ts"] + c["dur"]
               for c in calls for e in spans):
        sys.exit("nothing was computed during a call")


def placements(program, mpirun, folder):
    write_inputs(folder, 9, 6)
    alone = digests(run(command(program, folder)))
    for place in ("uniform", "prism", "united"):
        lines = run(mpi(mpirun, folder, "-n", "3") +
                    command(program, folder, "--place", place), folder)
        if len(lines) != 3 or digests(lines) != alone:
            sys.exit(f"{place}: {lines}, alone {alone}")
        if sum(line["calls"] for line in lines) == 0 and place != "united":
            sys.exit(f"{place}: nobody asked anybody")
    redirect(program, mpirun, folder)
    overlaps(program, mpirun, folder)


def two(program, mpirun, folder):
    write_inputs(folder, 4, 4, servers=2, ranks=2)
    alone = digests(run(command(program, folder)))
    for place in ("uniform", "united"):
        lines = run(mpi(mpirun, folder, "-n", "2") +
                    command(program, folder, "--place", place), folder)
        if len(lines) != 2 or digests(lines) != alone:
            sys.exit(f"{place}: {lines}, alone {alone}")


def trace(program, mpirun, folder):
    write_inputs(folder, 6, 4)
    run(command(program, folder, "--trace", f"{folder}/trace"))
    with open(f"{folder}/trace") as file:
        rows = [line.split() for line in file if not line.startswith("#")]
    prompts = sum(words[:4] == ["0", "0", "0", "0"] for words in rows)
    chosen = sum(len(words) - 4 for words in rows)
    if prompts != 6 or chosen == 0:
        sys.exit(f"trace: {prompts} requests, {chosen} choices")
    with open(f"{folder}/model", "w") as file:
        file.write("layers 8\nexperts 32\ntop_k 4\nhidden 128\nexpert_ffn 96\nvocabulary 1\n"
                   "attention_params 1\nkv_bytes 0\n")
    with open(f"{folder}/cluster") as file:
        cluster = json.load(file)
    cluster.update(model=f"{folder}/model", requests=2, rows_once=1, known=-1)
    with open(f"{folder}/simulated", "w") as file:
        json.dump(cluster, file)
    words = [program, "simulate", "--json", "--cluster", f"{folder}/simulated", "--requests",
             f"{folder}/requests", "--from-trace", f"{folder}/trace"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    if done.returncode != 0:
        sys.exit(f"simulate: {done.stderr}")
    for row in json.loads(done.stdout)["rows"]:
        if row["chosen"] != chosen:
            sys.exit(f"{row['place']}: {row['chosen']} choices, {chosen} were recorded")
    with open(f"{folder}/trace") as file:
        lines = file.readlines()
    last = max(i for i, line in enumerate(lines) if line.startswith("0 0 0 0 "))
    with open(f"{folder}/trace", "w") as file:
        file.writelines(lines[:last])
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    if done.returncode != 2 or "has 5 requests" not in done.stderr:
        sys.exit(f"a trace without the last request: {done.returncode} {done.stderr}")
    done = subprocess.run(mpi(mpirun, folder, "-n", "3") + command(program, folder, "--trace",
                                                                   f"{folder}/other"),
                          capture_output=True, text=True, timeout=100)
    if done.returncode == 0 or "needs a single rank" not in done.stderr:
        sys.exit(f"three ranks wrote a trace: {done.returncode} {done.stderr}")


def deaths(program, mpirun, folder):
    alone = long_requests(program, folder)
    for victim in range(3):
        kill_one(program, mpirun, folder, victim, alone)
    lose_one(program, mpirun, folder)
    # Rank 0 dies long after the others have ended their requests and sent it the results.
    write_inputs(folder, 9, 3, 900)
    alone = digests(run(command(program, folder, "--ctx", "1024")))
    kill_one(program, mpirun, folder, 0, alone, "late")


def returns(program, mpirun, folder):
    redirect_without_one(program, mpirun, folder)
    for victim in (1, 0):
        return_one(program, mpirun, folder, victim)


def stop(program, mpirun, folder):
    stop_one(program, mpirun, folder, 1, long_requests(program, folder))


def stop_first(program, mpirun, folder):
    stop_one(program, mpirun, folder, 0, long_requests(program, folder))


def stop_lost(program, mpirun, folder):
    lose_while_stopped(program, mpirun, folder, 1, long_requests(program, folder))


def survives(program, mpirun, folder):
    """Without the words that ask for it no MPI does; one that has it not does not know them."""
    write_inputs(folder, 3, 1)
    if run(mpi(mpirun, folder, "-n", "3") + command(program, folder), folder)[0]["survives"]:
        sys.exit("survives without --with-ft")
    done = subprocess.run(mpi(mpirun, folder, "--with-ft", "ulfm", "-n", "3") + command(program, folder),
                          capture_output=True, text=True, timeout=100)
    return done.returncode == 0 and printed(folder)[0]["survives"]


def main():
    part, program = sys.argv[1:3]
    mpirun = sys.argv[3] if len(sys.argv) > 3 else shutil.which("mpirun")
    if mpirun is None or not os.path.exists(f"{os.path.dirname(program)}/libmoepager-mpi.so"):
        print("no mpirun, or no module for MPI")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        if part in ("deaths", "returns") and not survives(program, mpirun, folder):
            print("this MPI ends all ranks when one dies")
            sys.exit(77)
        {"placements": placements, "two": two, "trace": trace, "deaths": deaths,
         "returns": returns, "stop": stop, "stop_first": stop_first, "stop_lost": stop_lost}[part](program, mpirun, folder)


if __name__ == "__main__":
    main()
