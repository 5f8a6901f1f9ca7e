#!/usr/bin/env python3
"""How much faster than each paper's profile any policy could be, in the cells of papers_gate.py.

    tools/sim/papers_bound.py [--program build/release/moepager]

An offline oracle knows all routing beforehand. It computes on CPU and device and loads as the machine
can, starts decode with any experts it likes, always knows what to load next, and need not wait for a
load. What it takes is a lower bound of what any policy takes with that routing, `auto`'s:

    T = attention, head, ... + sum over layers of m
    m >= shared experts + what the device computes in the layer
    m >= hand-off + what the CPU computes in the layer
    T >= loads * time of a load                     (the link works all the time, also between layers)
    loads + uses that the CPU computes >= misses    (Belady's MIN with bypass, over all layers)

The CPU may have the experts with fewest tokens of each layer, whether or not they are absent, and the
device those that it is quickest with. With a price p for each miss that the link serves,

    max over p of  (1 - p / load) * min over m (T - ...) + p * misses

is a lower bound (weak duality), whatever p is. Where all experts of a layer are needed in every step
another one is closer, which knows how many tokens each has: least_time_by_tokens(). The larger counts.

"Divided": the same with as many misses as `auto` had: what another division of the work could gain,
with nothing known beforehand. Its loads, also those ahead but for wrong ones, and the uses that the CPU
computes are the misses.
"""
import argparse
import collections
import heapq
import os
import sys
import tempfile

import papers_gate

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..')
FFN_KERNELS, ATTENTION_KERNELS = 3, 10


def read_description(name):
    """Numbers of tools/machines/NAME; what is not given is 0."""
    numbers = collections.defaultdict(float)
    with open(os.path.join(TOOLS, 'machines', name), encoding='utf-8') as file:
        for line in file:
            words = line.split('#')[0].split()
            if words:
                numbers[words[0]] = float(words[1])
    return numbers


class Costs:
    """Times in us, as policy/sim/sim_machine.c has them."""

    def __init__(self, machine, model):
        self.machine = read_description(machine + '.machine')
        self.model = read_description(model + '.model')
        for key in ('expert_bits', 'weight_bits'):
            self.model[key] = self.model[key] or 16
        self.machine['copies'] = self.machine['copies'] or 3
        self.weights = 3 * self.model['hidden'] * self.model['expert_ffn']
        self.bytes = self.weights * self.model['expert_bits'] / 8

    def work(self, weights, bits, tokens, speed):
        machine = self.machine
        return max(weights * bits / 8 / (machine[speed] * 1e3),
                   2 * weights * tokens / (machine['device_gflops'] * 1e3))

    def load(self):
        return self.machine['copy_us'] * self.machine['copies'] + self.bytes / (
            self.machine['link_gbps'] * 1e3)

    def fetch(self):
        """The least time of the link for an absent expert that the device computes."""
        if self.machine['in_place_gbps']:
            return min(self.load(), self.device(1, 'in_place_gbps'))
        return self.load()

    def device(self, tokens, speed='device_gbps'):
        return FFN_KERNELS * self.machine['launch_us'] + self.work(
            self.weights, self.model['expert_bits'], tokens, speed)

    def cpu(self, tokens):
        return (self.machine['cpu_start_us'] + self.bytes / (self.machine['cpu_gbps'] * 1e3) +
                2 * self.weights * tokens / (self.machine['cpu_gflops'] * 1e3))

    def layer(self, tokens, context):
        """Attention and router."""
        machine, model = self.machine, self.model
        cache = tokens * context * model['kv_bytes'] / (machine['device_gbps'] * 1e3)
        scores = 4 * tokens * context * model['hidden'] / (machine['device_gflops'] * 1e3)
        return ATTENTION_KERNELS * machine['launch_us'] + max(cache, scores) + self.work(
            model['attention_params'] + model['hidden'] * model['experts'], model['weight_bits'],
            tokens, 'device_gbps')

    def ffn(self, width, tokens):
        if width <= 0:
            return 0
        return FFN_KERNELS * self.machine['launch_us'] + self.work(
            3 * self.model['hidden'] * width, self.model['weight_bits'], tokens, 'device_gbps')

    def head(self, tokens):
        return self.machine['launch_us'] + self.work(
            self.model['vocabulary'] * self.model['hidden'], self.model['weight_bits'], tokens,
            'device_gbps')


def read_routing(path):
    """Of each step of decode the layers, and of each the tokens of every expert that is needed."""
    steps = {}
    with open(path, encoding='ascii') as file:
        for line in file:
            if line.startswith('#'):
                continue
            step, layer, _, _, *pairs = line.split()
            if int(step) > 0:
                chosen = steps.setdefault(int(step), {}).setdefault(int(layer),
                                                                    collections.Counter())
                chosen.update(int(pair.split(':')[0]) for pair in pairs)
    return [[steps[s][l] for l in sorted(steps[s])] for s in sorted(steps)]


def least_misses(steps, slots):
    """
    Belady's MIN with bypass, of all layers together and with free contents at the start: an expert
    is kept from one use to the next if so many slots are free in between (greedy, by the end of the
    interval; optimal, as all weigh the same).
    """
    never = float('inf')
    uses = [(s * len(step) + l, (l, e)) for s, step in enumerate(steps)
            for l, chosen in enumerate(step) for e in chosen]
    last = {}
    following = [never] * len(uses)
    for i in range(len(uses) - 1, -1, -1):
        following[i] = last.get(uses[i][1], never)
        last[uses[i][1]] = uses[i][0]
    # Free contents: those that are needed first.
    held = {unit: at for unit, at in sorted(last.items(), key=lambda item: item[1])[:slots]}
    heap = [(-at, unit) for unit, at in held.items()]
    heapq.heapify(heap)
    misses = 0
    for (_, unit), after in zip(uses, following):
        misses += held.pop(unit, None) is None
        if after < never:
            held[unit] = after
            heapq.heappush(heap, (-after, unit))
        while len(held) > slots:
            at, worst = heapq.heappop(heap)
            if held.get(worst) == -at:
                del held[worst]
    return misses


def choices(costs, chosen):
    """What the layer takes at least if the CPU computes 0, 1, ... of its experts: m(x)."""
    tokens = sorted(chosen.values())
    shared = costs.ffn(costs.model['shared_ffn'], sum(tokens) / costs.model['top_k'])
    device = [costs.device(n) for n in tokens]
    home, cpu = shared + sum(device), 0
    yield home
    if costs.machine['cpu_gflops'] <= 0:
        return
    for n, saved in zip(tokens, sorted(device, reverse=True)):
        home -= saved
        cpu = (cpu or costs.machine['handoff_us']) + costs.cpu(n)
        yield max(home, cpu)


def fixed_time(costs, steps, batch, prompt):
    """What nobody can take from the device."""
    fixed = 0
    for s, step in enumerate(steps):
        layer = costs.layer(batch, prompt + s + 1)
        fixed += len(step) * layer + costs.head(batch)
        fixed += costs.model['dense_layers'] * (layer + costs.ffn(costs.model['dense_ffn'], batch))
    return fixed


def least_time(costs, steps, batch, prompt, misses):
    """The bound by the number of misses."""
    fixed = fixed_time(costs, steps, batch, prompt)
    layers = [list(choices(costs, chosen)) for step in steps for chosen in step]
    load = costs.fetch()

    def bound(price):
        worth = price / (1 - price / load)
        sum_of_m = sum(min(m - worth * x for x, m in enumerate(times)) for times in layers)
        return (1 - price / load) * (fixed + sum_of_m) + price * misses

    return highest(bound, 0, load * (1 - 1e-9))


def least_time_by_tokens(costs, steps, batch, prompt, slots):
    """
    The bound by what is gained: with shares a and b,

        T >= (1 - a) * (... + sum of b * CPU + (1 - b) * device) + a * loads * time of a load

    so a use that is no hit costs at least v more, and of the experts that a step needs no more than
    `slots` were there when it began.
    """
    fixed = fixed_time(costs, steps, batch, prompt)
    shared = costs.ffn(costs.model['shared_ffn'], batch) * sum(len(step) for step in steps)
    counts = [[n for chosen in step for n in chosen.values()] for step in steps]
    times = {n: (costs.cpu(n) if costs.machine['cpu_gflops'] > 0 else float('inf'),
                 costs.device(n)) for n in set(sum(counts, []))}
    fetch = costs.fetch()

    def bound(a, b):
        total = (1 - a) * (fixed + (1 - b) * shared)
        miss, gain = {}, {}
        for n, (cpu, device) in times.items():
            there = (1 - a) * (1 - b) * device
            miss[n] = min((1 - a) * b * cpu, there + a * fetch)
            gain[n] = miss[n] - min(miss[n], there)
        for step in counts:
            total += sum(miss[n] for n in step)
            total -= sum(sorted((gain[n] for n in step), reverse=True)[:slots])
        return total

    return max(highest(lambda a, b=b: bound(a, b), 0, 1) for b in (0.8, 0.9, 0.95, 1))


def highest(function, low, high):
    """The largest value of a concave function."""
    for _ in range(60):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (a, high) if function(a) < function(b) else (low, b)
    return function(low)


def served(costs, row):
    """How many uses were loaded for, in time or not, or computed by the CPU."""
    counters = row['counters']
    loaded = counters['load_bytes'] + counters['prefetch_bytes'] - counters['prefetch_unused_bytes']
    return loaded / costs.bytes + counters['elsewhere']


def bound_of(program, machine, model, batch, words):
    """auto's row, offline hits, and ms of a step: of the oracle, and of `auto`'s work divided best."""
    costs = Costs(machine, model)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'routing')
        row = papers_gate.row_of(program, machine, model, batch,
                                 ('--profile', 'auto', '--trace-out', path, *words))
        steps = read_routing(path)
    misses = least_misses(steps, row['slots'])
    needs = sum(len(chosen) for step in steps for chosen in step)
    prompt = int(words[words.index('--prompt-tokens') + 1])
    least = max(least_time(costs, steps, batch, prompt, misses),
                least_time_by_tokens(costs, steps, batch, prompt, row['slots']))
    divided = least_time(costs, steps, batch, prompt, served(costs, row))
    return row, 1 - misses / needs, least / 1e3 / len(steps), divided / 1e3 / len(steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--program', default='build/release/moepager')
    parser.add_argument('--all', action='store_true', help='also where auto is fast enough')
    args = parser.parse_args()
    print('| profile | machine | model | batch | its ms | auto ms | hit % | hit %, offline | bound ms '
          '| at most | divided ms | at most |\n|---|---|---|---|---|---|---|---|---|---|---|---|')
    for profile, own, machine, model, batches, words in papers_gate.CELLS:
        if profile == 'moepic':  # has parts of experts
            continue
        for batch in batches:
            row, offline, least, divided = bound_of(args.program, machine, model, batch, words)
            its = papers_gate.row_of(args.program, machine, model, batch,
                                     ('--profile', profile, *own, *words))['tpot_ms']
            if args.all or its < papers_gate.WANTED * row['tpot_ms']:
                print(f"| `{profile}` | {machine} | {model} | {batch} | {its:.2f} | "
                      f"{row['tpot_ms']:.2f} | {100 * row['hit_rate']:.1f} | {100 * offline:.1f} | "
                      f"{least:.2f} | {its / least:.2f}x | {divided:.2f} | "
                      f"{its / divided:.3f}x |", flush=True)


if __name__ == '__main__':
    sys.exit(main())
