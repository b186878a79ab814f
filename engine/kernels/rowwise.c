/* Row-wise kernels: RMS norm, SiLU gate, rotary embedding and block softmax, each in a single pass over memory.
 *
 * engine/kernels/compiler.py compiles this file; engine/kernels/bindings.py calls it after checking shapes. Elements
 * are fp32, rows are contiguous, and their length is a multiple of LANES (block_softmax takes any length). One thread
 * computes a row in a fixed order, so its bits depend neither on the number of threads nor on other rows.
 */

#include "kernels.h"

int64_t antiphon_lanes(void) { return LANES; }

/* A loop over blocks of rows; each block is one work item. */
struct row_loop { const struct row_args *args; int64_t rows_per_block; float eps; };

INLINE const float *row_start(const struct row_args *args, int64_t r) {
    return (const float *)args->x + r / args->inner * args->outer_stride + r % args->inner * args->inner_stride;
}

static void for_each_block(void (*body)(const void *, int64_t), const struct row_args *args, float eps) {
    if (!args->count) return;
    const int64_t rows = args->count * args->size <= PARALLEL_THRESHOLD
        ? args->count : (PARALLEL_THRESHOLD / 8 + args->size - 1) / args->size;
    const struct row_loop loop = {args, rows, eps};
    parallel_for(body, &loop, (args->count + rows - 1) / rows, args->threads);
}

#define EACH_ROW(loop, block) \
    for (int64_t r = block * loop->rows_per_block, stop = r + loop->rows_per_block; \
         r < stop && r < loop->args->count; r++)

/* out = x / sqrt(mean(x * x) + eps) * weight */
static void rms_norm_rows(const void *context, int64_t block) {
    const struct row_loop *loop = context;
    const struct row_args *args = loop->args;
    const float *weight = (const float *)args->factors;
    EACH_ROW(loop, block) {
        const float *x = row_start(args, r);
        float *out = (float *)args->out + r * args->size;
        vec squares[2] = {{0}, {0}};
        int64_t i = 0;
        for (; i + 2 * LANES <= args->size; i += 2 * LANES) {
            squares[0] = multiply_add(load(x + i), load(x + i), squares[0]);
            squares[1] = multiply_add(load(x + i + LANES), load(x + i + LANES), squares[1]);
        }
        if (i < args->size) squares[0] = multiply_add(load(x + i), load(x + i), squares[0]);
        float inverse_rms = 1 / sqrtf(reduce_sum(squares[0] + squares[1]) / args->size + loop->eps);
        for (i = 0; i < args->size; i += LANES) store(out + i, load(x + i) * inverse_rms * load(weight + i));
    }
}

void antiphon_rms_norm(const struct row_args *args, float eps) { for_each_block(rms_norm_rows, args, eps); }

/* out = silu(x[:size]) * x[size:] */
static void silu_mul_rows(const void *context, int64_t block) {
    const struct row_loop *loop = context;
    const struct row_args *args = loop->args;
    EACH_ROW(loop, block) {
        const float *x = row_start(args, r);
        float *out = (float *)args->out + r * args->size;
        silu_mul_row(x, out, args->size);
    }
}

void antiphon_silu_mul(const struct row_args *args) { for_each_block(silu_mul_rows, args, 0); }

/* Rotary embedding: rotates the two halves of a row by the angles of its token. */
static void rope_rows(const void *context, int64_t block) {
    const struct row_loop *loop = context;
    const struct row_args *args = loop->args;
    const int64_t half = args->size / 2;
    EACH_ROW(loop, block) {
        const float *x = row_start(args, r);
        const float *cosines = (const float *)args->factors + r / args->inner * args->size;
        const float *sines = (const float *)args->sines + r / args->inner * args->size;
        float *out = (float *)args->out + r * args->size;
        for (int64_t i = 0; i < half; i += LANES) {
            vec a = load(x + i), b = load(x + half + i);
            store(out + i, multiply_add(a, load(cosines + i), -(b * load(sines + i))));
            store(out + half + i, multiply_add(b, load(cosines + half + i), a * load(sines + half + i)));
        }
    }
}

void antiphon_rope(const struct row_args *args) { for_each_block(rope_rows, args, 0); }

#define SOFTMAX_BLOCK 128

/* Sums of exp((x - max(row)) * factor) over each block of SOFTMAX_BLOCK scores: out is (count, blocks + 1).
 *
 * The last element of each output row is the row's maximum, NaN if the row contains NaN.
 */
static void block_softmax_rows(const void *context, int64_t block) {
    const struct row_loop *loop = context;
    const struct row_args *args = loop->args;
    const int64_t blocks = (args->size + SOFTMAX_BLOCK - 1) / SOFTMAX_BLOCK;
    EACH_ROW(loop, block) {
        const float *x = row_start(args, r);
        float *out = (float *)args->out + r * (blocks + 1);
        const float factor = ((const float *)args->factors)[r];
        vec maxima = broadcast(-INFINITY);
        int64_t i = 0;
        for (; i + LANES <= args->size; i += LANES) maxima = max_or_nan(load(x + i), maxima);
        for (; i < args->size; i++) maxima = max_or_nan(broadcast(x[i]), maxima);
        const float row_max = reduce_max(maxima);
        for (int64_t b = 0; b < blocks; b++) {
            const int64_t first = b * SOFTMAX_BLOCK;
            const int64_t end = first + SOFTMAX_BLOCK < args->size ? first + SOFTMAX_BLOCK : args->size;
            vec total = {0};
            for (i = first; i + LANES <= end; i += LANES) total += exp_lanes((load(x + i) - row_max) * factor);
            float rest = 0;
            for (; i < end; i++) rest += exp_lanes(broadcast((x[i] - row_max) * factor))[0];
            out[b] = reduce_sum(total) + rest;
        }
        out[blocks] = row_max;
    }
}

void antiphon_block_softmax(const struct row_args *args) { for_each_block(block_softmax_rows, args, 0); }
