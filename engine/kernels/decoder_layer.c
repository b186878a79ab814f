/* A whole decoder layer in one call. The bits equal those of the single kernels called one after the other.
 *
 * RMS norm, QKV projection, optional RMS norms of queries and keys, rotary embedding, attention, output projection,
 * residual; RMS norm, gate and up projection, SiLU gate, down projection, residual.
 */

#include "kernels.h"

/* Fields as in struct linear_args. Weights of 16 bits have no scales. */
struct packed_weight { int64_t weights, scales, zeros, group_scales, bias, is_fp16; };

struct decoder_layer_args {
    int64_t hidden, heads, kv_heads, dim, inner;         /* inner: size of the MLP */
    int64_t input_norm, post_norm, q_norm, k_norm;       /* weights; q_norm and k_norm may be 0 */
    struct packed_weight qkv, o_proj, gate_up, down;
    int64_t constants;                                   /* fp32: eps of the four norms, scale of attention */
    int64_t count, threads;                              /* tokens */
    int64_t x, out, cosines, sines;                      /* (count, hidden) twice; (count, dim) twice */
    int64_t num_spans, spans, fp16_cache, window;        /* as in struct attention_args */
    int64_t workspace; /* fp32: antiphon_decoder_layer_workspace() per token, tokens rounded up to TILE_ROWS */
};

INLINE int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t round_up(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

/* Elements per token of the buffer that attention and the MLP use in turn.
 *
 * Attention: QKV, rotated queries and keys, attention output. MLP: gate and up.
 */
INLINE int64_t scratch_size(const struct decoder_layer_args *args) {
    return max_of((3 * args->heads + 3 * args->kv_heads) * args->dim, 2 * args->inner);
}

/* fp32 elements that hold the longest row in the form in which it is multiplied.
 *
 * Quantized rows have a byte for each input, and a zero sum for each step. Rows that are multiplied by 16-bit weights
 * take at most four tiles of STEP_BYTES for TILE_ROWS tokens and 32 inputs.
 */
INLINE int64_t levels_size(const struct decoder_layer_args *args) {
    const int64_t longest = max_of(args->hidden, max_of(args->heads * args->dim, args->inner));
    const int64_t steps = round_up(longest, TILE_INPUTS) / TILE_INPUTS;
    const int is_quantized = args->qkv.scales && args->o_proj.scales && args->gate_up.scales && args->down.scales;
    return steps * (is_quantized ? TILE_INPUTS / 4 + 1 : 2 * TILE_INPUTS);
}

int64_t antiphon_decoder_layer_workspace(const struct decoder_layer_args *args) {
    return 2 * args->hidden + scratch_size(args) + levels_size(args) + 1;
}

struct workspace { float *normed, *residual, *scratch, *levels, *row_scales; };

static void apply_norm(const struct decoder_layer_args *args, int64_t x, int64_t weight, float eps, float *out) {
    const struct row_args rows = {
        .x = x, .count = args->count, .size = args->hidden, .inner = 1, .outer_stride = args->hidden,
        .out = (int64_t)out, .factors = weight, .threads = args->threads,
    };
    antiphon_rms_norm(&rows, eps);
}

static void apply_linear(const struct decoder_layer_args *args, const struct workspace *space,
                         const struct packed_weight *weight, const float *x, int64_t inputs, int64_t outputs,
                         int64_t silu_mul, int64_t residual, int64_t out) {
    const struct linear_args linear = {
        .x = (int64_t)x, .count = args->count, .inputs = inputs, .outputs = outputs,
        .weights = weight->weights, .scales = weight->scales, .zeros = weight->zeros,
        .group_scales = weight->group_scales, .bias = weight->bias, .residual = residual, .out = out,
        .levels = (int64_t)space->levels, .row_scales = (int64_t)space->row_scales,
        .silu_mul = silu_mul, .threads = args->threads, .is_fp16 = weight->is_fp16,
    };
    if (weight->group_scales) antiphon_int4_linear(&linear);
    else if (weight->scales) antiphon_int8_linear(&linear);
    else antiphon_half_linear(&linear);
}

/* Applies the optional norm and the rotary embedding to the given heads of QKV. */
static void norm_and_rotate(const struct decoder_layer_args *args, const float *x, int64_t heads, int64_t weight,
                            float eps, float *out) {
    const int64_t qkv_size = (args->heads + 2 * args->kv_heads) * args->dim;
    struct row_args rows = {
        .x = (int64_t)x, .count = args->count * heads, .size = args->dim,
        .inner = heads, .outer_stride = qkv_size, .inner_stride = args->dim,
        .out = (int64_t)out, .factors = weight, .threads = args->threads,
    };
    if (weight) {
        antiphon_rms_norm(&rows, eps);
        rows.x = rows.out;
        rows.outer_stride = heads * args->dim;
    }
    rows.factors = args->cosines;
    rows.sines = args->sines;
    antiphon_rope(&rows);
}

void antiphon_decoder_layer(const struct decoder_layer_args *args) {
    const int64_t hidden = args->hidden, tokens = round_up(args->count, TILE_ROWS);
    const int64_t q_size = args->heads * args->dim, k_size = args->kv_heads * args->dim;
    const int64_t qkv_size = q_size + 2 * k_size;
    const float *constants = (const float *)args->constants;
    struct workspace space;
    space.normed = (float *)args->workspace;
    space.residual = space.normed + tokens * hidden;
    space.scratch = space.residual + tokens * hidden;
    space.levels = space.scratch + tokens * scratch_size(args);
    space.row_scales = space.levels + tokens * levels_size(args);
    float *qkv = space.scratch, *query = qkv + tokens * qkv_size, *key = query + tokens * q_size;
    float *attended = key + tokens * k_size, *gate_up = space.scratch;

    apply_norm(args, args->x, args->input_norm, constants[0], space.normed);
    apply_linear(args, &space, &args->qkv, space.normed, hidden, qkv_size, 0, 0, (int64_t)qkv);
    norm_and_rotate(args, qkv, args->heads, args->q_norm, constants[2], query);
    norm_and_rotate(args, qkv + q_size, args->kv_heads, args->k_norm, constants[3], key);
    const struct attention_args attention = {
        .num_spans = args->num_spans, .kv_heads = args->kv_heads, .groups = args->heads / args->kv_heads,
        .dim = args->dim, .value_dim = args->dim, .threads = args->threads,
        .fp16_cache = args->fp16_cache, .window = args->window,
        .query = (int64_t)query, .query_token_stride = q_size, .query_head_stride = args->dim,
        .key = (int64_t)key, .key_token_stride = k_size, .key_head_stride = args->dim,
        .value = (int64_t)(qkv + q_size + k_size), .value_token_stride = qkv_size, .value_head_stride = args->dim,
        .sinks = 0, .out = (int64_t)attended, .spans = args->spans,
    };
    antiphon_attend(&attention, constants[4]);
    apply_linear(args, &space, &args->o_proj, attended, q_size, hidden, 0, args->x, (int64_t)space.residual);

    apply_norm(args, (int64_t)space.residual, args->post_norm, constants[1], space.normed);
    apply_linear(args, &space, &args->gate_up, space.normed, hidden, 2 * args->inner, 0, 0, (int64_t)gate_up);
    apply_linear(args, &space, &args->down, gate_up, args->inner, hidden, 1, (int64_t)space.residual, args->out);
}
