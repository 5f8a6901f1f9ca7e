"""What a server keeps of prompts, and how it shares its memory:

    memory_test.py MOEPAGER"""
import json
import re
import subprocess
import threading
import time

from serving import MODEL, MOEPAGER, Server, run

KV_BYTES = 8 * 2 * 2 * 32 * 4  # of a token: layers, heads, keys and values, floats

TEXTS = [f"# {word}\n" + "".join(f"def {word}_{i}(a, b):\n    return a + {i} * b\n" for i in range(8))
         for word in ("first", "second", "third")]


def ask(server, text):
    """The text, and how many of its prompt's tokens were not computed."""
    answer = server.post("/v1/completions", prompt=text, max_tokens=8)
    return (answer["choices"][0]["text"], answer["usage"]["prompt_tokens"],
            answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def check_kept_prompts():
    """On one sequence, prompts in turn: what it had of one is there when its turn has come again."""
    wanted = {text: run(text, "--max-tokens", "8") for text in TEXTS}
    with Server("--batch", "1", "--prefix-memory", "64MiB") as server:
        for turn in range(2):
            for text in TEXTS:
                got, tokens, cached = ask(server, text)
                assert got == wanted[text], (got, wanted[text])
                assert tokens > 100 and (cached > tokens - 17 if turn else cached < 17), (tokens, cached)
        assert 0 < server.metric("prefix_bytes") <= 64 << 20
        assert server.metric("prefix_tokens_total") > 300
    with Server("--batch", "1", "--prefix-memory", "0") as server:
        for text in TEXTS * 2:
            assert ask(server, text)[2] < 17
        assert server.metric("prefix_bytes") == 0


def refused(text, *flags):
    bad = subprocess.run([MOEPAGER, "serve", "--model", MODEL, "--port", "0", *flags],
                         capture_output=True, text=True)
    assert bad.returncode in (2, 4) and text in bad.stderr, bad.stderr


def parts(server):
    """What experts, kept prompts and sequences may take, at one moment."""
    found = re.findall(r"^moepager_(?:budget|kept_budget|kv_budget)_bytes (\S+)$", server.ask("GET", "/metrics")[1], re.M)
    assert len(found) == 3, found
    return sum(map(float, found))


def check_one_memory():
    """Experts and kept prompts share what is left of --memory; no text changes with it."""
    wanted = {text: run(text, "--max-tokens", "8") for text in TEXTS}
    flags = ["--batch", "1", "--ctx", "512", "--memory", "20MiB"]
    with Server(*flags) as server:
        both = parts(server)
        assert server.metric("budget_bytes") < server.metric("expert_bytes") and both < 20 << 20
        for text in TEXTS * 3:
            assert ask(server, text)[0] == wanted[text]
            assert server.metric("prefix_bytes") <= server.metric("kept_budget_bytes")
            assert parts(server) == both
        status, reply = server.ask("POST", "/moepager/budget", {"budget": "4MiB"})
        assert status == 200, reply
        assert parts(server) == both
        status, reply = server.ask("POST", "/moepager/budget", {"budget": "all"})
        assert status == 400 and "--memory leaves" in reply, reply
    refused("leave out --budget", *flags, "--budget", "25%")
    refused("error[E_RAM]: --memory", "--memory", "1MiB")


def check_sequences_share():
    """Many answers at once: their KV cache takes memory of the experts, those that have no room wait or are put off, and
    all get their text, also those that say no length. Then one at a time: experts get it back."""
    prompts = [f"def {name}(" for name in "abcdefghijkl"]
    wanted = {prompt: run(prompt, "--max-tokens", "150") for prompt in prompts}
    flags = ["--batch", "8", "--ctx", "512"]
    with Server(*flags, "--memory", "24MiB") as server:
        total, first = parts(server), server.metric("budget_bytes")
        others = (24 << 20) * 7 // 8 - total
        assert total > first and others > 0 and server.metric("kv_reserved_bytes") == 0
        states = ask_all(server, wanted, total)
        least = min(state["budget_bytes"] for state in states)
        assert least < first and server.metric("memory_to_sequences_total") > 0, (least, first)
        for _ in range(3):
            server.post("/v1/completions", prompt="a", max_tokens=128, ignore_eos=True)
        assert server.metric("memory_from_sequences_total") > 0
        assert server.metric("budget_bytes") > least and parts(server) == total
        smallest = states[0]["smallest_bytes"]
    three = smallest + 3 * 160 * KV_BYTES
    with Server(*flags, "--memory", str((others + three) * 8 // 7)) as server:
        assert max(state["running"] for state in ask_all(server, wanted, parts(server))) > 3
        assert server.metric("answers_put_off_total") > 0
    with Server("--batch", "8", "--ctx", "128", "--memory", str((others + three) * 8 // 7)) as server:
        states = ask_all(server, {prompt: None for prompt in prompts[:2]}, parts(server), max_tokens=None)
        assert max(state["running"] for state in states) == 2, "one without a length is alone"
        assert server.metric("answers_failed_total") == 0
    with Server(*flags, "--memory", str((others + smallest + 160 * KV_BYTES) * 8 // 7)) as server:
        status, reply = server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 300})
        error = json.loads(reply)["error"]
        assert status == 400 and error["code"] == "E_KV_ROOM", reply
        assert re.search(r"takes \d{7} bytes, but there are at most \d{6} ", error["message"]), reply
        assert server.post("/v1/completions", prompt="a", max_tokens=9)["choices"]
        answer = server.post("/v1/completions", prompt="a", ignore_eos=True)  # as long as there is room
        assert 100 < answer["usage"]["total_tokens"] <= 192, answer["usage"]


def ask_all(server, wanted, total, max_tokens=150):
    """All at once; what the server said of itself meanwhile. A text that is None may be any."""
    got, states = {}, []

    def one(prompt):
        text = server.post("/v1/completions", prompt=prompt, max_tokens=max_tokens)["choices"][0]["text"]
        got[prompt] = text if wanted[prompt] is not None else None
    clients = [threading.Thread(target=one, args=(prompt,)) for prompt in wanted]
    for client in clients:
        client.start()
    while any(client.is_alive() for client in clients):
        state = json.loads(server.ask("GET", "/moepager/state")[1])
        states.append(state)
        assert state["kv_bytes"] <= state["kv_budget_bytes"], state
        assert state["budget_bytes"] + state["prefix_budget_bytes"] + state["kv_budget_bytes"] == total, state
        time.sleep(0.02)
    assert got == wanted
    return states


check_kept_prompts()
check_one_memory()
check_sequences_share()
