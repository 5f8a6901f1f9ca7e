#!/usr/bin/env python3
"""The page of `moepager serve` in a browser: usage: page_test.py MOEPAGER [PICTURE.png]

A chat, its second turn, the map, the budget, a key; nobody but the server is asked. Skipped without Chromium.
"""
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
from browser import Browser, find_browser  # noqa: E402
from serving import Server, run  # noqa: E402


def ask(browser, text):
    answers = browser.run("document.querySelectorAll('.assistant').length")
    browser.run(f"document.getElementById('text').value = {json.dumps(text)}; document.getElementById('ask').requestSubmit()")
    browser.wait(f"document.querySelectorAll('.assistant').length > {answers} && "
                 "document.getElementById('send').textContent === 'Send'")
    return browser.run("[...document.querySelectorAll('.assistant')].pop().textContent")


def colours(browser):
    """Cells of the map that are blue."""
    return browser.run("(() => { const m = document.getElementById('map'), d = m.getContext('2d').getImageData(0, 0, m.width, "
                       "m.height).data; let n = 0; for (let i = 0; i < d.length; i += 4) n += d[i + 2] >= 150; return n; })()")


def check_page(browser, server, picture):
    address = f"http://127.0.0.1:{server.port}/"
    browser.send("Page.navigate", url=address)
    browser.wait("document.getElementById('map') && document.getElementById('map').width > 1")
    assert browser.run("document.getElementById('model').textContent") == "moepager: tiny-moe"
    assert ask(browser, "hi") == run("hi", "--chat", "--max-tokens", "40")
    ask(browser, "sort these: 5 3 9 1")
    assert ask(browser, "<b>bold</b> <img src=x onerror=alert(1)>") is not None
    assert not browser.run("document.querySelector('#talk b, #talk img')"), "texts become HTML"
    if picture:
        browser.run("document.getElementById('clear').click()")
        ask(browser, "hi")
        ask(browser, "sort these: 5 3 9 1")
        browser.run("new Promise(done => setTimeout(done, 1500))")
        browser.picture(picture)
    before = json.loads(server.ask("GET", "/moepager/state")[1])
    slide = ("{ const b = document.getElementById('budget'); b.value = %d; b.oninput(); b.onchange(); }")
    browser.run(slide % 20)
    server_says = "fetch('/moepager/state').then(r => r.json()).then(s => s.budget_bytes)"
    browser.wait(f"{server_says}.then(b => b < {before['budget_bytes']})")
    low = browser.run(server_says)
    assert low < before["budget_bytes"] and abs(low - 0.2 * before["full_bytes"]) < 0.1 * before["full_bytes"], low
    browser.wait("document.getElementById('budget').value <= 30")
    few = colours(browser)
    browser.run(slide % 100)
    browser.wait(f"{server_says}.then(b => b > {low})")
    ask(browser, "more")
    browser.wait("document.getElementById('budget').value == 100")
    browser.run("new Promise(done => setTimeout(done, 1000))")
    assert colours(browser) > few > 0, (few, colours(browser))
    others = [url for url in browser.asked() if not url.startswith(address)]
    assert not others, others
    assert not browser.complaints(), browser.complaints()


def check_key(program):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "keys")
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write("0123456789abcdef\n")
        with Server("--api-key-file", path) as server, Browser(program) as browser:
            browser.send("Page.navigate", url=f"http://127.0.0.1:{server.port}/")
            browser.wait("document.getElementById('state_error') && document.getElementById('state_error').textContent")
            browser.run("document.getElementById('key').value = '0123456789abcdef'")
            browser.wait("!document.getElementById('state_error').textContent")


found = find_browser()
if found is None:
    print("skipped: there is no chromium")
    sys.exit(77)
with Server("--budget", "60%", "--max-tokens", "40") as running, Browser(found) as page:
    check_page(page, running, sys.argv[2] if len(sys.argv) > 2 else None)
check_key(found)
print("page: ok")
