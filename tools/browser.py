"""Chromium without a window, told what to do by its pipe (DevTools protocol): for tests and pictures of the page."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


def find_browser():
    """A path, or None."""
    return next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)


class Browser:
    """One page of a browser; with-blocks end it."""

    def __init__(self, program, width=1200, height=760):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self.to = os.pipe()
        self.back, to_write = os.pipe()

        def place():  # the browser reads from 3 and writes to 4
            one, two = os.dup(to_read), os.dup(to_write)
            os.dup2(one, 3)
            os.dup2(two, 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
             f"--window-size={width},{height}", f"--user-data-dir={self.folder.name}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=place, close_fds=False)
        os.close(to_read)
        os.close(to_write)
        self.rest, self.number, self.events, self.session = b"", 0, [], None

    def __enter__(self):
        target = next(t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(domain + ".enable")
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.back)
        self.folder.cleanup()

    def send(self, method, seconds=60, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + seconds
        while True:
            while b"\0" in self.rest:
                one, self.rest = self.rest.split(b"\0", 1)
                one = json.loads(one)
                if one.get("id") == self.number:
                    assert "error" not in one, (method, one)
                    return one["result"]
                self.events.append(one)
            assert time.monotonic() < end, f"{method}: no answer"
            if select.select([self.back], [], [], 1)[0]:
                read = os.read(self.back, 1 << 20)
                assert read, "the browser has ended"
                self.rest += read

    def run(self, text):
        """The value of a JavaScript expression, a promise's too."""
        r = self.send("Runtime.evaluate", expression=text, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in r, (text, r)
        return r["result"].get("value")

    def wait(self, text, seconds=60):
        """Until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(text):
            assert time.monotonic() < end, text
            time.sleep(0.2)

    def asked(self):
        """The addresses of all requests so far."""
        self.run("0")
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def complaints(self):
        """Exceptions, and errors that the browser has logged."""
        self.run("0")
        return [e["params"] for e in self.events if e.get("method") == "Runtime.exceptionThrown" or
                e.get("params", {}).get("entry", {}).get("level") == "error"]

    def picture(self, path):
        with open(path, "wb") as out:
            out.write(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))
