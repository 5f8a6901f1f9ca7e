"""moepager from Python: run, bench, replay and plan, each one process of the program `moepager`.

    import moepager

    answer = moepager.run("models/tiny-moe", "sort 5 3 9 1 ->", budget="25%", max_tokens=8)
    print(answer["text"], answer["hit_rate"])

Every function returns what the command prints with --json, as Python's dict. Keywords are the
command's flags and settings, with _ for -: `max_tokens=8` is `--max-tokens 8`, `True` gives the flag
alone, a list is joined by commas, and None or False leaves it out. What the program refuses is raised
as Error, with the code that docs/errors.md explains.

The program is the one of `moepager.program`, or of MOEPAGER_PROGRAM, or the first `moepager` on PATH.
"""
import json
import os
import shutil
import subprocess

__version__ = "0.2.0"
__all__ = ["Error", "bench", "command", "plan", "program", "replay", "run", "simulate"]

program = None  # path of the program; None: MOEPAGER_PROGRAM, or `moepager` on PATH


class Error(Exception):
    """What the program refused, or that it ended otherwise."""

    def __init__(self, message, code, exit_code):
        super().__init__(f"{message} [{code}]" if code else message)
        self.message, self.code, self.exit_code = message, code, exit_code


def _find_program():
    path = program or os.environ.get("MOEPAGER_PROGRAM") or shutil.which("moepager")
    if path is None:
        raise Error("there is no program moepager on PATH; install it, or set moepager.program", "", 127)
    return path


def _value(value):
    if isinstance(value, (list, tuple)):
        return ",".join(_value(part) for part in value)
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _flags(options):
    """As --name=value, so that a text that begins with a dash is still the flag's value."""
    flags = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            flags.append(flag)
        elif value is not None and value is not False:
            flags.append(f"{flag}={_value(value)}")
    return flags


def _refusal(done):
    """The last line of the errors, which is a JSON object unless the program was killed."""
    lines = done.stderr.strip().splitlines()
    try:
        error = json.loads(lines[-1])["error"]
        return Error(error["message"], error["code"], done.returncode)
    except (IndexError, KeyError, TypeError, ValueError):
        said = lines[-1] if lines else "nothing said"
        return Error(f"moepager ended with {done.returncode}: {said}", "", done.returncode)


def command(name, *arguments, timeout=None, **options):
    """Any command that knows --json: `command("info", model="models/tiny-moe")`."""
    words = [_find_program(), name, *(_value(argument) for argument in arguments), *_flags(options), "--json"]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout,
                              check=False, encoding="utf-8", errors="replace")
    except OSError as error:
        raise Error(f"cannot start {words[0]}: {error.strerror}", "", 127) from error
    if done.returncode != 0:
        raise _refusal(done)
    return json.loads(done.stdout)


def run(model, prompt, **options):
    """Continue a prompt: "text", "tokens", and the report (docs/architecture.md, The report)."""
    return command("run", model=model, prompt=prompt, **options)


def bench(model, **options):
    """Measure: "median" and "runs"."""
    return command("bench", model=model, **options)


def plan(model, **options):
    """What the machine can do with a model, simulated: "rows" by budget, "gpus" (docs/simulate.md)."""
    return command("plan", model=model, **options)


def replay(trace, **options):
    """Compare policies on a trace: "rows" by policy and budget (docs/replay.md)."""
    return command("replay", trace, **options)


def simulate(machine, model, **options):
    """A described model on a described machine: "rows" (docs/simulate.md)."""
    return command("simulate", machine=machine, model=model, **options)
