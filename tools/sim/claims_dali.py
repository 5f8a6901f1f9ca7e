"""DALI's claims; used by tools/sim/claims.py."""
import collections

from claims_common import MEASURED, busy_ms, decision_us, document_cells, present

GPU = 'rtx3090-epyc7532'
AS_MEASURED = 'rtx3090-epyc7532-as-measured'
BASELINES = ['static', 'hybrimoe', 'fiddler']
MODELS = ['deepseek-v2-lite-q4', 'qwen3-30b-a3b-q4', 'mixtral-8x7b-q4']
FLAGS = {'budget': '50%', 'prompt_tokens': 64, 'gen_tokens': 64}
AHEAD, WINDOW, SWAPS = 'workload_count', 'workload_w', 'workload_u'

# "Without prefetching and caching" (6.3): nothing stays, the slots are for loads under way.
NO_CACHE = {'budget': '25%', 'evict': 'lru', 'admit': 'never', 'partition': 'global'}
TO_THE_END = {'exact_nodes': 1000000000}  # no search that ends within seconds was cut short


def mean_ratios(sim, models, baselines, batches, key, **flags):
    """{baseline: mean of baseline / dali}"""
    names = present(sim, baselines)
    ratios = collections.defaultdict(list)
    for model in models:
        rows = sim.rows(GPU, model, ['dali'] + names, batches, **flags)
        for name in names:
            for b in batches:
                ratios[name].append(rows[name, b][key] / rows['dali', b][key])
    return {name: sum(r) / len(r) for name, r in ratios.items()}


def ratio_text(ratios, note):
    return ', '.join(f'{name} {mean:.2f}x' for name, mean in ratios.items()) + f' ({note})'


def decode(sim):
    ratios = mean_ratios(sim, MODELS, BASELINES, (8, 32), 'tpot_ms', **FLAGS)
    return 'synthetic', ratio_text(
        ratios, 'static stands for llama.cpp and KTransformers; b8, b32; hybrimoe with a threshold, '
        f'as DALI describes it: {hybrimoe_as_described(sim):.2f}x') + \
        '; MoE-Lightning n/a: no such profile'


def hybrimoe_as_described(sim):
    """DALI (1, 3.1) says that HybriMoE assigns by a fixed threshold; its own paper does not."""
    ratios = []
    for model in MODELS:
        dali = sim.rows(GPU, model, ['dali'], (8, 32), **FLAGS)
        other = sim.rows(GPU, model, ['hybrimoe'], (8, 32), assign='threshold', **FLAGS)
        ratios += [other['hybrimoe', b]['tpot_ms'] / dali['dali', b]['tpot_ms'] for b in (8, 32)]
    return sum(ratios) / len(ratios)


def prefill(sim):
    ratios = mean_ratios(sim, ['deepseek-v2-lite-q4'], BASELINES, (8, 32), 'ttft_ms', budget='50%',
                         prompt_tokens=64, gen_tokens=1)
    return 'synthetic', ratio_text(ratios, 'prompt 64, b8, b32') + \
        '; MoE-Lightning n/a: no such profile'


def motivation(sim):
    rows = sim.rows(GPU, 'mixtral-8x7b-q4', ['hybrimoe'], (8, 32), **FLAGS)
    cell = 'HybriMoE Mixtral: ' + '; '.join(
        f'b{b} waiting {100 * r["exposed_wait_share"]:.0f} %, link busy '
        f'{100 * r["link_busy_share"]:.0f} %, hits {100 * r["hit_rate"]:.0f} %'
        for (_, b), r in rows.items())
    greedy = [assign_times(sim, m, (16,), ('greedy',))['greedy']['lru', 16] for m in MODELS]
    cells = document_cells('calibration.md', 'mean')
    return f'synthetic; {MEASURED}', cell, [
        f'greedy alone, b16, {", ".join(MODELS)}: link busy '
        f'{"/".join(format(100 * r["link_busy_share"], ".0f") for r in greedy)} %, waiting '
        f'{"/".join(format(100 * r["exposed_wait_share"], ".0f") for r in greedy)} %',
        f'Table 2: history (EdgeMoE) {cells[1]}, gate (HybriMoE) {cells[0]} of a token\'s experts '
        '(docs/calibration.md); by workload n/a: not counted there']


def assign_times(sim, model, batches, assigns, machine=GPU, **more):
    flags = dict(NO_CACHE, prompt_tokens=64, gen_tokens=32, predict='none', prefetch='none')
    flags.update(more)
    return {a: sim.rows(machine, model, ['lru'], batches, assign=a, **flags,
                        **(TO_THE_END if a == 'exact' else {})) for a in assigns}


def as_measured(sim):
    """Row 14 on the CPU that Table 4 implies."""
    names, text = ('greedy', 'queue', 'threshold', 'exact'), []
    for model in MODELS:
        times = assign_times(sim, model, (16,), ('resident',) + names, AS_MEASURED)
        base = times['resident']['lru', 16]['tpot_ms']
        text.append(f'{model}: ' + ', '.join(
            f'{name} {base / times[name]["lru", 16]["tpot_ms"]:.2f}x' for name in names))
    return f'on {AS_MEASURED}, whose CPU is as slow as Table 4 implies: ' + '; '.join(text)


def assign(sim):
    names = ('greedy', 'queue', 'threshold', 'exact')
    text, shares = [], []
    for model in MODELS:
        times = assign_times(sim, model, (16,), ('resident',) + names)
        base = times['resident']['lru', 16]['tpot_ms']
        text.append(model + ': ' + ', '.join(
            f'{name} {base / times[name]["lru", 16]["tpot_ms"]:.2f}x' for name in names))
        layers = sim.layers(model)
        for name in ('greedy', 'exact'):
            ms = decision_us(f'assign `{name}`') * layers / 1000
            shares.append(ms / (ms + times[name]['lru', 16]['tpot_ms']))
    return 'synthetic; deciding measured', f'{text[-1]} over all-CPU, b16, nothing resident', [
        *(f'{each} over all-CPU (b16, nothing resident)' for each in text[:-1]),
        as_measured(sim),
        'exact runs to the end of its search, whose time is not included',
        f'a decision takes {decision_us("assign `greedy`")} us per layer for greedy, '
        f'{decision_us("assign `exact`")} us for exact with 5000 nodes (docs/policies.md, 64 experts, '
        f'16 tokens): at most {100 * max(shares[::2]):.2f} % and {100 * max(shares[1::2]):.2f} % of a '
        'step']


def exact_times(sim, machine):
    text = []
    for model in ('deepseek-v2-lite-q4', 'mixtral-8x7b-q4'):
        times = assign_times(sim, model, (16, 32), ('exact', 'greedy'), machine, budget='50%',
                             evict='none', partition='random')
        for b in (16, 32):
            seconds = [times[a]['lru', b]['tpot_ms'] * 32 / 1e3 for a in ('exact', 'greedy')]
            text.append(f'{model} b{b} {seconds[0]:.2f}/{seconds[1]:.2f} '
                        f'({100 * seconds[0] / seconds[1]:.0f} %)')
    return ', '.join(text) + ' s'


def exact(sim):
    return 'synthetic', exact_times(sim, GPU), [
        f'on {AS_MEASURED}, whose CPU takes the time for an expert that this table implies: '
        + exact_times(sim, AS_MEASURED),
        'exact runs to the end of its search; the time of decisions is not included']


def cache(sim):
    text, details = [], []
    for model in ('deepseek-v2-lite-q4', 'mixtral-8x7b-q4'):
        common = {**FLAGS, 'assign': 'greedy', 'predict': 'none', 'prefetch': 'none'}
        a = sim.rows(GPU, model, ['dali'], (4,), **common)['dali', 4]
        b = sim.rows(GPU, model, ['hybrimoe'], (4,), **common)['hybrimoe', 4]
        text.append(f'{model} {b["tpot_ms"] / a["tpot_ms"]:.2f}x (hits '
                    f'{100 * b["hit_rate"]:.0f} -> {100 * a["hit_rate"]:.0f} %)')
    steps = [('greedy', {'assign': 'greedy'}),
             ('prefetch', {'assign': 'greedy', 'predict': 'residual', 'prefetch': 'workload'})]
    for model in ('qwen3-30b-a3b-q4', 'mixtral-8x7b-q4'):
        flags = {**NO_CACHE, 'prompt_tokens': 64, 'gen_tokens': 64}
        if model.startswith('qwen'):
            flags[AHEAD] = 8
            # What was prefetched and used stays, so with 25 % it would be a cache (61 % hits). With
            # this all of it has left before the next token's same layer.
            flags['budget'] = '7%'
        before = sim.rows(GPU, model, ['lru'], (16,), assign='resident', predict='none',
                          prefetch='none', **flags)['lru', 16]['tpot_ms']
        shown = []
        for name, step in steps:
            step = {'predict': 'none', 'prefetch': 'none', **step}
            row = sim.rows(GPU, model, ['lru'], (16,), **flags, **step)['lru', 16]
            now = row['tpot_ms']
            shown.append(f'{name} {before / now:.2f}x (hits {100 * row["hit_rate"]:.0f} %)')
            before = now
        ahead = {AHEAD: flags[AHEAD]} if AHEAD in flags else {}
        now = sim.rows(GPU, model, ['dali'], (16,), budget='25%', prompt_tokens=64, gen_tokens=64,
                       **ahead)['dali', 16]['tpot_ms']
        details.append(f'{model} b16, cache 25 %, each over the one before: {", ".join(shown)}, '
                       f'cache {before / now:.2f}x')
    return 'synthetic', 'cache alone, b4: ' + ', '.join(text), details


def option_sweep(sim, model, batch, variants, show):
    text = []
    for name, flags in variants:
        row = sim.rows(GPU, model, ['dali'], (batch,), **FLAGS, **flags)['dali', batch]
        text.append(f'{name} {show(row)}')
    return ', '.join(text)


def prefetch_size(sim):
    variants = [(str(n), {AHEAD: n}) for n in (1, 2, 3, 7)]
    return 'synthetic', option_sweep(
        sim, 'mixtral-8x7b-q4', 16, variants,
        lambda r: f'ahead: {r["tokens_per_s"]:.1f} tok/s, hits {100 * r["hit_rate"]:.0f} %')


def windows(sim):
    def show(row):
        return f'{row["tokens_per_s"] / 32:.2f} tok/s, hits {100 * row["hit_rate"]:.1f} %'

    details = []
    for model, pairs in (('deepseek-v2-lite-q4', ((2, 8), (2, 16), (4, 8), (4, 16), (8, 8))),
                         ('qwen3-30b-a3b-q4', ((2, 8), (2, 16), (4, 8), (4, 16), (8, 8))),
                         ('mixtral-8x7b-q4', ((2, 1), (2, 2), (4, 1), (4, 2), (8, 1)))):
        details.append(f'{model} b32, by (w,u): ' + option_sweep(
            sim, model, 32, [(f'({w},{u})', {WINDOW: w, SWAPS: u}) for w, u in pairs], show))
    rows = [sim.rows(GPU, 'deepseek-v2-lite-q4', ['dali'], (64,), assign=a, **FLAGS)['dali', 64]
            for a in ('threshold', 'greedy')]
    changes = [(busy_ms(rows[1], what) - busy_ms(rows[0], what)) * FLAGS['gen_tokens'] / 1e3
               for what in ('cpu', 'device', 'link')]
    few = option_sweep(sim, 'deepseek-v2-lite-q4', 32,
                       [(f'({w},{u})', {WINDOW: w, SWAPS: u}) for w, u in ((2, 16), (4, 8), (8, 8))],
                       show)
    return 'synthetic', f'DeepSeek b32: {few}', details + [
        'DeepSeek b64, greedy instead of a threshold: CPU {:+.2f}, device {:+.2f}, link {:+.2f} s busy'
        .format(*changes)]


def long(sim):
    ratios = collections.defaultdict(list)
    for gen in (128, 256, 512, 1024):
        for name, ratio in mean_ratios(sim, ['mixtral-8x7b-q4'], ['static', 'hybrimoe'], (16,),
                                       'tpot_ms', budget='50%', prompt_tokens=32, gen_tokens=gen).items():
            ratios[name].append(ratio)
    return 'synthetic', '; '.join(
        f'{name} {"/".join(format(r, ".2f") for r in each)}x, mean {sum(each) / len(each):.2f}x'
        for name, each in ratios.items()) + \
        ' (Mixtral, 32 + 128/256/512/1024); two GPUs n/a: the simulator has one device'


def accuracy(sim):
    del sim
    cells = document_cells('calibration.md', 'mean')
    return MEASURED, (f'gate {cells[0]} -> residual {cells[2]} (docs/calibration.md, with the reason); '
                      'the two models n/a: in a simulation these numbers are its input')


def memory(sim):
    rows = {m: sim.rows(GPU, m, ['lru'], (1,), budget='50%', gen_tokens=1, prompt_tokens=1)['lru', 1]
            for m in ('mixtral-8x7b-q4', 'qwen3-30b-a3b-q4')}
    cell = 'experts at 50 %: ' + ', '.join(
        f'{m} {r["budget_bytes"] / 1e9:.1f} GB' for m, r in rows.items())
    shares = []
    model = 'deepseek-v2-lite-q4'
    for name, how in (('hybrimoe', 'queue'), ('dali', 'greedy')):
        ms = sim.rows(GPU, model, [name], (8,), **FLAGS)[name, 8]['tpot_ms']
        mine = decision_us(f'assign `{how}`') * sim.layers(model) / 1000
        shares.append(f'{how} {100 * mine / (mine + ms):.2f} %')
    return 'simulated; deciding measured', f'{cell}; deciding: {", ".join(shares)}', [
        'deciding: measured by bench_policies (docs/policies.md; 64 experts, 16 tokens), of a '
        'simulated step of DeepSeek b8',
        'growth with the batch n/a: the simulator keeps no account of activations']
