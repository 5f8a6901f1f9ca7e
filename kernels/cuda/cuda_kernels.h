#ifndef MP_CUDA_KERNELS_H
#define MP_CUDA_KERNELS_H

#include <stdint.h>

/*
 * The kernels for CUDA devices: their names and what each takes. One struct per kernel, passed by
 * value as its only parameter, so that host and device agree on its layout by this one header
 * (C and CUDA C). Addresses are device addresses as 64-bit numbers; everything is 8-byte aligned.
 *
 * Shapes as in engine/forward/engine_int.h: T tokens, H hidden, Q heads * head_dim, K kv_heads *
 * head_dim, D head_dim, V vocabulary, E experts, R top_k, F channels. Weights are row-major in one
 * of `enum mp_wtype` (kernels/cpu/types.h), rows at multiples of 2 bytes (matrices at multiples
 * of 16 are read faster), of quantised types whole blocks at any address; activations are float.
 * Strides are in elements.
 *
 * Exact results. Bits of an output element depend only on the values that it is computed from: not
 * on the number of tokens or rows of a launch, nor on addresses. Sums run in one fixed order. The
 * down projection sums channel blocks of 256 in ascending order (MP_KERNEL_BLOCK_COLS). Quantised
 * weights are multiplied as the floats that the CPU decodes them to (mp_wtype_info()), with their
 * bits; activations are not rounded.
 */

/*
 * y[t][r] (+)= sum_c w[r][c] x[t][c] (+ bias[r]), t < tokens. GEMV takes 1..8 tokens and reads each
 * weight once, GEMM any number; both give the same bits. `accumulate`: added to what y had.
 */
struct mp_cuda_matmul {
    uint64_t w, x, y, bias; /* bias: 0 or float (rows) */
    uint32_t type, rows, cols, tokens;
    uint32_t w_stride, x_stride, y_stride, accumulate;
};

/* The normed rows of 1..8 tokens: x[t][i] / sqrt(mean_i x^2 + eps) norm[i], i < cols; no gaps. */
struct mp_cuda_normed {
    uint64_t x, norm;
    uint32_t cols, tokens;
    float eps;
    uint32_t pad;
};

/* y[t][r] = sum_c w[r][c] in[t][c] (+ bias[r]), both without gaps; rows 0: none */
struct mp_cuda_part {
    uint64_t w, y, bias;
    uint32_t rows, pad;
};

/* Up to three products with a norm's result, as by rmsnorm and gemv with the same bits. */
struct mp_cuda_project {
    struct mp_cuda_normed in;
    struct mp_cuda_part part[3];
};

/* x[t][i] = (float)table[token[t]][i], i < width */
struct mp_cuda_embed {
    uint64_t table, token, x; /* token: u32 (T) */
    uint32_t type, width, tokens, vocab;
};

/* out[t][i] = x[t][i] / sqrt(mean_i x^2 + eps) w[i]; out may be x */
struct mp_cuda_rmsnorm {
    uint64_t x, w, out;
    uint32_t width, tokens, x_stride, out_stride;
    float eps;
    uint32_t pad;
};

/*
 * Queries and keys of T tokens get their norm (where q_norm, k_norm are not 0; float (D)) and
 * position (cosine, sine: float (C, D/2)); keys and values go to the cache of their sequence,
 * rounded to nearest: k_cache[(sequence[t] * ctx + position[t]) * K + i], of `type`, which is F32,
 * BF16 or F16.
 */
struct mp_cuda_place {
    uint64_t q, k, v; // (T, Q), (T, K), (T, K)
    uint64_t q_norm, k_norm, cosine, sine;
    uint64_t k_cache, v_cache;   // (sequences, ctx, K)
    uint64_t sequence, position; /* u32 (T) */
    uint32_t heads, kv_heads, head_dim, tokens, ctx;
    float eps;
    uint32_t type, pad;
};

/*
 * out[t][h] = softmax(scale q k) v over positions [0, position[t]] of sequence[t]. A block for each
 * token and key head, or a few where more query heads share it than one has registers for. With
 * `part` up to 32, one for each 256 positions, for when those are fewer than the device can run and
 * contexts are long; the bits are the same. The end of the name is the cache's type; rounded values
 * have the bits of the same values as floats. head_dim: even, at most 256.
 */
struct mp_cuda_attend {
    uint64_t q, out, k_cache, v_cache, sequence, position;
    uint32_t heads, kv_heads, head_dim, tokens, ctx;
    float scale;
    /* 0, or mp_cuda_attend_part_bytes(); then u32 (T, heads), 0 before and after. */
    uint64_t part, turn;
};

/* Softmax over each row of `width` in place. */
struct mp_cuda_softmax {
    uint64_t x;
    uint32_t width, tokens, stride, pad;
};

/* gate[i] = silu(gate[i]) up[i], i < count */
struct mp_cuda_silu_mul {
    uint64_t gate, up, count;
};

/* One expert of a layer's work list, in device memory. Its rows are row[first .. first + count). */
struct mp_cuda_expert {
    uint64_t gate, up, down; /* weights, wherever they are */
    uint32_t first, count;
    uint32_t channels;   /* of this expert or slice: rows of gate and up, columns of down */
    uint32_t accumulate; /* a further slice: rank keeps what it had and gets more */
};

/*
 * Experts, in two launches: act[i][c] = silu(gate_c x) (up_c x) for rows i of the list, then
 * rank[row[i]][h] (+)= down_h act[i]. row[i] = t * R + r; its input is x[row[i] / R]. Launched over
 * the list's experts; `work` entries with count 0 are skipped. Up to 8 rows of an expert read each
 * of its weights once. Slices of one expert go in launches one after another, not in one list.
 */
struct mp_cuda_experts {
    uint64_t work; /* struct mp_cuda_expert (works) */
    uint64_t row;  /* u32 */
    uint64_t x;    // (T, H)
    uint64_t act;  // (rows of the list, channels)
    uint64_t rank; // (T, R, H)
    uint32_t type, works, hidden;
    uint32_t channels; /* the most of any entry */
    uint32_t top_k, x_stride;
    uint32_t rows_max; /* the most of any entry */
    uint32_t pad;
};

/* x[t] += sum_r weight[t][r] / total rank[t][r] (+ shared[t]); ranks in ascending order, total =
 * their sum if `normalise`, else 1; shared 0: none. With `gate` (float (T), or 0): sigmoid(gate[t])
 * shared[t]. */
struct mp_cuda_combine {
    uint64_t x, rank, weight, shared; // (T, H), (T, R, H), (T, R), (T, H)
    uint32_t hidden, top_k, tokens, normalise;
    uint64_t gate;
};

/*
 * The exact router: expert[t][r], weight[t][r] := the k best of scores (T, E), equal ones by lower
 * number; as policy/route/exact.c, also for scores that are NaN.
 */
struct mp_cuda_top_k {
    uint64_t scores, expert, weight; /* expert: u32 (T, R) */
    uint32_t experts, top_k, tokens, pad;
};

/*
 * One token batch's choices become a work list without the host: expert e's place is table[e]
 * (struct mp_cuda_place_of; valid 0: not resident). The experts that are chosen and resident get an
 * entry each, in ascending order and without gaps, and `row` (ascending); the rest of the list's
 * `works` entries get the count 0. works: at least as many as can be chosen, min(E, T * R).
 * misses[0] (u32) := chosen experts that are not resident; chosen[e] (u32; 0: none) += tokens that
 * chose it. At most 1024 experts. Where experts are in slices, one launch and one table for each
 * slice.
 */
struct mp_cuda_place_of {
    uint64_t gate, up, down;
    uint64_t valid;
};
struct mp_cuda_resolve {
    uint64_t expert; /* u32 (T, R), of top_k */
    uint64_t table;  /* struct mp_cuda_place_of (E) */
    uint64_t work, row, misses, chosen;
    uint32_t experts, top_k, tokens;
    uint32_t channels, accumulate; /* of every expert, or of this slice of each */
    uint32_t works;
};

/*
 * A router and what follows from its scores, with the bits of rmsnorm, gemv, softmax, top_k and
 * resolve one by one: out := the normed rows, kept (0: none) := the rows as they are, scores (T, E)
 * := softmax(w out); then, unless choose.top_k is 0, `choose` and `list`. The last block does what
 * follows the scores. in.tokens: 1..8. next: another router of the same type and shape, and a norm
 * of the same rows: its scores (T, E) := softmax(next.w norm'(x)); w 0: none.
 */
struct mp_cuda_route {
    struct mp_cuda_normed in;
    uint64_t w;         // (E, H)
    uint64_t out, kept; // (T, H)
    uint64_t scores;    // (T, E)
    uint64_t turn;      /* u32, 0 before and after; launches one after another may share it */
    struct mp_cuda_top_k choose; /* its scores may be others */
    struct mp_cuda_resolve list;
    struct {
        uint64_t w, norm, scores;
    } next;
    uint32_t experts, pad;
};

/* token[t] (u32) := the lowest number of a greatest logits[t][v]; NaN is less than all else. */
struct mp_cuda_argmax {
    uint64_t logits, token;
    uint32_t vocab, tokens;
};

/* Of a block of sample_list and sample: what follows logits in order, and sums. */
struct mp_cuda_sample_part {
    uint64_t place[16]; /* of its first tokens in order, 0: it has no more */
    uint64_t mass, nan; /* the sum of its tokens' probabilities; how many logits are NaN */
};

/*
 * In two launches, sample_list and then sample, with the same parameters:
 *
 * token[t] (u32) := one sampled from logits[t][v] as engine/forward/sampler.h says, by uniform[t]
 * (u32, in 2^-32): of the tokens in order, greatest logit first and equal ones by lower number, cut
 * to the top_k first (0: no cut) and then to the fewest whose probabilities reach top_p, the one
 * that `uniform` of their sum falls on. temperature 0: the first in order. A logit that is NaN, or
 * a greatest one that is infinite: 0xffffffff.
 *
 * Probabilities are whole multiples of 2^-40 of the greatest one, so that their sums are exact and
 * depend on no order. Each is exp((logit - greatest) / temperature) but for 2^-22 of the exponent
 * and 2^-22 of itself. Hence another token than by exact arithmetic is chosen only where a sum that
 * decides lies within 2^-16 of the sum of all from where it changes the result. At most 2^22
 * logits.
 */
struct mp_cuda_sample {
    uint64_t logits, uniform, token;
    uint64_t part, turn; /* mp_cuda_sample_part_bytes(); u32 (tokens), 0 before and after */
    uint64_t top_p;      /* in 2^-32; 2^32: no cut */
    uint32_t vocab, tokens, top_k;
    float temperature;
};

/* to[t][i] = x[t][i] rounded to 16 bits (to nearest, ties to even), i < width; to: no gaps. */
struct mp_cuda_round {
    uint64_t x, to;
    uint32_t width, tokens, x_stride, pad;
};

/*
 * Rows of a work list that stand anywhere, out into a matrix and back: gather_rows to[i] =
 * from[row[i] / top_k], scatter_rows to[row[i]] (+)= from[i], i < rows; each `width` floats.
 */
struct mp_cuda_rows {
    uint64_t row, from, to; /* row: u32 (rows); matrices without gaps */
    uint32_t rows, width, top_k, accumulate;
};

/* For measuring: sum[block] (u64) := sum of those 64-bit words of [src, src + bytes) that the block
 * reads, `times` times; bytes: a multiple of 16. */
struct mp_cuda_read {
    uint64_t src, bytes, sum;
    uint32_t times, blocks;
};

/* For measuring: one block that runs for so long. */
struct mp_cuda_spin {
    uint64_t ns;
};

/* X(TYPE, name): the quantised types of weights that devices have kernels for. */
#define MP_CUDA_QUANT_MAP(X) \
    X(Q4_0, q4_0)            \
    X(Q4_1, q4_1)            \
    X(Q5_0, q5_0)            \
    X(Q5_1, q5_1)            \
    X(Q8_0, q8_0)            \
    X(IQ4_NL, iq4_nl)        \
    X(MXFP4, mxfp4)          \
    X(Q2_K, q2_k)            \
    X(Q3_K, q3_k)            \
    X(Q4_K, q4_k)            \
    X(Q5_K, q5_k)            \
    X(Q6_K, q6_k)            \
    X(IQ4_XS, iq4_xs)        \
    X(IQ2_XXS, iq2_xxs)      \
    X(IQ2_XS, iq2_xs)        \
    X(IQ2_S, iq2_s)          \
    X(IQ3_XXS, iq3_xxs)      \
    X(IQ3_S, iq3_s)

/* X(name, struct of its parameter): for weights of such a type. They are in an image of their own,
 * kernels/cuda/TYPE.ptx. */
#define MP_CUDA_QUANT_KERNELS(X, type)       \
    X(gemv1_##type, mp_cuda_matmul)          \
    X(gemv8_##type, mp_cuda_matmul)          \
    X(gemm_##type, mp_cuda_matmul)           \
    X(project1_##type, mp_cuda_project)      \
    X(project8_##type, mp_cuda_project)      \
    X(experts_up1_##type, mp_cuda_experts)   \
    X(experts_up8_##type, mp_cuda_experts)   \
    X(experts_up_##type, mp_cuda_experts)    \
    X(experts_down1_##type, mp_cuda_experts) \
    X(experts_down8_##type, mp_cuda_experts) \
    X(experts_down_##type, mp_cuda_experts)

/* The same for tensor cores: of a quantised type in an image of their own, tensor_TYPE.ptx. */
#define MP_CUDA_TENSOR_KERNELS(X, type)  \
    X(tensor_##type, mp_cuda_matmul)     \
    X(tensor_up_##type, mp_cuda_experts) \
    X(tensor_down_##type, mp_cuda_experts)

/* X(name, struct of its parameter): those that every device loads. */
#define MP_CUDA_MAIN_MAP(X)                \
    X(embed, mp_cuda_embed)                \
    X(rmsnorm, mp_cuda_rmsnorm)            \
    X(gemv1_f32, mp_cuda_matmul)           \
    X(gemv2_f32, mp_cuda_matmul)           \
    X(gemv4_f32, mp_cuda_matmul)           \
    X(gemv8_f32, mp_cuda_matmul)           \
    X(gemv1_bf16, mp_cuda_matmul)          \
    X(gemv2_bf16, mp_cuda_matmul)          \
    X(gemv4_bf16, mp_cuda_matmul)          \
    X(gemv8_bf16, mp_cuda_matmul)          \
    X(gemv1_f16, mp_cuda_matmul)           \
    X(gemv2_f16, mp_cuda_matmul)           \
    X(gemv4_f16, mp_cuda_matmul)           \
    X(gemv8_f16, mp_cuda_matmul)           \
    X(gemm_f32, mp_cuda_matmul)            \
    X(gemm_bf16, mp_cuda_matmul)           \
    X(gemm_f16, mp_cuda_matmul)            \
    X(project1_f32, mp_cuda_project)       \
    X(project2_f32, mp_cuda_project)       \
    X(project4_f32, mp_cuda_project)       \
    X(project8_f32, mp_cuda_project)       \
    X(project1_bf16, mp_cuda_project)      \
    X(project2_bf16, mp_cuda_project)      \
    X(project4_bf16, mp_cuda_project)      \
    X(project8_bf16, mp_cuda_project)      \
    X(project1_f16, mp_cuda_project)       \
    X(project2_f16, mp_cuda_project)       \
    X(project4_f16, mp_cuda_project)       \
    X(project8_f16, mp_cuda_project)       \
    X(place, mp_cuda_place)                \
    X(attend_f32, mp_cuda_attend)          \
    X(attend_bf16, mp_cuda_attend)         \
    X(attend_f16, mp_cuda_attend)          \
    X(softmax, mp_cuda_softmax)            \
    X(silu_mul, mp_cuda_silu_mul)          \
    X(experts_up1_f32, mp_cuda_experts)    \
    X(experts_up2_f32, mp_cuda_experts)    \
    X(experts_up4_f32, mp_cuda_experts)    \
    X(experts_up8_f32, mp_cuda_experts)    \
    X(experts_up_f32, mp_cuda_experts)     \
    X(experts_up1_bf16, mp_cuda_experts)   \
    X(experts_up2_bf16, mp_cuda_experts)   \
    X(experts_up4_bf16, mp_cuda_experts)   \
    X(experts_up8_bf16, mp_cuda_experts)   \
    X(experts_up_bf16, mp_cuda_experts)    \
    X(experts_up1_f16, mp_cuda_experts)    \
    X(experts_up2_f16, mp_cuda_experts)    \
    X(experts_up4_f16, mp_cuda_experts)    \
    X(experts_up8_f16, mp_cuda_experts)    \
    X(experts_up_f16, mp_cuda_experts)     \
    X(experts_down1_f32, mp_cuda_experts)  \
    X(experts_down2_f32, mp_cuda_experts)  \
    X(experts_down4_f32, mp_cuda_experts)  \
    X(experts_down8_f32, mp_cuda_experts)  \
    X(experts_down_f32, mp_cuda_experts)   \
    X(experts_down1_bf16, mp_cuda_experts) \
    X(experts_down2_bf16, mp_cuda_experts) \
    X(experts_down4_bf16, mp_cuda_experts) \
    X(experts_down8_bf16, mp_cuda_experts) \
    X(experts_down_bf16, mp_cuda_experts)  \
    X(experts_down1_f16, mp_cuda_experts)  \
    X(experts_down2_f16, mp_cuda_experts)  \
    X(experts_down4_f16, mp_cuda_experts)  \
    X(experts_down8_f16, mp_cuda_experts)  \
    X(experts_down_f16, mp_cuda_experts)   \
    X(combine, mp_cuda_combine)            \
    X(top_k, mp_cuda_top_k)                \
    X(resolve, mp_cuda_resolve)            \
    X(route1_f32, mp_cuda_route)           \
    X(route2_f32, mp_cuda_route)           \
    X(route4_f32, mp_cuda_route)           \
    X(route8_f32, mp_cuda_route)           \
    X(route1_bf16, mp_cuda_route)          \
    X(route2_bf16, mp_cuda_route)          \
    X(route4_bf16, mp_cuda_route)          \
    X(route8_bf16, mp_cuda_route)          \
    X(route1_f16, mp_cuda_route)           \
    X(route2_f16, mp_cuda_route)           \
    X(route4_f16, mp_cuda_route)           \
    X(route8_f16, mp_cuda_route)           \
    X(argmax, mp_cuda_argmax)              \
    X(sample_list, mp_cuda_sample)         \
    X(sample, mp_cuda_sample)              \
    X(round_bf16, mp_cuda_round)           \
    X(round_f16, mp_cuda_round)            \
    X(gather_rows, mp_cuda_rows)           \
    X(scatter_rows, mp_cuda_rows)          \
    X(read, mp_cuda_read)                  \
    X(spin, mp_cuda_spin)

/* The others: of each quantised type, of tensor cores. */
#define MP_CUDA_QUANT_KERNEL_MAP(X)   \
    MP_CUDA_QUANT_KERNELS(X, q4_0)    \
    MP_CUDA_QUANT_KERNELS(X, q4_1)    \
    MP_CUDA_QUANT_KERNELS(X, q5_0)    \
    MP_CUDA_QUANT_KERNELS(X, q5_1)    \
    MP_CUDA_QUANT_KERNELS(X, q8_0)    \
    MP_CUDA_QUANT_KERNELS(X, iq4_nl)  \
    MP_CUDA_QUANT_KERNELS(X, mxfp4)   \
    MP_CUDA_QUANT_KERNELS(X, q2_k)    \
    MP_CUDA_QUANT_KERNELS(X, q3_k)    \
    MP_CUDA_QUANT_KERNELS(X, q4_k)    \
    MP_CUDA_QUANT_KERNELS(X, q5_k)    \
    MP_CUDA_QUANT_KERNELS(X, q6_k)    \
    MP_CUDA_QUANT_KERNELS(X, iq4_xs)  \
    MP_CUDA_QUANT_KERNELS(X, iq2_xxs) \
    MP_CUDA_QUANT_KERNELS(X, iq2_xs)  \
    MP_CUDA_QUANT_KERNELS(X, iq2_s)   \
    MP_CUDA_QUANT_KERNELS(X, iq3_xxs) \
    MP_CUDA_QUANT_KERNELS(X, iq3_s)
#define MP_CUDA_TENSOR_MAP(X)          \
    MP_CUDA_TENSOR_KERNELS(X, bf16)    \
    MP_CUDA_TENSOR_KERNELS(X, f16)     \
    MP_CUDA_TENSOR_KERNELS(X, q4_0)    \
    MP_CUDA_TENSOR_KERNELS(X, q4_1)    \
    MP_CUDA_TENSOR_KERNELS(X, q5_0)    \
    MP_CUDA_TENSOR_KERNELS(X, q5_1)    \
    MP_CUDA_TENSOR_KERNELS(X, q8_0)    \
    MP_CUDA_TENSOR_KERNELS(X, iq4_nl)  \
    MP_CUDA_TENSOR_KERNELS(X, mxfp4)   \
    MP_CUDA_TENSOR_KERNELS(X, q2_k)    \
    MP_CUDA_TENSOR_KERNELS(X, q3_k)    \
    MP_CUDA_TENSOR_KERNELS(X, q4_k)    \
    MP_CUDA_TENSOR_KERNELS(X, q5_k)    \
    MP_CUDA_TENSOR_KERNELS(X, q6_k)    \
    MP_CUDA_TENSOR_KERNELS(X, iq4_xs)  \
    MP_CUDA_TENSOR_KERNELS(X, iq2_xxs) \
    MP_CUDA_TENSOR_KERNELS(X, iq2_xs)  \
    MP_CUDA_TENSOR_KERNELS(X, iq2_s)   \
    MP_CUDA_TENSOR_KERNELS(X, iq3_xxs) \
    MP_CUDA_TENSOR_KERNELS(X, iq3_s)

#define MP_CUDA_KERNEL_MAP(X)   \
    MP_CUDA_MAIN_MAP(X)         \
    MP_CUDA_QUANT_KERNEL_MAP(X) \
    MP_CUDA_TENSOR_MAP(X)

enum mp_cuda_kernel {
#define X(name, params) MP_CUDA_KERNEL_##name,
    MP_CUDA_KERNEL_MAP(X)
#undef X
        MP_CUDA_KERNEL_COUNT
};

/* Those before it every device loads. */
#define MP_CUDA_QUANT_FIRST MP_CUDA_KERNEL_gemv1_q4_0

/*
 * From here on they use tensor cores, and are in images of their own: those of BF16 and F16 in one,
 * of each quantised type in another. They round activations to the type of the weights, those of
 * quantised types to F16, as they do the decoded weights; so their bits are others. Of those the
 * same is true as of the rest, that they depend on an element's operands only. Columns are added 16
 * at a time in ascending order, in float; how the 16 of a step are added is the hardware's.
 *
 * The tolerance is (cols + 32) 2^-22 of the sum of the products' magnitudes with rounded operands
 * (17 numbers cut off at 24 bits a step); with activations that are not rounded 2^-8 (BF16) or
 * 2^-11 (F16, quantised) of it more, and with decoded weights that are not another 2^-11. Numbers
 * of F16 end at 65504, beyond which they are infinite; those below 2^-14 are rounded to multiples
 * of 2^-24, which is 2^-25 of the other factor more.
 */
#define MP_CUDA_TENSOR_FIRST MP_CUDA_KERNEL_tensor_bf16
#define MP_CUDA_TENSOR_QUANT_FIRST MP_CUDA_KERNEL_tensor_q4_0

/* The kernels that read weights of one type and take any number of tokens. `round` makes
 * activations of it, or is MP_CUDA_KERNEL_COUNT where activations stay as they are; `tensor*`, one
 * behind the other: tensor cores, for a matrix and for a work list, or MP_CUDA_KERNEL_COUNT. image:
 * has kernels [first, end) of the type; NULL: they are where all devices have them. tensor_image:
 * has those of a quantised type for tensor cores, else NULL. */
struct mp_cuda_type {
    enum mp_cuda_kernel gemm, round, tensor, tensor_up, tensor_down;
    const char *image;
    enum mp_cuda_kernel first, end;
    const char *tensor_image;
};

/* For a value of enum mp_wtype; NULL: devices have no kernels for weights of this type. */
const struct mp_cuda_type *mp_cuda_type(uint32_t type);

/*
 * Those for so many tokens, 1..8, or for experts that have up to so many rows; `type` has kernels.
 * Their bits are the same: they differ in how much they have on its way from memory. Routers have
 * plain numbers; for a quantised type there is MP_CUDA_KERNEL_COUNT.
 */
enum mp_cuda_kernel mp_cuda_gemv(uint32_t type, uint32_t tokens);
enum mp_cuda_kernel mp_cuda_project(uint32_t type, uint32_t tokens);
enum mp_cuda_kernel mp_cuda_route(uint32_t type, uint32_t tokens);
enum mp_cuda_kernel mp_cuda_experts_up(uint32_t type, uint32_t rows_max);
enum mp_cuda_kernel mp_cuda_experts_down(uint32_t type, uint32_t rows_max);

/* That for a KV cache of this type, which has kernels. */
enum mp_cuda_kernel mp_cuda_attend(uint32_t type);

/* How a kernel is launched for its parameter: blocks, threads of one, dynamic shared memory. */
struct mp_cuda_grid {
    uint32_t x, y, z, threads, shared_bytes;
};

/*
 * Host side (kernels/cuda/launch.c): pure arithmetic, no driver. Name of the entry in the image
 * ("mp_rmsnorm"), size of its parameter, and its grid for `params`.
 */
const char *mp_cuda_kernel_name(enum mp_cuda_kernel kernel);
uint32_t mp_cuda_kernel_bytes(enum mp_cuda_kernel kernel);
struct mp_cuda_grid mp_cuda_kernel_grid(enum mp_cuda_kernel kernel, const void *params);

/* Bytes of `part` for such a launch. */
uint64_t mp_cuda_attend_part_bytes(const struct mp_cuda_attend *params);

/* What `part` points to; uses vocab and tokens. */
uint64_t mp_cuda_sample_part_bytes(const struct mp_cuda_sample *params);

/* The kernels as PTX text, zero-terminated, for compute capability 7.5 and later; those that use
 * tensor cores, for 8.0 and later; those of a quantised type, each for either. */
extern const char mp_cuda_image[];
extern const char mp_cuda_tensor_image[];
#define X(TYPE, name)                           \
    extern const char mp_cuda_##name##_image[]; \
    extern const char mp_cuda_tensor_##name##_image[];
MP_CUDA_QUANT_MAP(X)
#undef X

#endif
