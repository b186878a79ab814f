/* Products of adapters: each row of a group gains B(A(x)), with the matrices of its group.
 *
 * All groups of a layer are computed in one call. A row is computed in a fixed order, so its bits depend neither on the
 * number of threads nor on the other rows and groups.
 */

#include "kernels.h"

#define LORA_RANKS 4  /* ranks whose products are summed at once; the rank of a group is a multiple of it */
#define LORA_BLOCK 4  /* rows that share what is loaded of the matrices */
#define LORA_PART 16  /* ranks that are added to the output at once */

/* Consecutive rows with the same matrices: a (rank, inputs), b (rank, outputs). */
struct lora_group {
    int64_t row, count, rank, a, b;
    int64_t first_block; /* output: index of the first work item of this group */
};

/* x (rows, inputs) and out (rows, outputs), fp32; rows lie x_stride and out_stride elements apart. */
struct lora_args {
    int64_t x, x_stride, inputs, out, out_stride, outputs, groups, num_groups, threads;
};

int64_t antiphon_lora_ranks(void) { return LORA_RANKS; }

/* factors[k][r] = the product of row k of x and row r of a */
INLINE void multiply_a(const struct lora_args *args, const float *x, const float *a, int rows, float (*factors)[LORA_PART]) {
    vec sums[LORA_BLOCK][LORA_RANKS] = {{{0}}};
    for (int64_t i = 0; i < args->inputs; i += LANES)
        for (int r = 0; r < LORA_RANKS; r++) {
            const vec weight = load(a + r * args->inputs + i);
            for (int k = 0; k < rows; k++) sums[k][r] = multiply_add(load(x + k * args->x_stride + i), weight, sums[k][r]);
        }
    for (int k = 0; k < rows; k++) reduce_sum_four(factors[k], sums[k], 1);
}

INLINE void add_rows(const struct lora_args *args, const struct lora_group *group, int64_t row, int rows) {
    const float *x = (const float *)args->x + row * args->x_stride;
    float *out = (float *)args->out + row * args->out_stride;
    for (int64_t first = 0; first < group->rank; first += LORA_PART) {
        const int64_t ranks = group->rank - first < LORA_PART ? group->rank - first : LORA_PART;
        const float *a = (const float *)group->a + first * args->inputs;
        const float *b = (const float *)group->b + first * args->outputs;
        float factors[LORA_BLOCK][LORA_PART];
        for (int64_t r = 0; r < ranks; r += LORA_RANKS)
            multiply_a(args, x, a + r * args->inputs, rows, (float (*)[LORA_PART])(factors[0] + r));
        for (int64_t j = 0; j < args->outputs; j += LANES) {
            vec sums[LORA_BLOCK] = {{0}};
            for (int64_t r = 0; r < ranks; r++) {
                const vec weight = load(b + r * args->outputs + j);
                for (int k = 0; k < rows; k++) sums[k] = multiply_add(broadcast(factors[k][r]), weight, sums[k]);
            }
            for (int k = 0; k < rows; k++) {
                float *to = out + k * args->out_stride + j;
                store(to, load(to) + sums[k]);
            }
        }
    }
}

static void add_block(const void *context, int64_t index) {
    const struct lora_args *args = context;
    const struct lora_group *group = (const struct lora_group *)args->groups;
    const struct lora_group *last = group + args->num_groups - 1;
    while (group < last && group[1].first_block <= index) group++;
    const int64_t first = (index - group->first_block) * LORA_BLOCK, row = group->row + first;
    switch (group->count - first) { /* a constant number of rows keeps the sums in registers */
    case 1: add_rows(args, group, row, 1); break;
    case 2: add_rows(args, group, row, 2); break;
    case 3: add_rows(args, group, row, 3); break;
    default: add_rows(args, group, row, LORA_BLOCK);
    }
}

void antiphon_lora(const struct lora_args *args) {
    struct lora_group *groups = (struct lora_group *)args->groups;
    int64_t blocks = 0, elements = 0;
    for (int64_t i = 0; i < args->num_groups; i++) {
        groups[i].first_block = blocks;
        blocks += (groups[i].count + LORA_BLOCK - 1) / LORA_BLOCK;
        elements += groups[i].count * groups[i].rank * (args->inputs + args->outputs);
    }
    parallel_for(add_block, args, blocks, elements <= PARALLEL_THRESHOLD ? 1 : args->threads);
}
