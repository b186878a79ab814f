/* Attention: the tokens of several sequences, any number of each, over the keys of their own.
 *
 * A cache holds fp32 or, to be read in half of the time, fp16. New keys and values are written into it here, and read
 * from it like all others. Keys are taken in tiles that stand at multiples of TILE in the text: what comes out for a
 * token depends on nothing but its own text, neither on who else is there nor on how the text came here.
 */

#include "kernels.h"

#define TILE 16      /* keys between two looks at the largest score */
#define MOST_DIM 512
#define MOST_ROWS 64 /* queries of one piece of work: tokens times heads that share keys */
#define PIECES 8     /* pieces with single tokens that are done one after the other, at most */

#if LANES == 16
#define ROWS 4 /* rows whose sums fit into registers */
#else
#define ROWS 2
#endif

int64_t antiphon_halves(void) { return HALVES; }

INLINE int64_t size_of(const struct attention *a) { return a->halves ? 2 : 4; }

INLINE vec number(const void *from, int64_t place, const int halves) {
    return halves ? widened((const uint16_t *)from + place) : load((const float *)from + place);
}

/* New keys and values go where the cache has room for them. */

INLINE void write(const struct attention *a, int64_t to, int64_t place, const float *from, int64_t count) {
    if (!a->halves) memcpy((float *)to + place, from, count * sizeof(float));
    else for (int64_t i = 0; i < count; i += LANES) narrow((uint16_t *)to + place + i, load(from + i));
}

static void put(const struct attention *a, const struct span *span, int64_t head) {
    for (int64_t i = 0; i < span->count; i++) {
        const int64_t token = span->token + i, place = span->end - span->count + i;
        const float *key = (const float *)a->key + token * a->key_token + head * a->key_head;
        const float *value = (const float *)a->value + token * a->value_token + head * a->value_head;
        write(a, span->keys, head * span->key_step + place * a->dim, key, a->dim);
        write(a, span->values, head * span->value_step + place * a->value_dim, value, a->value_dim);
    }
}

static void put_head(const void *given, int64_t number) {
    const struct attention *a = given;
    const struct span *span = (const struct span *)a->table + number / a->kv_heads;
    if (span->count > 1) put(a, span, number % a->kv_heads);
}

/* A piece of work: some tokens of a span, and a head of its keys. */

struct piece {
    const struct span *span;
    int64_t head, from, to;    /* tokens, counted from the span's first */
    int64_t first, end;        /* where the first tile stands, and up to where keys are seen */
    const char *keys, *values; /* from there on */
};

INLINE int64_t end_of(const struct span *span, int64_t token) { return span->end - span->count + token + 1; }

INLINE int64_t first_of(const struct attention *a, const struct span *span, int64_t token) {
    const int64_t end = end_of(span, token);
    return a->window && end > a->window ? end - a->window : 0;
}

INLINE int64_t tokens_of_piece(const struct attention *a) { return MOST_ROWS / a->groups; }

INLINE int64_t blocks_of(const struct attention *a, const struct span *span) {
    return (span->count + tokens_of_piece(a) - 1) / tokens_of_piece(a);
}

static struct piece piece_of(const struct attention *a, int64_t number) {
    const struct span *span = (const struct span *)a->table, *after = span + a->spans;
    while (after - span > 1) {
        const struct span *middle = span + (after - span) / 2;
        if (middle->before <= number) span = middle;
        else after = middle;
    }
    const int64_t blocks = blocks_of(a, span), place = number - span->before, size = size_of(a);
    const int64_t head = place / blocks, from = place % blocks * tokens_of_piece(a), to = from + tokens_of_piece(a);
    const int64_t first = first_of(a, span, from) / TILE * TILE, last = to < span->count ? to : span->count;
    return (struct piece){
        span, head, from, last, first, end_of(span, last - 1),
        (const char *)span->keys + (head * span->key_step + first * a->dim) * size,
        (const char *)span->values + (head * span->value_step + first * a->value_dim) * size,
    };
}

/* A query of a piece: which keys it sees, and what it has seen so far. */
struct row {
    const float *query;
    float *out;
    int64_t first, end;
    float top; /* the largest score */
    vec total; /* of weights */
};

static void begin(const struct attention *a, const struct piece *p, struct row *rows) {
    const float *sinks = (const float *)a->sinks;
    for (int64_t token = p->from; token < p->to; token++)
        for (int64_t group = 0; group < a->groups; group++, rows++) {
            const int64_t place = p->span->token + token, head = p->head * a->groups + group;
            rows->query = (const float *)a->query + place * a->query_token + head * a->query_head;
            rows->out = (float *)a->out + (place * a->kv_heads * a->groups + head) * a->value_dim;
            rows->first = first_of(a, p->span, token);
            rows->end = end_of(p->span, token);
            rows->top = sinks ? sinks[head] : -INFINITY;
            rows->total = (vec){sinks ? 1 : 0};
            memset(rows->out, 0, a->value_dim * sizeof(float));
        }
}

/* Some keys with their values, and where the next ones lie, if they are to be fetched. */
struct tile {
    int64_t place, count;
    const void *keys, *values;
    const char *later_keys, *later_values;
};

/* Memory is kept busy while a tile is computed with, evenly: a core waits for a few lines at a time. */
INLINE void fetch(const char **later, int64_t bytes) {
    if (!*later) return;
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(*later + i, 0, 2);
    *later += bytes;
}

/* Scores of some rows. */
INLINE void multiply(const int count, const int halves, const struct row *rows, float (*s)[TILE], const struct tile *t,
                     int64_t dim, float scale) {
    const char *later = t->later_keys;
    for (int64_t j = 0; j < t->count; j += 4) {
        int64_t k[4];
        for (int i = 0; i < 4; i++) k[i] = (j + i < t->count ? j + i : t->count - 1) * dim;
        vec sums[ROWS][4] = {{{0}}};
        for (int64_t d = 0; d < dim; d += LANES) {
            vec key[4];
            fetch(&later, 4 * LANES * (halves ? 2 : 4));
            for (int i = 0; i < 4; i++) key[i] = number(t->keys, k[i] + d, halves);
            for (int r = 0; r < count; r++)
                for (int i = 0; i < 4; i++) sums[r][i] += load(rows[r].query + d) * key[i];
        }
        for (int r = 0; r < count; r++) four_sums(s[r] + j, sums[r], scale);
    }
}

/* So many vectors of the values, weighted, are added to what the rows have. */
INLINE void add(const int count, const int halves, const int width, const struct row *rows, float (*s)[TILE],
                const struct tile *t, int64_t d, int64_t dim) {
    const char *later = t->later_values ? t->later_values + d * TILE * (halves ? 2 : 4) : 0;
    vec sums[ROWS][4];
    for (int r = 0; r < count; r++)
        for (int i = 0; i < width; i++) sums[r][i] = load(rows[r].out + d + i * LANES);
    for (int64_t j = 0; j < t->count; j++) {
        vec value[4];
        fetch(&later, width * LANES * (halves ? 2 : 4));
        for (int i = 0; i < width; i++) value[i] = number(t->values, j * dim + d + i * LANES, halves);
        for (int r = 0; r < count; r++)
            for (int i = 0; i < width; i++) sums[r][i] += s[r][j] * value[i];
    }
    for (int r = 0; r < count; r++)
        for (int i = 0; i < width; i++) store(rows[r].out + d + i * LANES, sums[r][i]);
}

/* Scores to weights. What was added up before shrinks when a larger score comes. */
INLINE void soften(struct row *row, float *s, int64_t dim) {
    vec most = load(s);
    for (int i = LANES; i < TILE; i += LANES) most = larger(load(s + i), most);
    const float high = largest(most);
    if (high > row->top) {
        const vec shrink = exponential(all(row->top - high));
        row->total *= shrink;
        for (int64_t d = 0; d < dim; d += LANES) store(row->out + d, load(row->out + d) * shrink);
        row->top = high;
    }
    for (int i = 0; i < TILE; i += LANES) {
        const vec weights = exponential(load(s + i) - row->top);
        store(s + i, weights);
        row->total += weights;
    }
}

/* A row sees the keys of a tile from one on, up to another. */
INLINE void hide(float *s, int64_t first, int64_t end) {
    for (int i = 0; i < TILE; i += LANES) {
        const ivec place = COUNTED + i;
        store(s + i, choose((place >= (int32_t)first) & (place < (int32_t)end), load(s + i), all(-INFINITY)));
    }
}

/* Some rows with a tile. */
INLINE void meet(const int count, const int halves, const struct attention *a, struct row *rows, const struct tile *t,
                 float scale) {
    const int64_t dim = a->value_dim;
    float s[ROWS][TILE];
    if (rows[0].first >= t->place + t->count || rows[count - 1].end <= t->place) return;
    multiply(count, halves, rows, s, t, a->dim, scale);
    for (int r = 0; r < count; r++) {
        const int64_t first = rows[r].first - t->place, end = rows[r].end - t->place;
        if (first > 0 || end < TILE) hide(s[r], first, end);
        if (first >= t->count || end <= 0) memset(s[r], 0, sizeof s[r]);
        else soften(rows + r, s[r], dim);
    }
    int64_t d = 0;
    for (; d + 4 * LANES <= dim; d += 4 * LANES) add(count, halves, 4, rows, s, t, d, dim);
    for (; d < dim; d += LANES) add(count, halves, 1, rows, s, t, d, dim);
}

INLINE void meet_all(const int halves, const struct attention *a, struct row *rows, int64_t count, struct tile *t,
                     float scale) {
    int64_t r = 0;
    for (; r + ROWS <= count; r += ROWS, t->later_keys = t->later_values = 0) meet(ROWS, halves, a, rows + r, t, scale);
    for (; r + 2 <= count; r += 2, t->later_keys = t->later_values = 0) meet(2, halves, a, rows + r, t, scale);
    if (r < count) meet(1, halves, a, rows + r, t, scale);
}

INLINE const float *widen(float *to, const void *from, int64_t count) {
    for (int64_t i = 0; i < count; i += LANES) store(to + i, number(from, i, 1));
    return to;
}

static void attend_piece(const struct attention *a, float scale, const struct piece *p, const struct piece *next) {
    struct row rows[MOST_ROWS];
    float room[2][TILE * MOST_DIM] __attribute__((aligned(64)));
    const int64_t count = (p->to - p->from) * a->groups, size = size_of(a);
    const int widens = a->halves && count > ROWS; /* numbers that are read once are widened on the way */
    if (p->span->count == 1) put(a, p->span, p->head);
    begin(a, p, rows);
    const char *keys = p->keys, *values = p->values;
    for (int64_t j = p->first; j < p->end; j += TILE) {
        struct tile t = {j, p->end - j < TILE ? p->end - j : TILE, keys, values, next->keys, next->values};
        keys += TILE * a->dim * size;
        values += TILE * a->value_dim * size;
        if (j + TILE < p->end) t.later_keys = keys, t.later_values = values;
        if (widens) {
            t.keys = widen(room[0], t.keys, t.count * a->dim);
            t.values = widen(room[1], t.values, t.count * a->value_dim);
        }
        if (a->halves && !widens) meet_all(1, a, rows, count, &t, scale);
        else meet_all(0, a, rows, count, &t, scale);
    }
    for (int64_t r = 0; r < count; r++) {
        const float total = sum(rows[r].total);
        for (int64_t d = 0; d < a->value_dim; d += LANES) store(rows[r].out + d, load(rows[r].out + d) / total);
    }
}

/* So many pieces, one after the other: while one is finished, what the next one begins with is fetched. */
struct pieces { const struct attention *a; float scale; int64_t count, together; };

static void attend_pieces(const void *given, int64_t number) {
    const struct pieces *pieces = given;
    const int64_t first = number * pieces->together, stop = first + pieces->together;
    const int64_t end = stop < pieces->count ? stop : pieces->count;
    struct piece piece = piece_of(pieces->a, first);
    for (int64_t i = first; i < end; i++) {
        const struct piece next = i + 1 < end ? piece_of(pieces->a, i + 1) : piece;
        attend_piece(pieces->a, pieces->scale, &piece, &next);
        piece = next;
    }
}

void antiphon_attend(const struct attention *a, float scale) {
    struct span *spans = (struct span *)a->table;
    int64_t seen = 0, count = 0, longest = 0;
    for (int64_t i = 0; i < a->spans; i++) {
        spans[i].before = count;
        count += blocks_of(a, spans + i) * a->kv_heads;
        seen += spans[i].end * spans[i].count;
        if (spans[i].count > longest) longest = spans[i].count;
    }
    const int64_t threads = seen * a->kv_heads * (a->dim + a->value_dim) > SMALL ? a->threads : 1;
    if (longest > 1) share(put_head, a, a->spans * a->kv_heads, threads);
    const int64_t fair = longest > 1 ? 1 : count / (4 * a->threads);
    const struct pieces pieces = {a, scale, count, fair < 1 ? 1 : fair < PIECES ? fair : PIECES};
    share(attend_pieces, &pieces, (count + pieces.together - 1) / pieces.together, threads);
}
