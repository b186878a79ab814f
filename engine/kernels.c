/* What a CPU does for every token of every layer besides multiplying by weights, in single passes over memory.
 *
 * Compiled by engine/compiler.py, called by engine/kernels.py, which checks shapes before. Numbers are fp32; rows lie
 * one number after the other and are multiples of LANES long. Addresses come as integers, steps count numbers. Each
 * result is computed by one thread in one order, so that its bits depend neither on threads nor on neighbours.
 */

#include "vectors.h"

int64_t antiphon_lanes(void) { return LANES; }

/* Attention of single queries, each over the keys of its own sequence. */

#define TILE 16       /* Keys between two looks at the largest score; of those after them as many are fetched. */
#define MOST_GROUPS 64
#define PIECE 16      /* Heads of one piece of work, at most. */

struct row {
    int64_t token;                    /* its place among the queries */
    int64_t keys, values;             /* where the sequence's (kv_heads, capacity, dim) begin */
    int64_t key_step, value_step;     /* from one head to the next */
    int64_t first, end;               /* the keys it looks at; its own is the last */
    int64_t write;                    /* whether its key and value are still to be put there */
};

struct attention {
    int64_t rows, kv_heads, groups, dim, value_dim, threads;
    int64_t query, query_token, query_head;
    int64_t key, key_token, key_head;
    int64_t value, value_token, value_head;
    int64_t sinks, out, table;
};

/* While one of keys and values is computed with, the other is fetched: alone, a core waits half of its time. */
INLINE void fetch(const float *from, int64_t count) {
    for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(from + i, 0, 2);
}

INLINE void multiply(const int heads, float (*s)[TILE], const float *const *q, const float *keys, const float *later,
                     int64_t dim, int64_t n, float scale) {
    int64_t j = 0;
    for (; j + 4 <= n; j += 4) {
        vec acc[2][4] = {{{0}}};
        const float *k = keys + j * dim;
        fetch(later + j * dim, 4 * dim);
        for (int64_t d = 0; d < dim; d += LANES)
            for (int i = 0; i < 4; i++) {
                vec key = load(k + i * dim + d);
                for (int g = 0; g < heads; g++) acc[g][i] += load(q[g] + d) * key;
            }
        for (int g = 0; g < heads; g++)
            for (int i = 0; i < 4; i++) s[g][j + i] = sum(acc[g][i]) * scale;
    }
    for (; j < n; j++)
        for (int g = 0; g < heads; g++) {
            vec acc = {0};
            for (int64_t d = 0; d < dim; d += LANES) acc += load(q[g] + d) * load(keys + j * dim + d);
            s[g][j] = sum(acc) * scale;
        }
}

INLINE void add(const int heads, float *const *out, float (*p)[TILE], const float *values, const float *later,
                int64_t dim, int64_t n) {
    int64_t j = 0;
    for (; j + 4 <= n; j += 4) {
        vec weight[2][4];
        const float *v = values + j * dim;
        fetch(later + j * dim, 4 * dim);
        for (int g = 0; g < heads; g++)
            for (int i = 0; i < 4; i++) weight[g][i] = all(p[g][j + i]);
        for (int64_t d = 0; d < dim; d += LANES) {
            vec acc[2];
            for (int g = 0; g < heads; g++) acc[g] = load(out[g] + d);
            for (int i = 0; i < 4; i++) {
                vec value = load(v + i * dim + d);
                for (int g = 0; g < heads; g++) acc[g] += weight[g][i] * value;
            }
            for (int g = 0; g < heads; g++) store(out[g] + d, acc[g]);
        }
    }
    for (; j < n; j++)
        for (int g = 0; g < heads; g++)
            for (int64_t d = 0; d < dim; d += LANES)
                store(out[g] + d, load(out[g] + d) + all(p[g][j]) * load(values + j * dim + d));
}

/* Scores to weights. What was added up before shrinks when a larger score comes. */
static void soften(float *s, int64_t n, float *out, int64_t dim, float *top, float *total) {
    for (int64_t j = n; j % LANES; j++) s[j] = -INFINITY;
    float high = *top;
    for (int64_t j = 0; j < n; j++) high = s[j] > high ? s[j] : high;
    if (high > *top) {
        vec shrink = exponential(all(*top - high));
        *total *= shrink[0];
        for (int64_t d = 0; d < dim; d += LANES) store(out + d, load(out + d) * shrink);
        *top = high;
    }
    vec added = {0};
    for (int64_t j = 0; j < n; j += LANES) {
        vec p = exponential(load(s + j) - high);
        store(s + j, p);
        added += p;
    }
    *total += sum(added);
}

/* Where the keys that a head of a row looks at begin. */
INLINE const float *keys_of(const struct attention *a, int64_t unit) {
    const struct row *row = (const struct row *)a->table + unit / a->kv_heads;
    return (const float *)row->keys + unit % a->kv_heads * row->key_step + row->first * a->dim;
}

static void attend_head(const struct attention *a, float scale, int64_t unit, const float *next) {
    const struct row *row = (const struct row *)a->table + unit / a->kv_heads;
    const int64_t head = unit % a->kv_heads, groups = a->groups, dim = a->dim, value_dim = a->value_dim;
    float *keys = (float *)row->keys + head * row->key_step, *values = (float *)row->values + head * row->value_step;
    if (row->write) {
        const float *key = (const float *)a->key + row->token * a->key_token + head * a->key_head;
        const float *value = (const float *)a->value + row->token * a->value_token + head * a->value_head;
        memcpy(keys + (row->end - 1) * dim, key, dim * sizeof(float));
        memcpy(values + (row->end - 1) * value_dim, value, value_dim * sizeof(float));
    }
    const float *query = (const float *)a->query + row->token * a->query_token + head * groups * a->query_head;
    float *out = (float *)a->out + (row->token * a->kv_heads + head) * groups * value_dim;
    float top[MOST_GROUPS], total[MOST_GROUPS], s[2][TILE];
    for (int64_t g = 0; g < groups; g++) {
        top[g] = a->sinks ? ((const float *)a->sinks)[head * groups + g] : -INFINITY;
        total[g] = a->sinks ? 1 : 0;
    }
    memset(out, 0, groups * value_dim * sizeof(float));
    for (int64_t j = row->first; j < row->end; j += TILE) {
        const int64_t n = row->end - j < TILE ? row->end - j : TILE;
        const float *k = keys + j * dim, *v = values + j * value_dim;
        const float *later = j + TILE < row->end ? k + TILE * dim : next;
        for (int64_t g = 0; g < groups; g += 2) {
            const int heads = groups - g < 2 ? 1 : 2;
            const float *q[2] = {query + g * a->query_head, query + (g + heads - 1) * a->query_head};
            float *o[2] = {out + g * value_dim, out + (g + heads - 1) * value_dim};
            if (heads == 2) multiply(2, s, q, k, v, dim, n, scale);
            else multiply(1, s, q, k, v, dim, n, scale);
            for (int i = 0; i < heads; i++) soften(s[i], n, o[i], value_dim, &top[g + i], &total[g + i]);
            if (heads == 2) add(2, o, s, v, later, value_dim, n);
            else add(1, o, s, v, later, value_dim, n);
        }
        if (later == next) fetch(next + n * dim, (TILE - n) * dim);
    }
    for (int64_t g = 0; g < groups; g++)
        for (int64_t d = 0; d < value_dim; d += LANES)
            store(out + g * value_dim + d, load(out + g * value_dim + d) / total[g]);
}

/* So many heads, one after the other: while one is finished, the next one's first keys are fetched. */
struct heads { const struct attention *a; float scale; int64_t together; };

static void attend_heads(const void *given, int64_t piece) {
    const struct heads *heads = given;
    const struct attention *a = heads->a;
    const int64_t all = a->rows * a->kv_heads, first = piece * heads->together;
    const int64_t end = first + heads->together < all ? first + heads->together : all;
    for (int64_t unit = first; unit < end; unit++)
        attend_head(a, heads->scale, unit, keys_of(a, unit + 1 < end ? unit + 1 : unit));
}

void antiphon_attend(const struct attention *a, float scale) {
    const struct row *table = (const struct row *)a->table;
    int64_t seen = 0;
    for (int64_t i = 0; i < a->rows; i++) seen += table[i].end - table[i].first;
    const int64_t all = a->rows * a->kv_heads, fair = all / (4 * a->threads);
    const int64_t threads = seen * a->kv_heads * (a->dim + a->value_dim) > SMALL ? a->threads : 1;
    const struct heads heads = {a, scale, fair > 1 ? fair < PIECE ? fair : PIECE : 1};
    share(attend_heads, &heads, (all + heads.together - 1) / heads.together, threads);
}

/* What is done with each of many rows: a table (count, size), which may lie as (…, inner, size) with its own steps. */

struct rows {
    int64_t x, count, size;
    int64_t inner, outer_step, inner_step; /* row r begins at r / inner outer steps and r % inner inner ones */
    int64_t out;                           /* rows of the same size, one after the other */
    int64_t by, more;                      /* what numbers are multiplied by, or where a row's number goes */
    int64_t threads;
};

struct piece { const struct rows *t; int64_t block; float least; }; /* so many rows are one piece of work */

INLINE const float *nth(const struct rows *t, int64_t r) {
    return (const float *)t->x + r / t->inner * t->outer_step + r % t->inner * t->inner_step;
}

static void each(void (*work)(const void *, int64_t), const struct rows *t, float least) {
    if (!t->count) return;
    const int64_t block = t->count * t->size <= SMALL ? t->count : (SMALL / 8 + t->size - 1) / t->size;
    const struct piece piece = {t, block, least};
    share(work, &piece, (t->count + block - 1) / block, t->threads);
}

#define EACH_ROW(piece, number) \
    for (int64_t r = number * piece->block, stop = r + piece->block; r < stop && r < piece->t->count; r++)

/* x / √(mean(x²) + least) · by */
static void norm(const void *given, int64_t number) {
    const struct piece *piece = given;
    const struct rows *t = piece->t;
    const float *by = (const float *)t->by;
    EACH_ROW(piece, number) {
        const float *x = nth(t, r);
        float *out = (float *)t->out + r * t->size;
        vec squares[2] = {{0}, {0}};
        int64_t i = 0;
        for (; i + 2 * LANES <= t->size; i += 2 * LANES) {
            squares[0] += load(x + i) * load(x + i);
            squares[1] += load(x + i + LANES) * load(x + i + LANES);
        }
        if (i < t->size) squares[0] += load(x + i) * load(x + i);
        float share = 1 / sqrtf(sum(squares[0] + squares[1]) / t->size + piece->least);
        for (i = 0; i < t->size; i += LANES) store(out + i, load(x + i) * share * load(by + i));
    }
}

void antiphon_norm(const struct rows *t, float least) { each(norm, t, least); }

/* x · sigmoid(x) · what stands behind it in a row of twice the size */
static void gate(const void *given, int64_t number) {
    const struct piece *piece = given;
    const struct rows *t = piece->t;
    EACH_ROW(piece, number) {
        const float *x = nth(t, r);
        float *out = (float *)t->out + r * t->size;
        gated(x, out, t->size);
    }
}

void antiphon_gate(const struct rows *t) { each(gate, t, 0); }

/* Rotary positions: the two halves of a row are turned by the cosines and sines of its token. */
static void turn(const void *given, int64_t number) {
    const struct piece *piece = given;
    const struct rows *t = piece->t;
    const int64_t half = t->size / 2;
    EACH_ROW(piece, number) {
        const float *x = nth(t, r);
        const float *cosines = (const float *)t->by + r / t->inner * t->size;
        const float *sines = (const float *)t->more + r / t->inner * t->size;
        float *out = (float *)t->out + r * t->size;
        for (int64_t i = 0; i < half; i += LANES) {
            vec one = load(x + i), two = load(x + half + i);
            store(out + i, one * load(cosines + i) - two * load(sines + i));
            store(out + half + i, two * load(cosines + half + i) + one * load(sines + half + i));
        }
    }
}

void antiphon_turn(const struct rows *t) { each(turn, t, 0); }

#define BLOCK 128

/* The larger of each two, and the largest of all; no number, once there is one that is none. */
INLINE vec larger(vec one, vec two) { return choose((one > two) | (one != one), one, two); }
INLINE float largest(vec v) {
    float most = v[0];
    for (int i = 1; i < LANES; i++) most = v[i] > most || v[i] != v[i] ? v[i] : most;
    return most;
}

/* How much weight lies in each block of a row of scores: sums of e^((x - the row's largest) · by), (count, blocks).
 *
 * In the last place of each row of `out` stands the largest score itself; no number, if the row holds one that is none.
 */
static void weigh(const void *given, int64_t number) {
    const struct piece *piece = given;
    const struct rows *t = piece->t;
    const int64_t blocks = (t->size + BLOCK - 1) / BLOCK;
    EACH_ROW(piece, number) {
        const float *x = nth(t, r);
        float *out = (float *)t->out + r * (blocks + 1);
        const float by = ((const float *)t->by)[r];
        vec most = all(-INFINITY);
        int64_t i = 0;
        for (; i + LANES <= t->size; i += LANES) most = larger(load(x + i), most);
        for (; i < t->size; i++) most = larger(all(x[i]), most);
        const float high = largest(most);
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t first = block * BLOCK, end = first + BLOCK < t->size ? first + BLOCK : t->size;
            vec total = {0};
            for (i = first; i + LANES <= end; i += LANES) total += exponential((load(x + i) - high) * by);
            float rest = 0;
            for (; i < end; i++) rest += exponential(all((x[i] - high) * by))[0];
            out[block] = sum(total) + rest;
        }
        out[blocks] = high;
    }
}

void antiphon_weigh(const struct rows *t) { each(weigh, t, 0); }
