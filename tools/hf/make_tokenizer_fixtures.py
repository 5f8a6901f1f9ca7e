#!/usr/bin/env python3
"""Make tests/data/tokenizers: small tokenizers, strings, and what the `tokenizers` library makes of
them.

    python3 tools/hf/make_tokenizer_fixtures.py [OUTPUT_DIRECTORY]

Needs `pip install tokenizers`. The training text is the source of a few modules of the Python that
runs this and the samples below; strings come from a seeded generator. Results are committed, so
that tests need no Python.

strings.bin:   u32 count, then for each string: varint bytes, bytes (may be broken UTF-8)
NAME/expected.bin: u32 stride, text P, text S, then for each string whose index is a multiple of stride:
    u8 flags
    ids: encode(text, add_special_tokens=True), special tokens in the text parsed
    ids, if flags & 1: the same with special tokens in the text left as text
    text, if flags & 2: decode(ids, skip_special_tokens=True), else it is the text
    text, if flags & 4: decode(ids, skip_special_tokens=False), else it is P, the one before, S
where ids are varint count, varints, and a text is varint bytes, bytes. Numbers are little-endian,
a varint has 7 bits per byte, the lowest first, the top bit set in all but the last byte. "The
text" is the string with ill-formed UTF-8 replaced by U+FFFD.
"""
import inspect
import json
import os
import random
import struct
import sys
import unicodedata

import tokenizers
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

SEED = 20240817
VOCAB = 1200

QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN2.replace(r"\p{N}| ?", r"\p{N}{1,3}| ?")

SAMPLES = [
    "The quick brown fox jumps over the lazy dog. It's what we'd call a pangram, isn't it?",
    "Falsches Üben von Xylophonmusik quält jeden größeren Zwerg.",
    "Portez ce vieux whisky au juge blond qui fume ; ça coûte 3,50 €.",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า",
    "天地玄黃宇宙洪荒日月盈昃辰宿列張。我们今天去公园散步吧！",
    "いろはにほへと ちりぬるを わかよたれそ つねならむ",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "Trăm năm trong cõi người ta, chữ tài chữ mệnh khéo là ghét nhau.",
    "Pchnąć w tę łódź jeża lub ośm skrzyń fig.",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪🇫🇷 ❤️ 1️⃣ 🏴‍☠️ 😀😃😄",
    "x = [i ** 2 for i in range(10) if i % 3 == 0]  # comment\n\treturn {\"key\": None}\n",
]

CODE_MODULES = ["json.decoder", "textwrap", "bisect", "heapq", "string"]


def code_text():
    out = []
    for name in CODE_MODULES:
        module = __import__(name, fromlist=["x"])
        out.append(inspect.getsource(module))
    return "\n".join(out)


# ---- strings

def every_character(out):
    """Every assigned character but most of the ideographs and syllables, 12 to a string."""
    chars = []
    for code in range(1, 0x110000):
        category = unicodedata.category(chr(code))
        if category in ("Cn", "Cs", "Co"):
            continue
        big = (0x3400 <= code <= 0x9FFF or 0xAC00 <= code <= 0xD7A3 or 0x17000 <= code <= 0x18CFF
               or 0x20000 <= code <= 0x3FFFF or 0x12000 <= code <= 0x1467F
               or 0x16800 <= code <= 0x16A3F)
        if big and code % 61 != 0:
            continue
        chars.append(chr(code))
    for at in range(0, len(chars), 12):
        out.append("".join(chars[at:at + 12]))


def words(rng, text, count):
    parts = text.split(" ")
    at = rng.randrange(max(1, len(parts) - count))
    return " ".join(parts[at:at + count])


def random_text(rng, pools, count):
    return "".join(rng.choice(rng.choice(pools)) for _ in range(count))


SPACES = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2003", "\u180e", "\u200b", "\x85",
          "\u2028", "\u202f", "\x0b", "\x0c", "\x1c", "\u1680", "\ufeff"]
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "'Re", "'\u017f",
                "\u2019s", "'x", "''", "' s", "'\u017f\u017f"]
MARKS = [chr(c) for c in range(0x300, 0x370)] + ["\u0591", "\u05b0", "\u064b", "\u0f71", "\u0f74",
                                                 "\u3099", "\u20d0", "\U0001d165", "\u0345"]
EMOJI = ["\U0001f469", "\u200d", "\U0001f467", "\U0001f3fd", "\ufe0f", "\u20e3", "\U0001f1e9",
         "\U0001f1ea", "\u2764", "1", "\U0001f3f4", "\U000e0067", "\U000e007f", "\U0001fae0", " "]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "<think>",
            "</think>", "<mask>", "<sep>", "<pad>", "wordy", "<|begin_of_text|>", "<0x0A>",
            "\u00c5ngstrom", "A\u030angstrom", "<|im_st", "|im_end|>", "<s", "<tool>", "<tool_call>",
            "<tool_call", "<both>"]


def make_strings(rng):
    out = ["", " ", "  ", "\n", "\u2581", "\u2581\u2581", " \u2581 ", "a", "a ", " a", "\x00",
           "a\x00b", "\ufffd", "qzxj", "qzxj 1 qzxj", "xqzxj", "'", "'s", "\u0130\u0131\u017f\u212a", "e\u0301", "\u1e9b\u0323",
           "\uac00\u11a8", "\u1100\u1161\u11a8", "\u0344", "\u2126", "\ufb01", "\uff21\uff11"]
    out += SAMPLES
    every_character(out)
    source = code_text()
    lines = source.split("\n")
    pools = [list(s) for s in SAMPLES]
    for _ in range(350):
        at = rng.randrange(len(lines) - 4)
        out.append("\n".join(lines[at:at + rng.randint(1, 4)]))
    for _ in range(300):
        out.append(words(rng, rng.choice(SAMPLES + [source]), rng.randint(1, 12)))
    for _ in range(300):
        out.append(random_text(rng, pools, rng.randint(1, 40)))
    for _ in range(300):
        out.append("".join(rng.choice(SPACES) * rng.randint(1, 4) + rng.choice(["", "a", "1", "!",
                           "\u4e2d", "\u00e9x"]) for _ in range(rng.randint(1, 6))))
    for _ in range(200):
        out.append("".join(rng.choice(["I", "we ", "it", "", "A1", "\u00e9"]) +
                           rng.choice(CONTRACTIONS) for _ in range(rng.randint(1, 5))))
    for _ in range(300):
        out.append("".join(rng.choice("aeouIA\u0439\u0915\u05d0\u0628\uac00\u1100\u00e5") +
                           "".join(rng.choice(MARKS) for _ in range(rng.randint(0, 6)))
                           for _ in range(rng.randint(1, 6))))
    for _ in range(200):
        out.append("".join(rng.choice(EMOJI) for _ in range(rng.randint(1, 10))))
    for _ in range(200):
        digits = rng.choice(["0123456789", "0123456789.,", "\u0660\u0661\u0969\u096a\u00bd\u2167\u2460",
                             "0123456789 ", "0123456789abcdefxX_-+"])
        out.append("".join(rng.choice(digits) for _ in range(rng.randint(1, 24))))
    for _ in range(400):
        parts = []
        for _ in range(rng.randint(1, 6)):
            parts.append(rng.choice(SPECIALS))
            parts.append(rng.choice(["", "", " ", "  ", "\n", "a", "_", "\u0301", "hello", "\u3000"]))
        out.append("".join(parts))
    for _ in range(200):
        out.append("".join(chr(rng.randrange(32, 127)) for _ in range(rng.randint(1, 40))))
    for run in ["a", " ", "\n", "1", "ab", "\u00e9", "\u4e2d", "\U0001f600", "!", "\t ", "a\u0301",
                "\u0301\u0316", "aA1 ", "\u2581", "the ", "<s>", "' "]:
        for count in (7, 64, 1000):
            out.append(run * count)
    for _ in range(4):
        out.append(random_text(rng, pools, 3000))
    return [s.encode("utf-8", "surrogatepass") for s in out]


def make_broken(rng):
    """Broken UTF-8: random bytes, cut and overwritten texts, long forms, surrogates."""
    out = [b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xc0\x80", b"\xe0\x80\x80",
           b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\x80",
           b"a\xe2\x82z", b"\xe2\x28\xa1", b"\xf0\x28\x8c\x28", b"\xf0\x90\x28\xbc", b"\xfe\xff",
           b"\xed\xa0\x80\xed\xb0\x80", b"\xf0\x80\x80\x80", b"\xc3\xc3\xa9", b"\xf1\x80\x80\xf1"]
    for _ in range(150):
        out.append(bytes(rng.randrange(256) for _ in range(rng.randint(1, 24))))
    for _ in range(150):
        text = bytearray(rng.choice(SAMPLES).encode())
        at = rng.randrange(len(text))
        text = text[at:at + rng.randint(1, 40)]
        for _ in range(rng.randint(0, 3)):
            text[rng.randrange(len(text))] = rng.choice([0x80, 0xc0, 0xe2, 0xf0, 0xff, 0x20, 0xbf])
        out.append(bytes(text))
    return out


# ---- tokenizers

def train(tok, corpus, specials, alphabet):
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=specials, show_progress=False,
                                  initial_alphabet=alphabet, limit_alphabet=400)
    tok.train_from_iterator(corpus, trainer)
    return json.loads(tok.to_str())


def byte_level(corpus, pattern, normalizer):
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizer
    if pattern is None:
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tok.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    return train(tok, corpus, [], pre_tokenizers.ByteLevel.alphabet())


def add_tokens(spec, tokens):
    """Append added tokens after the vocabulary: (content, options)."""
    tok = Tokenizer.from_str(json.dumps(spec))
    for content, options in tokens:
        special = options.pop("special", False)
        token = AddedToken(content, special=special, **options)
        (tok.add_special_tokens if special else tok.add_tokens)([token])
    return json.loads(tok.to_str())


def make_gpt2(corpus):
    spec = byte_level(corpus, None, None)
    spec = add_tokens(spec, [("<|endoftext|>", dict(special=True, normalized=True))])
    # The older form, as GPT-2's own file has it.
    spec["model"]["merges"] = [" ".join(pair) for pair in spec["model"]["merges"]]
    spec["model"]["unk_token"] = "<|endoftext|>"
    spec["model"]["continuing_subword_prefix"] = ""
    spec["model"]["end_of_word_suffix"] = ""
    return spec


def make_qwen2(corpus):
    spec = byte_level(corpus, QWEN2, normalizers.NFC())
    return add_tokens(spec, [
        ("<|endoftext|>", dict(special=True, normalized=False)),
        ("<|im_start|>", dict(special=True, normalized=False)),
        ("<|im_end|>", dict(special=True, normalized=False)),
        ("<think>", dict(normalized=False)),
        ("</think>", dict(normalized=False)),
        ("<tool", dict(normalized=False)),
        ("<tool_call>", dict(normalized=False)),
        ("<mask>", dict(special=True, lstrip=True, normalized=False)),
        ("<sep>", dict(rstrip=True, normalized=False)),
        ("<both>", dict(lstrip=True, rstrip=True, normalized=False)),
        ("wordy", dict(single_word=True, normalized=True)),
        ("\u00c5ngstrom", dict(normalized=True)),
    ])


def make_form(corpus, form):
    """A normal form of its own, and added tokens that are matched after it."""
    spec = byte_level(corpus, LLAMA3, form)
    return add_tokens(spec, [("<|endoftext|>", dict(special=True, normalized=False)),
                             ("\u00c5ngstrom", dict(normalized=True))])


def make_llama3(corpus):
    spec = byte_level(corpus, LLAMA3, None)
    # A word that no merge makes: it is found only because ignore_merges looks it up.
    spec["model"]["vocab"]["qzxj"] = len(spec["model"]["vocab"])
    spec = add_tokens(spec, [("<|begin_of_text|>", dict(special=True, normalized=False)),
                             ("<pad>", dict(special=True, normalized=True))])
    spec["model"]["ignore_merges"] = True
    begin = next(t["id"] for t in spec["added_tokens"] if t["content"] == "<|begin_of_text|>")
    tok = Tokenizer.from_str(json.dumps(spec))
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A",
                                      pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
                                      special_tokens=[("<|begin_of_text|>", begin)])])
    return json.loads(tok.to_str())


def make_fallback(corpus, metaspace):
    specials = ["<unk>", "<s>", "</s>"]
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    spec = train(tok, corpus, specials + ["<0x%02X>" % b for b in range(256)], [])
    spec["added_tokens"] = [t for t in spec["added_tokens"] if t["content"] in specials]
    tok = Tokenizer.from_str(json.dumps(spec))
    replace = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tok.decoder = decoders.Sequence(replace + [decoders.Strip(" ", 1, 0)])
    if metaspace:
        tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=metaspace == "cut")
    else:
        tok.pre_tokenizer = None
        tok.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"),
                                               normalizers.Replace(" ", "\u2581")])
    tok.post_processor = processors.TemplateProcessing(
        single="<s> $A" + (" </s>" if metaspace == "cut" else ""), pair="<s> $A <s> $B",
        special_tokens=[("<s>", 1), ("</s>", 2)])
    spec = json.loads(tok.to_str())
    if metaspace == "cut":
        # Words are their own pieces, some characters have no bytes, and unknown ones do not fuse.
        spec["model"]["fuse_unk"] = False
        del_bytes = ["<0xF0>", "<0xE0>", "<0xD8>"]
        for content in del_bytes:
            del spec["model"]["vocab"][content]
        spec["decoder"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first",
                           "split": True}
    return spec


# ---- files

def varint(n):
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7f | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def pack_ids(ids):
    return varint(len(ids)) + b"".join(varint(i) for i in ids)


def pack_text(text):
    data = text.encode()
    return varint(len(data)) + data


def around(tok):
    """What decoding with special tokens puts around a plain text."""
    ids = tok.encode("a").ids
    full = tok.decode(ids, skip_special_tokens=False)
    bare = tok.decode(ids, skip_special_tokens=True)
    before, _, behind = full.partition(bare)
    return before, behind


def expectation(tok, text, before, behind):
    tok.encode_special_tokens = False
    ids = tok.encode(text).ids
    tok.encode_special_tokens = True
    plain = tok.encode(text).ids
    tok.encode_special_tokens = False
    full = tok.decode(ids, skip_special_tokens=False)
    bare = tok.decode(ids, skip_special_tokens=True)
    flags = (plain != ids) | (bare != text) << 1 | (full != before + bare + behind) << 2
    out = bytes([flags]) + pack_ids(ids)
    if flags & 1:
        out += pack_ids(plain)
    if flags & 2:
        out += pack_text(bare)
    if flags & 4:
        out += pack_text(full)
    return out


CONFIGS = {
    "gpt2": {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
    "qwen2": {"bos_token": None, "eos_token": "<|im_end|>"},
    "llama": {"bos_token": {"__type": "AddedToken", "content": "<s>"}, "eos_token": "</s>"},
}

# Variants of a type are tried with fewer strings, to keep the files small.
STRIDES = {"metaspace": 5, "metaspace_cut": 5, "llama3": 3, "nfd": 6, "nfkc": 6, "nfkd": 6}


def main():
    default = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "data", "tokenizers")
    out = sys.argv[1] if len(sys.argv) > 1 else default
    rng = random.Random(SEED)
    corpus = SAMPLES * 3 + code_text().split("\n")
    specs = {
        "gpt2": make_gpt2(corpus),
        "qwen2": make_qwen2(corpus),
        "llama3": make_llama3(corpus),
        "nfd": make_form(corpus, normalizers.NFD()),
        "nfkc": make_form(corpus, normalizers.NFKC()),
        "nfkd": make_form(corpus, normalizers.NFKD()),
        "llama": make_fallback(corpus, None),
        "metaspace": make_fallback(corpus, "first"),
        "metaspace_cut": make_fallback(corpus, "cut"),
    }
    strings = make_strings(rng) + make_broken(rng)
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "strings.bin"), "wb") as f:
        f.write(struct.pack("<I", len(strings)))
        for s in strings:
            f.write(varint(len(s)) + s)
    for name, spec in specs.items():
        folder = os.path.join(out, name)
        os.makedirs(folder, exist_ok=True)
        text = json.dumps(spec, ensure_ascii=False, separators=(",", ":"))
        with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
            f.write(text)
        if name in CONFIGS:
            with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
                json.dump(CONFIGS[name], f)
        tok = Tokenizer.from_str(text)
        with open(os.path.join(folder, "expected.bin"), "wb") as f:
            before, behind = around(tok)
            stride = STRIDES.get(name, 1)
            f.write(struct.pack("<I", stride) + pack_text(before) + pack_text(behind))
            for s in strings[::stride]:
                f.write(expectation(tok, s.decode("utf-8", "replace"), before, behind))
    print(f"tokenizers {tokenizers.__version__}: {len(specs)} tokenizers, {len(strings)} strings")


if __name__ == "__main__":
    main()
