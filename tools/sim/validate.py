#!/usr/bin/env python3
"""How far the simulator is from a measured run of this machine's engine.

usage: validate.py --model DIR [--moepager PROGRAM] [--wrap "COMMAND"] [--profile lru] [--gen 128]

Calibrates with three runs: all experts resident gives the time of a layer and of an expert, the
first budget of the list the time of a load and the last one its latency (those with which the
simulations of these runs take as long as they did). Then the budgets between are simulated, with
the recorded routing, and measured; the error of the time per token is printed. Each measurement is the median of --runs runs; --wrap
is a command that keeps the machine quiet meanwhile.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile


def output(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f'{" ".join(command)}: {done.stderr.strip()}')
    return json.loads(done.stdout)


def measure(args, budget, trace=None):
    """(ms per token, counters of the run with the median) of decode."""
    runs = []
    for _ in range(args.runs):
        command = shlex.split(args.wrap) + [
            args.moepager, 'bench', '--model', args.model, '--json', '--repeat', '1',
            '--prompt-tokens', str(args.prompt), '--gen-tokens', str(args.gen), '--profile',
            args.profile, '--budget', budget, '--threads', str(args.threads)]
        if args.tokens_file:
            command += ['--tokens-file', args.tokens_file]
        if trace:
            command += ['--trace', trace]
        runs.append(output(command)['runs'][0])
    runs.sort(key=lambda run: run['tpot_ms'])
    return runs[len(runs) // 2]


def write_descriptions(folder, config, times):
    machine = {'link_gbps': 1, 'copy_us': 0, 'device_gbps': 1, 'device_gflops': 1, 'launch_us': 0,
               'device_gib': 1000, **times}
    model = {'layers': config['num_hidden_layers'],
             'experts': config.get('num_experts', config.get('num_local_experts')),
             'top_k': config['num_experts_per_tok'], 'hidden': config['hidden_size'],
             'expert_ffn': config.get('moe_intermediate_size', config['intermediate_size']),
             'vocabulary': config['vocab_size'], 'attention_params': 1, 'kv_bytes': 0}
    for name, values in (('m.machine', machine), ('m.model', model)):
        with open(os.path.join(folder, name), 'w', encoding='utf-8') as file:
            file.writelines(f'{key} {value:.6f}\n' for key, value in values.items())


def simulate(args, folder, config, times, budget):
    write_descriptions(folder, config, times)
    rows = output([args.moepager, 'simulate', '--json', '--machine', f'{folder}/m.machine',
                   '--model', f'{folder}/m.model', '--trace', f'{folder}/trace', '--profile',
                   args.profile, '--budget', budget])['rows']
    return rows[0]


def search(args, folder, config, times, key, budget, tpot_ms):
    """Find the time with which the simulation takes as long as the run did."""
    low, high = 0.001, 1e5
    for _ in range(20):
        times[key] = (low * high) ** 0.5
        if simulate(args, folder, config, times, budget)['tpot_ms'] < tpot_ms:
            low = times[key]
        else:
            high = times[key]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--model', required=True)
    parser.add_argument('--moepager', default='build/release/moepager')
    parser.add_argument('--wrap', default='')
    parser.add_argument('--profile', default='lru')
    parser.add_argument('--tokens-file')
    parser.add_argument('--prompt', type=int, default=32)
    parser.add_argument('--gen', type=int, default=128)
    parser.add_argument('--runs', type=int, default=3)
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--budgets', default='15%,25%,35%,50%,75%')
    args = parser.parse_args()
    with open(os.path.join(args.model, 'config.json'), encoding='utf-8') as file:
        config = json.load(file)
    layers, k = config['num_hidden_layers'], config['num_experts_per_tok']
    budgets = args.budgets.split(',')

    with tempfile.TemporaryDirectory() as folder:
        full = measure(args, 'all', f'{folder}/trace')
        # The first steps may still load; what is resident afterwards costs computation only.
        compute_us = (full['tpot_ms'] * 1e3 -
                      full['counters']['exposed_wait_ns'] / 1e3 / (args.gen + 1))
        moe_us = full['counters'].get('layers_ns', 0) / 1e3 / (args.gen + 1) or compute_us / 2
        moe_us = min(moe_us, 0.9 * compute_us)
        times = {'expert_us': moe_us / layers / k, 'layer_us': (compute_us - moe_us) / layers}
        times['load_us'] = times['latency_us'] = 0.001
        calibration = {'load_us': budgets[0], 'latency_us': budgets[-1]}
        real = {budget: measure(args, budget)['tpot_ms'] for budget in calibration.values()}
        for _ in range(6):
            for key, budget in calibration.items():
                search(args, folder, config, times, key, budget, real[budget])
        print(f'calibrated: {compute_us / 1e3:.3f} ms of computation per token; '
              f'{times["load_us"]:.0f} us per load and {times["latency_us"]:.0f} us before it '
              f'(from {budgets[0]} and {budgets[-1]})')
        errors = []
        for budget in budgets[1:-1]:
            real = measure(args, budget)
            guess = simulate(args, folder, config, times, budget)
            error = guess['tpot_ms'] / real['tpot_ms'] - 1
            errors.append(abs(error))
            print(f'{budget:>6}: measured {real["tpot_ms"]:8.3f} ms per token, simulated '
                  f'{guess["tpot_ms"]:8.3f}, error {100 * error:+.1f} %; hits of all layers '
                  f'{100 * real["hit_rate"]:.1f} and in decode {100 * guess["hit_rate"]:.1f} %')
        print(f'mean error {100 * statistics.mean(errors):.1f} %, largest {100 * max(errors):.1f} %')


if __name__ == '__main__':
    main()
