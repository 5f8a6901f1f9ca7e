#!/usr/bin/env python3
"""moepager chat and tokenize, by pipes and on a terminal: usage: chat_test.py MOEPAGER"""
import ctypes
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
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

    # Several lines are one message; what was saved goes on, and what is no conversation changes nothing.
    again = os.path.join(folder, "again.json")
    chat(f'/load {path}\n/load /dev/null\n"""\none\n/two\n"""\na\\\nb\n/save {again}\n', *short)
    talk = json.load(open(again))["messages"]
    assert talk[:3] == saved and [talk[3]["content"], talk[5]["content"]] == ["one\n/two", "a\nb"], talk
    assert len(talk) == 7


try:
    libedit = ctypes.CDLL("libedit.so.2")
except OSError:
    libedit = None


def wait_until_raw(fd, end):
    """Until libedit reads: what is typed before goes through the terminal's own line."""
    while termios.tcgetattr(fd)[3] & termios.ICANON:
        assert time.monotonic() < end, "libedit does not read"
        time.sleep(0.01)


def on_a_terminal(typed, **environment):
    """What a terminal of 12 rows gets; `typed` are texts and what they must lead to."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update({"TERM": "xterm", **environment})
        os.execv(MOEPAGER, ["moepager", "chat", *MODEL, "--max-tokens", "12"])
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 90, 0, 0))
    out, at, end = b"", 0, time.monotonic() + 120
    for text, wanted in [("", "> "), *typed]:
        if text and libedit:
            wait_until_raw(fd, end)
        os.write(fd, text.encode())
        while wanted.encode() not in out[at:]:
            assert time.monotonic() < end, (text, wanted, out)
            if select.select([fd], [], [], 1)[0]:
                out += os.read(fd, 65536)
        at = out.index(wanted.encode(), at) + len(wanted)
    if libedit:
        wait_until_raw(fd, end)
    while True:  # typed between two lines, Ctrl-D may be lost
        os.write(fd, b"\x04")
        assert time.monotonic() < end, out
        try:
            if select.select([fd], [], [], 1)[0] and not os.read(fd, 65536):
                break
        except OSError:  # the other side has been closed
            break
    assert os.waitpid(pid, 0)[1] == 0
    os.close(fd)
    return out.decode(errors="replace")


# Lines are edited and called back, Ctrl-C forgets one, a line at the bottom says how fast it goes and is gone at the end.
edits = []
if libedit:
    edits = [("\x1b[A", "hi"), ("\x7f\x7fhello\r", "tokens/s"), ("", "\x1b[r"), ("", "> ")]
shown = on_a_terminal([("hi\r", "\x1b[1;11r"), ("", "tokens/s"), ("", "\x1b[r"), ("", "> "), *edits,
                       ("nonsense\x03", "> "),
                       ("/stats\r", "MiB\r\n> ")])
assert f"messages {4 if edits else 2}, " in shown, shown
assert shown.count("\x1b[12;1H\x1b[2K\x1b8") >= 1, shown
dumb = on_a_terminal([("hi\r", "\r\n> ")], TERM="dumb")
assert "\x1b[1;11r" not in dumb and "tokens/s" not in dumb, dumb

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
