"""MoEpic's claims; used by tools/sim/claims.py."""
from claims_common import absent, present

MACHINE, MIXTRAL, QWEN = 'a6000-xeon8358p', 'mixtral-8x7b-hqq', 'qwen1.5-moe'
BASELINES = ['pre-gated', 'mixtral-offloading', 'adapmoe', 'moe-infinity']
# Texts of 32 tokens before what counts. The partition moves slots and chooses theta after token
# 500: made-up routing stays as it is, so that there is no need to wait for the paper's 5000 tokens.
# Experts are quarters, for the simulator's sake.
DECODE = {'prompt_tokens': 16, 'gen_tokens': 32, 'warm': 640}
OURS = {'fixed_point_tau': 500, 'slices': 4}
NEVER = {'fixed_point_tau': 1000000000}  # equal shares, and theta 1/2 throughout


def one(sim, model, profile='moepic', **flags):
    if profile == 'moepic':
        flags = {**OURS, **flags}
    return sim.rows(MACHINE, model, [profile], (1,), **flags)[profile, 1]


def compare(model, budget, key, **flags):
    def ours(sim):
        names = present(sim, ['moepic'] + BASELINES)
        text = ', '.join(
            f'{n} {one(sim, model, n, budget=budget, **{**DECODE, **flags})[key]:.1f}' for n in names)
        return 'synthetic', f'{text} ms', absent(sim, BASELINES)
    return ours


def memory(sim):
    names = present(sim, ['moepic'] + BASELINES)
    text = []
    for share in (20, 40, 60, 80):
        rows = [one(sim, QWEN, n, budget=f'{share}%', **DECODE) for n in names]
        text.append(f'{rows[0]["budget_bytes"] / 1e9:.1f} GB: ' +
                    '/'.join(f'{row["tpot_ms"]:.0f}' for row in rows) + ' ms')
    whole = one(sim, QWEN, 'lru', budget='all', **DECODE)
    return 'synthetic', (
        f'TPOT by memory for experts: {"; ".join(text)}; all resident '
        f'({whole["budget_bytes"] / 1e9:.1f} GB): {whole["tpot_ms"]:.0f} ms'), [
            f'each TPOT is that of {"/".join(names)}',
            'memory for 140 ms n/a: all are faster than that'] + absent(sim, BASELINES)


def hits(sim):
    text = []
    for evict in ('random', 'lfu', 'lru', 'lcp'):
        each = []
        for cached in (10, 20, 30, 40, 50):
            row = one(sim, QWEN, 'lru', budget=f'{100 * cached / 60 + 0.01:.2f}%', evict=evict,
                      partition='uniform', prompt_tokens=16, gen_tokens=256, warm=64)
            each.append(f'{100 * row["hit_rate"]:.1f}')
        text.append(f'{evict} {"/".join(each)}')
    return 'synthetic', f'10/20/30/40/50 of 60: {", ".join(text)} %'


def times(sim):
    row, ahead = (one(sim, QWEN, p, budget='40%', **DECODE) for p in ('lru', 'mixtral-offloading'))
    whole = one(sim, QWEN, 'lru', budget='all', **DECODE)
    wait = [r['tpot_ms'] * r['exposed_wait_share'] for r in (row, ahead)]
    return 'synthetic', (
        f'{100 * row["hit_rate"]:.0f} % hits: {row["tpot_ms"] / whole["tpot_ms"]:.2f}x of all '
        f'resident; waiting {wait[0]:.0f} ms, device busy '
        f'{row["tpot_ms"] * row["device_busy_share"]:.0f} ms; the next gate hides '
        f'{100 * (1 - wait[1] / wait[0]):.0f} % of the waiting; predicted n/a: an input '
        '(accuracy_gate 0.68)')


FIGURE_4 = {'budget': '20%', 'prompt_tokens': 16, 'gen_tokens': 32, 'warm': 64, 'slices': 8, **NEVER}


def thetas(sim):
    each = {t: one(sim, QWEN, fixed_point_theta=t, **FIGURE_4)['tpot_ms'] for t in range(2, 17, 2)}
    only = one(sim, QWEN, fixed_point_theta=16, predict='none', prefetch='none',
               **FIGURE_4)['tpot_ms']
    best = min(each, key=each.get)
    return 'synthetic', (
        f'best theta {best}/16: {each[best]:.1f} ms, {100 * (each[best] / only - 1):+.0f} % against '
        f'cache only ({only:.1f} ms)'), [
            'TPOT by theta in sixteenths, equal shares, no revision: ' +
            ', '.join(f'{t}: {ms:.1f}' for t, ms in each.items()) + ' ms',
            'prefetch only n/a: a sixteenth is the least; hits by layer n/a: only sums are printed']


FEW = {**DECODE, 'budget': '37.5%', 'prompt_tokens': 128}  # 96 of Mixtral's 256 experts


def ablation(sim):
    text = []
    for name, flags in (('all', {}),
                        ('w/o SP (random predictions)', {'set': 'accuracy_gate=0.25'}),
                        ('LCP (random)', {'evict': 'random'}),
                        ('CCA (equal shares, theta 1/2)', NEVER)):
        row = one(sim, MIXTRAL, **FEW, **flags)
        text.append(f'{name} {row["ttft_ms"]:.0f}/{row["tpot_ms"]:.1f}')
    return 'synthetic', ', '.join(text) + ' ms (TTFT of a prompt of 128)'


def settings(sim):
    text = [f'{name} {value}: {one(sim, MIXTRAL, **FEW, **{name: value})["tpot_ms"]:.1f}'
            for name, value in (('lcp_rho', 0.1), ('lcp_rho', 0.25), ('lcp_rho', 0.5),
                                ('lcp_omega', 32), ('lcp_omega', 128), ('lcp_omega', 512))]
    many = {'budget': '16.67%', **DECODE}  # 240 of Qwen1.5-MoE's 1440
    zetas = [f'{zeta}: {one(sim, QWEN, fixed_point_zeta=zeta, **many)["tpot_ms"]:.2f}'
             for zeta in (0.004, 0.01)]
    return 'synthetic', 'TPOT, ' + ', '.join(text) + ' ms', [
        'zeta 0.05 n/a: of 96 slots in 32 layers at least one and at most a quarter of a layer\'s '
        'three can move, so every zeta moves one',
        f'Qwen1.5-MoE, 240 slots, zeta of one and of two slots: {", ".join(zetas)} ms']
