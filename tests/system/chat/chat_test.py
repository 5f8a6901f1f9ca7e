#!/usr/bin/env python3
"""moepager chat and tokenize, by pipes: usage: chat_test.py MOEPAGER"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

MOEPAGER = sys.argv[1]
MODEL = ["--model", "models/tiny-moe"]


def chat(text, *flags):
    done = subprocess.run([MOEPAGER, "chat", *MODEL, *flags], input=text, capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done
    return done


def first_answer(*flags):
    out = subprocess.run([MOEPAGER, "run", *MODEL, "--chat", "--prompt", "hi", "--json",
                          "--max-tokens", "20", *flags], capture_output=True, check=True)
    return json.loads(out.stdout)["text"]


# The first answer is that of run; a second turn goes on behind what is there; /reset begins anew.
short = ["--max-tokens", "20"]
done = chat("hi\n/stats\nand now?\n/stats\n/reset\nhi\n", *short)
assert done.stdout.startswith(first_answer() + "\n") and done.stdout.endswith(
    "\n" + first_answer() + "\n"), done.stdout
stats = [line for line in done.stderr.splitlines() if line.startswith("messages ")]
assert "(0 of them reused)" in stats[0] and "messages 2" in stats[0], stats
assert "(0 of them reused)" not in stats[1] and "messages 4" in stats[1], stats

# System messages, saved conversations, what is no command.
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "saved.json")
    done = chat(f"/system Be brief.\nhi\n/save {path}\n/nonsense\n/save /nonexistent/x\n//slash\n/exit\nhi\n",
                *short)
    saved = json.load(open(path))["messages"]
    assert [m["role"] for m in saved] == ["system", "user", "assistant"], saved
    assert saved[0]["content"] == "Be brief." and saved[2]["content"] == first_answer(
        "--system", "Be brief.")
    assert "/reset, /system" in done.stderr and "error[" in done.stderr

# Ctrl-C stops the answer and not the program; SIGTERM ends it.
p = subprocess.Popen([MOEPAGER, "chat", *MODEL, "--temperature", "5", "--ctx", "2048"], text=True,
                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
p.stdin.write("tell me everything\n")
p.stdin.flush()
assert p.stdout.read(1)
p.send_signal(signal.SIGINT)
p.stdin.write("/stats\n")
p.stdin.flush()
assert p.stderr.readline().startswith("messages 2"), "no answer was stopped"
time.sleep(0.1)
p.send_signal(signal.SIGINT)  # waits for a line
time.sleep(0.1)
assert p.poll() is None
p.stdin.close()
assert p.wait(60) == 0

ids = json.loads(subprocess.run([MOEPAGER, "tokenize", *MODEL, "--prompt", "hello world", "--json"],
                                capture_output=True, check=True).stdout)
lines = subprocess.run([MOEPAGER, "tokenize", *MODEL, "--prompt-file", "-"], input="hello world",
                       capture_output=True, text=True, check=True).stdout.splitlines()
assert [int(line.split("\t")[0]) for line in lines] == ids["tokens"] and len(lines) > 1
bad = subprocess.run([MOEPAGER, "tokenize", *MODEL], capture_output=True, text=True)
assert bad.returncode == 2 and "E_USAGE" in bad.stderr
print("chat: ok")
