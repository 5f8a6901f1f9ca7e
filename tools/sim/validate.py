#!/usr/bin/env python3
"""How far the simulator is from measured runs of this machine's engine.

usage: validate.py --model DIR [--moepager PROGRAM] [--rounds 5] [--budgets 100%,50%,25%]
                   [--also "lru --evict lfu:50%" ...] [--log FILE]

A round runs every setting once, so that a slow minute meets each. What the simulator knows of the
machine comes from timelines of two runs of the same round: all experts resident, and profile lru at
--calibrate (35%), which is not among what is predicted. Each number is the time of one thing: a
layer without experts, a group of experts that are computed together, alone, beside a read and just
after it, a read, the step's own work for a load, the way from the end of a read to its computation;
what is outside of layers is that of the step with all experts resident. Profiles with a prediction have two numbers more, from a run at that budget: its time, and its accuracy, from
the share of what was loaded ahead that was used. Then each setting is simulated with the recorded
routing and compared with its run; errors are medians over the rounds.

A run during which other processes (or the machine's host) used more than a tenth of the processors'
time is not counted. With --log, rounds are added to the file and what it holds already is used, so
that a busy machine can be measured in quiet moments: --measure --rounds 1, --rounds 0 in the end.
"""
import argparse
import bisect
import json
import os
import statistics
import subprocess
import sys
import tempfile

LEAST = 0.001  # us: keys that must not be 0


def busy_ticks():
    """Ticks in which a processor worked, those that the host took included."""
    with open('/proc/stat', encoding='ascii') as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4]


def run(command):
    """(JSON of the program, seconds of its processors, seconds that others worked meanwhile)"""
    before = busy_ticks()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        out = process.stdout.read()
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
    if status != 0:
        sys.exit(f'{" ".join(command)}: {errors.decode().strip()}')
    own = usage.ru_utime + usage.ru_stime
    busy = (busy_ticks() - before) / os.sysconf('SC_CLK_TCK')
    return json.loads(out), own, max(0, busy - own)


def line_through(points):
    """(intercept, slope) by least squares; slope 0 if all x are the same."""
    mean_x = statistics.mean(x for x, _ in points)
    mean_y = statistics.mean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0
    return mean_y - slope * mean_x, slope


class Timeline:
    """The events of the last steps of decode."""

    def __init__(self, path, steps):
        with open(path, encoding='utf-8') as file:
            events = [e for e in json.load(file)['traceEvents'] if 'dur' in e]
        events.sort(key=lambda e: e['ts'])
        forwards = [e for e in events if e['name'] == 'forward' and e['args']['tokens'] == 1]
        self.forwards = forwards[-steps:]
        events = [e for e in events if e['ts'] >= self.forwards[0]['ts']]
        self.by_name = {name: [e for e in events if e['name'] == name]
                        for name in ('MoE layer', 'experts', 'demand', 'wait for expert')}
        self.starts = {name: [e['ts'] for e in found] for name, found in self.by_name.items()}

    def within(self, name, span):
        first, last = (bisect.bisect_left(self.starts[name], at)
                       for at in (span['ts'], span['ts'] + span['dur']))
        return self.by_name[name][first:last]

    def whole(self):
        """us: layers of a step without their experts, and the experts of a layer."""
        inner = []
        for forward in self.forwards:
            layers = self.within('MoE layer', forward)
            inner.append(layers[-1]['ts'] + layers[-1]['dur'] - layers[0]['ts'])
        count = len(self.by_name['MoE layer'])
        moe = sum(e['dur'] for e in self.by_name['MoE layer']) / count
        experts = sum(e['dur'] for e in self.by_name['experts']) / count
        layers = count / len(self.forwards)
        between = (statistics.mean(inner) - moe * layers) / (layers - 1) if layers > 1 else 0
        return {'layer': between + moe - experts, 'experts': experts}

    def reading(self):
        """Function: the share of an event during which something was read."""
        merged = []
        for read in self.by_name['demand']:
            start, end = read['ts'], read['ts'] + read['dur']
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        ends = [end for _, end in merged]

        def share(event):
            start, end, both = event['ts'], event['ts'] + event['dur'], 0
            for first, last in merged[bisect.bisect_right(ends, start):]:
                if first >= end:
                    break
                both += min(last, end) - max(first, start)
            return both / event['dur']
        return share

    def parts(self, layers, k):
        """us of single things in layers that load. Of computations medians, because now and then
        one is interrupted; of reads means."""
        before, reads_end, wakes = [], [], []
        there, beside, loaded = {}, {}, {}  # by number of experts: us of groups
        reading = self.reading()
        for at, layer in enumerate(self.by_name['MoE layer']):
            reads, computed = self.within('demand', layer), self.within('experts', layer)
            waits = self.within('wait for expert', layer)
            first = min(e['ts'] for e in computed + waits)
            if (at + 1) % layers or layers == 1:  # the last one predicts nothing
                before.append((len(reads), first - layer['ts']))
            if reads:
                reads_end.append((len(reads), max(e['ts'] + e['dur'] for e in reads) - layer['ts']))
            for event in computed:
                count, share = event['args']['experts'], reading(event)
                hits = event is computed[0] and count == k - len(reads)
                if share < 0.1:
                    (there if hits else loaded).setdefault(count, []).append(event['dur'])
                if share > 0.9 and hits:
                    beside.setdefault(count, []).append(event['dur'])
            for wait in waits:
                end = wait['ts'] + wait['dur']
                ended = [e['ts'] + e['dur'] for e in reads if e['ts'] + e['dur'] <= end]
                then = [e['ts'] for e in computed if e['ts'] >= end]
                if ended and then:
                    wakes.append(then[0] - max(ended))
        begin, issue = line_through(before)
        latency, load = line_through(reads_end)
        group, expert = line_through([(n, statistics.median(us)) for n, us in there.items()
                                      for _ in us])

        def beyond(groups):
            """(us, us as those that are there, experts) of medians, weighted by how often"""
            sums = [(len(us) * statistics.median(us), len(us) * (group + n * expert), len(us) * n)
                    for n, us in groups.items()]
            return [max(1e-9, sum(column)) for column in zip(*sums)] if sums else [1, 1, 1]
        slow, fresh = beyond(beside), beyond(loaded)
        return {'busy': slow[0] / slow[1], 'fresh': (fresh[0] - fresh[1]) / fresh[2],
                'begin': begin, 'issue': issue, 'latency': latency - begin, 'load': load,
                'wake': statistics.mean(wakes) if wakes else 0, 'group': group, 'expert': expert}


def measure(args, flags, budget, model, trace=None):
    """One run; None if others disturbed it."""
    with tempfile.TemporaryDirectory() as folder:
        timeline = f'{folder}/timeline' if budget in ('all', args.calibrate) else None
        command = [args.moepager, 'bench', '--model', args.model, '--json', '--repeat',
                   '2' if budget == 'all' else '1', '--prompt-tokens', str(args.prompt_tokens),
                   '--gen-tokens', str(args.gen_tokens), '--ctx',
                   str(args.prompt_tokens + args.gen_tokens), '--budget',
                   budget, '--threads', str(args.threads), '--io', args.io, '--profile']
        command += flags.split()
        if args.tokens_file:
            command += ['--tokens-file', args.tokens_file]
        if trace:
            command += ['--trace', trace]
        if timeline:
            command += ['--timeline', timeline]
        text, own, others = run(command)
        if others > 0.06 + 0.1 * own and not trace:  # the counter has ticks of 10 ms
            return None
        one = text['runs'][-1]
        counters = one['decode_counters']
        steps = args.gen_tokens - 1
        result = {'tpot': one['tpot_ms'], 'waited': counters['exposed_wait_ns'] / 1e6 / steps,
                  'hits': counters['hits'] / (counters['hits'] + counters['misses']),
                  'used': counters['prefetch_used'] / max(1, counters['prefetch_issued'])}
        if timeline:
            seen = Timeline(timeline, steps)
            result.update(seen.whole() if budget == 'all' else seen.parts(model['layers'], model['top_k']))
        return result


class Log:
    """Rounds of measurements, in memory and in a file of JSON lines."""

    def __init__(self, path):
        self.path = path
        self.rounds = []
        self.disturbed = 0
        if path and os.path.exists(path):
            with open(path, encoding='utf-8') as file:
                for line in file:
                    self.note(json.loads(line))

    def note(self, one):
        while len(self.rounds) <= one['round']:
            self.rounds.append({})
        self.rounds[one['round']][one['flags'], one['budget']] = one

    def add(self, number, flags, budget, one):
        if one is None:
            self.disturbed += 1
            return
        one = {'round': number, 'flags': flags, 'budget': budget, **one}
        self.note(one)
        if self.path:
            with open(self.path, 'a', encoding='utf-8') as file:
                file.write(json.dumps(one) + '\n')


class Simulation:
    """The engine on this machine as a description."""

    def __init__(self, args, model, folder, trace):
        self.args, self.model, self.folder, self.trace = args, model, folder, trace
        self.times = {}

    def run(self, flags, budget, **more):
        machine = {'link_gbps': 1, 'copy_us': 0, 'device_gbps': 1e6, 'device_gflops': 1e7,
                   'launch_us': 0, 'device_gib': 1000, **self.times}
        model = {**self.model, **more}
        for name, values in (('machine', machine), ('model', model)):
            with open(f'{self.folder}/m.{name}', 'w', encoding='utf-8') as file:
                file.writelines(f'{key} {value:.6f}\n' for key, value in values.items())
        row = run([self.args.moepager, 'simulate', '--json', '--machine',
                   f'{self.folder}/m.machine', '--model', f'{self.folder}/m.model', '--from-trace',
                   self.trace, '--budget', budget, '--profile'] + flags.split())[0]['rows'][0]
        row['waited'] = row['tpot_ms'] * row['exposed_wait_share']
        row['used'] = (row['counters']['prefetch_used'] /
                       max(1, row['counters']['prefetch_issued']))
        return row

    def calibrate(self, one, verbose):
        """From the two runs of a round, and for predictions a third one."""
        layers, k = self.model['layers'], self.model['top_k']
        whole, parts = one['lru', 'all'], one['lru', self.args.calibrate]
        together = parts['group'] + k * parts['expert']
        step_us = 1e3 * whole['tpot'] - layers * (whole['layer'] + together)
        self.times = {
            'expert_us': parts['expert'], 'group_us': parts['group'], 'layer_us': whole['layer'],
            'step_us': step_us, 'load_us': parts['load'], 'latency_us': parts['latency'],
            'wake_us': parts['wake'], 'issue_us': parts['issue'], 'fresh_us': parts['fresh']}
        self.times = {key: max(LEAST, us) for key, us in self.times.items()}
        self.times['busy_factor'] = max(1, parts['busy'])
        if verbose:
            print(', '.join(f'{key} {us:.1f}' for key, us in self.times.items()) +
                  f'; {k} experts together {together:.1f}, {whole["experts"]:.1f} where all are there')

    def know_predictions(self, one, flags):
        """How long one takes, and the accuracy with which as much is used as was."""
        lru, ahead = one['lru', self.args.calibrate], one[flags, self.args.calibrate]
        self.times['predict_us'] = max(LEAST, ahead['begin'] - lru['begin'])
        low, high = 0.05, 1.0
        for _ in range(8):
            middle = (low + high) / 2
            used = self.run(flags, self.args.calibrate, accuracy_gate=middle)['used']
            low, high = (middle, high) if used < ahead['used'] else (low, middle)
        self.model['accuracy_gate'] = (low + high) / 2


def predicts(flags):
    return not flags.startswith('lru')


def compare(args, log, simulation, settings):
    """Print a row for each setting; their errors."""
    rows = {setting: [] for setting in settings}
    for one in log.rounds:
        if ('lru', 'all') not in one or ('lru', args.calibrate) not in one:
            continue
        simulation.calibrate(one, args.verbose)
        for flags, budget in settings:
            if (flags, budget) not in one or (predicts(flags) and (flags, args.calibrate) not in one):
                continue
            if predicts(flags):
                simulation.know_predictions(one, flags)
            rows[flags, budget].append((one[flags, budget], simulation.run(flags, budget)))
    errors = []
    print('| profile, budget | measured ms per token | simulated | error | in single rounds | '
          'waited, simulated | hits, simulated |\n|---|--:|--:|--:|--:|--:|--:|')
    for (flags, budget), pairs in rows.items():
        if not pairs:
            continue
        each = sorted(guess['tpot_ms'] / real['tpot'] - 1 for real, guess in pairs)
        errors.append(abs(statistics.median(each)))

        def middle(index, key, rounds=pairs):
            return statistics.median(pair[index][key] for pair in rounds)

        print(f'| {flags}, {budget} | {middle(0, "tpot"):.3f} | {middle(1, "tpot_ms"):.3f} | '
              f'{100 * statistics.median(each):+.1f} % | {100 * each[0]:+.1f} to '
              f'{100 * each[-1]:+.1f} % ({len(each)}) | {middle(0, "waited"):.3f}, '
              f'{middle(1, "waited"):.3f} | {100 * middle(0, "hits"):.1f}, '
              f'{100 * middle(1, "hit_rate"):.1f} % |')
    if not errors:
        sys.exit('no round has a setting and what it is calibrated with')
    print(f'\nmean error {100 * statistics.mean(errors):.1f} %, largest {100 * max(errors):.1f} %')


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--model', required=True)
    parser.add_argument('--moepager', default='build/release/moepager')
    parser.add_argument('--log')
    parser.add_argument('--tokens-file')
    parser.add_argument('--prompt-tokens', type=int, default=64)
    parser.add_argument('--gen-tokens', type=int, default=128)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--measure', action='store_true', help='add to the log, no more')
    parser.add_argument('--verbose', action='store_true', help='what each round calibrates')
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--io', default='auto', help='as for bench: direct, or buffered')
    parser.add_argument('--budgets', default='100%,50%,25%')
    parser.add_argument('--calibrate', default='35%')
    parser.add_argument('--also', action='append', default=[], metavar='FLAGS:BUDGET')
    args = parser.parse_args()
    with open(os.path.join(args.model, 'config.json'), encoding='utf-8') as file:
        config = json.load(file)
    model = {
        'layers': config['num_hidden_layers'],
        'experts': config.get('num_experts', config.get('num_local_experts')),
        'top_k': config['num_experts_per_tok'], 'hidden': config['hidden_size'],
        'expert_ffn': config.get('moe_intermediate_size', config['intermediate_size']),
        'vocabulary': config['vocab_size'], 'attention_params': 1, 'kv_bytes': 0}
    settings = [('lru', b) for b in args.budgets.split(',')]
    settings += [tuple(text.rsplit(':', 1)) for text in args.also]
    needed = [('lru', 'all'), ('lru', args.calibrate)]
    needed += [(flags, args.calibrate) for flags, _ in settings if predicts(flags)]
    log = Log(args.log)

    with tempfile.TemporaryDirectory() as folder:
        trace = f'{args.log}.trace' if args.log else f'{folder}/trace'
        if not os.path.exists(trace):
            measure(args, 'lru', '100%', model, trace)
        for number in range(len(log.rounds), len(log.rounds) + args.rounds):
            for flags, budget in dict.fromkeys(needed + settings):
                log.add(number, flags, budget, measure(args, flags, budget, model))
        if args.measure:
            return
        if args.rounds > 0:
            print(f'{log.disturbed} runs were disturbed and are not counted')
        compare(args, log, Simulation(args, model, folder, trace), settings)


if __name__ == '__main__':
    main()
