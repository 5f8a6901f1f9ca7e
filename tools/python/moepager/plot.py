#!/usr/bin/env python3
"""Draws what moepager writes. Needs matplotlib.

usage: moepager plot hits [FILE.csv] [--out OUT.svg] [--title TEXT]
       moepager plot heat TRACE [...]
       moepager plot timeline TIMELINE.json [...]
       moepager plot speed FILE.json... [...]

hits      hit rate in decode against budget, of what `moepager replay --csv` prints (default: standard
          input): one line for each policy or profile and each partition, dashed the bound
heat      how often each expert of each layer was chosen, of a trace (`--trace`)
timeline  where the time went, of a timeline (`--timeline`): for each track, its spans by name
speed     tokens per second against budget: a line for each `moepager plan --json`, a point for each
          `moepager bench --json` or `run --json`

The end of OUT's name says the format (default: KIND.svg). Rows without numbers are left out.
"""
import argparse
import csv
import json
import sys
from collections import defaultdict
from pathlib import Path

SCALES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
NAMES_MAX = 12


class Refused(Exception):
    """What is wrong with the input, for one line."""


# ---- reading

def lines_of(rows):
    """{name: {budget in bytes: hit rate in percent}}, bounds last."""
    measured, bounds = defaultdict(dict), defaultdict(dict)
    for row in rows:
        if not row.get("hit_rate_decode"):
            continue
        name = "/".join(part for part in (row["profile"], row["evict"]) if part)
        budget = int(row["budget_bytes"])
        measured[f"{name}, {row['partition']}"][budget] = 100 * float(row["hit_rate_decode"])
        bounds[f"bound, {row['partition']}"][budget] = 100 * float(row["bound_hit_rate_decode"])
    if not measured:
        raise Refused("no row with a hit rate; need what moepager replay --csv prints")
    return {**measured, **bounds}


def heat_of(lines):
    """How often each expert was chosen: a list for each layer."""
    lines = iter(lines)
    if next(lines, "").rstrip("\n") != "# moepager trace v1":
        raise Refused("not a trace; its first line is '# moepager trace v1'")
    shape = dict(word.split("=", 1) for word in next(lines, "").split() if "=" in word)
    try:
        heat = [[0] * int(shape["experts"]) for _ in range(int(shape["layers"]))]
        for line in lines:
            if line.startswith("#"):
                continue
            fields = line.split(" |", 1)[0].split()
            for choice in fields[4:]:
                heat[int(fields[1])][int(choice.split(":", 1)[0])] += 1
    except (KeyError, ValueError, IndexError) as error:
        raise Refused(f"not a trace (docs/trace-format.md): {error}") from error
    return heat


def busy_of(timeline):
    """{track: {name of spans: seconds}} and the seconds from the first to the last event."""
    events = timeline.get("traceEvents", []) if isinstance(timeline, dict) else []
    tracks = {e["tid"]: e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    busy = defaultdict(lambda: defaultdict(float))
    first, last = float("inf"), float("-inf")
    for event in events:
        if event.get("ph") != "X":
            continue
        busy[tracks.get(event["tid"], str(event["tid"]))][event["name"]] += event["dur"] * 1e-6
        first, last = min(first, event["ts"]), max(last, event["ts"] + event["dur"])
    if not busy:
        raise Refused("no spans; need what --timeline writes")
    return {track: dict(names) for track, names in busy.items()}, (last - first) * 1e-6


def speed_of(report):
    """(label, {budget in bytes: tokens per second}, planned?) of one JSON report."""
    if not isinstance(report, dict):
        report = {}
    if "rows" in report:
        points = {row["budget_bytes"]: row["tokens_per_s"] for row in report["rows"] if row["possible"]}
        label = f"plan: {Path(report['model']).name} on {report['machine']}, {report['routing']} routing"
        return label, points, True
    if "runs" in report:  # of bench
        report = report["runs"][report["median"]["run"]]
    if "tokens_per_s" not in report or "budget_bytes" not in report:
        raise Refused("neither what plan --json prints nor what bench --json or run --json does")
    profile = report.get("policies", {}).get("profile", "")
    return f"measured {profile}".strip(), {report["budget_bytes"]: report["tokens_per_s"]}, False


def scale_of(budgets):
    """Bytes in the unit of which the largest budget is a handy number, and the unit."""
    return next((scale for scale in SCALES if max(budgets) >= 4 * scale[0]), SCALES[-1])


# ---- drawing

def draw_lines(axes, lines, dashed, ylabel):
    """Lines and points against budget; `dashed` says which have no marks."""
    unit, name = scale_of([budget for line in lines.values() for budget in line])
    for label, points in lines.items():
        plain = dashed(label)
        single = len(points) == 1
        axes.plot([budget / unit for budget in sorted(points)], [points[b] for b in sorted(points)],
                  label=label, linestyle=":" if plain else "none" if single else "-",
                  marker=None if plain and not single else "o", color="black" if plain else None)
    axes.set(xlabel=f"budget, {name}", ylabel=ylabel, xlim=(0, None), ylim=(0, None))
    axes.grid(alpha=0.3)
    put_legend(axes)


def put_legend(axes):
    """Right of the axes: "outside" as a location is known from matplotlib 3.7 on, Debian 12 has 3.6."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)


def draw_hits(axes, args):
    with open_text(args.files[0] if args.files else "-") as file:
        lines = lines_of(csv.DictReader(file))
    draw_lines(axes, lines, lambda label: label.startswith("bound, "), "hit rate in decode, percent")
    axes.set_ylim(0, 100)


def draw_heat(axes, args):
    with open_text(args.files[0]) as file:
        heat = heat_of(file)
    image = axes.imshow(heat, aspect="auto", interpolation="nearest", cmap="magma", vmin=0)
    axes.set(xlabel="expert", ylabel="MoE layer")
    axes.figure.colorbar(image, label="times chosen")


def draw_timeline(axes, args):
    busy, whole = busy_of(read_json(args.files[0]))
    spans = defaultdict(float)
    for names in busy.values():
        for name, seconds in names.items():
            spans[name] += seconds
    shown = sorted(spans, key=spans.get, reverse=True)[:NAMES_MAX]
    tracks = sorted(busy, key=lambda track: -sum(busy[track].values()))
    left = [0.0] * len(tracks)
    for name in shown:
        widths = [busy[track].get(name, 0) for track in tracks]
        axes.barh(tracks, widths, left=left, label=name)
        left = [a + b for a, b in zip(left, widths)]
    axes.axvline(whole, color="black", linestyle=":", label="from begin to end")
    axes.invert_yaxis()
    axes.set(xlabel="seconds in spans (those inside of others count, too)")
    put_legend(axes)


def draw_speed(axes, args):
    lines, planned = {}, set()
    for file in args.files:
        try:
            label, points, is_plan = speed_of(read_json(file))
        except (Refused, ValueError) as error:
            raise Refused(f"{file}: {error}") from error
        lines.setdefault(label, {}).update(points)
        planned |= {label} if is_plan else set()
    draw_lines(axes, lines, lambda label: label in planned, "tokens per second in decode")


KINDS = {"hits": draw_hits, "heat": draw_heat, "timeline": draw_timeline, "speed": draw_speed}


# ---- the command

def open_text(path):
    return open(0 if path == "-" else path, encoding="utf-8", errors="replace", closefd=path != "-")


def read_json(path):
    with open_text(path) as file:
        return json.load(file)


def load_pyplot():
    try:
        import matplotlib
    except ImportError:
        raise Refused("needs matplotlib; install python3-matplotlib (apt) or matplotlib (pip)") from None
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "moepager"  # the same picture has the same bytes
    from matplotlib import pyplot
    return pyplot


def draw(args):
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    KINDS[args.kind](axes, args)
    axes.set_title(args.title if args.title is not None else f"moepager plot {args.kind}")
    out = args.out or f"{args.kind}.svg"
    figure.savefig(out, metadata={"Date": None} if out.endswith(".svg") else None)
    pyplot.close(figure)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="moepager plot", usage=__doc__)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("files", nargs="*")
    parser.add_argument("--out")
    parser.add_argument("--title")
    args = parser.parse_args(argv)
    if not args.files and args.kind != "hits":
        parser.error(f"{args.kind} needs a file")
    if len(args.files) > 1 and args.kind != "speed":
        parser.error(f"{args.kind} takes one file")
    try:
        draw(args)
    except OSError as error:
        sys.exit(f"moepager plot: cannot open '{error.filename or args.out}': {error.strerror}")
    except (Refused, KeyError, TypeError, ValueError) as error:
        where = args.files[0] if len(args.files) == 1 else "standard input" if not args.files else ""
        sys.exit(f"moepager plot: {where}{': ' if where else ''}{error}")


if __name__ == "__main__":
    main()
