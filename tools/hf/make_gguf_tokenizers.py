#!/usr/bin/env python3
"""Make tests/data/tokenizers/gguf: what the `tokenizers` and `sentencepiece` libraries make of the
strings of tests/data/tokenizers, with the pre-tokenizers and models that GGUF files have names for.

    python3 tools/hf/make_gguf_tokenizers.py [OUTPUT_DIRECTORY]

Needs `pip install tokenizers sentencepiece gguf`. Results are committed; expected.bin and NAME.bin
have the format that make_tokenizer_fixtures.py describes.

base.json         a byte-level vocabulary that was trained on whole texts, so that its merges cross
                  every border that a pre-tokenizer can cut at
NAME.bin          base.json with the pre-tokenizer that GGUF files call NAME
scores.gguf       SentencePiece's BPE as the metadata of a GGUF file; scores.bin: its ids and texts
../unigram, ../unigram_bytes, ../gemma: tokenizer.json of Unigram models and of Gemma's form
"""
import json
import os
import sys
import tempfile

import gguf
import sentencepiece
from tokenizers import (Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

import make_tokenizer_fixtures as fixtures
from make_tokenizer_fixtures import LLAMA3, QWEN2, SAMPLES

VOCAB = 1500
STRIDE = 7

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
LEAD = r"[^\r\n\p{L}\p{N}]?"
QWEN35 = (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
          + BLANKS)
GPT4O = (f"{LEAD}[{UPPER}]*[{LOWER}]+{CONTRACTIONS}?|{LEAD}[{UPPER}]+[{LOWER}]*{CONTRACTIONS}?"
         + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + BLANKS)
TEKKEN = (f"{LEAD}[{UPPER}]*[{LOWER}]+|{LEAD}[{UPPER}]+[{LOWER}]*"
          + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + BLANKS)
NO_HAN = r"&&[^\p{Han}]"
KIMI = (r"[\p{Han}]+|" + f"{LEAD}[{UPPER}{NO_HAN}]*[{LOWER}{NO_HAN}]+{CONTRACTIONS}?|"
        + f"{LEAD}[{UPPER}{NO_HAN}]+[{LOWER}{NO_HAN}]*{CONTRACTIONS}?"
        + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + BLANKS)
LETTERS = ("\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-"
           "ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-"
           "ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+")
MARKS = r"\s?[!-/:-~！-／：-～‘-‟　-。]+"
DEEPSEEK3 = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
             "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def digits():
    return pre_tokenizers.Digits(individual_digits=True)


NFC = normalizers.NFC
# name: normalizer, stages, ByteLevel's own pattern, ignore_merges
PRES = {
    "gpt-2": (None, [], True, False),
    "qwen2": (NFC, [split(QWEN2)], False, False),
    "qwen35": (NFC, [split(QWEN35)], False, False),
    "llama-bpe": (None, [split(LLAMA3)], False, True),
    "glm4": (None, [split(LLAMA3)], False, False),
    "gpt-4o": (None, [split(GPT4O)], False, False),
    "tekken": (None, [split(TEKKEN)], False, True),
    "kimi-k2": (None, [split(KIMI)], False, False),
    "deepseek-llm": (None, [split("[\r\n]"), split(LETTERS), split(MARKS), split(r"\s+$"),
                            split("[一-龥ࠀ-一가-퟿]+"), digits()], False, False),
    "deepseek-coder": (None, [split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"),
                              split("[一-龥ࠀ-一가-퟿]+"), digits()], False, False),
    "deepseek-v3": (None, [split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK3)],
                    False, False),
    "olmo": (NFC, [], True, False),
    "refact": (None, [digits()], True, False),
}


def make_base(corpus):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, show_progress=False, max_token_length=12,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator(corpus, trainer)
    return fixtures.add_tokens(json.loads(tok.to_str()), [
        ("<|endoftext|>", dict(special=True, normalized=False)),
        ("<think>", dict(normalized=False)),
    ])


def with_pre(base, normalizer, stages, own, ignore_merges):
    base = json.loads(json.dumps(base))
    base["model"]["ignore_merges"] = ignore_merges
    tok = Tokenizer.from_str(json.dumps(base))
    if normalizer is not None:
        tok.normalizer = normalizer()
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        stages + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=own)])
    return tok


def make_unigram(corpus, byte_fallback):
    with tempfile.TemporaryDirectory() as folder:
        model = train_pieces(corpus, folder, "unigram", byte_fallback)
        vocab = [(model.id_to_piece(i), model.get_score(i)) for i in range(len(model))]
    tok = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=byte_fallback))
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=not byte_fallback)
    if byte_fallback:
        tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(),
                                         decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    else:
        tok.decoder = decoders.Metaspace()
    tok.post_processor = processors.TemplateProcessing(
        single="[bos] $A", pair="[bos] $A [bos] $B", special_tokens=[("[bos]", 1)])
    return fixtures.add_tokens(json.loads(tok.to_str()), [
        ("[bos]", dict(special=True, normalized=False)),
        ("<think>", dict(normalized=False))])


def make_gemma(corpus):
    """Spaces become marks in the normalizer, and words end behind spaces, which are gone by then."""
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.normalizer = normalizers.Replace(" ", "\u2581")
    tok.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    specials = ["<unk>", "<bos>"] + ["<0x%02X>" % b for b in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=specials, show_progress=False,
                                  limit_alphabet=400, max_token_length=12)
    tok.train_from_iterator(corpus, trainer)
    tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(),
                                     decoders.Fuse()])
    tok.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 1)])
    spec = json.loads(tok.to_str())
    spec["added_tokens"] = [t for t in spec["added_tokens"] if t["content"] in specials[:2]]
    return spec


def train_pieces(corpus, folder, kind, byte_fallback):
    prefix = os.path.join(folder, "pieces")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in corpus for line in text.split("\n") if line]),
        model_prefix=prefix, vocab_size=VOCAB, model_type=kind, byte_fallback=byte_fallback,
        normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=0.98,
        bos_piece="[bos]", eos_piece="[eos]", unk_piece="[unk]", num_threads=1,
        max_sentencepiece_length=12, split_digits=True, allow_whitespace_only_pieces=True,
        minloglevel=2)
    return sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")


def write_scores(path, model):
    kinds = []
    for i in range(len(model)):
        kinds.append(2 if model.is_unknown(i) else 3 if model.is_control(i)
                     else 6 if model.is_byte(i) else 1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([model.id_to_piece(i) for i in range(len(model))])
    writer.add_token_scores([model.get_score(i) for i in range(len(model))])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(model.bos_id())
    writer.add_eos_token_id(model.eos_id())
    writer.add_add_bos_token(True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def scored(model, text):
    """Special tokens have names that no string has."""
    ids = model.encode(text)
    back = model.decode(ids)
    out = bytes([(back != text) << 1]) + fixtures.pack_ids([model.bos_id()] + ids)
    return out + (fixtures.pack_text(back) if back != text else b"")


def read_strings(path):
    data = open(path, "rb").read()
    at, out = 4, []
    while at < len(data):
        size, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 0x7f) << shift
            shift += 7
            if byte < 0x80:
                break
        out.append(data[at:at + size])
        at += size
    return out


def write_expected(path, tok, strings):
    before, behind = fixtures.around(tok)
    with open(path, "wb") as f:
        f.write(STRIDE.to_bytes(4, "little") + fixtures.pack_text(before)
                + fixtures.pack_text(behind))
        for s in strings[::STRIDE]:
            f.write(fixtures.expectation(tok, s.decode("utf-8", "replace"), before, behind))


def main():
    top = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "data", "tokenizers")
    top = sys.argv[1] if len(sys.argv) > 1 else top
    out = os.path.join(top, "gguf")
    strings = read_strings(os.path.join(top, "strings.bin"))
    corpus = SAMPLES * 3 + ["\n".join(fixtures.code_text().split("\n")[i:i + 8])
                            for i in range(0, 1600, 8)]
    os.makedirs(out, exist_ok=True)
    base = make_base(corpus)
    with open(os.path.join(out, "base.json"), "w", encoding="utf-8") as f:
        json.dump(base, f, ensure_ascii=False, separators=(",", ":"))
    for name, how in PRES.items():
        write_expected(os.path.join(out, name + ".bin"), with_pre(base, *how), strings)
    for name, spec in [("unigram", make_unigram(corpus, False)),
                       ("unigram_bytes", make_unigram(corpus, True)),
                       ("gemma", make_gemma(corpus))]:
        folder = os.path.join(top, name)
        os.makedirs(folder, exist_ok=True)
        text = json.dumps(spec, ensure_ascii=False, separators=(",", ":"))
        with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
            f.write(text)
        write_expected(os.path.join(folder, "expected.bin"), Tokenizer.from_str(text), strings)
    with tempfile.TemporaryDirectory() as folder:
        model = train_pieces(corpus, folder, "bpe", True)
        write_scores(os.path.join(out, "scores.gguf"), model)
        with open(os.path.join(out, "scores.bin"), "wb") as f:
            f.write(STRIDE.to_bytes(4, "little") + fixtures.pack_text("") * 2)
            for s in strings[::STRIDE]:
                f.write(scored(model, s.decode("utf-8", "replace")))
    print(f"{len(PRES)} pre-tokenizers, {len(strings[::STRIDE])} strings each")


if __name__ == "__main__":
    main()
