"""A server to be tested, and what `moepager run` would say. Is no test itself.

The program is the first argument of the test that imports this.
"""
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time

MOEPAGER = sys.argv[1]
MODEL = "models/tiny-moe"


class Server:
    """A running server; ends with the block, and then must have ended well."""

    def __init__(self, *flags, end=True):
        self.flags, self.end = flags, end

    def __enter__(self):
        self.process = subprocess.Popen(
            [MOEPAGER, "serve", "--model", MODEL, "--port", "0", *self.flags],
            stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            found = re.match(r"serving .* at (https?)://.*:(\d+)$", line)
            if found:
                self.port = int(found.group(2))
                return self
        raise AssertionError(f"the server did not start: {self.process.wait()}")

    def __exit__(self, kind, *_):
        if self.end and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        rest = self.process.stderr.read()
        code = self.process.wait(60)
        if kind is None:
            assert code == 0, (code, rest)

    def ask(self, method, path, body=None, headers=None):
        """Status and text of one request."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        text = body if isinstance(body, (str, bytes, type(None))) else json.dumps(body)
        c.request(method, path, text, headers or {})
        r = c.getresponse()
        result = r.status, r.read().decode()
        c.close()
        return result

    def post(self, path, **body):
        status, text = self.ask("POST", path, body)
        assert status == 200, (status, text)
        return json.loads(text)

    def stream(self, path, **body):
        status, text = self.ask("POST", path, {**body, "stream": True})
        assert status == 200, (status, text)
        events = [e[len("data: "):] for e in text.split("\n\n") if e.strip()]
        assert events[-1] == "[DONE]", text
        return [json.loads(e) for e in events[:-1]]

    def metric(self, name):
        text = self.ask("GET", "/metrics")[1]
        return float(re.search(rf"^moepager_{name} (\S+)$", text, re.M).group(1))

    def wait_for(self, name, value, seconds=30):
        end = time.monotonic() + seconds
        while self.metric(name) != value:
            assert time.monotonic() < end, (name, self.metric(name), value)
            time.sleep(0.05)


def run(prompt, *flags):
    """The text of `moepager run`."""
    out = subprocess.run([MOEPAGER, "run", "--model", MODEL, "--prompt", prompt, "--json", *flags],
                         capture_output=True, check=True)
    return json.loads(out.stdout)["text"]


def refused(server, status, code, body, path="/v1/completions", method="POST", headers=None):
    got, text = server.ask(method, path, body, headers)
    assert got == status, (got, status, text)
    error = json.loads(text)["error"]
    assert error["code"] == code, text
    return error["message"]


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def send(server, body, extra=""):
    s = connect(server)
    text = json.dumps(body)
    s.sendall((f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{extra}"
               f"Content-Length: {len(text)}\r\n\r\n{text}").encode())
    return s


LONG = {"prompt": "def main(", "max_tokens": 1500, "ignore_eos": True}
