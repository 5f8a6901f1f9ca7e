#!/usr/bin/env python3
"""Programs of llama.cpp that nobody changed give the same logits, texts and numbers with the library.

usage: programs_test.py CASE PRELOAD WORK [--full]

  logits      a program that uses libllama: bits of all logits, at several budgets and threads; models
              in BF16, Q8_0, Q4_K_M, MXFP4, of five families, and in ten files
  sources     the same with each way of learning which experts are read: ggml's own word of each, what
              routers chose, what has been touched
  several     two models in one process, each paged by itself
  checks      the same, while it also looks at the mapped file in every way that a program can
  records     the same with --trace and --timeline of `moepager preload`: the trace has every layer of
              every token, `moepager replay` reads it, and the timeline has the reads and waits
  unmapped    a model that is read, not mapped: the same result, and one line that says why nothing is
              paged
  bench       llama-bench ends well
  text        llama-completion and llama-cli write the same words
  perplexity  llama-perplexity: its file of all tokens' logits
  server      llama-server with four clients at once
  openai      llama-server asked through OpenAI's Python client, four at once, whole and in pieces;
              OPENAI_PYTHON is a Python that has it, else the one that runs this
  python      llama_cpp from Python, over libraries that were built from its sources (--full only:
              they take minutes to build)
  compare     tools/bench/compare_preload measures a small model and says that logits are equal

--full: all budgets, every way of learning which experts are read, one and four threads, and
everything with both builds of llama.cpp.
"""
import hashlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import harness
from harness import (BUDGETS, REPACKED, ROOT, SOURCES, Failed, Llama, Skip, expect, plain_and_paged,
                     run)

MODELS = ("tiny", "qwen", "qwen-q8", "qwen-q4", "oss", "oss-mx", "fused", "shared", "odd", "odd-q8",
          "tiny-split")
BRIEF_MODELS = ("tiny", "qwen-q4", "oss-mx", "fused", "odd-q8", "tiny-split")


def kinds(full):
    return [Llama(kind) for kind in (("debian", "python") if full else ("debian",))]


def sources_of(full):
    return SOURCES if full else ("auto",)


def logits(preload, work, full):
    for llama in kinds(full):
        program = llama.build("victim_logits", work)
        for name in MODELS if full else BRIEF_MODELS:
            model = llama.model(name)
            for threads in (1, 4):
                command = llama.command(program, model, threads)
                plain = [*command, "repack=0"] if name in REPACKED else None
                budgets = BUDGETS if full else BUDGETS[threads // 4::2][:2]
                plain_and_paged(command, preload, work, budgets, plain=plain)
        command = llama.command(program, llama.model("tiny"), 2)
        plain_and_paged([*command, "reload=2"], preload, work, BUDGETS[1:2])
        plain_and_paged([*command, "ubatch=1"], preload, work, BUDGETS[1:2])
        # No budget, and a budget for all of them: as if the library was not there, repacking too.
        command = llama.command(program, llama.model("qwen-q4"), 2)
        want = run(command, None, None)
        for budget in (None, "all"):
            got = run(command, preload, budget)
            expect(got.out == want.out and got.status == 0,
                   f"budget {budget}: exit {got.status}, {got.out[-300:]} and not {want.out[-300:]}")


def sources(preload, work, full):
    for llama in kinds(full):
        program = llama.build("victim_logits", work)
        for name in ("tiny", "qwen-q8", "oss", "fused") if full else ("tiny", "fused"):
            for threads in (1, 4) if full else (2,):
                command = llama.command(program, llama.model(name), threads)
                plain = [*command, "repack=0"] if name in REPACKED else None
                plain_and_paged(command, preload, work, BUDGETS if full else BUDGETS[1:2],
                                plain=plain, sources=SOURCES)
        # Contexts come and go: callbacks of 16 can be chained at once.
        opened = []
        for contexts in (0, 16):
            done = run(llama.command(program, llama.model("tiny"), 2, f"contexts={contexts}"), preload,
                       "20%", work=work, MOEPAGER_HOOKS="router")
            expect(done.status == 0, f"{contexts} contexts: exit {done.status}: {done.err[-500:]}")
            opened.append(done.report["layers_opened"])
        expect(opened[1] > opened[0], f"layers opened, without and after 16 contexts: {opened}")


def several(preload, work, full):
    for llama in kinds(full):
        program = llama.build("victim_logits", work)
        command = llama.command(program, llama.model("tiny"), 2, f"beside={llama.model('fused')}")
        want = run(command, None, None).out
        for source in SOURCES:
            second = work / "report.2.json"
            second.unlink(missing_ok=True)
            for budget in BUDGETS if full else BUDGETS[1:3]:
                done = run(command, preload, budget, MOEPAGER_HOOKS=source,
                           MOEPAGER_REPORT=str(work / "report.json"))
                expect(done.status == 0 and done.out == want,
                       f"{source}, budget {budget}: exit {done.status}: {done.out[-300:]} and not "
                       f"{want[-300:]}: {done.err[-300:]}")
                for path, model in ((work / "report.json", "tiny"), (second, "fused")):
                    expect(path.exists(), f"{source}: no {path.name}: {done.err[-300:]}")
                    report = json.loads(path.read_text())
                    path.unlink()
                    expect(report["model"].endswith(f"{model}.gguf"), f"{path.name}: {report}")
                    harness.check_report(harness.Done(0, "", done.err, report), model, budget,
                                         source)
                    expect(report["policies"]["predict"] == "gate" and
                           (source == "touches" or report["experts_guessed_right"] > 0),
                           f"{source}: {model}'s routers guess nothing: {report}")


def checks(preload, work, full):
    for llama in kinds(full):
        program = llama.build("victim_logits", work)
        for name in ("qwen", "odd-q8") if full else ("qwen-q8",):
            command = llama.command(program, llama.model(name), 2,
                                    "check=bytes,touch,fork,write,readv,signal,bytes")
            # With AMX, which q8 is reordered for, llama.cpp alone dies of the check's signal stack.
            plain = [*command, "repack=0"] if name in REPACKED else None
            plain_and_paged(command, preload, work, BUDGETS if full else BUDGETS[1:3], plain=plain)


def bench_rows(done):
    """What was measured, without the speeds, which must be there."""
    rows = json.loads(done.out)
    expect(all(row["avg_ts"] > 0 for row in rows), f"no speed: {done.out[-300:]}")
    return " ".join(f"{row['n_prompt']}+{row['n_gen']} {row['model_type']}" for row in rows)


def records(preload, work, full):
    llama, moepager = Llama("debian"), preload.with_name("moepager")
    trace, timeline = work / "trace", work / "timeline.json"
    command = llama.command(llama.build("victim_logits", work), llama.model("tiny"), 2)
    want = run(command, None, None)
    for path in (trace, timeline):
        path.unlink(missing_ok=True)
    done = run([moepager, "preload", "--budget", "20%", "--trace", trace, "--timeline", timeline,
                "--", *command], None, None)
    expect(done.status == 0 and done.out == want.out, f"exit {done.status}: {done.err[-800:]}")
    head, *lines = trace.read_text().splitlines()
    facts = dict(word.split("=") for word in lines[0].split() if "=" in word)
    expect(head == "# moepager trace v1" and facts["model"] == "tiny.gguf", f"{head}: {lines[0]}")
    layers, top_k = int(facts["layers"]), int(facts["top_k"])
    rows = [line.split() for line in lines if not line.startswith("#")]
    expect(rows and all(len(row) == 4 + top_k for row in rows), f"choices: {rows[:3]}")
    tokens = {(step, sequence, position) for step, _, sequence, position, *_ in rows}
    expect(len({tuple(row[:4]) for row in rows}) == len(rows) == layers * len(tokens),
           f"{len(rows)} rows of {len(tokens)} tokens and {layers} layers")
    replayed = run([moepager, "replay", trace, "--evict", "belady,lru", "--budget", "25%"], None, None)
    expect(replayed.status == 0 and "belady" in replayed.out, f"replay: {replayed.err[-500:]}")
    written = json.loads(timeline.read_text())
    names = {event["name"] for event in written["traceEvents"]}
    expect({"demand", "wait for expert"} <= names and written["dropped_events"] == 0, f"{names}")


def unmapped(preload, work, full):
    """A model that is read instead of mapped: the same result, and one line that says so."""
    llama = Llama("debian")
    program = llama.build("victim_logits", work)
    for name in ("tiny", "qwen-q4"):
        command = llama.command(program, llama.model(name), 2, "load=none")
        wanted = {run([*command, *more], None, None).out for more in ((), ("repack=0",))}
        done = run(command, preload, "20%")
        expect(done.status == 0 and done.out in wanted, f"{name}: exit {done.status}: {done.out}{done.err}")
        expect(len(done.err.splitlines()) == 1 and "read, not mapped" in done.err,
               f"{name}: one line was to say so: {done.err!r}")


def bench(preload, work, full):
    llama = Llama("debian")
    for name in ("qwen-q4", "oss-mx", "tiny") if full else ("qwen-q4",):
        for threads in (1, 4):
            command = llama.command("llama-bench", "-m", llama.model(name), "-p", 32, "-n", 8, "-r", 2,
                                    "-t", threads, "-o", "json")
            plain_and_paged(command, preload, work, BUDGETS if full else BUDGETS[1:2], bench_rows,
                            sources=sources_of(full))


def words(done):
    """Its first hundred characters: at their end these programs sometimes lose what was last
    written, and llama-cli draws while it loads and prints how fast it was."""
    answer = done.out.split("The expert", 1)[-1]
    expect(len(answer) > 100, f"little was written: {done.out}")
    return answer[:100] if "exit or Ctrl" not in done.out else answer.strip()[:60]


def text(preload, work, full):
    llama = Llama("debian")
    model = llama.model("tiny")
    for threads in (1, 4):
        how = ["-m", model, "-n", 40, "--temp", 0, "-t", threads]
        budgets = BUDGETS if full else BUDGETS[1:2]
        for program, mode in (("llama-completion", "-no-cnv"), ("llama-cli", "-st")):
            plain_and_paged(llama.command(program, "-p", "The expert", mode, *how), preload, work,
                            budgets, words, sources=sources_of(full))


def perplexity(preload, work, full):
    llama = Llama("debian")
    saved = work / "all-logits"

    def view(done):
        """The file: of what it prints at its end some is lost at times."""
        expect(saved.exists() and saved.stat().st_size > 1 << 19, f"no logits: {done.err[-500:]}")
        digest = hashlib.sha256(saved.read_bytes()).hexdigest()
        saved.unlink()
        return digest

    for name in ("tiny", "qwen-q8") if full else ("tiny",):
        for threads in (1, 4) if full else (2,):
            command = llama.command("llama-perplexity", "-m", llama.model(name), "-f",
                                    ROOT / "LICENSE", "-c", 128, "--chunks", 4, "-t", threads,
                                    "--save-all-logits", saved)
            plain = [*command, "--no-repack"] if name in REPACKED else None
            plain_and_paged(command, preload, work, BUDGETS if full else BUDGETS[1:2], view,
                            plain=plain, sources=sources_of(full))


class Server:
    """llama-server from its start to its end by SIGTERM."""

    def __init__(self, llama, model, threads, preload, budget, source, report):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"http://127.0.0.1:{free.getsockname()[1]}"
        command = llama.command("llama-server", "-m", model, "--port", self.address.split(":")[-1],
                                "-np", 4, "-c", 2048, "-t", threads, "--no-webui")
        self.log = report.with_suffix(".log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env=harness.environment(preload, budget, report,
                                                                    MOEPAGER_HOOKS=source))

    def wait(self):
        end = time.monotonic() + 90
        while time.monotonic() < end and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.address}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.1)
        raise Failed(f"llama-server does not answer: {self.log.read_text(errors='replace')[-800:]}")

    def ask(self, prompt):
        body = {"prompt": prompt, "n_predict": 32, "temperature": 0, "cache_prompt": False}
        request = urllib.request.Request(f"{self.address}/completion", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["content"]

    def end(self):
        self.process.terminate()
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Failed("llama-server does not end") from None


QUESTIONS = [f"{text} {i}" for i in range(2)
             for text in ("The expert", "def main", "Once upon a time", "2 + 2 =")]


def ask_all(server):
    """Four clients, each with its questions one after the other."""
    answers = [None] * 4

    def client(i):
        try:
            answers[i] = [server.ask(text) for text in QUESTIONS[i::4]]
        except OSError as error:
            answers[i] = error

    threads = [threading.Thread(target=client, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect(not any(isinstance(answer, OSError) for answer in answers), f"no answer: {answers}")
    return answers


def serve(llama, model, threads, preload, budget, source, report, ask=None):
    """What a server answers from its start to its end."""
    report.unlink(missing_ok=True)
    label = f"{threads} threads, budget {budget}, {source}"
    host = Server(llama, model, threads, preload, budget, source, report)
    try:
        host.wait()
        got = (ask or ask_all)(host)
    finally:
        status = host.end()
    expect(status == 0, f"{label}: exit {status}")
    expect(budget is None or report.exists(), f"{label}: no report")
    return got


def server(preload, work, full):
    llama = Llama("debian")
    model, report = llama.model("tiny"), work / "server.json"
    for threads in (1, 4) if full else (2,):
        want = serve(llama, model, threads, None, None, "auto", report)
        for budget in BUDGETS if full else BUDGETS[1:2]:
            for source in sources_of(full):
                got = serve(llama, model, threads, preload, budget, source, report)
                expect(got == want, f"{threads} threads, budget {budget}, {source}: other answers: "
                       f"{got} and not {want}")


OPENAI = """
import concurrent.futures, json, sys, openai
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0, timeout=120)
model = client.models.list().data[0].id

def ask(i):
    how = dict(model=model, max_tokens=24, temperature=0, seed=1, extra_body={"cache_prompt": False})
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Sort {i} 3 9 1"}]
    whole = client.chat.completions.create(messages=said, logprobs=True, top_logprobs=3, **how)
    pieces = client.chat.completions.create(messages=said, stream=True, **how)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    old = client.completions.create(prompt=f"The expert {i}", **how)
    return [whole.choices[0].message.content, whole.usage.completion_tokens, text,
            [each.token for each in whole.choices[0].logprobs.content],
            old.choices[0].text]

with concurrent.futures.ThreadPoolExecutor(4) as pool:
    print(json.dumps(list(pool.map(ask, range(8)))))
"""


def openai(preload, work, full):
    path = os.environ.get("OPENAI_PYTHON") or sys.executable
    if run([path, "-c", "import openai; print(openai.__version__)"], None, None).status != 0:
        raise Skip(f"{path} has no openai; set OPENAI_PYTHON")

    def ask(host):
        return json.loads(harness.run_checked([path, "-c", OPENAI, host.address]).out)

    llama, report = Llama("debian"), work / "openai.json"
    model = llama.model("tiny")
    want = serve(llama, model, 2, None, None, "auto", report, ask)
    expect(all(len(answer[3]) > 4 for answer in want), f"little was said: {want}")
    for budget in BUDGETS if full else BUDGETS[1:2]:
        got = serve(llama, model, 2, preload, budget, "auto", report, ask)
        expect(got == want, f"budget {budget}: other answers: {got} and not {want}")


PYTHON = """
import sys, llama_cpp
llama = llama_cpp.Llama(sys.argv[1], n_ctx=512, n_threads=int(sys.argv[2]), logits_all=True,
                        verbose=False)
out = llama.create_completion("The expert", max_tokens=32, temperature=0, logprobs=4)
print(out["choices"][0]["text"], out["choices"][0]["logprobs"]["token_logprobs"])
print(hash(llama.scores[:llama.n_tokens].tobytes()))
"""


def python(preload, work, full):
    if not full:
        raise Skip("building it takes minutes; with --full")
    llama = Llama("python")
    for name in ("tiny", "qwen-q8"):
        for threads in (1, 4):
            plain_and_paged([sys.executable, "-c", PYTHON, llama.model(name), threads], preload,
                            work, BUDGETS, sources=SOURCES,
                            PYTHONPATH=str(llama.folder / "site"),
                            LLAMA_CPP_LIB_PATH=str(llama.folder / "lib"), PYTHONHASHSEED="0")


def compare(preload, work, full):
    """Both forms of a model come from tools/make_bench_model, whose GGUF files need a package."""
    if importlib.util.find_spec("gguf") is None:
        raise Skip("no Python package gguf")
    llama, model = Llama("debian"), work / "model"
    if not (work / "model.gguf").exists():
        subprocess.run([sys.executable, ROOT / "tools/make_bench_model", "--out", model, "--gguf",
                        "--layers", "3", "--experts", "32", "--hidden", "512", "--ffn", "256", "--top-k",
                        "4", "--heads", "8", "--kv-heads", "2", "--head-dim", "64", "--vocab", "2000"],
                       check=True, stdout=subprocess.DEVNULL)
    command = [sys.executable, ROOT / "tools/bench/compare_preload", "--model", model, "--gguf",
               f"{model}.gguf", "--llama", llama.folder, "--moepager", preload.with_name("moepager"),
               "--rounds", "2", "--gen-tokens", "8", "--prompt-tokens", "8", "--json"]
    for how in ([], ["--budget", "30%", "--variants", "stock,plain,window"]):
        done = run([*command, *how], None, None, timeout=250)
        expect(done.status == 0, f"exit {done.status}: {done.err[-800:]}")
        result = json.loads(done.out)
        expect(result["logits_equal"] is True, f"{how}: logits are not equal")
        for name, row in result["variants"].items():
            expect(len(row["tokens_per_s_runs"]) == 2 and row["tokens_per_s"] > 0, f"{name}: {row}")
            expect(name == "stock" or row["decode_ratio"]["low"] <= row["decode_ratio"]["high"],
                   f"{name}: {row}")
        expect(all(result["start_ms"].values()), f"{result['start_ms']}")


CASES = {case.__name__: case for case in (logits, sources, several, checks, records, unmapped, bench,
                                          text, perplexity, server, openai, python, compare)}


if __name__ == "__main__":
    sys.exit(harness.main(CASES, __doc__))
