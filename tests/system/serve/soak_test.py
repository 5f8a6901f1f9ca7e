#!/usr/bin/env python3
"""200 clients at once for a while: usage: soak_test.py MOEPAGER SECONDS

Some read at once, some slowly or not at all, some leave in the middle, some send half a request; some want what cannot be. Each answer that
comes is the right one. Then nothing is left: no answer, no memory; and SIGTERM under the same load loses no answer that has begun.
"""
import http.client
import json
import os
import random
import signal
import socket
import sys
import threading
import time

from serving import LONG, Server, run

# Memory that the address sanitizer holds back after free() is no leak.
os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1:thread_local_quarantine_size_kb=64"
SECONDS = float(sys.argv[2])
CLIENTS = 200
PROMPTS = ["def main(", "class A:\n", "import ", "x = [1, 2"]
TOKENS = 5
WANTED = {p: run(p, "--max-tokens", str(TOKENS)) for p in PROMPTS}


class Clients:
    def __init__(self, server):
        self.server, self.over, self.lock, self.counts, self.wrong = server, threading.Event(), threading.Lock(), {}, []
        self.threads = [threading.Thread(target=self.client, args=(n,)) for n in range(CLIENTS)]

    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def client(self, number):
        rng = random.Random(number)
        kinds = [self.whole, self.whole, self.stream, self.leave, self.slow, self.half, self.bad]
        while not self.over.is_set():
            kind = rng.choice(kinds)
            try:
                self.count(kind(rng) or kind.__name__)
            except (OSError, http.client.HTTPException):  # busy, or the server has closed it
                self.count("closed")
                time.sleep(0.05)
            except Exception as error:  # to be told by the thread that waits
                self.wrong.append(repr(error))
                return

    def connect(self, rng):
        c = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=300)
        prompt = rng.choice(PROMPTS)
        return c, prompt

    def whole(self, rng):
        c, prompt = self.connect(rng)
        c.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": TOKENS}))
        r = c.getresponse()
        text = r.read()
        c.close()
        if r.status == 503:
            return "busy"
        assert json.loads(text)["choices"][0]["text"] == WANTED[prompt], (prompt, text)

    def stream(self, rng, pause=0):
        c, prompt = self.connect(rng)
        c.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": TOKENS, "stream": True}))
        r = c.getresponse()
        if r.status == 503:
            c.close()
            return "busy"
        text = b""
        while True:
            got = r.read(100)
            if not got:
                break
            text += got
            time.sleep(pause)
        c.close()
        events = [e[len("data: "):] for e in text.decode().split("\n\n") if e.strip()]
        if "E_SERVER_STOPPING" in text.decode():
            return "stopped"
        assert events[-1] == "[DONE]", text
        assert "".join(json.loads(e)["choices"][0]["text"] for e in events[:-1]) == WANTED[prompt], (prompt, text)

    def slow(self, rng):
        return self.stream(rng, 0.05)

    def leave(self, rng):
        text = json.dumps({**LONG, "stream": rng.random() < 0.5})
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as s:
            s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
            time.sleep(rng.random())

    def half(self, rng):
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"[:rng.randrange(90)])
            time.sleep(2 * rng.random())

    def bad(self, rng):
        status = self.server.ask("POST", "/v1/completions", rng.choice(["{", {"prompt": ""}, {"prompt": [[10 ** 9]]}]))[0]
        assert status in (400, 503), status

    def run_for(self, seconds, then=lambda: None):
        for t in self.threads:
            t.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.wrong:
            time.sleep(0.1)
        self.over.set()
        then()
        for t in self.threads:
            t.join(300)
        assert not any(t.is_alive() for t in self.threads), "clients hang"
        assert not self.wrong, self.wrong[:3]
        assert self.counts.get("whole", 0) > 5 and self.counts.get("stream", 0) > 2, self.counts
        print(f"{seconds:.0f} s: {self.counts}", flush=True)


def rss_bytes(server):
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as status:
        return 1024 * int(next(line for line in status if line.startswith("VmRSS")).split()[1])


FLAGS = ("--batch", "4", "--queue", "300", "--connections", "256", "--idle", "5", "--budget", "50%", "--ctx", "2048")
with Server(*FLAGS) as running:
    Clients(running).run_for(min(5, SECONDS / 3))
    before = rss_bytes(running)
    Clients(running).run_for(SECONDS)
    for left in ("answers_running", "answers_waiting"):
        running.wait_for(left, 0)
    grown = rss_bytes(running) - before
    assert grown < 32 << 20, f"{grown >> 20} MiB more than before"
    assert running.metric("steps_failed_total") == 0 and running.metric("read_errors_total") == 0
    # What was left in the middle holds nothing: all experts can leave and come again, and the same text comes.
    for budget in ("20%", "50%"):
        running.post("/moepager/budget", budget=budget)
        assert running.post("/v1/completions", prompt=PROMPTS[0], max_tokens=TOKENS)["choices"][0]["text"] == WANTED[PROMPTS[0]]
    print(f"memory: {grown >> 10} KiB more than after the first seconds")
with Server(*FLAGS, "--grace", "60", end=False) as running:
    clients = Clients(running)
    clients.run_for(2, lambda: running.process.send_signal(signal.SIGTERM))
    assert "stopped" not in clients.counts, clients.counts  # there was time for all that had begun
print("soak: ok")
