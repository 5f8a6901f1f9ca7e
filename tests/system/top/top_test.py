#!/usr/bin/env python3
"""`moepager top` beside programs that run: which it shows, which it does not, and what it is refused.

usage: top_test.py MOEPAGER
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MOEPAGER = os.path.abspath(sys.argv[1])
MODEL = "models/tiny-moe"
BENCH = ["bench", "--model", MODEL, "--budget", "25%", "--gen-tokens", "200", "--repeat", "1000"]
NOBODY = 65534


def start(arguments, environment):
    return subprocess.Popen([MOEPAGER, *arguments], env=environment, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)


def end(process):
    process.send_signal(signal.SIGINT)
    process.wait(60)


def top(environment, *flags):
    done = subprocess.run([MOEPAGER, "top", *flags], env=environment, capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == 0, done
    return done.stdout


def shows_what_runs(environment):
    started = {
        "bench": start(BENCH, environment),
        "serve": start(["serve", "--model", MODEL, "--port", "0"], environment),
        "silent": start([*BENCH, "--top", "off"], environment),
    }
    try:
        for _ in range(30):  # on a busy machine bench may have made no token between two looks
            time.sleep(0.7)
            shown = json.loads(top(environment, "--json"))
            if any(p["pid"] == started["bench"].pid and p["tokens_per_s"] > 0 for p in shown["processes"]):
                break
        text = top(environment)
        alive = {name: process.poll() is None for name, process in started.items()}
    finally:
        for process in started.values():
            end(process)
    by_pid = {p["pid"]: p for p in shown["processes"]}
    assert shown["refused_messages"] == 0, shown
    assert alive["bench"] and started["silent"].pid not in by_pid, (alive, shown)
    bench = by_pid[started["bench"].pid]
    assert bench["command"] == "bench" and bench["model"].endswith(MODEL), bench
    assert bench["tokens_per_s"] > 0 and bench["tokens"] >= bench["generated_tokens"] > 0, bench
    assert 0 < bench["resident_bytes"] <= bench["budget_bytes"] < bench["expert_bytes"], bench
    assert 0 <= bench["hit_rate"] <= 1 and bench["rss_bytes"] > bench["weights_bytes"], bench
    if alive["serve"]: # built with its library
        serve = by_pid[started["serve"].pid]
        assert serve["command"] == "serve" and serve["tokens_per_s"] == 0, serve
    row = next(line for line in text.splitlines() if line.split()[0] == str(started["bench"].pid))
    assert row.split()[1:3] == ["bench", "tiny-moe"], row


def leaves_nothing(environment, runtime):
    assert sorted(os.listdir(runtime / "moepager")) == ["top.0.lock"], os.listdir(runtime / "moepager")
    (runtime / "moepager").chmod(0o755)
    refused = subprocess.run([MOEPAGER, "top", "--json"], env={**environment, "TMPDIR": "/nonexistent"},
                             capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 0, refused # the folder in /tmp is still there
    assert os.listdir(runtime / "moepager") == ["top.0.lock"], "a folder for everybody is not used"


def privileged_programs_take_no_part(folder):
    """Set-user-id: what one sends, or shows, is nobody else's business."""
    if os.geteuid() != 0:
        return
    copy = Path(folder, "moepager")
    copy.write_bytes(Path(MOEPAGER).read_bytes())
    copy.chmod(0o4755)
    os.chmod(folder, 0o755)
    done = subprocess.run([copy, "top", "--json"], capture_output=True, text=True, user=NOBODY,
                          timeout=60, check=False)
    if "privileged" not in done.stderr:
        assert os.statvfs(folder).f_flag & os.ST_NOSUID, done
    else:
        assert done.returncode == 6 and "E_TOP" in done.stderr, done


def main():
    with tempfile.TemporaryDirectory() as folder:
        runtime = Path(folder, "run")
        runtime.mkdir(mode=0o700)
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}
        shows_what_runs(environment)
        leaves_nothing(environment, runtime)
        privileged_programs_take_no_part(folder)
    print("top: passed")


main()
