/* Arguments of the kernels. engine/kernels/bindings.py declares the same structures under the same field names.
 *
 * Every field is 64 bits wide. Addresses are integers; strides count elements, not bytes.
 */

#ifndef ANTIPHON_KERNELS_H
#define ANTIPHON_KERNELS_H

#include "simd.h"

/* A kernel over the rows of a table (count, size). The rows may lie in a strided view (…, inner, size). */
struct row_args {
    int64_t x, count, size;
    int64_t inner, outer_stride, inner_stride; /* row r begins at r / inner * outer_stride + r % inner * inner_stride */
    int64_t out;                               /* (count, size), contiguous */
    int64_t factors; /* rms_norm: weight (size); rope: cosines (count / inner, size); block_softmax: factor (count) */
    int64_t sines;   /* rope only: (count / inner, size) */
    int64_t threads;
};

/* A tile of quantized activations. The buffer for them holds whole tiles. */
#define TILE_INPUTS 64
#define TILE_ROWS 16
#define ACTIVATION_LEVELS 127 /* largest magnitude of a level, on every CPU */
#define UNSIGNED_ZERO 128     /* what a kernel that needs unsigned levels adds to them */

/* fp32 activations (count, inputs) times a packed weight (outputs, inputs). */
struct linear_args {
    int64_t x, count, inputs, outputs;
    int64_t weights, scales; /* packed weights; the scale of each output */
    int64_t zeros;           /* int8: the sum that UNSIGNED_ZERO adds to each output */
    int64_t group_scales;    /* int4: fp16 scales in proportion to that of the output; MXFP4: E8M0; 0 for int8 */
    int64_t bias, residual, out;    /* (outputs) or 0; (count, outputs) or 0; (count, outputs) */
    int64_t levels, row_scales;     /* workspace: quantized activations in tiles, and the scale of each row */
    int64_t silu_mul;               /* if 1, x is (count, 2 * inputs), and silu_mul is applied to it in place first */
    int64_t threads;
    int64_t is_fp16;                /* 16-bit weights: 1 for fp16, 0 for bf16 */
};

/* The consecutive tokens of one sequence in a batch. */
struct span {
    int64_t token, count;           /* first token in the batch, number of tokens */
    int64_t keys, values;           /* the cache of the sequence: (kv_heads, capacity, dim) each */
    int64_t key_stride, value_stride; /* from one head of the cache to the next */
    int64_t end;                    /* keys in the cache once those of this span are stored */
    int64_t first_item;             /* output: index of the first work item of this span */
    int64_t ends;                   /* keys that each token sees: an array of int64 that never falls; 0: up to its own */
};

struct attention_args {
    int64_t num_spans, kv_heads, groups, dim, value_dim, threads; /* groups: query heads that share one key head */
    int64_t fp16_cache;
    int64_t window; /* keys that a token attends to, its own included; 0: no limit */
    int64_t query, query_token_stride, query_head_stride;
    int64_t key, key_token_stride, key_head_stride;
    int64_t value, value_token_stride, value_head_stride;
    int64_t sinks, out, spans; /* sinks: (heads) or 0; spans: array of struct span */
    int64_t softcap;           /* address of the float that limits the scores, or 0 */
};

void antiphon_rms_norm(const struct row_args *args, float eps);
void antiphon_rope(const struct row_args *args);
void antiphon_int8_linear(const struct linear_args *args);
void antiphon_int4_linear(const struct linear_args *args);
void antiphon_half_linear(const struct linear_args *args);
int64_t antiphon_half_workspace(const struct linear_args *args);
void antiphon_mxfp4_linear(const struct linear_args *args);
void antiphon_attend(const struct attention_args *args, float scale);

#endif
