"""Mutants that nobody wrote down: small changes of the sources, picked by chance.

A site is a place where one token can be another one: a comparison, && or ||, + 1 or - 1, a small
number. Sites are ordered by a hash of the seed and of what stands there, not by where it stands, so
a sample changes little when sources change or move. Files are known by their names without folders.

  tests.txt        which tests judge a source
  equivalent.txt   mutants that cannot be noticed, each with the reason
"""
import fnmatch
import hashlib
import re
from collections import namedtuple
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDERS = ("policy/", "engine/", "vmm/", "kernels/", "interpose/")
NOT_OURS = ("kernels/cuda/",)  # not what runs on the CPU

Site = namedtuple("Site", "path line column old new text")

SWAP = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&",
        "+ 1": "+ 0", "- 1": "- 0"}
TOKEN = re.compile(r"""
    (?P<skip>->|<<=?|>>=?|\+\+|--|[A-Za-z_]\w*|0[xX][0-9a-fA-F.]+[pP]?[-+\w]*)
  | (?P<step>[-+][ ]1\b(?![.\w]))
  | (?P<operator><=|>=|==|!=|&&|\|\||<|>)
  | (?P<real>(?:\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)[fF]?)
  | (?P<whole>\d+)
""", re.VERBOSE)
# What these tests do not notice: checks of ourselves, texts, sizes of names and buffers, and what
# becomes of calls that fail; each of them is made to fail by a sweep that takes too long here.
PASS_OVER = re.compile(r"mp_assert|mp_unreachable|_Static_assert|mp_log_|mp_fail|MP_OPT|__attribute__"
                       r"|^\s*#(?!define)|^\s*(static )?(const )?char \w+\[|_Pragma|prefetch\("
                       r"|MP_OK|[!=]= NULL|free\(|alloc\(|errno|mp_arena_take\(|MP_DEBUG_CHECKS")
MOST = 1024  # greater numbers are sizes, masks and limits of formats


def blank(text):
    """The source with comments and literals replaced by blanks of the same length."""
    parts = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
    return parts.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def change_of(match, line):
    """What stands there instead, or None."""
    token = match[0]
    if match.lastgroup in ("step", "operator"):
        return SWAP[token]
    if match.lastgroup == "real":
        factor = "1.125f" if token[-1] in "fF" else "1.125"
        return f"({token} * {factor})" if float(token.rstrip("fF")) != 0 else None
    if match.lastgroup != "whole" or int(token) > MOST or "[" + token + "]" in line:
        return None
    if re.search(r"[{,=]\s*$", line[:match.start()]) and token == "0":
        return None  # an initialiser that says nothing
    return str(int(token) + 1)


def sites_of(path, text):
    lines = text.split("\n")
    for number, line in enumerate(blank(text).split("\n")):
        if PASS_OVER.search(line):
            continue
        for match in TOKEN.finditer(line):
            new = change_of(match, line)
            if new is not None:
                whole = lines[number]
                shown = f"{whole[:match.start()]}[{match[0]}]{whole[match.end():]}"
                yield Site(path, number, match.start(), match[0], new, " ".join(shown.split()))


def sources(root, names):
    for name in sorted(names):
        if name.startswith(FOLDERS) and not name.startswith(NOT_OURS) and \
                (name.endswith(".c") or name.startswith("kernels/")) and name.endswith((".c", ".h")):
            yield name, (root / name).read_text()


def read_lines(name):
    lines = (HERE / name).read_text().split("\n")
    return [line for line in lines if line.strip() and not line.startswith("#")]


def name_of(site):
    return f"{Path(site.path).name}: {site.text}: becomes '{site.new}'"


def equivalents():
    return {line.partition("  -- ")[0].strip() for line in read_lines("equivalent.txt")}


def fits(path, pattern):
    """Does the pattern fit the last parts of the path, or name a folder that it is in?"""
    if pattern.endswith("/*"):
        return path.startswith(pattern[:-1])
    parts, wanted = path.split("/"), pattern.split("/")
    return len(parts) >= len(wanted) and all(
        fnmatch.fnmatch(*pair) for pair in zip(parts[-len(wanted):], wanted))


def words_of(path):
    """What stands behind the first pattern that fits."""
    for line in read_lines("tests.txt"):
        pattern, *words = line.split()
        if fits(path, pattern):
            return words
    raise SystemExit(f"tests.txt: no test for {path}; add a line with its name")


def only_tests(words):
    return [word for word in words if not word.startswith("if:")]


def all_tests():
    return [only_tests(line.split()[1:]) for line in read_lines("tests.txt")]


def tests_of(path):
    """Names of tests without folders."""
    return only_tests(words_of(path))


def runs_here(path):
    """Has this processor the instructions that the source is for?"""
    have = set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text()))
    return all(word[3:] in have for word in words_of(path) if word.startswith("if:"))


def choose(root, names, count, seed, only):
    """`count` mutants of the sources whose names or paths fit `only`, which have tests."""
    known = equivalents()
    sites, seen = [], {}
    for path, text in sources(root, names):
        if not fits(path, only) or not tests_of(path):
            continue
        for site in sites_of(path, text):
            name = name_of(site)
            seen[name] = seen.get(name, 0) + 1
            if name not in known:
                key = hashlib.sha256(f"{seed} {name} {seen[name]}".encode()).digest()
                sites.append((key, site))
    return [site for _, site in sorted(sites)[:count]]


def mutate(text, site):
    lines = text.split("\n")
    line = lines[site.line]
    lines[site.line] = line[:site.column] + site.new + line[site.column + len(site.old):]
    return "\n".join(lines)
