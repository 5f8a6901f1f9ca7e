"""The claims of docs/reproduction.md and how each is looked at here; used by tools/reproduce."""
import collections

import claims_dali as dali
import claims_moepic as moepic
import claims_prescope as prescope
import claims_prism as prism
import claims_smoe as smoe
from claims_common import fixed

HEAD = '''# The papers' claims, and ours

Written by `tools/reproduce`. Machines, models and workloads (`tools/machines`) come from the papers and from data sheets and
were written down before anything was compared; nothing is fitted to a claim. A machine
called `-as-measured` is one more version, whose CPU takes what a paper's own tables imply. [simulate.md](simulate.md) says what a
simulation is and what it leaves out: above all the time of decisions and of a framework between kernels.

| kind | meaning |
|---|---|
| synthetic | simulated on a described machine, with made-up routing of stated statistics. Small differences between policies mean nothing there |
| simulated | the same, where routing plays no part |
| measured | a test or tool of this project shows it, and is named. (tiny-moe): on the bundled model, not on the paper's; the numbers are those of docs/calibration.md |
| n/a | not looked at, with the reason |

"b" is the batch. Unless a row says otherwise:

| paper | decode is simulated with |
|---|---|
| SMoE | 16 prompt tokens per sequence, 32 generated |
| DALI | its 64 and 64 |
| PreScope | a quarter of its 512 and 64; prompts count |
| MoEpic | 16 and 32, after 640 steps that do not count (`--warm`), so that its partition has moved: once, after 500 tokens instead of the paper's 5000, because made-up routing does not change |

Baselines are this project's profiles of those names, not the originals. A large difference from the paper is a finding; the
notes explain it. A linked number has details below the table.

| # | paper, place | setting | claim | ours is | ours |
|---|---|---|---|---|---|
'''

DETAILS = '''
## Details
'''

TAIL = '''
## Notes

- Our baselines share one engine without overhead; the papers' baselines pay for their own. So our ratios are mostly
  smaller, and near 1 where the originals differ in engineering and not in policy (rows 11, 12, 18, 23 to 28, 32, 33).
- TPOT here is a lower bound. The 57 ms of computation for Qwen1.5-MoE (MoEpic, 2.2) are mostly a framework's time, of which
  the simulator has 5 us per kernel. `--set launch_us=60` shows what more of it does.
- Prediction accuracy is an input of a simulation, so a simulation cannot confirm claims about it (19, 30, parts of 9, 13 and
  37). Those rows show what was measured on the bundled model.
- Skew and overlap of Qwen1.5-MoE are those with which LFU and LRU hit as often as MoEpic's Table 1 says for 30 of 60 experts
  (35). The other four sizes of that table, synthetic as well, then agree within four points. Models for which nothing is
  stated have the same skew and overlap.
- SMoE's substitution is judged by time only. Row 10 shows what it does to the output of the bundled model.
- Without LLaPor (29) the next gate predicts, which costs no time here. Without PreSched the device computes everything and the
  best predictions are prefetched. The paper does not say more of either.

## Where ours has another sign, and why

- **5** (SMoE slower in prefill): the paper's gain is the overlap of CPU, device and link. Our HybriMoE has it too, and
  its three queues fit tighter than SMoE's two pointers. With SMoE's assignment it is as slow: `moepager simulate --machine
  rtx3080ti-i9 --model deepseek-moe-16b --profile hybrimoe --assign two-pointer --prompt-tokens 128 --gen-tokens 4` (690 ms, SMoE 683,
  HybriMoE 625).
- **8** (+Pre gains nothing): with one sequence demands keep the link busy, so a prefetch finds no time. `moepager simulate --machine
  rtx3080ti-i9 --model deepseek-moe-16b --profile lru --evict score --route smoe --smoe-alpha 0.35 --top-score-alpha 0.35 --prompt-tokens 16
  --gen-tokens 32`, without and with `--predict partial --prefetch top-score`: 53.4 and 53.2 ms, hits 58 and 56 %. With four times the link
  (`--set link_gbps=100`) 17.9 and 17.0 ms, -5 %; with a framework's time (`--set launch_us=60`) hits rise by 9 points, as in the
  paper, but predicting costs kernels: 76.6 and 78.9 ms. +BA then takes away the CPU's part of the work and gains more than in the paper.
- **11, 14, 16** (HybriMoE ahead of DALI): DALI describes HybriMoE as a static threshold on tokens (1, 3.1, A.4).
  HybriMoE's own paper fills queues by simulated finishing times, which is what our profile does; those count the waiting for
  the link that DALI's eq. 5 leaves out. With a threshold (`--profile hybrimoe --assign threshold`) DALI is ahead (rows
  11 and 14). In 16, two things: HybriMoE's cache knows scores, which contain all there is to know of made-up routing, and DALI's swaps take the
  link. `moepager simulate --machine rtx3090-epyc7532 --batches 4 --budget 50% --assign greedy --predict none --prefetch none --model
  deepseek-v2-lite-q4`: DALI 18.1 ms, HybriMoE 17.6, without scores (`--evict lru`) 18.1, that is as slow, with as many hits (55 %).
  With `mixtral-8x7b-q4` DALI takes 121.6 ms (link busy 68 %), with swaps at each step (`--workload-w 1`) 157.2 (98 %), HybriMoE 106.4 (49 %).
- **23 to 26, 28** (PreScope behind): 32 GB hold nearly all of DeepSeek-V2-Lite and Moonlight, so there is little to page
  (99.6 % hits, synthetic), and PreScope pays for its predictions: they delay the step here and are hidden in the paper
  (6.4). With 24 GiB and hidden predictions the sign is the paper's: `moepager simulate --machine a100-32gb-xeon6230r
  --model deepseek-v2-lite --batches 16 --gen-tokens 16 --prompt-tokens 128 --set device_gib=24,llapor_us=0 --profile prescope` takes 39.9 ms
  per step, Fiddler 46.6, HybriMoE with `--partition hot-table` 43.0. A second version of that paper is said to use 24 GB.
- **29** (the table and LLaPor gain nothing): for the same reasons. Without the table, with 24 GiB and hidden predictions: `moepager simulate
  --machine v100-xeon6230r --model deepseek-v2-lite --batches 4 --gen-tokens 16 --prompt-tokens 128 --profile prescope --set
  device_gib=24,llapor_us=0` 24.1 ms, with `--partition random` 26.2 (+9 %; hits 85 and 77 %). With `--machine a100-32gb-xeon6230r --model moonlight
  --batches 32` LLaPor takes 56.5 ms there and the gate (`--predict gate`) 56.7; with 32 GB and the paper's time of a prediction 68.2 and 48.3.
- **32, 36, 38, 39** (MoEpic ahead by less; its partition and theta gain next to nothing): made-up layers differ little
  from each other, so there is little to move, and the link is busy nearly all the time whatever theta is. Our baselines load in time what
  the paper says they do not: their TPOT of 136 to 248 ms is mostly a framework's. With such a time prefetching gains what the paper
  says (38): `moepager simulate --machine a6000-xeon8358p --model qwen1.5-moe --profile moepic --budget 20% --fixed-point-tau 1000000000
  --fixed-point-theta 6 --gen-tokens 32 --prompt-tokens 16 --slices 8 --warm 64 --set launch_us=60` takes 72.9 ms, with theta 8 73.2, 16 72.4, cache
  only 122.1: -40 to -41 %, whatever theta is. The prompt of 36 takes longer with the partition because theta rises: with equal
  shares it takes 371 ms with theta 1/2 and 422 with `--fixed-point-theta 16`, where a step takes 83.2 ms. A partition that only waits for an
  idle device would wait for the end of the text, because prefetches leave no such moment; when it is due, prefetching pauses until it has moved.
- **33** (MoEpic's prompt 0.7 % behind MoE-Infinity's): the partition, as in 36. Row 33's command with equal shares
  (`--fixed-point-tau 1000000000` instead of 500) takes 713.1 ms, MoE-Infinity 734.8. The link is busy for 98 and 91 % of that, so there is
  little to gain by any policy that misses as much.

- **40 to 44** (Prism): requests take a tenth of the paper's time, because its framework's time per layer is not modelled, and
  placement then weighs more: Prism gains more against the best other (41, 42), and migration more (43). Paging from host memory
  beats remote calls over 500 Mbit/s for DeepSeek-V2-Lite, whose experts are small, and loses for Mixtral, as the paper's Table I
  says; `united`, which weighs both, is ahead of each in these simulations; on the real
  [test bed](cluster.md#test-bed) it is the fastest above what servers can answer (1,235 ms; next `eplb` with 1,466), as fast as `redirect` at the middle load (114 and 116; next `local` with 138) and third at the low one (72; `local` 66).
  There `prism` is 12 to 20 % faster than `uniform`, not 30 % faster, and 5 % slower to 4 % faster than `eplb`: with small rows a call takes as long whatever it carries, of a layer's 4 experts
  some are on each of the 2 others nearly always, so that with 45 instead of 33 % computed where they are asked for there are only 10 % fewer calls (10,862 and 12,052), and most requests come before
  servers know their users: of 400 each, `prism` is 22 % faster than `uniform` and `eplb` 24 %. In 44 domains are those of three kinds of users however many servers there are.

## Commands

'''


Claim = collections.namedtuple('Claim', 'number place setting claim ours')

CLAIMS = [Claim(*row) for row in (
    (1, 'SMoE VI-B, Fig. 11', 'mean of S1-S3 (S1 DeepSeek-MoE-16B/3080 Ti, S2 XVERSE-A4.2B/4060 Ti 16 GB, S3 Qwen2-57B/A6000), best baseline', 'TPOT -24 % (b1), -35 % (b3)', smoe.mean),
    (2, 'SMoE VI-B', 'S3', '-34 % (b1), -48 % (b3; the abstract\'s 48 %)', smoe.setting('S3')),
    (3, 'SMoE VI-B', 'S1', '-20 % (b1), -27 % (b3)', smoe.setting('S1')),
    (4, 'SMoE abstract, I, VI-B', 'hit rate', '> 60 %; 71 % for Qwen2-57B on A6000; "at least 65 % improvement in cache ratio"', smoe.hits),
    (5, 'SMoE VI-B, Fig. 13', 'prefill', 'TTFT -11 %', smoe.prefill),
    (6, 'SMoE T. I', 'Qwen2-57B, A6000', 'TPOT share low-score loading 42, top-score loading 29, GPU 29 %', smoe.shares),
    (7, 'SMoE I, Fig. 1', 'worked example', 'hits 2/5 -> 4/5, prefetches 3 -> 1', fixed('measured', 'tests/unit/policy/route/smoe_test.c')),
    (8, 'SMoE VI-C, Fig. 14', 'b1, cumulative', '+CE, +CR, +Pre, +BA: TPOT -8, -20, -14, -34 %; cache ratio +11, +60, +12, -3 %', smoe.ablation),
    (9, 'SMoE VI-C', 'prefetch', '82 % of predicted top-score right; 95 % active; CPU time 1/3 of load time in S3', smoe.prefetch),
    (10, 'SMoE T. IV', '5 data sets x 3 models x alpha 0..0.6 step 0.05', '195 accuracies; loss negligible below 0.35; used alpha 0.35/0.3/0.25 (S1/S2/S3)', smoe.accuracies),
    (11, 'DALI 6.2, Fig. 12', 'RTX 3090, 16 cores/32 threads, 64+64 tokens, cache 50 %, w 4; u, prefetch 1, 1 (Mixtral), 8, 4 (others)', 'decode 3.97/2.16/1.48/1.32x over llama.cpp/KTransformers/MoE-Lightning/HybriMoE; Fiddler 14.3x', dali.decode),
    (12, 'DALI 6.2, Fig. 13', 'DeepSeek-V2-Lite, prompt 64', 'prefill 7.62/3.80/2.45/2.00x', dali.prefill),
    (13, 'DALI 1, 3, T. 2', 'motivation', 'PCIe up to 78.1 % (> 60 % HybriMoE Mixtral); HybriMoE hit 25.3 % on Mixtral; Table 2 (32 accuracies of EdgeMoE, HybriMoE)', dali.motivation),
    (14, 'DALI 6.3, Fig. 14, 15', 'assignment alone', 'greedy 4.42x, HybriMoE\'s 3.58x over all-CPU; +23 %; 1.70x over solving exactly; overhead 4.5-5 % vs 55 %', dali.assign),
    (15, 'DALI T. 4', 'decode 32', 'exact -> greedy s: DeepSeek b16 12.4/14.4, b32 19.7/22.4; Mixtral 22.6/26.7, 28.0/30.4; "up to 92 %"', dali.exact),
    (16, 'DALI 6.3, Fig. 17, 19', 'cache alone; breakdown', '1.23x over HybriMoE\'s (b4); greedy 4.1x, prefetch +9 %, cache +38 %', dali.cache),
    (17, 'DALI 6.4, Fig. 18', 'Mixtral', 'prefetch of one is best; hit rate rises to 100 %', dali.prefetch_size),
    (18, 'DALI 6.5', 'b16, 32 + 128..1024; two GPUs', '2.78/1.96/1.47x (llama.cpp/KT/HybriMoE); 3.43/1.87/1.32x', dali.long),
    (19, 'DALI T. 5', 'mean prefetch accuracy HybriMoE -> DALI', 'DeepSeek 72.6 -> 79.5; Qwen 77.6 -> 93.3 %', dali.accuracy),
    (20, 'DALI T. 6, T. 7', 'overhead; memory', '3.01 vs 4.50 %; Mixtral 12.6-15.1 GB, Qwen 4.79-7.02 GB', dali.memory),
    (21, 'DALI T. 8', 'mean cosine', 'Qwen 0.79 -> 0.93; Mixtral 0.79 -> 0.89', fixed('n/a', 'needs hidden states of the models')),
    (22, 'DALI T. 9, A.1, A.6', 'b32, length 64', 'tokens/s by (w,u); (2,16) +4.2 % hits, (4,8) vs (8,8) +7.1 %; CPU +6.66 s, GPU -20 s (DeepSeek b64)', dali.windows),
    (23, 'PreScope abstract, 6.2.2', 'V100/A100, 512+64 tokens, b4-64, best case', 'throughput +264/129/141/70.8 % over Fate/Fiddler/Klotski/HybriMoE', prescope.gain('throughput', True, (prescope.V100, prescope.MODELS, (4, 16)), (prescope.A100, prescope.MODELS, (4, 16)))),
    (24, 'PreScope 6.2.3', 'best case', 'latency -68.2/72.3/74.6/42.1 % in the same order', prescope.gain('latency', True, (prescope.V100, prescope.MODELS, (4, 16)), (prescope.A100, prescope.MODELS, (4, 16)))),
    (25, 'PreScope 6.2.2', 'V100 b64 DeepSeek/Qwen3/Moonlight', 'Klotski +61.4/66.2/67.6; Fate +129/108/114 %', prescope.gain('throughput', False, (prescope.V100, prescope.MODELS, (64,)))),
    (26, 'PreScope 6.2.2', 'A100 b64', '37.4/13.3/47.6 tok/s; HybriMoE +58.7/37.6/55.1; Fiddler +71.0/59.6/97.4 %', prescope.a100),
    (27, 'PreScope 6.2.2', 'Mixtral', 'V100 Klotski, Fate +82.9, 213 % (b8) -> 14.1, 44.3 % (b64); A100 b64 HybriMoE +32, Fiddler +88 %', prescope.gain('throughput', False, (prescope.V100, ['mixtral-8x7b'], (8, 64)), (prescope.A100, ['mixtral-8x7b'], (64,)))),
    (28, 'PreScope 6.2.3', 'V100', 'DeepSeek b4 0.37 s (HybriMoE -42.1, Fiddler -72.3); Qwen3 b64 5.05 s (Klotski -74.6, Fate -46.7); Mixtral b64 2.79 s (Fate -30.5, Klotski -53.9; plateau 5.82 s); Fate 4.6x from b4 to b64', prescope.latency),
    (29, 'PreScope 6.3, Fig. 15', 'leave one out', 'table -22.2 % (DeepSeek V100 b4; hits -30..40 %); PreSched -54.1 % (Mixtral A100 b64); LLaPor -20.2 % (Moonlight A100 b32); AsyncIO -49.3 % (Mixtral A100 b64); PyTorch copies > 70 % slower', prescope.ablation),
    (30, 'PreScope T. 3, 6.4', 'b32, 128+32', 'Top-4 94/99/97/99 %, tokens 95/97/97/98 % (DeepSeek/Mixtral/Qwen3/Moonlight); 0.5-2.8 MB; 0.12-0.48 ms; never < 80 %; +15-68.4 % over gate; 30 epochs x 0.6 s', prescope.prediction),
    (31, 'PreScope T. 2, 2.3, 6.5', 'shapes, link, balance', 'expert 336/9/16.5/16.5 MB; PCIe 79 %; gap <= 8 ms for half the layers, peak 14 ms; Fiddler CPU 1.9x GPU', prescope.sizes),
    (32, 'MoEpic abstract, 4.2, Fig. 7', 'Mixtral (HQQ 2-bit experts, 4-bit attention), 160 experts', 'TPOT 85 vs 248/162/144/136 ms (Pre-gated/Mixtral-offloading/AdapMoE/MoE-Infinity): -65.73..-37.51 %', moepic.compare(moepic.MIXTRAL, '62.5%', 'tpot_ms')),
    (33, 'MoEpic 4.2', 'Qwen1.5-MoE BF16, 480 experts', 'TTFT 1.43 vs 2.58/1.77/1.78/1.73 s', moepic.compare(moepic.QWEN, '33.4%', 'ttft_ms', prompt_tokens=512, gen_tokens=1)),
    (34, 'MoEpic 4.3, Fig. 8', 'Qwen1.5, TPOT 140 ms', '5.98 vs 11.97/10.42/9.56 GB; 60 ms at 12.38 GB vs 57 ms at 26.67 GB', moepic.memory),
    (35, 'MoEpic T. 1', 'Qwen1.5, MMLU, 10..50 of 60', '20 hit rates; at 30: RND 49.69, LFU 60.68, LRU 56.38, LCP 62.21 %', moepic.hits),
    (36, 'MoEpic T. 3', 'Mixtral, 96 experts', '720/132 ms; w/o SP 753/174, LCP 782/157, CCA 864/193', moepic.ablation),
    (37, 'MoEpic 2.2, Fig. 2', 'Qwen1.5', '40 % hits = 3.81x latency; load 165 vs compute 57 ms; 34.55-49.45 % hidden; 2.07-3.39 of 4 predicted', moepic.times),
    (38, 'MoEpic 2.3, Fig. 4', '288 experts', 'theta 0.4 best, -37.97..-48.67 %; layer hit spread 58.12-63.67 %', moepic.thetas),
    (39, 'MoEpic 4.5, Fig. 9', 'Mixtral', 'rho, omega: <= 8 ms; zeta 0.05: +12.12 %', moepic.settings),
    (40, 'Prism T. I', 'Mixtral, 3 simulated servers', 'MoE-Infinity 5.19, with redirect 5.03, naive collaboration 4.11 s', prism.motivation),
    (41, 'Prism T. II, abstract, IV-B', 'BigBench 10 s, DeepSeek-V2-Lite; Mixtral', 'Uniform 21.66, Redundance 13.08, SmartMoE 19.39, EPLB 9.56, Prism 6.63 (-30.6 %); 5.08/4.85/2.30/2.16/2.09', prism.table('bigbench', 'bigbench-mixtral')),
    (42, 'Prism T. II', 'MultiData 20 s', '30.65/17.70/29.77/14.93/13.29 (-10.9 %); 10.92/9.90/11.85/9.36/9.17 (-2.0 %)', prism.table('multidata', 'multidata-mixtral')),
    (43, 'Prism IV-B, Fig. 7', 'V2-Lite, 200 + 200 requests per server', 'migration 7.48 -> 6.73 s; three migrations', prism.migration),
    (44, 'Prism IV-C, Fig. 8', 'simulator', '4 -> 256 GPUs: -9 % (15 s) to -19 % (8 s); 100 -> 1000 Mbit/s: > 55 % at 4, 35 % at 256 GPUs', prism.scale),
)]
