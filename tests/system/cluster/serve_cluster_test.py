#!/usr/bin/env python3
"""Usage: serve_cluster_test.py PROGRAM [MPIRUN]

Three ranks under mpirun serve one model, each its own clients at the same time: each answer is the text of `moepager run`,
experts were computed for other ranks, and all end in order. What is missing skips the test (77).
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

MODEL = "models/tiny-moe"
PROMPTS = ["def main(", "class A:\n", "import ", "sort 5 3 9 1 ->", "# the", "if not"]
SERVER = {"machine": "a100-32gb-xeon6230r", "device_gib": 0.0095, "mbit": 500, "arrival_s": 1, "reads": True}


def ask(port, path, body=None):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode() if body else None)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def run(program, prompt):
    done = subprocess.run([program, "run", "--model", MODEL, "--prompt", prompt, "--max-tokens", "12", "--json"],
                          capture_output=True, check=True)
    return json.loads(done.stdout)["text"]


def start(program, mpirun, folder):
    with open(f"{folder}/cluster", "w", encoding="utf-8") as out:
        json.dump({"model": "deepseek-v2-lite", "requests": 1, "prompt": 1, "gen": 1, "latency_us": 100, "domains": 3,
                   "epoch_s": 0.3, "servers": [{**SERVER, "devices": n} for n in (1, 1, 2)]}, out)
    own = f'echo $$ > "{folder}/pid.$OMPI_COMM_WORLD_RANK"; exec "$@" 2> "{folder}/err.$OMPI_COMM_WORLD_RANK"'
    return subprocess.Popen(
        [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "3", "--mca", "btl", "tcp,self", "sh", "-c", own, "sh",
         program, "serve", "--model", MODEL, "--cluster", f"{folder}/cluster", "--port", "0", "--threads", "1",
         "--batch", "2", "--ctx", "256"])


def said(folder, rank, pattern, seconds=60):
    """The match of the pattern in what a rank has written, as soon as it is there."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.path.exists(f"{folder}/err.{rank}"):
            with open(f"{folder}/err.{rank}", encoding="utf-8") as file:
                found = re.search(pattern, file.read())
            if found:
                return found
        time.sleep(0.05)
    sys.exit(f"rank {rank} did not say {pattern}")


def be_clients(port, wanted, wrong):
    """Clients of one rank, several at a time, until all has been asked twice."""
    def one(prompt):
        answer = ask(port, "/v1/completions", {"prompt": prompt, "max_tokens": 12})["choices"][0]["text"]
        if answer != wanted[prompt]:
            wrong.append((port, prompt, answer))
    for _ in range(2):
        threads = [threading.Thread(target=one, args=(prompt,)) for prompt in PROMPTS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def main():
    program, mpirun = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else shutil.which("mpirun")
    if mpirun is None:
        print("SKIP: no mpirun")
        sys.exit(77)
    wanted = {prompt: run(program, prompt) for prompt in PROMPTS}
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        job = start(program, mpirun, folder)
        ports = [int(said(folder, rank, r"serving .*:(\d+)\n")[1]) for rank in range(3)]
        ranks = [threading.Thread(target=be_clients, args=(port, wanted, wrong)) for port in ports]
        for thread in ranks:
            thread.start()
        for thread in ranks:
            thread.join()
        assert not wrong, wrong
        try:
            ask(ports[0], "/moepager/budget", {"budget": "50%"})
            sys.exit("a rank's budget has changed")
        except urllib.error.HTTPError as error:
            assert error.code == 400, error
        for rank in range(3):
            with open(f"{folder}/pid.{rank}", encoding="utf-8") as file:
                os.kill(int(file.read()), signal.SIGTERM)
        code = job.wait(60)
        ends = [said(folder, rank, r"asked others (\d+) times, answered (\d+), keeps (\d+) experts, lost (\d+)", 5)
                for rank in range(3)]
    assert code == 0, code
    assert all(int(end[1]) > 0 and int(end[2]) > 0 and end[4] == "0" for end in ends), ends
    bad = subprocess.run([program, "serve", "--model", MODEL, "--cluster", "x", "--memory", "1GiB"], capture_output=True,
                         text=True, check=False)
    assert bad.returncode == 2 and "leave out --memory" in bad.stderr, bad.stderr


main()
