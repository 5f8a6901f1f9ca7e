"""What a server keeps of prompts, and how it shares its memory:

    memory_test.py MOEPAGER"""
import sys

from serving import Server, run

TEXTS = [f"# {word}\n" + "".join(f"def {word}_{i}(a, b):\n    return a + {i} * b\n" for i in range(12))
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


check_kept_prompts()
