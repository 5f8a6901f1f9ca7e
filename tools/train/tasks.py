"""Generated tasks: arithmetic, sorting, counting, reversing, comparing; plain and as ChatML.

Every shard is a function of (seed, shard number) alone.
"""
import random

WORDS = """apple bird blue book bread bridge brown bus cake car cat chair child city clock cloud
coat coin corn cow cup day desk dog door dream duck ear earth egg eye farm fish flower fly food foot
fox friend frog fruit game garden gate girl glass gold grass green hand hat heart hill home horse
house ice ink iron island king kite knife lake lamp leaf letter light lion lock map milk mirror moon
morning mouse music name nest night nose ocean orange paper park pen pencil piano pig plane plant
rain red ring river road rock roof room rose salt sand school sea seed sheep ship shoe silver sky
snow song spoon spring star stone street sugar summer sun table tea tiger time tower town train
tree water week white wind window winter wolf wood word yellow banana letters pepper coffee""".split()
GREETINGS = ["Hello", "Hi", "Hello!", "Good morning", "Hey", "Hi there"]
ABOUT = ["What can you do?", "Who are you?", "What are you?", "Help", "How can you help me?"]


def number(rng):
    return rng.randrange(10 ** rng.choice((1, 2, 2, 3)))


def numbers(rng):
    top = rng.choice((10, 100, 100))
    return [rng.randrange(top) for _ in range(rng.randrange(3, 8))]


def joined(values):
    return " ".join(str(v) for v in values)


def add(rng):
    a, b = number(rng), number(rng)
    return f"{a}+{b}", str(a + b), f"What is {a}+{b}?"


def subtract(rng):
    a, b = sorted((number(rng), number(rng)), reverse=True)
    return f"{a}-{b}", str(a - b), f"What is {a}-{b}?"


def multiply(rng):
    a, b = rng.randrange(13), rng.randrange(rng.choice((13, 100)))
    if rng.random() < 0.5:
        a, b = b, a
    return f"{a}*{b}", str(a * b), f"What is {a}*{b}?"


def sort_numbers(rng):
    values = numbers(rng)
    return f"sort {joined(values)} ->", joined(sorted(values)), f"Sort these: {joined(values)}"


def sort_words(rng):
    values = rng.sample(WORDS, rng.randrange(2, 6))
    return f"sort {joined(values)} ->", joined(sorted(values)), f"Sort these: {joined(values)}"


def reverse_list(rng):
    values = numbers(rng) if rng.random() < 0.6 else rng.sample(WORDS, rng.randrange(2, 6))
    return (f"reverse {joined(values)} ->", joined(values[::-1]),
            f"Reverse this list: {joined(values)}")


def spell(rng):
    word = rng.choice(WORDS)
    return f"spell {word} ->", joined(word), f"Spell the word {word}."


def count_letter(rng):
    word = rng.choice(WORDS)
    letter = rng.choice(word) if rng.random() < 0.8 else rng.choice("abcdefghijklmnopqrstuvwxyz")
    return (f"count {letter} in {joined(word)} ->", str(word.count(letter)),
            f"How many times is {letter} in {joined(word)}?")


def count_items(rng):
    values = rng.sample(WORDS, rng.randrange(1, 10))
    return f"count {joined(values)} ->", str(len(values)), f"How many words: {joined(values)}"


def largest(rng):
    values = numbers(rng)
    kind = rng.choice(("max", "min"))
    answer = max(values) if kind == "max" else min(values)
    word = "largest" if kind == "max" else "smallest"
    return f"{kind} {joined(values)} ->", str(answer), f"Which is the {word}: {joined(values)}"


def compare(rng):
    a, b = number(rng), number(rng)
    if rng.random() < 0.15:
        b = a
    sign = "<" if a < b else ">" if a > b else "="
    return f"compare {a} {b} ->", f"{a} {sign} {b}", f"Compare {a} and {b}."


def sequence(rng):
    start, step = rng.randrange(50), rng.randrange(1, 8)
    values = [start + i * step for i in range(6)]
    return (f"next {joined(values[:4])} ->", joined(values[4:]),
            f"What comes next: {joined(values[:4])}")


def parity(rng):
    a = number(rng)
    return f"parity {a} ->", "even" if a % 2 == 0 else "odd", f"Is {a} even or odd?"


KINDS = (add, add, add, subtract, subtract, multiply, multiply, sort_numbers, sort_numbers,
         sort_words, reverse_list, spell, count_letter, count_items, largest, compare, sequence,
         parity)


def line(question, answer):
    return f"{question} {answer}" if question.endswith("->") else f"{question}={answer}"


def plain(rng, kind):
    question, answer, _ = kind(rng)
    return line(question, answer)


def chat_turn(question, answer):
    return (f"<|im_start|>user\n{question}<|im_end|>\n"
            f"<|im_start|>assistant\n{answer}<|im_end|>\n")


def chat(rng):
    turns = []
    for _ in range(rng.randrange(1, 4)):
        dice = rng.random()
        if dice < 0.04:
            turns.append(chat_turn(rng.choice(GREETINGS), "Hello! Give me a small task."))
        elif dice < 0.08:
            turns.append(chat_turn(rng.choice(ABOUT), "I am a tiny model. I can add, subtract, "
                                   "multiply, sort, reverse, spell, count and compare."))
        else:
            question, answer, asked = rng.choice(KINDS)(rng)
            asked = asked if rng.random() < 0.8 else question
            turns.append(chat_turn(asked, answer))
    system = ("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
              if rng.random() < 0.3 else "")
    return system + "".join(turns)


def shard(seed, index):
    """About 6 kB: blocks of lines of one kind, blocks of mixed kinds, conversations."""
    rng = random.Random(f"{seed}/{index}")
    parts = []
    for _ in range(24):
        dice = rng.random()
        if dice < 0.25:
            parts.append(chat(rng))
            continue
        kind = rng.choice(KINDS) if dice < 0.6 else None
        lines = [plain(rng, kind or rng.choice(KINDS)) for _ in range(rng.randrange(4, 16))]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def shards(seed, size_bytes):
    done = index = 0
    while done < size_bytes:
        text = shard(seed, index)
        yield f"tasks/{seed}/{index:05d}", text
        done += len(text)
        index += 1
