/* Attention: the tokens of several sequences, any number of each, over the KV cache of their own sequence.
 *
 * A cache holds fp32, or fp16, which halves the memory traffic. This file stores new keys and values in the cache and
 * then reads them from it like all others. Keys are processed in tiles aligned to multiples of TILE_KEYS in the
 * sequence, so the result for a token depends only on its own sequence: neither on the other sequences of the batch
 * nor on how the prompt was split into chunks.
 */

#include "kernels.h"

#define TILE_KEYS 16       /* keys between two updates of the running maximum */
#define MAX_HEAD_DIM 512
#define MAX_ITEM_ROWS 64   /* query rows of a work item: tokens times the query heads that share a key head */
#define MAX_ITEMS_PER_RUN 8 /* consecutive decode items that one thread takes at a time */

#if LANES == 16 || defined(HAS_NEON)
#define REGISTER_ROWS 4 /* query rows whose sums fit into registers */
#else
#define REGISTER_ROWS 2
#endif

int64_t antiphon_has_fp16(void) { return HAS_FP16; }

INLINE int64_t element_size(const struct attention_args *args) { return args->fp16_cache ? 2 : 4; }

INLINE vec load_cache(const void *from, int64_t index, const int fp16) {
    return fp16 ? fp16_to_fp32((const uint16_t *)from + index) : load((const float *)from + index);
}

INLINE void store_cache(const struct attention_args *args, int64_t to, int64_t index, const float *from,
                        int64_t count) {
    if (!args->fp16_cache) memcpy((float *)to + index, from, count * sizeof(float));
    else for (int64_t i = 0; i < count; i += LANES) fp32_to_fp16((uint16_t *)to + index + i, load(from + i));
}

/* Stores the new keys and values of one head in the cache, which has room for them. */
static void append_kv(const struct attention_args *args, const struct span *span, int64_t head) {
    for (int64_t i = 0; i < span->count; i++) {
        const int64_t token = span->token + i, position = span->end - span->count + i;
        const float *key = (const float *)args->key + token * args->key_token_stride + head * args->key_head_stride;
        const float *value =
            (const float *)args->value + token * args->value_token_stride + head * args->value_head_stride;
        store_cache(args, span->keys, head * span->key_stride + position * args->dim, key, args->dim);
        store_cache(args, span->values, head * span->value_stride + position * args->value_dim, value, args->value_dim);
    }
}

static void append_kv_of_long_span(const void *context, int64_t index) {
    const struct attention_args *args = context;
    const struct span *span = (const struct span *)args->spans + index / args->kv_heads;
    if (span->count > 1) append_kv(args, span, index % args->kv_heads);
}

/* A work item: some tokens of a span, with all query heads of one key head. */
struct work_item {
    const struct span *span;
    int64_t head, from, to;    /* key head; tokens of the span */
    int64_t first, end;        /* keys: start of the first tile, end of the last one */
    const char *keys, *values; /* of key `first` */
};

INLINE int64_t own_end(const struct span *span, int64_t token) { return span->end - span->count + token + 1; }

/* The tokens of a picture may see all of it, and so keys after their own. */
INLINE int64_t visible_end(const struct span *span, int64_t token) {
    return span->ends ? ((const int64_t *)span->ends)[token] : own_end(span, token);
}

INLINE int64_t visible_start(const struct attention_args *args, const struct span *span, int64_t token) {
    const int64_t end = own_end(span, token);
    return args->window && end > args->window ? end - args->window : 0;
}

INLINE int64_t tokens_per_item(const struct attention_args *args) { return MAX_ITEM_ROWS / args->groups; }

INLINE int64_t items_per_head(const struct attention_args *args, const struct span *span) {
    return (span->count + tokens_per_item(args) - 1) / tokens_per_item(args);
}

/* Finds the span of a work item by bisection, and computes its extent. */
static struct work_item locate_item(const struct attention_args *args, int64_t index) {
    const struct span *span = (const struct span *)args->spans, *after = span + args->num_spans;
    while (after - span > 1) {
        const struct span *middle = span + (after - span) / 2;
        if (middle->first_item <= index) span = middle;
        else after = middle;
    }
    const int64_t per_head = items_per_head(args, span), item = index - span->first_item, size = element_size(args);
    const int64_t head = item / per_head, from = item % per_head * tokens_per_item(args);
    const int64_t to = from + tokens_per_item(args), last = to < span->count ? to : span->count;
    const int64_t first = visible_start(args, span, from) / TILE_KEYS * TILE_KEYS;
    return (struct work_item){
        span, head, from, last, first, visible_end(span, last - 1),
        (const char *)span->keys + (head * span->key_stride + first * args->dim) * size,
        (const char *)span->values + (head * span->value_stride + first * args->value_dim) * size,
    };
}

/* One query: the keys that it may see, and its running softmax. */
struct query_row {
    const float *query;
    float *out;
    int64_t first, end;
    float max_score;
    vec total; /* lane-wise sum of the weights */
};

static void init_rows(const struct attention_args *args, const struct work_item *item, struct query_row *rows) {
    const float *sinks = (const float *)args->sinks;
    for (int64_t t = item->from; t < item->to; t++)
        for (int64_t group = 0; group < args->groups; group++, rows++) {
            const int64_t token = item->span->token + t, head = item->head * args->groups + group;
            rows->query =
                (const float *)args->query + token * args->query_token_stride + head * args->query_head_stride;
            rows->out = (float *)args->out + (token * args->kv_heads * args->groups + head) * args->value_dim;
            rows->first = visible_start(args, item->span, t);
            rows->end = visible_end(item->span, t);
            rows->max_score = sinks ? sinks[head] : -INFINITY;
            rows->total = (vec){sinks ? 1 : 0};
            memset(rows->out, 0, args->value_dim * sizeof(float));
        }
}

/* Up to TILE_KEYS keys with their values, and the addresses to prefetch meanwhile, or 0. */
struct tile {
    int64_t first, count;
    const void *keys, *values;
    const char *next_keys, *next_values;
};

/* Prefetches in small steps between the computations: a core can wait for only a few cache lines at a time. */
INLINE void prefetch(const char **next, int64_t bytes) {
    if (!*next) return;
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(*next + i, 0, 2);
    *next += bytes;
}

INLINE void compute_scores(const int count, const int fp16, const struct query_row *rows, float (*scores)[TILE_KEYS],
                           const struct tile *tile, int64_t dim, float scale) {
    const char *next = tile->next_keys;
    for (int64_t j = 0; j < tile->count; j += 4) {
        int64_t offset[4];
        for (int i = 0; i < 4; i++) offset[i] = (j + i < tile->count ? j + i : tile->count - 1) * dim;
        vec sums[REGISTER_ROWS][4] = {{{0}}};
        for (int64_t d = 0; d < dim; d += LANES) {
            vec key[4];
            prefetch(&next, 4 * LANES * (fp16 ? 2 : 4));
            for (int i = 0; i < 4; i++) key[i] = load_cache(tile->keys, offset[i] + d, fp16);
            for (int r = 0; r < count; r++)
                for (int i = 0; i < 4; i++) sums[r][i] = multiply_add(load(rows[r].query + d), key[i], sums[r][i]);
        }
        for (int r = 0; r < count; r++) reduce_sum_four(scores[r] + j, sums[r], scale);
    }
}

/* Adds the weighted values of a tile to the output, `width` vectors from element d on. */
INLINE void accumulate_values(const int count, const int fp16, const int width, const struct query_row *rows,
                              float (*weights)[TILE_KEYS], const struct tile *tile, int64_t d, int64_t dim) {
    const char *next = tile->next_values ? tile->next_values + d * TILE_KEYS * (fp16 ? 2 : 4) : 0;
    vec sums[REGISTER_ROWS][4];
    for (int r = 0; r < count; r++)
        for (int i = 0; i < width; i++) sums[r][i] = load(rows[r].out + d + i * LANES);
    for (int64_t j = 0; j < tile->count; j++) {
        vec value[4];
        prefetch(&next, width * LANES * (fp16 ? 2 : 4));
        for (int i = 0; i < width; i++) value[i] = load_cache(tile->values, j * dim + d + i * LANES, fp16);
        for (int r = 0; r < count; r++)
            for (int i = 0; i < width; i++) sums[r][i] = multiply_add(broadcast(weights[r][j]), value[i], sums[r][i]);
    }
    for (int r = 0; r < count; r++)
        for (int i = 0; i < width; i++) store(rows[r].out + d + i * LANES, sums[r][i]);
}

/* Turns scores into weights in place, and rescales earlier sums when the running maximum grows. */
INLINE void online_softmax(struct query_row *row, float *scores, int64_t dim) {
    vec maxima = load(scores);
    for (int i = LANES; i < TILE_KEYS; i += LANES) maxima = max_or_nan(load(scores + i), maxima);
    const float tile_max = reduce_max(maxima);
    if (tile_max > row->max_score) {
        const vec rescale = exp_lanes(broadcast(row->max_score - tile_max));
        row->total *= rescale;
        for (int64_t d = 0; d < dim; d += LANES) store(row->out + d, load(row->out + d) * rescale);
        row->max_score = tile_max;
    }
    for (int i = 0; i < TILE_KEYS; i += LANES) {
        const vec weights = exp_lanes(load(scores + i) - row->max_score);
        store(scores + i, weights);
        row->total += weights;
    }
}

/* Limits scores to [-limit, limit]: limit * tanh(score / limit). */
INLINE void limit_scores(float *scores, float limit) {
    for (int i = 0; i < TILE_KEYS; i += LANES) {
        const vec score = load(scores + i), e = exp_lanes(-abs_lanes(score * (2 / limit)));
        const vec limited = limit * (1 - e) / (1 + e); /* of the absolute value, whose exponential cannot overflow */
        store(scores + i, select_lanes(score < 0, -limited, limited));
    }
}

/* Masks the scores of keys outside [first, end). */
INLINE void apply_mask(float *scores, int64_t first, int64_t end) {
    for (int i = 0; i < TILE_KEYS; i += LANES) {
        const ivec key = LANE_INDICES + i;
        const ivec visible = (key >= (int32_t)first) & (key < (int32_t)end);
        store(scores + i, select_lanes(visible, load(scores + i), broadcast(-INFINITY)));
    }
}

INLINE void attend_tile(const int count, const int fp16, const struct attention_args *args, struct query_row *rows,
                        const struct tile *tile, float scale) {
    const int64_t dim = args->value_dim;
    float scores[REGISTER_ROWS][TILE_KEYS];
    if (rows[0].first >= tile->first + tile->count || rows[count - 1].end <= tile->first) return;
    compute_scores(count, fp16, rows, scores, tile, args->dim, scale);
    for (int r = 0; r < count; r++) {
        const int64_t first = rows[r].first - tile->first, end = rows[r].end - tile->first;
        if (args->softcap) limit_scores(scores[r], *(const float *)args->softcap);
        if (first > 0 || end < TILE_KEYS) apply_mask(scores[r], first, end);
        if (first >= tile->count || end <= 0) memset(scores[r], 0, sizeof scores[r]);
        else online_softmax(rows + r, scores[r], dim);
    }
    int64_t d = 0;
    for (; d + 4 * LANES <= dim; d += 4 * LANES) accumulate_values(count, fp16, 4, rows, scores, tile, d, dim);
    for (; d < dim; d += LANES) accumulate_values(count, fp16, 1, rows, scores, tile, d, dim);
}

/* All rows with one tile. Only the first group of rows prefetches. */
INLINE void attend_rows(const int fp16, const struct attention_args *args, struct query_row *rows, int64_t count,
                        struct tile *tile, float scale) {
    int64_t r = 0;
    for (; r + REGISTER_ROWS <= count; r += REGISTER_ROWS, tile->next_keys = tile->next_values = 0)
        attend_tile(REGISTER_ROWS, fp16, args, rows + r, tile, scale);
    for (; r + 2 <= count; r += 2, tile->next_keys = tile->next_values = 0)
        attend_tile(2, fp16, args, rows + r, tile, scale);
    if (r < count) attend_tile(1, fp16, args, rows + r, tile, scale);
}

INLINE const float *convert_to_fp32(float *to, const void *from, int64_t count) {
    for (int64_t i = 0; i < count; i += LANES) store(to + i, load_cache(from, i, 1));
    return to;
}

static void attend_item(const struct attention_args *args, float scale, const struct work_item *item,
                        const struct work_item *next) {
    struct query_row rows[MAX_ITEM_ROWS];
    float converted[2][TILE_KEYS * MAX_HEAD_DIM] __attribute__((aligned(64)));
    const int64_t count = (item->to - item->from) * args->groups, size = element_size(args);
    const int converts = args->fp16_cache && count > REGISTER_ROWS; /* fp16 read once is converted while loading */
    if (item->span->count == 1) append_kv(args, item->span, item->head);
    init_rows(args, item, rows);
    const char *keys = item->keys, *values = item->values;
    for (int64_t j = item->first; j < item->end; j += TILE_KEYS) {
        struct tile tile = {
            j, item->end - j < TILE_KEYS ? item->end - j : TILE_KEYS, keys, values, next->keys, next->values,
        };
        keys += TILE_KEYS * args->dim * size;
        values += TILE_KEYS * args->value_dim * size;
        if (j + TILE_KEYS < item->end) tile.next_keys = keys, tile.next_values = values;
        if (converts) {
            tile.keys = convert_to_fp32(converted[0], tile.keys, tile.count * args->dim);
            tile.values = convert_to_fp32(converted[1], tile.values, tile.count * args->value_dim);
        }
        if (args->fp16_cache && !converts) attend_rows(1, args, rows, count, &tile, scale);
        else attend_rows(0, args, rows, count, &tile, scale);
    }
    for (int64_t r = 0; r < count; r++) {
        const float total = reduce_sum(rows[r].total);
        for (int64_t d = 0; d < args->value_dim; d += LANES) store(rows[r].out + d, load(rows[r].out + d) / total);
    }
}

/* Runs of consecutive items. While it finishes one item, a thread prefetches the first tile of the next. */
struct attention_loop { const struct attention_args *args; float scale; int64_t count, items_per_run; };

static void attend_run(const void *context, int64_t run) {
    const struct attention_loop *loop = context;
    const int64_t first = run * loop->items_per_run, stop = first + loop->items_per_run;
    const int64_t end = stop < loop->count ? stop : loop->count;
    struct work_item item = locate_item(loop->args, first);
    for (int64_t i = first; i < end; i++) {
        const struct work_item next = i + 1 < end ? locate_item(loop->args, i + 1) : item;
        attend_item(loop->args, loop->scale, &item, &next);
        item = next;
    }
}

void antiphon_attend(const struct attention_args *args, float scale) {
    struct span *spans = (struct span *)args->spans;
    int64_t visible = 0, count = 0, longest = 0;
    for (int64_t i = 0; i < args->num_spans; i++) {
        spans[i].first_item = count;
        count += items_per_head(args, spans + i) * args->kv_heads;
        visible += spans[i].end * spans[i].count;
        if (spans[i].count > longest) longest = spans[i].count;
    }
    const int64_t work = visible * args->kv_heads * (args->dim + args->value_dim);
    const int64_t threads = work > PARALLEL_THRESHOLD ? args->threads : 1;
    if (longest > 1) parallel_for(append_kv_of_long_span, args, args->num_spans * args->kv_heads, threads);
    const int64_t share = longest > 1 ? 1 : count / (4 * args->threads);
    const int64_t items = share < 1 ? 1 : share < MAX_ITEMS_PER_RUN ? share : MAX_ITEMS_PER_RUN;
    const struct attention_loop loop = {args, scale, count, items};
    parallel_for(attend_run, &loop, (count + items - 1) / items, threads);
}
