"""PreScope's claims; used by tools/sim/claims.py."""
from claims_common import MEASURED, absent, busy_ms, document_cells, percent, present, tpot

A100, V100 = 'a100-32gb-xeon6230r', 'v100-xeon6230r'
BASELINES = ['fate', 'fiddler', 'klotski', 'hybrimoe']
MODELS = ['deepseek-v2-lite', 'qwen3-30b-a3b', 'moonlight']
# 512 + 64 tokens in the paper: a quarter of both, so that prompts weigh as much.
FLAGS = {'prompt_tokens': 128, 'gen_tokens': 16}
LESS = {'set': 'device_gib=24,llapor_us=0'}


def all_rows(sim, machine, model, batches, **more):
    """PreScope and its baselines, which "adopt the same hot-expert table at initialisation" (6.1)."""
    flags = {**FLAGS, **more}
    rows = dict(sim.rows(machine, model, ['prescope', 'fiddler'], batches, **flags))
    for name in present(sim, BASELINES):
        if name != 'fiddler':
            rows.update(sim.rows(machine, model, [name], batches, partition='hot-table', **flags))
    return rows


def whole_ms(row):
    """Prompts and decode, as PreScope measures throughput (6.1)."""
    return row['ttft_ms'] + FLAGS['gen_tokens'] * row['tpot_ms']


def gains(sim, machine, models, batches, key, best, **more):
    text = []
    rows = {model: all_rows(sim, machine, model, batches, **more) for model in models}
    for name in present(sim, BASELINES):
        each = []
        for model in models:
            for b in batches:
                mine, other = rows[model]['prescope', b], rows[model][name, b]
                if key == 'throughput':
                    each.append(whole_ms(other) / whole_ms(mine) - 1)
                else:
                    each.append(tpot(mine) / tpot(other) - 1)
        if best:
            each = [max(each) if key == 'throughput' else min(each)]
        text.append(f'{name} ' + '/'.join(percent(g) for g in each))
    return ', '.join(text)


def gain(key, best, *cases):
    """Of each case (machine, models, batches): as stated, and where the stated memory nearly holds
    the model, also with less of it and with the prediction out of the way."""
    def ours(sim):
        text, details = [], []
        for machine, models, batches in cases:
            head = f'{machine.split("-")[0].upper()} b{",".join(map(str, batches))}'
            text.append(f'{head}: ' * (len(cases) > 1) +
                        gains(sim, machine, models, batches, key, best))
            if 'deepseek-v2-lite' in models:
                details.append(f'{head}, with 24 GiB and hidden prediction: ' + gains(
                    sim, machine, models, batches, key, best, **LESS))
        return 'synthetic', '; '.join(text), details + absent(sim, BASELINES)
    return ours


def a100(sim):
    speeds = []
    for model in MODELS:
        row = all_rows(sim, A100, model, (64,))['prescope', 64]
        speeds.append(f'{64 * FLAGS["gen_tokens"] / whole_ms(row) * 1e3:.1f}')
    kind, text, details = gain('throughput', False, (A100, MODELS, (64,)))(sim)
    return kind, f'{"/".join(speeds)} tok/s; {text}', details


def latency(sim):
    text, details = [], []
    for model, batch in (('deepseek-v2-lite', 4), ('qwen3-30b-a3b', 64), ('mixtral-8x7b', 64)):
        row = all_rows(sim, V100, model, (batch,))['prescope', batch]
        text.append(f'{model} b{batch} {tpot(row) / 1e3:.2f} s a step')
        details.append(f'{model} b{batch}: {gains(sim, V100, [model], (batch,), "latency", False)}')
    plateau = all_rows(sim, V100, 'mixtral-8x7b', (64,))['klotski', 64]
    return 'synthetic', '; '.join(text) + f', klotski {tpot(plateau) / 1e3:.2f} s', \
        details + absent(sim, BASELINES)


def ablation(sim):
    text, details = [], []
    for name, machine, model, batch, flags in (
            ('table', V100, 'deepseek-v2-lite', 4, {'partition': 'random'}),
            ('PreSched', A100, 'mixtral-8x7b', 64, {'assign': 'gpu-only', 'prefetch': 'top'}),
            ('LLaPor', A100, 'moonlight', 32, {'predict': 'gate'}),
            ('AsyncIO', A100, 'mixtral-8x7b', 64, {'set': SLOW_COPIES})):
        whole = sim.rows(machine, model, ['prescope'], (batch,), **FLAGS)['prescope', batch]
        less = sim.rows(machine, model, ['prescope'], (batch,), **FLAGS, **flags)['prescope', batch]
        text.append(f'without {name} {percent(whole_ms(whole) / whole_ms(less) - 1)}')
        if name == 'table':
            details.append(f'without table: random first residents; hits '
                           f'{100 * whole["hit_rate"]:.0f} -> {100 * less["hit_rate"]:.0f} %')
    return 'synthetic', ', '.join(text), details + [
        f'without AsyncIO: {SLOW_COPIES}, copies that take 1.7 times as long; that they wait for '
        "computation n/a: the simulator's copies never do"]


# The A100's link with copies that take 1.7 times as long: PyTorch's, by the claim itself.
SLOW_COPIES = f'link_gbps={24.9 / 1.7:.1f},copy_us={5 * 1.7:.1f}'


def prediction(sim):
    del sim
    recall, hot = (document_cells('calibration.md', row) for row in ('mean', 'mean, hot 4 in 6'))
    small, wide = (document_cells('calibration.md', row) for row in ('llapor', 'llapor, wide'))
    return MEASURED, (
        f'Top-4 {hot[4]} with the paper\'s shapes, {hot[5]} with wider ones (gate {hot[0]}); of a '
        f'token\'s experts {recall[4]} and {recall[5]} (gate {recall[0]})'), [
            f'networks of {small[2]} and {wide[2]}, trained in {small[3]} and {wide[3]} '
            '(docs/calibration.md)',
            'the four models and the time of a prediction n/a: inputs of a simulation']


def sizes(sim):
    each = []
    for model in ('mixtral-8x7b', 'qwen3-30b-a3b', 'deepseek-v2-lite', 'moonlight'):
        row = sim.rows(A100, model, ['lru'], (1,), budget='50%', gen_tokens=1, prompt_tokens=1)['lru', 1]
        each.append(f'{model} {row["budget_bytes"] / row["slots"] / 2**20:.1f}')
    rows = all_rows(sim, A100, 'mixtral-8x7b', (64,))
    mine, fiddler = rows['prescope', 64], rows['fiddler', 64]
    gap = (busy_ms(mine, 'cpu') - busy_ms(mine, 'device')) / sim.layers('mixtral-8x7b')
    ratio = fiddler['cpu_busy_share'] / fiddler['device_busy_share']
    return 'simulated; synthetic', (
        'expert ' + ', '.join(each) + f' MiB; Mixtral A100 b64: Fiddler CPU {ratio:.1f}x device'), [
            'the link of all machines is taken as 79 % of PCIe',
            f'Mixtral A100 b64: CPU busy {gap:+.1f} ms longer than the device, mean per layer; half '
            'and peak of the layers n/a: only sums are printed']
