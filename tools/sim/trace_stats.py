#!/usr/bin/env python3
"""Skew, its spread and overlap of the decode steps of routing traces, as in docs/simulate.md.

usage: trace_stats.py TRACE...    ours (docs/trace-format.md) or route_trace v1
"""
import collections
import statistics
import sys


def read_ours(lines):
    """{(layer, sequence): [experts of each token]}, decode only; number of experts."""
    rows = collections.defaultdict(list)
    shape = dict(word.split('=', 1) for word in lines[1].split() if '=' in word)
    for line in lines[3:]:
        words = line.split(' | ')[0].split()
        if words[0] != '0':
            rows[int(words[1]), int(words[2])].append([int(w.split(':')[0]) for w in words[4:]])
    return rows, int(shape['experts'])


def read_csv(lines):
    rows = collections.defaultdict(list)
    shape = dict(word.split('=', 1) for word in lines[1].split() if '=' in word)
    for line in lines:
        values = line.split(',')
        if line[0] == '#' or values[0] == 'turn' or values[1] != '1':
            continue
        where = rows[int(values[3]), 0]
        if values[4] == '0':
            where.append([])
        where[-1].append(int(values[5]))
    return rows, int(shape['n_expert'])


def main(paths):
    for path in paths:
        with open(path, encoding='utf-8') as file:
            lines = file.read().splitlines()
        rows, experts = (read_csv if lines[0].startswith('# route_trace') else read_ours)(lines)
        counts = collections.defaultdict(collections.Counter)
        overlaps = []
        for (layer, _), tokens in rows.items():
            for token in tokens:
                counts[layer].update(token)
            overlaps += [len(set(a) & set(b)) / len(b) for a, b in zip(tokens, tokens[1:])]
        skews = [sum(n for _, n in count.most_common((experts + 3) // 4)) / sum(count.values())
                 for count in counts.values()]
        print(f'{path}: skew {statistics.mean(skews):.3f} ({min(skews):.3f} to {max(skews):.3f} '
              f'by layer, spread {statistics.pstdev(skews):.3f}), overlap {statistics.mean(overlaps):.3f}, '
              f'{sum(map(len, rows.values())) // len(counts)} tokens')


if __name__ == '__main__':
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
