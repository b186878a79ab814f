/* A layer of a decoder in one call: what engine/kernels/bindings.py would call one after the other, with the same bits.
 *
 * Norm, products for queries, keys and values, norms of queries and keys where there are any, rotary positions, attention,
 * product, sum; norm, product, gate and product, sum.
 */

#include "kernels.h"

struct matrix { int64_t weights, scales, zeros, bias; };

struct layer {
    int64_t hidden, heads, kv_heads, dim, inner;
    int64_t before, after, query, key;        /* weights of norms; the last two may be 0 */
    struct matrix seen, said, gates, last;    /* for queries, keys and values; after attention; gate and up; down */
    int64_t numbers;                          /* fp32: what each norm adds to its mean, and the scale of scores */
    int64_t count, threads;
    int64_t x, out, cosines, sines;           /* (count, hidden); (count, dim) */
    int64_t spans, table, halves, window;     /* as attention knows them */
    int64_t room;                             /* so many numbers for each token of whole tiles as antiphon_room says */
};

INLINE int64_t larger_of(int64_t one, int64_t two) { return one > two ? one : two; }
INLINE int64_t whole(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

/* Queries, keys and values, the turned queries and keys, and what comes out; or gates. */
INLINE int64_t shared(const struct layer *l) {
    return larger_of((3 * l->heads + 3 * l->kv_heads) * l->dim, 2 * l->inner);
}

/* The longest row of a product, in 8 bits. */
INLINE int64_t longest(const struct layer *l) {
    return whole(larger_of(l->hidden, larger_of(l->heads * l->dim, l->inner)), STEP) / 4;
}

int64_t antiphon_room(const struct layer *l) { return 2 * l->hidden + shared(l) + longest(l) + 1; }

struct room { float *normed, *sum, *shared, *rows, *magnitudes; };

static void normed(const struct layer *l, int64_t x, int64_t weight, float least, float *out) {
    const struct rows t = {x, l->count, l->hidden, 1, l->hidden, 0, (int64_t)out, weight, 0, l->threads};
    antiphon_norm(&t, least);
}

static void multiplied(const struct layer *l, const struct room *r, const struct matrix *m, const float *x,
                       int64_t inputs, int64_t outputs, int64_t gated, int64_t added, int64_t out) {
    const struct product p = {
        (int64_t)x, l->count, inputs, outputs, m->weights, m->scales, m->zeros, m->bias, added, out,
        (int64_t)r->rows, (int64_t)r->magnitudes, gated, l->threads,
    };
    antiphon_multiply(&p);
}

/* Some heads, normed and turned. */
static void turned(const struct layer *l, const float *x, int64_t heads, int64_t weight, float least, float *out) {
    const int64_t wide = (l->heads + 2 * l->kv_heads) * l->dim;
    struct rows t = {(int64_t)x, l->count * heads, l->dim, heads, wide, l->dim, (int64_t)out, weight, 0, l->threads};
    if (weight) {
        antiphon_norm(&t, least);
        t.x = t.out;
        t.outer_step = heads * l->dim;
    }
    t.by = l->cosines;
    t.more = l->sines;
    antiphon_turn(&t);
}

void antiphon_layer(const struct layer *l) {
    const int64_t tall = whole(l->count, HEIGHT), queries = l->heads * l->dim, keys = l->kv_heads * l->dim;
    const int64_t wide = queries + 2 * keys;
    const float *numbers = (const float *)l->numbers;
    struct room r;
    r.normed = (float *)l->room;
    r.sum = r.normed + tall * l->hidden;
    r.shared = r.sum + tall * l->hidden;
    r.rows = r.shared + tall * shared(l);
    r.magnitudes = r.rows + tall * longest(l);
    float *query = r.shared + tall * wide, *key = query + tall * queries, *said = key + tall * keys;

    normed(l, l->x, l->before, numbers[0], r.normed);
    multiplied(l, &r, &l->seen, r.normed, l->hidden, wide, 0, 0, (int64_t)r.shared);
    turned(l, r.shared, l->heads, l->query, numbers[2], query);
    turned(l, r.shared + queries, l->kv_heads, l->key, numbers[3], key);
    const struct attention a = {
        l->spans, l->kv_heads, l->heads / l->kv_heads, l->dim, l->dim, l->threads, l->halves, l->window,
        (int64_t)query, queries, l->dim, (int64_t)key, keys, l->dim,
        (int64_t)(r.shared + queries + keys), wide, l->dim, 0, (int64_t)said, l->table,
    };
    antiphon_attend(&a, numbers[4]);
    multiplied(l, &r, &l->said, said, queries, l->hidden, 0, l->x, (int64_t)r.sum);

    normed(l, (int64_t)r.sum, l->after, numbers[1], r.normed);
    multiplied(l, &r, &l->gates, r.normed, l->hidden, 2 * l->inner, 0, 0, (int64_t)r.shared);
    multiplied(l, &r, &l->last, r.shared, l->inner, l->hidden, 1, (int64_t)r.sum, l->out);
}
