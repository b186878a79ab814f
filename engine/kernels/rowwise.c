/* What a CPU does for every token of every layer besides multiplying by weights, in single passes over memory.
 *
 * Compiled by engine/kernels/compiler.py, called by engine/kernels/bindings.py, which checks shapes before. Numbers are fp32; rows lie
 * one number after the other and are multiples of LANES long. Addresses come as integers, steps count numbers. Each
 * result is computed by one thread in one order, so that its bits depend neither on threads nor on neighbours.
 */

#include "kernels.h"

int64_t antiphon_lanes(void) { return LANES; }

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
