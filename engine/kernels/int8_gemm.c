/* Rows of fp32 times a matrix of int8: rows to 8 bits, products in whole numbers, and back, in one call.
 *
 * Sums of whole numbers are the same in every order, and each becomes fp32 by one expression: a row has the same bits
 * whether it comes alone or among others, whichever instructions this CPU has for it.
 *
 * The matrix lies in panels of LANES outputs, each of them as (inputs / 4, LANES, 4); rows as (rows / 16, inputs / 64,
 * 16, 64). Both are filled up to whole tiles: inputs to 64 with weights of 0, outputs to two panels.
 */

#include "kernels.h"

#if (LANES == 16 && defined(__AVX512BW__)) || (LANES == 8 && defined(__AVX2__))
#define TILE (HEIGHT * STEP)
#define PAIR (2 * LANES) /* outputs that are computed together */
#define FEW 1 /* rows for which tiles do not pay */

#if LANES == 16
#define MOST_ROWS 12 /* so many rows with two panels are summed in registers */
#define OF(name) _mm512_##name
typedef __m512i bytes;
INLINE void shrink(uint8_t *to, bytes v) { _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8(v)); }
#else
#define MOST_ROWS 4
#define OF(name) _mm256_##name
typedef __m256i bytes;
INLINE void shrink(uint8_t *to, bytes v) {
    v = _mm256_shuffle_epi8(v, _mm256_set1_epi32(0x0c080400));
    const int32_t words[2] = {_mm256_extract_epi32(v, 0), _mm256_extract_epi32(v, 4)};
    memcpy(to, words, 8);
}
#endif

INLINE bytes four(const uint8_t *x) { int32_t word; memcpy(&word, x, 4); return OF(set1_epi32)(word); }

/* Four products of unsigned levels with signed weights are added to each sum. */
#if LANES == 16 && defined(__AVX512VNNI__)
#define LEVELS 127
INLINE bytes dot(bytes sums, bytes x, bytes w) { return _mm512_dpbusd_epi32(sums, x, w); }
#elif LANES == 8 && defined(__AVXVNNI__)
#define LEVELS 127
INLINE bytes dot(bytes sums, bytes x, bytes w) { return _mm256_dpbusd_avx_epi32(sums, x, w); }
#else
#define LEVELS 63 /* Pairs of products are added in 16 bits: 2 · 127 · 127 is the most they hold. */
INLINE bytes dot(bytes sums, bytes x, bytes w) {
    return OF(add_epi32)(sums, OF(madd_epi16)(OF(maddubs_epi16)(x, w), OF(set1_epi16)(1)));
}
#endif
#define ZERO (LEVELS + 1)

int64_t antiphon_levels(void) { return LEVELS; }

INLINE int64_t up(int64_t count, int64_t to) { return (count + to - 1) / to; }

/* The largest magnitude; no number, if there is one that is none: the bits of magnitudes are in their order, too. */
static float highest(const float *x, int64_t size) {
    ivec most[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 * LANES <= size; i += 4 * LANES)
        for (int n = 0; n < 4; n++) {
            const ivec bits = (ivec)magnitude(load(x + i + n * LANES));
            most[n] = (ivec)OF(max_epi32)((bytes)most[n], (bytes)bits);
        }
    for (; i < size; i++) {
        int32_t bits;
        memcpy(&bits, x + i, 4);
        bits &= 0x7fffffff;
        if (bits > most[0][0]) most[0][0] = bits;
    }
    for (int n = 1; n < 4; n++) most[0] = (ivec)OF(max_epi32)((bytes)most[0], (bytes)most[n]);
    int32_t all = most[0][0];
    for (int n = 1; n < LANES; n++) if (most[0][n] > all) all = most[0][n];
    float high;
    memcpy(&high, &all, 4);
    return high;
}

/* A row to levels of its largest magnitude. Of a row of zeros some level is made, and 0 of it is 0. */
static void quantize(const void *given, int64_t number) {
    const struct product *p = given;
    const int64_t size = p->inputs, steps = up(size, STEP);
    for (int64_t r = number * HEIGHT, end = r + HEIGHT; r < end && r < p->count; r++) {
        float *x = (float *)p->x + r * (p->gated ? 2 * size : size);
        if (p->gated) gated(x, x, size);
        uint8_t *to = (uint8_t *)p->rows + r / HEIGHT * steps * TILE + r % HEIGHT * STEP;
        const float high = highest(x, size), by = LEVELS / high;
        int64_t i = 0;
        /* 1.5 · 2^23 moves what is rounded to the lowest bits. */
        for (; i + LANES <= size; i += LANES) {
            const vec level = load(x + i) * by + (12582912.0f + ZERO);
            shrink(to + i / STEP * TILE + i % STEP, (bytes)level);
        }
        for (; i < size; i++) {
            float level = x[i] * by + (12582912.0f + ZERO);
            memcpy(to + i / STEP * TILE + i % STEP, &level, 1);
        }
        ((float *)p->magnitudes)[r] = high / LEVELS;
    }
}

/* What turns sums with a panel into what they stand for. */
struct meaning {
    vec scale, bias;
    ivec zero;
    int64_t left; /* outputs from here on */
};

INLINE struct meaning meaning(const struct product *p, int64_t first) {
    struct meaning m = {load((const float *)p->scales + first), {0}, *(const ivec *)((const int32_t *)p->zeros + first),
                        p->outputs - first};
    const float *bias = (const float *)p->bias + first;
    if (p->bias && m.left >= LANES) m.bias = load(bias);
    else if (p->bias) for (int64_t i = 0; i < m.left; i++) m.bias[i] = bias[i];
    return m;
}

INLINE void finish(const struct product *p, const struct meaning *m, int64_t row, int64_t first, ivec sums) {
    float *to = (float *)p->out + row * p->outputs + first;
    const float *added = p->added ? (const float *)p->added + row * p->outputs + first : 0;
    const vec scale = ((const float *)p->magnitudes)[row] * m->scale;
    vec result = __builtin_convertvector(sums - m->zero, vec) * scale + m->bias;
    if (m->left >= LANES) {
        if (added) result += load(added);
        store(to, result);
    } else {
        for (int64_t i = 0; i < m->left; i++) to[i] = added ? result[i] + added[i] : result[i];
    }
}

/* So many rows of one tile with two panels. */
INLINE void strip(const int count, const struct product *p, int64_t row, int64_t pair) {
    const int64_t steps = up(p->inputs, STEP);
    const uint8_t *x = (const uint8_t *)p->rows + row / HEIGHT * steps * TILE + row % HEIGHT * STEP;
    const bytes *one = (const bytes *)p->weights + pair * 2 * steps * HEIGHT, *two = one + steps * HEIGHT;
    bytes sums[2][MOST_ROWS] = {0};
    for (int64_t s = 0; s < steps; s++, x += TILE)
        for (int i = 0; i < HEIGHT; i++, one++, two++) {
            const bytes w[2] = {*one, *two};
            for (int r = 0; r < count; r++) {
                const bytes level = four(x + r * STEP + 4 * i);
                sums[0][r] = dot(sums[0][r], level, w[0]);
                sums[1][r] = dot(sums[1][r], level, w[1]);
            }
        }
    for (int i = 0; i < 2; i++) {
        const int64_t first = pair * PAIR + i * LANES;
        const struct meaning m = meaning(p, first);
        for (int r = 0; r < count; r++) finish(p, &m, row + r, first, (ivec)sums[i][r]);
    }
}

static void strips(const struct product *p, int64_t row, int64_t end, int64_t pair) {
    while (row < end) {
        const int64_t left = (row / HEIGHT + 1) * HEIGHT < end ? (row / HEIGHT + 1) * HEIGHT - row : end - row;
        /* Two even strips rather than a full one and a rest. */
        const int64_t count = left <= MOST_ROWS ? left : left < 2 * MOST_ROWS ? (left + 1) / 2 : MOST_ROWS;
        switch (count) {
#define STRIP(n) case n: strip(n, p, row, pair); break;
            STRIP(1) STRIP(2) STRIP(3) STRIP(4)
#if LANES == 16
            STRIP(5) STRIP(6) STRIP(7) STRIP(8) STRIP(9) STRIP(10) STRIP(11) STRIP(12)
#endif
        }
        row += count;
    }
}

#if defined(__AMX_INT8__) && LANES == 16 && defined(__linux__)
#define AMX
#include <sys/syscall.h>
#include <unistd.h>

/* Linux lends the tiles to those who ask. */
static int tiles(void) {
    static int lent = -1;
    if (lent < 0) lent = syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XFEATURE_XTILEDATA */) == 0;
    return lent;
}

static const struct {
    uint8_t palette, start, nothing[14];
    uint16_t widths[16];
    uint8_t heights[16];
} __attribute__((packed, aligned(64))) SHAPES = {
    1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16},
};

INLINE void leave(const struct product *p, int64_t row, int64_t first, const int32_t (*sums)[LANES]) {
    const struct meaning m = meaning(p, first);
    const int64_t count = p->count - row < HEIGHT ? p->count - row : HEIGHT;
    for (int64_t r = 0; r < count; r++) finish(p, &m, row + r, first, *(const ivec *)sums[r]);
}

/* One or two tiles of rows with two panels. */
INLINE void square(const int tall, const struct product *p, int64_t row, int64_t pair) {
    const int64_t steps = up(p->inputs, STEP);
    const uint8_t *x = (const uint8_t *)p->rows + row / HEIGHT * steps * TILE;
    const int8_t *w = (const int8_t *)p->weights + pair * 2 * steps * TILE;
    int32_t sums[HEIGHT][LANES] __attribute__((aligned(64)));
    _tile_zero(0);
    _tile_zero(1);
    if (tall) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t s = 0; s < steps; s++, x += TILE, w += TILE) {
        _tile_loadd(4, x, STEP);
        _tile_loadd(6, w, STEP);
        _tile_loadd(7, w + steps * TILE, STEP);
        if (!tall) /* Few rows wait for weights: the next ones are fetched meanwhile. */
            for (int i = 0; i < TILE; i += 64) {
                __builtin_prefetch(w + TILE + i, 0, 3);
                __builtin_prefetch(w + (steps + 1) * TILE + i, 0, 3);
            }
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        if (tall) {
            _tile_loadd(5, x + steps * TILE, STEP);
            _tile_dpbusd(2, 5, 6);
            _tile_dpbusd(3, 5, 7);
        }
    }
#define LEAVE(tile, down, right) \
    _tile_stored(tile, sums, STEP); \
    leave(p, row + down * HEIGHT, pair * PAIR + right * LANES, sums);
    LEAVE(0, 0, 0)
    LEAVE(1, 0, 1)
    if (tall) {
        LEAVE(2, 1, 0)
        LEAVE(3, 1, 1)
    }
}

static void squares(const struct product *p, int64_t pair, int64_t end) {
    _tile_loadconfig(&SHAPES);
    for (int64_t row = 0; row < p->count; row += 2 * HEIGHT)
        for (int64_t i = pair; i < end; i++) {
            if (row + HEIGHT < p->count) square(1, p, row, i);
            else square(0, p, row, i);
        }
    _tile_release();
}
#endif

/* So many pairs of panels are multiplied by all rows at once that the cache holds, and that all threads have some. */
static int64_t together(const struct product *p) {
    const int64_t fair = up(p->outputs, PAIR) / (4 * p->threads), held = (1 << 19) / (PAIR * up(p->inputs, STEP) * STEP);
    const int64_t pairs = fair < held ? fair : held;
    return pairs > 1 ? pairs : 1;
}

static void multiply(const void *given, int64_t piece) {
    const struct product *p = given;
    const int64_t pairs = together(p), pair = piece * pairs, all = up(p->outputs, PAIR);
    const int64_t end = pair + pairs < all ? pair + pairs : all;
#ifdef AMX
    if (p->count > FEW && tiles()) {
        squares(p, pair, end);
        return;
    }
#endif
    for (int64_t i = pair; i < end; i++) strips(p, 0, p->count, i);
}

void antiphon_multiply(const struct product *p) {
    if (!p->count) return;
    share(quantize, p, up(p->count, HEIGHT), p->count * p->inputs > SMALL ? p->threads : 1);
    share(multiply, p, up(up(p->outputs, PAIR), together(p)), p->outputs * p->inputs > SMALL ? p->threads : 1);
}

#else

/* There are no such products on other CPUs. */
int64_t antiphon_levels(void) { return 0; }
void antiphon_multiply(const struct product *p) { (void)p; }

#endif
