"""What a server keeps of prompts, and how it shares its memory:

    memory_test.py MOEPAGER"""
import subprocess

from serving import MODEL, MOEPAGER, Server, run

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


def check_one_memory():
    """Experts and kept prompts share what is left of --memory; no text changes with it."""
    wanted = {text: run(text, "--max-tokens", "8") for text in TEXTS}
    flags = ["--batch", "1", "--ctx", "512", "--memory", "20MiB"]
    with Server(*flags) as server:
        both = server.metric("budget_bytes") + server.metric("kept_budget_bytes")
        assert server.metric("budget_bytes") < server.metric("expert_bytes") and both < 20 << 20
        for text in TEXTS * 3:
            assert ask(server, text)[0] == wanted[text]
            assert server.metric("prefix_bytes") <= server.metric("kept_budget_bytes")
            assert server.metric("budget_bytes") + server.metric("kept_budget_bytes") == both
        status, reply = server.ask("POST", "/moepager/budget", {"budget": "4MiB"})
        assert status == 200, reply
        assert server.metric("budget_bytes") + server.metric("kept_budget_bytes") == both
        status, reply = server.ask("POST", "/moepager/budget", {"budget": "all"})
        assert status == 400 and "--memory leaves" in reply, reply
    refused("leave out --budget", *flags, "--budget", "25%")
    refused("error[E_RAM]: --memory", "--memory", "1MiB")


check_kept_prompts()
check_one_memory()
