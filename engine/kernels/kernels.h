/* What the kernels are told, by each other or by engine/kernels/bindings.py. Addresses come as integers, steps count numbers. */

#ifndef ANTIPHON_KERNELS_H
#define ANTIPHON_KERNELS_H

#include "simd.h"

/* Work on each of many rows: a table (count, size), which may lie as (…, inner, size) with its own steps. */
struct rows {
    int64_t x, count, size;
    int64_t inner, outer_step, inner_step; /* row r begins at r / inner outer steps and r % inner inner ones */
    int64_t out;                           /* rows of the same size, one after the other */
    int64_t by, more;                      /* what numbers are multiplied by, or where a row's number goes */
    int64_t threads;
};

/* Rows of fp32 times a matrix of int8. Rows in 8 bits lie in whole tiles. */
#define STEP 64   /* inputs of a tile */
#define HEIGHT 16 /* rows of a tile */

struct product {
    int64_t x, count, inputs, outputs; /* rows (count, inputs), one after the other */
    int64_t weights, scales, zeros;    /* panels; for each output its scale, and what ZERO adds to its sum */
    int64_t bias, added, out;          /* (outputs); (count, outputs), which is added; or 0 each; (count, outputs) */
    int64_t rows, magnitudes;          /* room for the rows in 8 bits, and for what their largest level is worth */
    int64_t gated;                     /* whether rows are twice as long, and to be gated where they lie */
    int64_t threads;
};

/* The tokens of one sequence. */
struct span {
    int64_t token, count;         /* where its tokens begin in the row, and how many there are */
    int64_t keys, values;         /* where the sequence's (kv_heads, capacity, dim) begin */
    int64_t key_step, value_step; /* from one head to the next */
    int64_t end;                  /* its keys, those of these tokens included */
    int64_t before;               /* how many pieces of work come before its own; written here */
};

/* Attention of spans. */
struct attention {
    int64_t spans, kv_heads, groups, dim, value_dim, threads;
    int64_t halves; /* whether caches hold fp16 */
    int64_t window; /* so many keys, its own included, does a token see; 0: all */
    int64_t query, query_token, query_head;
    int64_t key, key_token, key_head;
    int64_t value, value_token, value_head;
    int64_t sinks, out, table;
};

void antiphon_norm(const struct rows *t, float least);
void antiphon_turn(const struct rows *t);
void antiphon_multiply(const struct product *p);
void antiphon_attend(const struct attention *a, float scale);

#endif
