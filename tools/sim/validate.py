#!/usr/bin/env python3
"""How far the simulator is from measured runs of this machine's engine.

usage: validate.py --model DIR [--moepager PROGRAM] [--runs 9] [--budgets 15%,25%,35%,50%,75%]
                   [--also "lru --evict lfu:50%" ...] [--log FILE]

Calibrates with three budgets of profile lru: all experts resident gives the time of a layer and of
an expert; the first and the last budget of the list give, by what they waited, the time of a load
and its latency, and by the rest what a load adds to computing. The other budgets, and other
profiles (--also FLAGS:BUDGET), are then simulated with the recorded routing and compared with the
median of their runs. Nothing is fitted to those. The quartiles of the measured runs are printed
beside, so that an error can be told from the spread of the machine itself.

Rounds go over all settings, so that a slow minute meets each. A run during which other processes
(or the machine's host) used more than a tenth of the processors' time is not counted.
With --log, measurements are added to the file and what it holds already is used, so that a busy
machine can be measured in quiet moments: --measure --runs 1 now and then, --runs 0 in the end.
"""
import argparse
import bisect
import json
import os
import statistics
import subprocess
import sys
import tempfile


EXPERTS_PART = 0.8  # of a MoE layer's time that its experts take; hardly matters


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


def layer_times(path):
    """(us of a MoE layer of decode without loads, more with any, more with each), least squares."""
    with open(path, encoding='utf-8') as file:
        events = json.load(file)['traceEvents']
    reads = sorted(event['ts'] for event in events if event['name'] == 'demand')
    layers = [event for event in events
              if event['name'] == 'MoE layer' and event['args']['tokens'] == 1]
    by_loads = {}
    for layer in layers:
        loads = (bisect.bisect(reads, layer['ts'] + layer['dur']) -
                 bisect.bisect(reads, layer['ts']))
        by_loads.setdefault(loads, []).append(layer['dur'])
    points = [(n, us) for n, all_us in by_loads.items() if n > 0 for us in all_us]
    mean_n = statistics.mean(n for n, _ in points)
    mean_us = statistics.mean(us for _, us in points)
    each = (sum((n - mean_n) * (us - mean_us) for n, us in points) /
            sum((n - mean_n) ** 2 for n, _ in points))
    none = statistics.mean(by_loads[0])
    return none, mean_us - each * mean_n - none, each


def measure(args, flags, budget, trace=None, timeline=None):
    """Milliseconds per token of decode, all and waited; None if others disturbed the run."""
    command = [args.moepager, 'bench', '--model', args.model, '--json', '--repeat', '1',
               '--prompt-tokens', str(args.prompt), '--gen-tokens', str(args.gen), '--budget',
               budget, '--threads', str(args.threads), '--io', args.io, '--profile'] + flags.split()
    if args.tokens_file:
        command += ['--tokens-file', args.tokens_file]
    if trace:
        command += ['--trace', trace]
    if timeline:
        command += ['--timeline', timeline]
    text, own, others = run(command)
    if others > 0.06 + 0.1 * own:  # the counter has ticks of 10 ms
        return None
    one = text['runs'][0]
    counters = one['decode_counters']
    waited = counters['exposed_wait_ns'] / 1e6 / (args.gen - 1)
    result = {'tpot': one['tpot_ms'], 'waited': waited,
              'loads': counters['loads'] / (args.gen - 1),
              'hits': counters['hits'] / (counters['hits'] + counters['misses'])}
    if timeline:
        result['layer'], result['any'], result['each'] = layer_times(timeline)
    return result


class Log:
    """Measurements by setting, in memory and in a file of JSON lines."""

    def __init__(self, path):
        self.path = path
        self.runs = {}
        self.disturbed = 0
        if path and os.path.exists(path):
            with open(path, encoding='utf-8') as file:
                for line in file:
                    one = json.loads(line)
                    self.runs.setdefault((one['flags'], one['budget']), []).append(one)

    def add(self, flags, budget, one):
        if one is None:
            self.disturbed += 1
            return
        one = {'flags': flags, 'budget': budget, **one}
        self.runs.setdefault((flags, budget), []).append(one)
        if self.path:
            with open(self.path, 'a', encoding='utf-8') as file:
                file.write(json.dumps(one) + '\n')

    def median(self, flags, budget, key):
        return statistics.median(one[key] for one in self.runs[flags, budget])


class Simulation:
    """The engine on this machine as a description whose times are being looked for."""

    def __init__(self, args, config, folder, trace):
        self.args, self.folder, self.trace = args, folder, trace
        self.times = {}
        self.model = {
            'layers': config['num_hidden_layers'],
            'experts': config.get('num_experts', config.get('num_local_experts')),
            'top_k': config['num_experts_per_tok'], 'hidden': config['hidden_size'],
            'expert_ffn': config.get('moe_intermediate_size', config['intermediate_size']),
            'vocabulary': config['vocab_size'], 'attention_params': 1, 'kv_bytes': 0,
            'accuracy_gate': args.accuracy_gate}

    def run(self, flags, budget):
        machine = {'link_gbps': 1, 'copy_us': 0, 'device_gbps': 1e6, 'device_gflops': 1e7,
                   'launch_us': 0, 'device_gib': 1000, **self.times}
        for name, values in (('machine', machine), ('model', self.model)):
            with open(f'{self.folder}/m.{name}', 'w', encoding='utf-8') as file:
                file.writelines(f'{key} {value:.6f}\n' for key, value in values.items())
        row = run([self.args.moepager, 'simulate', '--json', '--machine',
                   f'{self.folder}/m.machine', '--model', f'{self.folder}/m.model', '--trace',
                   self.trace, '--budget', budget, '--profile'] + flags.split())[0]['rows'][0]
        row['waited'] = row['tpot_ms'] * row['exposed_wait_share']
        return row

    def calibrate(self, log, budget):
        """From all experts resident and the layers at one budget."""
        layers, k = self.model['layers'], self.model['top_k']
        layer, first, each = (log.median('lru', budget, key) for key in ('layer', 'any', 'each'))
        loads = log.median('lru', 'all', 'loads')
        whole_us = 1e3 * log.median('lru', 'all', 'tpot') - loads * (first + each)
        expert_us = EXPERTS_PART * min(layer, whole_us / layers) / k
        # Without loads all experts are computed after the router, with loads one after the last.
        latency_us = max(0.001, first + (k - 1) * expert_us)
        self.times = {'expert_us': expert_us, 'layer_us': whole_us / layers - k * expert_us,
                      'load_us': max(0.001, each), 'latency_us': latency_us}
        print(f'calibrated with all and {budget}: {whole_us / 1e3:.3f} ms of computation per token; '
              f'a load: {latency_us:.0f} us before it, {each:.0f} us')


def compare(log, simulation, flags, budget):
    """Print one row; the error."""
    guess = simulation.run(flags, budget)
    tpots = sorted(one['tpot'] for one in log.runs[flags, budget])
    middle, quarter = statistics.median(tpots), len(tpots) // 4
    error = guess['tpot_ms'] / middle - 1
    print(f'{flags:>24} {budget:>4}: measured {middle:8.3f} ms per token (half of {len(tpots)} runs '
          f'{tpots[quarter]:.3f} to {tpots[-1 - quarter]:.3f}), simulated {guess["tpot_ms"]:8.3f}, '
          f'error {100 * error:+6.1f} %; waited {log.median(flags, budget, "waited"):.3f}, '
          f'{guess["waited"]:.3f}; hits {100 * log.median(flags, budget, "hits"):.1f}, '
          f'{100 * guess["hit_rate"]:.1f} %')
    return error


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--model', required=True)
    parser.add_argument('--moepager', default='build/release/moepager')
    parser.add_argument('--log')
    parser.add_argument('--tokens-file')
    parser.add_argument('--prompt', type=int, default=32)
    parser.add_argument('--gen', type=int, default=128)
    parser.add_argument('--runs', type=int, default=9)
    parser.add_argument('--measure', action='store_true', help='add to the log, no more')
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--io', default='auto', help='as for bench: direct, or buffered')
    parser.add_argument('--budgets', default='25%,15%,35%,50%,75%')
    parser.add_argument('--also', action='append', default=[], metavar='FLAGS:BUDGET')
    parser.add_argument('--accuracy-gate', type=float, default=0.75)
    args = parser.parse_args()
    with open(os.path.join(args.model, 'config.json'), encoding='utf-8') as file:
        config = json.load(file)
    budgets = args.budgets.split(',')
    also = [tuple(text.rsplit(':', 1)) for text in args.also]
    log = Log(args.log)

    with tempfile.TemporaryDirectory() as folder:
        trace = f'{args.log}.trace' if args.log else f'{folder}/trace'
        if not os.path.exists(trace):
            measure(args, 'lru', 'all', trace)
        for _ in range(args.runs):
            for flags, budget in [('lru', b) for b in ['all'] + budgets] + also:
                timeline = f'{folder}/timeline' if (flags, budget) == ('lru', budgets[0]) else None
                log.add(flags, budget, measure(args, flags, budget, timeline=timeline))
        if args.measure:
            return
        if args.runs > 0:
            print(f'{log.disturbed} runs were disturbed and are not counted')
        simulation = Simulation(args, config, folder, trace)
        simulation.calibrate(log, budgets[0])
        errors = []
        for flags, budget in [('lru', b) for b in ['all'] + budgets] + also:
            error = compare(log, simulation, flags, budget)
            if (flags, budget) in also or budget in budgets[1:]:
                errors.append(abs(error))
        print(f'of what was not used to calibrate: mean error {100 * statistics.mean(errors):.1f} %,'
              f' largest {100 * max(errors):.1f} %')


if __name__ == '__main__':
    main()
