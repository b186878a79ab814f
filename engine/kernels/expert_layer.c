/* The experts of a layer in one call: each expert over the rows that chose it, then the weighted sum of each row.
 *
 * Experts are computed in the order of their indices, and each adds its weighted results to its rows by one fused
 * multiply-add. So a row has the same bits alone or in a batch.
 */

#include "gemm.h"

/* Packed weights of all experts, as struct linear_args has those of one; strides in bytes from expert to expert. */
struct expert_matrix {
    int64_t weights, scales, zeros, group_scales, bias; /* 0 for what there is not; bias: (experts, outputs) */
    int64_t weights_stride, scales_stride, zeros_stride, group_scales_stride;
};

#define CACHE_LINE_BYTES 64

enum { FORM_INT8, FORM_INT4, FORM_MXFP4, FORM_BF16, FORM_FP16 };
enum { GATE_SILU, GATE_CLAMPED };

struct expert_layer_args {
    int64_t x, count, hidden, inner;         /* x: (count, hidden); inner: inputs of the second matrix */
    int64_t indices, route_weights, choices; /* int64 and fp32 (count, choices); other indices choose no expert */
    int64_t experts, form, gate;
    struct expert_matrix up, down;
    int64_t out, workspace, order, threads; /* order: int64 (experts + 1 + count * choices) */
};

/* fp32 elements of workspace: rows, outputs of the first matrix, inputs of the second, scales of rows; then levels. */
static int64_t level_bytes(const struct expert_layer_args *args) {
    const int64_t inputs = args->hidden > args->inner ? args->hidden : args->inner;
    const struct linear_args half = {.count = args->count, .inputs = inputs, .is_fp16 = args->form == FORM_FP16};
    if (args->form >= FORM_BF16) return antiphon_half_workspace(&half);
    return ceil_div(args->count, TILE_ROWS) * ceil_div(inputs, TILE_INPUTS) * TILE_ROWS * (TILE_INPUTS + 16);
}

int64_t antiphon_expert_layer_workspace(const struct expert_layer_args *args) {
    return args->count * (args->hidden + 3 * args->inner + 1) + (level_bytes(args) + CACHE_LINE_BYTES) / 4;
}

struct row_job {
    const struct expert_layer_args *args;
    const int64_t *chosen; /* positions in the table of indices */
    float *rows, *gated, *inputs;
    float alpha, limit;
};

static void gather_row(const void *context, int64_t i) {
    const struct row_job *job = context;
    const int64_t row = job->chosen[i] / job->args->choices, size = job->args->hidden;
    memcpy(job->rows + i * size, (const float *)job->args->x + row * size, size * sizeof(float));
}

/* silu(gate) * up, or gpt-oss's activation: both are cut at a limit, and 1 is added to up. */
static void apply_gate_row(const void *context, int64_t i) {
    const struct row_job *job = context;
    const int64_t size = job->args->inner;
    const float *x = job->gated + i * 2 * size;
    float *to = job->inputs + i * size;
    if (job->args->gate == GATE_SILU) {
        silu_mul_row(x, to, size);
        return;
    }
    const vec limit = broadcast(job->limit);
    for (int64_t k = 0; k < size; k += LANES) {
        vec gate = load(x + k), up = load(x + size + k);
        gate = select_lanes(gate > limit, limit, gate);
        up = select_lanes(up > limit, limit, up);
        up = select_lanes(up < -limit, -limit, up);
        const vec v = gate * job->alpha, e = exp_lanes(-abs_lanes(v));
        const vec sigmoid = select_lanes(v < 0, e, broadcast(1)) / (1 + e);
        store(to + k, (up + 1) * (gate * sigmoid));
    }
}

static void add_row(const void *context, int64_t i) {
    const struct row_job *job = context;
    const struct expert_layer_args *args = job->args;
    const float weight = ((const float *)args->route_weights)[job->chosen[i]];
    float *to = (float *)args->out + job->chosen[i] / args->choices * args->hidden;
    const float *from = job->rows + i * args->hidden;
    int64_t k = 0;
    for (; k + LANES <= args->hidden; k += LANES)
        store(to + k, fma_lanes(load(from + k), broadcast(weight), load(to + k)));
    for (; k < args->hidden; k++) to[k] = __builtin_fmaf(from[k], weight, to[k]);
}

static void multiply_expert(const struct expert_layer_args *args, const struct expert_matrix *matrix, int64_t expert,
                            struct linear_args *linear) {
#define EXPERT_ADDRESS(name) (matrix->name ? matrix->name + expert * matrix->name##_stride : 0)
    linear->weights = EXPERT_ADDRESS(weights);
    linear->scales = EXPERT_ADDRESS(scales);
    linear->zeros = EXPERT_ADDRESS(zeros);
    linear->group_scales = EXPERT_ADDRESS(group_scales);
    linear->bias = matrix->bias ? matrix->bias + expert * linear->outputs * (int64_t)sizeof(float) : 0;
    if (args->form == FORM_INT8) antiphon_int8_linear(linear);
    else if (args->form == FORM_INT4) antiphon_int4_linear(linear);
    else if (args->form == FORM_MXFP4) antiphon_mxfp4_linear(linear);
    else {
        linear->is_fp16 = args->form == FORM_FP16;
        antiphon_half_linear(linear);
    }
}

/* Sorts the positions in the table of indices by expert, keeping their order. Returns the first one of each expert. */
static int64_t *sort_choices(const struct expert_layer_args *args) {
    const int64_t *indices = (const int64_t *)args->indices, total = args->count * args->choices;
    int64_t *starts = (int64_t *)args->order, *order = starts + args->experts + 1;
    memset(starts, 0, (args->experts + 1) * sizeof(int64_t));
    for (int64_t i = 0; i < total; i++)
        if (indices[i] >= 0 && indices[i] < args->experts) starts[indices[i] + 1]++;
    for (int64_t e = 0; e < args->experts; e++) starts[e + 1] += starts[e];
    for (int64_t i = 0; i < total; i++)
        if (indices[i] >= 0 && indices[i] < args->experts) order[starts[indices[i]]++] = i;
    for (int64_t e = args->experts; e > 0; e--) starts[e] = starts[e - 1];
    starts[0] = 0;
    return starts;
}

/* `alpha` and `limit` are those of gpt-oss's activation. */
void antiphon_expert_layer(const struct expert_layer_args *args, float alpha, float limit) {
    const int64_t *starts = sort_choices(args), *order = starts + args->experts + 1;
    float *rows = (float *)args->workspace, *gated = rows + args->count * args->hidden;
    float *inputs = gated + args->count * 2 * args->inner, *row_scales = inputs + args->count * args->inner;
    const int64_t levels = ceil_div((int64_t)(row_scales + args->count), CACHE_LINE_BYTES) * CACHE_LINE_BYTES;
    memset((float *)args->out, 0, args->count * args->hidden * sizeof(float));
    for (int64_t e = 0; e < args->experts; e++) {
        const int64_t count = starts[e + 1] - starts[e];
        if (!count) continue;
        const int64_t threads = count * args->hidden > PARALLEL_THRESHOLD ? args->threads : 1;
        const struct row_job job = {args, order + starts[e], rows, gated, inputs, alpha, limit};
        struct linear_args linear = {.count = count, .levels = levels, .row_scales = (int64_t)row_scales,
                                     .threads = args->threads};
        parallel_for(gather_row, &job, count, threads);
        linear.x = (int64_t)rows, linear.inputs = args->hidden;
        linear.out = (int64_t)gated, linear.outputs = 2 * args->inner;
        multiply_expert(args, &args->up, e, &linear);
        parallel_for(apply_gate_row, &job, count, threads);
        linear.x = (int64_t)inputs, linear.inputs = args->inner;
        linear.out = (int64_t)rows, linear.outputs = args->hidden;
        multiply_expert(args, &args->down, e, &linear);
        parallel_for(add_row, &job, count, threads);
    }
}
