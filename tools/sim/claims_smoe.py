"""SMoE's claims; used by tools/sim/claims.py."""
import collections

from claims_common import DECODE, MEASURED, busy_ms, document_cells, percent, present

BASELINES = ['static', 'hybrimoe']  # of llama.cpp, DeepSpeed, MoE-Infinity and HybriMoE
SETTINGS = {'S1': ('rtx3080ti-i9', 'deepseek-moe-16b', 0.35),
            'S2': ('rtx4060ti16', 'xverse-moe-a4.2b', 0.3),
            'S3': ('a6000-8core', 'qwen2-57b-a14b', 0.25)}


def change(sim, setting, batch, key='tpot_ms', prompt=16):
    """(change against the best baseline, that, ours)"""
    machine, model, alpha = SETTINGS[setting]
    flags = {'prompt_tokens': prompt, 'gen_tokens': 32, 'smoe_alpha': alpha, 'top_score_alpha': alpha}
    rows = sim.rows(machine, model, ['smoe'] + present(sim, BASELINES), [batch], **flags)
    best = min((r for (p, _), r in rows.items() if p != 'smoe'), key=lambda r: r[key])
    return rows['smoe', batch][key] / best[key] - 1, best, rows['smoe', batch]


def mean(sim):
    text = []
    for batch in (1, 3):
        changes = [change(sim, s, batch) for s in SETTINGS]
        of_all = sum(c[0] for c in changes) / len(changes)
        text.append(f'b{batch} {percent(of_all)} (best: {", ".join(c[1]["profile"] for c in changes)})')
    return 'synthetic', '; '.join(text)


def setting(name):
    def ours(sim):
        return 'synthetic', ', '.join(f'b{b} {percent(change(sim, name, b)[0])}' for b in (1, 3))
    return ours


def hits(sim):
    text = []
    for name in SETTINGS:
        _, best, mine = change(sim, name, 1)
        text.append(f'{name} b1 {100 * mine["hit_rate"]:.0f} % ({best["profile"]} '
                    f'{100 * best["hit_rate"]:.0f} %: {percent(mine["hit_rate"] / best["hit_rate"] - 1)})')
    return 'synthetic', ', '.join(text)


def prefill(sim):
    return 'synthetic', ', '.join(f'{s} {percent(change(sim, s, 1, "ttft_ms", 128)[0])}'
                                  for s in SETTINGS) + ' (prompt of 128)'


def shares(sim):
    machine, model, _ = SETTINGS['S3']
    row = sim.rows(machine, model, ['lru'], [1], **DECODE)['lru', 1]
    return 'synthetic', (f'lru: waiting for experts {100 * row["exposed_wait_share"]:.0f} %, device '
                         f'busy {100 * row["device_busy_share"]:.0f} %; by score n/a: waits are not '
                         'counted by score')


def ablation(sim):
    steps = [('+CE', {'evict': 'score'}),
             ('+CR', {'evict': 'score', 'route': 'smoe'}),
             ('+Pre', {'evict': 'score', 'route': 'smoe', 'predict': 'partial',
                       'prefetch': 'top-score'}),
             ('+BA', {'evict': 'score', 'route': 'smoe', 'predict': 'partial',
                      'prefetch': 'top-score', 'assign': 'two-pointer'})]
    sums = collections.defaultdict(list)
    for machine, model, alpha in SETTINGS.values():
        before = sim.rows(machine, model, ['lru'], [1], **DECODE)['lru', 1]
        for name, flags in steps:
            now = sim.rows(machine, model, ['lru'], [1], smoe_alpha=alpha, top_score_alpha=alpha,
                           **DECODE, **flags)['lru', 1]
            sums[name].append((now['tpot_ms'] / before['tpot_ms'] - 1,
                               now['hit_rate'] - before['hit_rate']))
            before = now
    text = []
    for name, _ in steps:
        changes = sums[name]
        text.append(f'{name} TPOT {percent(sum(c[0] for c in changes) / 3)}, hits '
                    f'{percent(sum(c[1] for c in changes) / 3)} (points)')
    return 'synthetic', '; '.join(text)


def prefetch(sim):
    row = change(sim, 'S3', 1)[2]
    counters = row['counters']
    cpu = busy_ms(row, 'cpu') * row['decode_steps'] / counters['elsewhere']
    link = busy_ms(row, 'link') * row['decode_steps'] / (counters['loads'] + counters['prefetch_issued'])
    recall = document_cells('calibration.md', 'mean')[3]
    return f'{MEASURED}; simulated', (
        f'partial has {recall} of a token\'s experts among its best (docs/calibration.md); 95 % n/a: '
        f'not counted there; S3: an expert takes the CPU {cpu:.2f} ms, a load {link:.2f} ms: '
        f'{cpu / link:.2f}')


def accuracies(sim):
    del sim
    at = {a: document_cells('calibration.md', a) for a in ('0', '0.25', '0.35', '0.6')}
    text = ', '.join(f'{a}: {cells[0]} / {cells[3]}' for a, cells in at.items())
    return MEASURED, f'perplexity of held-out text by alpha, 50 % / 25 % in RAM: {text}', [
        'docs/calibration.md has all 13 values of alpha',
        'the data sets and models of the paper n/a: not at hand']
