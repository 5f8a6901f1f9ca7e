#!/usr/bin/env python3
"""moepager serve from outside: usage: serve_test.py MOEPAGER api|client|limits|stop

api: every path, streams, refusals, keys, TLS, curl; the same text as `run`, alone and in company.
client: the official `openai` client (skipped where Python has none).
limits: hostile and half-open requests, clients that leave, full queues, and many connections.
stop: SIGTERM while answers are under way, also over TLS with certificates that came and went.
"""
import http.client
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time

from serving import LONG, MODEL, MOEPAGER, Server, connect, refused, run, send

CASE = sys.argv[2]
PROMPTS = ["def main(", "class A:\n", "import ", "x = [1, 2", "# the", "if not", "return ", "def f(a"]


def check_same_as_run(server):
    flags = ["--temperature", "0.8", "--top-p", "0.9", "--seed", "5", "--max-tokens", "24"]
    wanted = {p: run(p, *flags) for p in PROMPTS}
    body = dict(temperature=0.8, top_p=0.9, seed=5, max_tokens=24)
    for p in PROMPTS[:2]:  # alone
        assert server.post("/v1/completions", prompt=p, **body)["choices"][0]["text"] == wanted[p]
    got = {}

    def one(p):
        events = server.stream("/v1/completions", prompt=p, **body)
        got[p] = "".join(e["choices"][0]["text"] for e in events)

    threads = [threading.Thread(target=one, args=(p,)) for p in PROMPTS]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == wanted, (got, wanted)
    r = server.post("/v1/completions", prompt=PROMPTS, **body)
    assert {p: c["text"] for p, c in zip(PROMPTS, r["choices"])} == wanted


def check_answers(server):
    r = server.post("/v1/completions", prompt="def main(", max_tokens=4, n=2, temperature=1)
    assert [c["index"] for c in r["choices"]] == [0, 1]
    assert r["usage"]["completion_tokens"] == 8 and r["object"] == "text_completion"
    ids = server.post("/tokenize", content="def main(")["tokens"]
    assert server.post("/detokenize", tokens=ids)["content"] == "def main("
    a = server.post("/v1/completions", prompt=ids, max_tokens=4)["choices"][0]
    assert a["text"] == run("def main(", "--max-tokens", "4") and a["finish_reason"] == "length"
    stop = server.post("/v1/completions", prompt="def main(", max_tokens=40, stop=["isinst"])
    assert "isinst" not in stop["choices"][0]["text"]
    assert stop["choices"][0]["finish_reason"] == "stop"
    messages = [{"role": "user", "content": "hi"}]
    chat = server.post("/v1/chat/completions", messages=messages, max_tokens=20)
    text = chat["choices"][0]["message"]["content"]
    out = subprocess.run([MOEPAGER, "run", "--model", MODEL, "--chat", "--prompt", "hi", "--json",
                          "--max-tokens", "20"], capture_output=True, check=True)
    assert text == json.loads(out.stdout)["text"], text
    events = server.stream("/v1/chat/completions", messages=messages, max_tokens=20,
                           stream_options={"include_usage": True})
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events[:-1]) == text
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] > 0
    server.wait_for("answers_running", 0)


def check_refusals(server):
    refused(server, 400, "E_JSON", "{")
    refused(server, 400, "E_JSON", "")
    refused(server, 400, "E_JSON_DUP", '{"prompt":"a","prompt":"b"}')
    refused(server, 400, "E_JSON_DEPTH", '{"prompt":' + "[" * 5000)
    refused(server, 400, "E_REQUEST_KEY", {"prompt": "a", "max_tokenz": 1})
    refused(server, 400, "E_REQUEST_KEY", {"prompt": "a", "top_logprobs": 3})
    refused(server, 400, "E_JSON_RANGE", {"prompt": "a", "logprobs": 21})
    refused(server, 400, "E_JSON_TYPE", {"prompt": "a", "logprobs": True})
    chat = {"messages": [{"role": "user", "content": "a"}]}
    refused(server, 400, "E_REQUEST", {**chat, "top_logprobs": 2}, "/v1/chat/completions")
    refused(server, 400, "E_JSON_TYPE", {**chat, "logprobs": 2}, "/v1/chat/completions")
    refused(server, 400, "E_JSON_RANGE", {"prompt": "a", "temperature": -1})
    refused(server, 400, "E_SAMPLING", {"prompt": "a", "top_p": 0})
    refused(server, 400, "E_REQUEST", {"prompt": [[99999999]]})
    refused(server, 400, "E_REQUEST", {"prompt": ["a"] * 64, "n": 2})
    refused(server, 400, "E_PROMPT_LONG", {"prompt": "word " * 9000})
    refused(server, 400, "E_PROMPT_EMPTY", {"prompt": ""})
    refused(server, 400, "E_REQUEST", {"messages": [{"role": "wizard", "content": "a"}]},
            "/v1/chat/completions")
    assert "'/v1/none'; known are /v1/chat/completions" in refused(server, 404, "E_NO_PATH", None, "/v1/none", "GET")
    refused(server, 404, "E_NO_PATH", None, "/v1/models/other", "GET")
    assert json.loads(server.ask("GET", "/v1/models/tiny-moe")[1]) == json.loads(server.ask("GET", "/v1/models")[1])["data"][0]
    assert server.ask("HEAD", "/health") == (200, "") and server.ask("HEAD", "/v1/completions") == (405, "")
    refused(server, 400, "E_REQUEST_KEY", {"prompt": "a", "best_of": 2})
    server.post("/v1/completions", prompt="a", max_tokens=1, best_of=1, echo=False, suffix=None, frequency_penalty=0.0)
    check_methods(server)
    s = connect(server)
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000000\r\n\r\n")
    assert b" 413 " in s.recv(100)
    s.close()
    refused(server, 403, "E_ORIGIN", {"prompt": "a"}, headers={"Origin": "http://evil.example"})
    refused(server, 403, "E_ORIGIN", {"prompt": "a"}, headers={"Host": "evil.example"})
    refused(server, 400, "E_REQUEST", {"budget": "much"}, "/moepager/budget")
    refused(server, 400, "E_BUDGET_SMALL", {"budget": "1KiB"}, "/moepager/budget")
    assert "did you mean 25%?" in refused(server, 400, "E_BUDGET_SMALL", {"budget": "25"}, "/moepager/budget")


def check_methods(server):
    """A path has its methods; another path has none at all."""
    for method, path, allowed in [("GET", "/v1/completions", "POST"), ("POST", "/", "GET, HEAD"),
                                  ("PUT", "/health", "GET, HEAD"), ("OPTIONS", "/tokenize", "POST"),
                                  ("DELETE", "/v1/models/tiny-moe", "GET, HEAD")]:
        c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        c.request(method, path)
        r = c.getresponse()
        text = r.read().decode()
        assert (r.status, r.getheader("Allow")) == (405, allowed), (path, r.status, text)
        assert json.loads(text)["error"]["code"] == "E_METHOD", text
        c.close()
    refused(server, 404, "E_NO_PATH", None, "/v1/completions/", "POST")


def check_page_and_state(server):
    status, page = server.ask("GET", "/")
    assert status == 200 and "<title>moepager</title>" in page
    assert not re.search(r"(src|href)=.?https?:", page), "the page asks others"
    state = json.loads(server.ask("GET", "/moepager/state")[1])
    assert len(state["residents"]) == state["layers"]
    assert all(len(r) == state["experts"] for r in state["residents"])
    before, had = run("def main(", "--max-tokens", "12"), {}
    for budget in ["10%", "50%", "all"]:
        made = server.post("/moepager/budget", budget=budget)["budget_bytes"]
        state = json.loads(server.ask("GET", "/moepager/state")[1])
        assert state["budget_bytes"] == made <= state["full_bytes"]
        text = server.post("/v1/completions", prompt="def main(", max_tokens=12)
        assert text["choices"][0]["text"] == before
        held = sum(r.count("2") for r in json.loads(
            server.ask("GET", "/moepager/state")[1])["residents"])
        whole = state["layers"] * state["experts"]
        assert held * state["expert_bytes"] / whole <= made, (held, made)
        had[budget] = held
    assert had["10%"] < had["50%"] < had["all"], had
    assert sum(map(sum, state["uses"])) > 0


def check_kv_types():
    """Keys and values in other types: the text of `run` with that type, alone and in company, and
    other probabilities than with floats."""
    flags = ["--temperature", "0.8", "--seed", "5", "--max-tokens", "24"]
    body = dict(temperature=0.8, seed=5, max_tokens=24)
    logs = {}
    for kind in ("f32", "bf16", "q8_0"):
        with Server("--batch", "4", "--kv-type", kind) as server:
            wanted = {p: run(p, "--kv-type", kind, *flags) for p in PROMPTS[:4]}
            answers = server.post("/v1/completions", prompt=PROMPTS[:4], **body)["choices"]
            assert {p: c["text"] for p, c in zip(PROMPTS, answers)} == wanted, kind
            one = server.post("/v1/completions", prompt="def main(", logprobs=0, max_tokens=4)
            assert one["choices"][0]["finish_reason"] == "length"
            logs[kind] = one["choices"][0]["logprobs"]["token_logprobs"]
    assert logs["f32"] != logs["bf16"] != logs["q8_0"] != logs["f32"], logs
    bad = subprocess.run([MOEPAGER, "serve", "--model", MODEL, "--kv-type", "q4_0"],
                         capture_output=True, text=True)
    assert bad.returncode == 2 and "need one of f32, f16, bf16, q8_0" in bad.stderr, bad.stderr


def case_api():
    with Server("--batch", "4") as server:
        check_same_as_run(server)
        check_answers(server)
        check_formats(server)
        check_refusals(server)
        check_page_and_state(server)
        if shutil.which("curl"):
            out = subprocess.run(["curl", "-sN", f"http://127.0.0.1:{server.port}/v1/completions",
                                  "-d", '{"prompt":"def main(","max_tokens":3,"stream":true}'],
                                 capture_output=True, text=True, check=True).stdout
            assert out.count("data: ") >= 2 and out.endswith("data: [DONE]\n\n"), out
    check_kv_types()
    with tempfile.TemporaryDirectory() as folder:
        check_keys(folder)
        if shutil.which("openssl") and shutil.which("curl"):
            check_tls(folder)
    bad = subprocess.run([MOEPAGER, "serve", "--model", MODEL, "--host", "0.0.0.0"],
                         capture_output=True, text=True)
    assert bad.returncode == 2 and "E_ADDRESS" in bad.stderr, bad.stderr


def check_keys(folder):
    path = os.path.join(folder, "keys")
    with open(path, "w", opener=lambda p, f: os.open(p, f, 0o600)) as out:
        out.write("# a comment\nfirst-key-0123456789\n")
    body = {"prompt": "a", "max_tokens": 1}
    with Server("--api-key-file", path, "--host", "0.0.0.0") as server:
        refused(server, 401, "E_KEY", body)
        refused(server, 401, "E_KEY", body, headers={"Authorization": "Bearer first-key-012345678"})
        refused(server, 401, "E_KEY", None, "/metrics", "GET")
        refused(server, 401, "E_KEY", None, "/metrics", "POST")
        refused(server, 401, "E_KEY", None, "/moepager/state", "GET")
        first = {"Authorization": "Bearer first-key-0123456789"}
        second = {"Authorization": "Bearer other-key-0123456789"}
        assert server.ask("POST", "/v1/completions", body, first)[0] == 200
        assert server.ask("GET", "/health")[0] == 200 and server.ask("GET", "/")[0] == 200
        with open(path, "w") as out:
            out.write("other-key-0123456789\n")
        server.process.send_signal(signal.SIGHUP)
        end = time.monotonic() + 10
        while server.ask("POST", "/v1/completions", body, second)[0] != 200:
            assert time.monotonic() < end
            time.sleep(0.05)
        refused(server, 401, "E_KEY", body, headers=first)


def make_certificate(folder, name):
    cert, key = os.path.join(folder, name + ".cert"), os.path.join(folder, name + ".key")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", cert, "-days",
                    "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
                   check=True, capture_output=True)
    return cert, key


def check_tls(folder):
    cert, key = make_certificate(folder, "one")
    with Server("--tls-cert", cert, "--tls-key", key) as server:
        out = subprocess.run(["curl", "-s", "--cacert", cert,
                              f"https://127.0.0.1:{server.port}/health"],
                             capture_output=True, text=True, check=True).stdout
        assert json.loads(out) == {"status": "ok"}


class Renewed:
    """A server with TLS whose certificates are exchanged while it runs."""

    def __init__(self, folder):
        self.pairs = [make_certificate(folder, name) for name in ("one", "two")]
        self.files = [os.path.join(folder, name) for name in ("cert", "key")]
        self.put(*self.pairs[0])

    def put(self, cert, key):
        for source, target in zip((cert, key), self.files):
            shutil.copy(source, target)

    def flags(self):
        return ["--tls-cert", self.files[0], "--tls-key", self.files[1], "--log", "info"]

    def reload(self, server, line):
        """The next line of the log that is about certificates says this."""
        server.process.send_signal(signal.SIGHUP)
        for text in server.process.stderr:
            if "certificate" in text:
                assert line in text, text
                return
        raise AssertionError("the server has ended")

    def check_seen(self, server, number):
        """A new connection has this certificate, and trusts it; a request works."""
        with open(self.pairs[number][0]) as file:
            wanted = file.read()
        c = self.connect(server, number)
        assert ssl.DER_cert_to_PEM_cert(c.sock.getpeercert(True)).strip() == wanted.strip()
        c.request("GET", "/health")
        r = c.getresponse()
        assert (r.status, r.read()) == (200, b'{"status":"ok"}\n')
        c.close()

    def connect(self, server, number):
        context = ssl.create_default_context(cafile=self.pairs[number][0])
        c = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=120, context=context)
        c.connect()
        return c

    def begin_stream(self, server, number):
        c = self.connect(server, number)
        c.request("POST", "/v1/completions", json.dumps({**LONG, "stream": True}))
        r = c.getresponse()
        assert r.status == 200 and r.read(20).startswith(b"data: ")
        return r


def check_renewed(folder, wanted):
    renewed = Renewed(folder)
    (cert, key), (_, other_key) = renewed.pairs
    with Server("--batch", "4", "--grace", "900", *renewed.flags(), end=False) as server:
        renewed.check_seen(server, 0)
        kept, first = renewed.connect(server, 0), renewed.begin_stream(server, 0)
        # Files that are the same change nothing.
        renewed.reload(server, "read the certificate again")
        kept.request("GET", "/health")
        r = kept.getresponse()
        assert r.read() and r.getheader("Connection") != "close"
        bad = os.path.join(folder, "bad")
        with open(bad, "w") as file:
            file.write("-----BEGIN CERTIFICATE-----\nno\n")
        for pair in [(bad, key), (cert, bad), (cert, other_key)]:
            renewed.put(*pair)
            renewed.reload(server, "the certificate and key stay as they were")
            renewed.check_seen(server, 0)
        for path in renewed.files:
            renewed.put(cert, key)
            os.remove(path)
            renewed.reload(server, f"the certificate and key stay as they were: cannot open '{path}'")
            renewed.check_seen(server, 0)
        renewed.put(*renewed.pairs[1])
        renewed.reload(server, "read the certificate again")
        renewed.check_seen(server, 1)
        second = renewed.begin_stream(server, 1)
        for i in range(4):
            renewed.put(*renewed.pairs[i % 2])
            renewed.reload(server, "read the certificate again")
            renewed.check_seen(server, i % 2)
        # A connection that is open goes on with what it began with, to its next reply.
        kept.request("GET", "/metrics")
        r = kept.getresponse()
        text = r.read().decode()
        assert r.status == 200 and r.getheader("Connection").lower() == "close"
        assert int(re.search(r"^moepager_answers_running (\d+)$", text, re.M).group(1)) == 2, text
        server.process.send_signal(signal.SIGTERM)
        for r in (first, second):
            text = "data: " + r.read().decode().split("data: ", 1)[1]
            assert text.endswith("data: [DONE]\n\n"), text[-300:]
            events = [json.loads(e[6:]) for e in text.split("\n\n")[:-2]]
            got = "".join(e["choices"][0]["text"] for e in events)
            assert got and wanted.endswith(got), (got[-100:], wanted[-100:])


SCHEMA = {"type": "object", "additionalProperties": False, "required": ["kind", "count", "done"],
          "properties": {"kind": {"enum": ["red", "green"]}, "count": {"enum": [1, 12, 300]},
                         "done": {"type": "boolean"}, "next": {"type": "null"}}}


def check_formats(server):
    """Answers that must be JSON are, alone and in company, whatever the model would rather say."""
    ask = dict(messages=[{"role": "user", "content": "hi"}], max_tokens=400, temperature=1, n=2)
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
    texts = set()
    for seed in range(2):
        r = server.post("/v1/chat/completions", **ask, seed=seed, response_format=form)
        for c in r["choices"]:
            assert c["finish_reason"] == "stop", c
            got = json.loads(c["message"]["content"])
            assert list(got)[:3] == SCHEMA["required"] and got["kind"] in ("red", "green"), got
            assert got["count"] in (1, 12, 300) and isinstance(got["done"], bool), got
            texts.add(c["message"]["content"])
    assert len(texts) > 1, texts
    r = server.post("/v1/chat/completions", **{**ask, "max_tokens": 60},
                    response_format={"type": "json_object"})
    for c in r["choices"]:
        text = c["message"]["content"]
        assert text.lstrip()[:1] in ("{", ""), text
        if c["finish_reason"] == "stop":
            assert isinstance(json.loads(text), dict), text
    for bad in [{"type": "xml"}, {"type": "json_schema"},
                {"type": "json_schema", "json_schema": {"schema": []}}]:
        refused(server, 400, "E_REQUEST", {**ask, "response_format": bad}, "/v1/chat/completions")
    bad = {"type": "json_schema", "json_schema": {"schema": {"type": "string", "pattern": "a"}}}
    refused(server, 400, "E_FORMAT", {**ask, "response_format": bad}, "/v1/chat/completions")
    check_schema_that_holds_itself(server, ask)


def check_schema_that_holds_itself(server, ask):
    """A list whose rest is such a list, or nothing; and one that has no end."""
    def form(rest):
        schema = {"type": "object", "additionalProperties": False, "required": ["rest"],
                  "properties": {"rest": rest}}
        return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}

    ends = form({"anyOf": [{"type": "null"}, {"$ref": "#"}]})
    r = server.post("/v1/chat/completions", **{**ask, "max_tokens": 1500}, response_format=ends)
    depths = []
    for c in r["choices"]:
        assert c["finish_reason"] == "stop", c
        got, depth = json.loads(c["message"]["content"]), 0
        while got is not None:
            assert list(got) == ["rest"], got
            got, depth = got["rest"], depth + 1
        depths.append(depth)
    assert max(depths) >= 2, depths
    endless = {**ask, "response_format": form({"$ref": "#"})}
    refused(server, 400, "E_FORMAT", endless, "/v1/chat/completions")


def case_client():
    try:
        import openai
    except ImportError:
        print("skipped: this Python has no package openai")
        sys.exit(77)
    with Server("--batch", "4") as server:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none",
                               max_retries=0)
        assert client.models.list().data[0].id == "tiny-moe"
        assert client.models.retrieve("tiny-moe").id == "tiny-moe"
        r = client.chat.completions.create(model="tiny-moe", max_tokens=20,
                                           messages=[{"role": "user", "content": "hi"}])
        assert r.choices[0].message.content and r.usage.total_tokens > 0
        s = client.chat.completions.create(model="tiny-moe", max_tokens=20, stream=True,
                                           messages=[{"role": "user", "content": "hi"}])
        text = "".join(c.choices[0].delta.content or "" for c in s)
        assert text == r.choices[0].message.content, text
        t = client.completions.create(model="tiny-moe", prompt="def main(", max_tokens=12)
        assert t.choices[0].text == run("def main(", "--max-tokens", "12")
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        r = client.chat.completions.create(model="tiny-moe", max_tokens=400, response_format=form,
                                           messages=[{"role": "user", "content": "hi"}])
        assert json.loads(r.choices[0].message.content)["kind"] in ("red", "green")
        r = client.chat.completions.create(model="tiny-moe", max_tokens=5, logprobs=True,
                                           top_logprobs=2,
                                           messages=[{"role": "user", "content": "hi"}])
        assert all(len(t.top_logprobs) == 2 for t in r.choices[0].logprobs.content)
        t = client.completions.create(model="tiny-moe", prompt="a", max_tokens=3, logprobs=1)
        assert len(t.choices[0].logprobs.token_logprobs) == len(t.choices[0].logprobs.tokens) == 3
        try:
            client.completions.create(model="tiny-moe", prompt="a", max_tokens=1, suffix="b")
            raise AssertionError("not refused")
        except openai.BadRequestError as error:
            assert error.code == "E_REQUEST_KEY"
        with client.chat.completions.stream(model="tiny-moe", max_tokens=200,
                                            extra_body={"ignore_eos": True},
                                            messages=[{"role": "user", "content": "hi"}]) as s:
            for _, _event in zip(range(3), s):
                pass
        server.wait_for("answers_running", 0)  # leaving the block has cancelled it


def case_limits():
    with Server("--batch", "2", "--queue", "6", "--idle", "2", "--connections", "64",
                "--request-bytes", "65536") as server:
        check_hostile(server)
        check_clients_that_leave(server)
        check_full_queue(server)
        check_many(server)
        server.wait_for("answers_running", 0)
        assert server.post("/v1/completions", prompt="def main(", max_tokens=12)["choices"][0][
            "text"] == run("def main(", "--max-tokens", "12")


def check_hostile(server):
    for junk in [b"\x00" * 100, b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00",
                 b"GET / HTTP/1.1\r\n" + b"A: " + b"b" * 100000 + b"\r\n\r\n",
                 b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
                 b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                 b"99999999999999999999\r\n\r\n",
                 b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                 b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"]:
        s = connect(server)
        try:
            s.sendall(junk)
            s.settimeout(10)
            while s.recv(65536):
                pass
        except ConnectionError:
            pass
        s.close()
    # More than the limit without saying so before.
    s = connect(server)
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(40):
        s.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")
    s.sendall(b"0\r\n\r\n")
    assert b" 413 " in s.recv(100)
    s.close()
    # A request that never ends is cut off, byte by byte or not at all.
    start = time.monotonic()
    half, drip = connect(server), connect(server)
    half.sendall(b"POST /v1/completions HTTP/1.1\r\n")
    try:
        while time.monotonic() < start + 20:
            drip.sendall(b"G")
            time.sleep(0.2)
    except ConnectionError:
        pass
    assert half.recv(100) == b""
    assert 1.5 < time.monotonic() - start < 12
    assert server.ask("GET", "/health")[0] == 200


def check_clients_that_leave(server):
    gone = server.metric("answers_canceled_total")
    for extra in [{}, {"stream": True}]:
        sockets = [send(server, {**LONG, **extra}) for _ in range(4)]  # two run, two wait
        end = time.monotonic() + 30
        while server.metric("answers_running") != 2:
            assert time.monotonic() < end
        for s in sockets:
            s.close()
        server.wait_for("answers_running", 0)
        server.wait_for("answers_waiting", 0)
    assert server.metric("answers_canceled_total") == gone + 8


def check_full_queue(server):
    sockets = [send(server, LONG) for _ in range(8)]
    end = time.monotonic() + 30
    while server.metric("answers_running") + server.metric("answers_waiting") != 8:
        assert time.monotonic() < end
    refused(server, 503, "E_SERVER_BUSY", {"prompt": "a", "max_tokens": 1})
    for s in sockets:
        s.close()
    server.wait_for("answers_waiting", 0)
    server.wait_for("answers_running", 0)


def check_many(server):
    """More connections than the server takes at once: each has an answer, a 503, or is closed."""
    results, lock = {}, threading.Lock()

    def one():
        try:
            status = server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 3})[0]
        except (OSError, http.client.HTTPException):
            status = 0
        with lock:
            results[status] = results.get(status, 0) + 1

    threads = [threading.Thread(target=one) for _ in range(200)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert set(results) <= {0, 200, 503} and results[200] >= 8, results
    print(f"200 at once: {results}")


def case_stop():
    # What runs and what waits when the signal comes is answered; what comes later is not.
    with Server("--batch", "2", end=False) as server:
        texts, threads = [], []
        wanted = run("def main(", "--max-tokens", "300", "--ignore-eos")

        def one(stream):
            if stream:
                events = server.stream("/v1/completions", prompt="def main(", max_tokens=300,
                                       ignore_eos=True)
                texts.append("".join(e["choices"][0]["text"] for e in events))
            else:
                r = server.post("/v1/completions", prompt="def main(", max_tokens=300,
                                ignore_eos=True)
                texts.append(r["choices"][0]["text"])

        for i in range(6):
            threads.append(threading.Thread(target=one, args=(i % 2 == 0,)))
            threads[-1].start()
        end = time.monotonic() + 30
        while server.metric("answers_running") + server.metric("answers_waiting") != 6:
            assert time.monotonic() < end
        server.process.send_signal(signal.SIGTERM)
        for t in threads:
            t.join()
        assert texts == [wanted] * 6, texts
    # Without grace they end with an error that says so.
    with Server("--batch", "2", "--grace", "0", end=False) as server:
        s = send(server, {**LONG, "stream": True})
        first = s.recv(200)
        assert b" 200 " in first
        server.process.send_signal(signal.SIGTERM)
        text = first
        while True:
            got = s.recv(65536)
            if not got:
                break
            text += got
        assert b"E_SERVER_STOPPING" in text, text[-300:]
    if shutil.which("openssl"):
        wanted = run(LONG["prompt"], "--max-tokens", str(LONG["max_tokens"]), "--ignore-eos")
        with tempfile.TemporaryDirectory() as folder:
            check_renewed(folder, wanted)


globals()[f"case_{CASE}"]()
print(f"{CASE}: ok")
