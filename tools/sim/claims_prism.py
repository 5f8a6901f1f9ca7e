"""Prism's claims; used by tools/sim/claims.py.

Machines and workloads are those of tools/machines/*.cluster: memory, links and arrivals are the
paper's; which experts texts choose, and how long prompts are, is not stated there and is made up.
"""
OTHERS = ['uniform', 'redundance', 'smartmoe', 'eplb']
PLACES = OTHERS + ['prism']
PAGED = 'local {local:.2f}, united {united:.2f} s: experts paged from host memory instead of remote calls, and both'
SCALES = (1, 4, 16, 64)  # times four GPUs
REQUESTS = 50            # of each server's users, where there are up to 192 servers


def change(new, old):
    return f'{100 * (new / old - 1):+.1f} %'


def means(sim, cluster, places, **changes):
    rows = sim.cluster(cluster, places, **changes)
    return {place: rows[place]['mean_s'] for place in places}


def motivation(sim):
    rows = sim.cluster('bigbench-mixtral', ['local', 'redirect', 'naive'])
    return 'synthetic', ', '.join(f'{p} {r["mean_s"]:.2f}' for p, r in rows.items()) + ' s', [
        'mean by server: ' + ', '.join(
            f'{p} {"/".join(f"{s:.2f}" for s in r["server_mean_s"])}' for p, r in rows.items()) +
        ' s; paper: 9.14/4.77/3.18, 8.60/4.77/3.10, 4.96/4.34/3.40 s']


def table(*clusters):
    def ours(sim):
        text, details = [], []
        for cluster in clusters:
            mean = means(sim, cluster, PLACES)
            best = min(OTHERS, key=mean.get)
            text.append('/'.join(f'{mean[p]:.2f}' for p in PLACES) +
                        f' s ({change(mean["prism"], mean[best])} against {best})')
            details.append(
                f'{cluster}: prism {change(mean["prism"], mean["uniform"])} against uniform; ' +
                PAGED.format(**means(sim, cluster, ['local', 'united'])))
        return 'synthetic', '; '.join(text), details + [
            'in this order: ' + ', '.join(PLACES), 'prompts of 128 (BigBench) or 512 tokens, and 8 or 20 generated: assumed']
    return ours


def migration(sim):
    changed = {'requests': 400, 'shift_after': 200}
    still = sim.cluster('bigbench', ['prism'], epoch_s=0, **changed)['prism']
    moves = sim.cluster('bigbench', ['prism'], **changed)['prism']
    return 'synthetic', (
        f'{still["mean_s"]:.2f} -> {moves["mean_s"]:.2f} s ({change(moves["mean_s"], still["mean_s"])}); '
        f'{moves["migrations"]} migrations; local share of the second half '
        f'{100 * still["local_share_second_half"]:.0f} -> {100 * moves["local_share_second_half"]:.0f} %'), [
            'after 200 requests of each server its users have another domain of the same file, not another data set',
            'a migration takes a second or two here, so that small gains pay; the paper does not say how long its own took']


def scale(sim):
    text, details = [], []
    for arrival in (15, 8):
        mean = {n: means(sim, 'bigbench', ['prism'], copies=n, arrival_s=arrival,
                         requests=REQUESTS)['prism'] for n in SCALES}
        text.append(f'{change(mean[64], mean[1])} ({arrival} s)')
        details.append(f'arrivals {arrival} s, {"/".join(str(4 * n) for n in SCALES)} GPUs: '
                       f'{"/".join(f"{m:.2f}" for m in mean.values())} s')
    links = []
    for copies in (1, 64):
        mean = {m: means(sim, 'bigbench', ['prism'], copies=copies, mbit=m,
                         requests=REQUESTS)['prism'] for m in (100, 250, 500, 1000)}
        links.append(f'{change(mean[1000], mean[100])} at {4 * copies} GPUs')
        details.append(f'100/250/500/1000 Mbit/s, {4 * copies} GPUs: '
                       f'{"/".join(f"{m:.2f}" for m in mean.values())} s')
    return 'synthetic', f'4 -> 256 GPUs: {", ".join(text)}; 100 -> 1000 Mbit/s: {", ".join(links)}', details + [
        f'{REQUESTS} requests of each server; with 100 Mbit/s links are so busy that requests wait for each other']
