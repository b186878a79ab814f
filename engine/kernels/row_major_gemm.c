/* fp32 activations times a weight of 16 bits, bf16 or fp16, that lies row by row as in a model's file.
 *
 * It computes a weight that is used a few times and not packed, such as one that is in a mapped file. The products of a
 * row and an output are added lane by lane, from the first input to the last, and the lanes are added at the end. So a
 * row has the same bits alone or in a batch.
 */

#include "kernels.h"

#define ITEM_OUTPUTS 32
#define BLOCK_OUTPUTS 2
/* Rows whose sums with the outputs of a block fit into registers: a multiple of four. */
#if LANES == 16
#define BLOCK_ROWS 8
#else
#define BLOCK_ROWS 4
#endif

/* x (count, inputs) and out (count, outputs) with rows out_stride elements apart, both fp32; weights (outputs, inputs)
 * with rows weight_stride elements apart. Inputs are a multiple of LANES. */
struct row_major_args {
    int64_t x, count, inputs, weights, weight_stride, outputs, out, out_stride, is_fp16, threads;
};

typedef uint16_t half_lanes __attribute__((vector_size(LANES * 2), aligned(2), may_alias));

INLINE vec load_weights(const int is_fp16, const uint16_t *from) {
    if (is_fp16) return fp16_to_fp32(from);
    return (vec)(__builtin_convertvector(*(const half_lanes *)from, ivec) << 16);
}

/* The products of `rows` rows from x on with `outputs` outputs of a weight. */
INLINE void multiply_block(const int is_fp16, const int rows, const int outputs, const struct row_major_args *args,
                           const float *x, const uint16_t *weights, float *out) {
    vec sums[BLOCK_OUTPUTS][BLOCK_ROWS] = {{{0}}};
    for (int64_t i = 0; i < args->inputs; i += LANES) {
        vec weight[BLOCK_OUTPUTS];
        for (int k = 0; k < outputs; k++) weight[k] = load_weights(is_fp16, weights + k * args->weight_stride + i);
        for (int r = 0; r < rows; r++) {
            const vec from = load(x + r * args->inputs + i);
            for (int k = 0; k < outputs; k++) sums[k][r] = multiply_add(from, weight[k], sums[k][r]);
        }
    }
    for (int k = 0; k < outputs; k++) {
        float results[BLOCK_ROWS];
        for (int r = 0; r < rows; r += 4) reduce_sum_four(results + r, sums[k] + r, 1);
        for (int r = 0; r < rows; r++) out[r * args->out_stride + k] = results[r];
    }
}

/* All rows with `outputs` outputs of a weight. */
INLINE void multiply_outputs(const int is_fp16, const int outputs, const struct row_major_args *args, int64_t first) {
    const uint16_t *weights = (const uint16_t *)args->weights + first * args->weight_stride;
    for (int64_t row = 0; row < args->count; row += BLOCK_ROWS) {
        const float *x = (const float *)args->x + row * args->inputs;
        float *out = (float *)args->out + row * args->out_stride + first;
        switch (args->count - row) { /* a constant number of rows keeps the sums in registers */
#define ROWS(n) case n: multiply_block(is_fp16, n, outputs, args, x, weights, out); break;
            ROWS(1) ROWS(2) ROWS(3)
#if BLOCK_ROWS > 4
            ROWS(4) ROWS(5) ROWS(6) ROWS(7)
#endif
        default: multiply_block(is_fp16, BLOCK_ROWS, outputs, args, x, weights, out);
        }
    }
}

INLINE void multiply_item(const int is_fp16, const struct row_major_args *args, int64_t item) {
    const int64_t last = (item + 1) * ITEM_OUTPUTS, end = last < args->outputs ? last : args->outputs;
    int64_t first = item * ITEM_OUTPUTS;
    for (; first + BLOCK_OUTPUTS <= end; first += BLOCK_OUTPUTS) multiply_outputs(is_fp16, BLOCK_OUTPUTS, args, first);
    for (; first < end; first++) multiply_outputs(is_fp16, 1, args, first);
}

static void multiply_bf16(const void *args, int64_t item) { multiply_item(0, args, item); }
static void multiply_fp16(const void *args, int64_t item) { multiply_item(1, args, item); }

void antiphon_row_major_linear(const struct row_major_args *args) {
    const int64_t items = (args->outputs + ITEM_OUTPUTS - 1) / ITEM_OUTPUTS;
    const int64_t threads = args->outputs * args->inputs > PARALLEL_THRESHOLD ? args->threads : 1;
    parallel_for(args->is_fp16 ? multiply_fp16 : multiply_bf16, args, items, threads);
}
