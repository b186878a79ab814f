/* fp32 activations times an int8 weight: quantizes the rows, multiplies in integers, and dequantizes, in one call.
 *
 * Integer sums do not depend on their order, and one expression turns each of them into fp32. So a row has the same
 * bits alone or in a batch, with any of the instruction sets below.
 *
 * The weight is packed as (outputs / LANES, inputs / 4, LANES, 4), the quantized rows as (rows / 16, inputs / 64, 16,
 * 64). Both are padded to whole tiles: inputs to 64 with zero weights, outputs to two blocks of LANES.
 */

#include "kernels.h"

#if (LANES == 16 && defined(__AVX512BW__)) || (LANES == 8 && defined(__AVX2__))
#define TILE_BYTES (TILE_ROWS * TILE_INPUTS)
#define L2_BYTES (1 << 19) /* part of the L2 cache that the weights of a work item may fill */
#define PAIR_OUTPUTS (2 * LANES) /* outputs of a pair of blocks, which are computed together */
#define MAX_UNTILED_ROWS 1 /* rows up to which AMX tiles cost more than they save */

#if LANES == 16
#define MAX_STRIP_ROWS 12 /* rows whose sums with a pair of blocks fit into registers */
#define SIMD_OP(name) _mm512_##name
typedef __m512i bytes;
INLINE void store_levels(uint8_t *to, bytes v) { _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8(v)); }
#else
#define MAX_STRIP_ROWS 4
#define SIMD_OP(name) _mm256_##name
typedef __m256i bytes;
INLINE void store_levels(uint8_t *to, bytes v) {
    v = _mm256_shuffle_epi8(v, _mm256_set1_epi32(0x0c080400));
    const int32_t words[2] = {_mm256_extract_epi32(v, 0), _mm256_extract_epi32(v, 4)};
    memcpy(to, words, 8);
}
#endif

INLINE bytes broadcast_four(const uint8_t *x) { int32_t word; memcpy(&word, x, 4); return SIMD_OP(set1_epi32)(word); }

/* Adds four products of unsigned levels and signed weights to each sum. */
#if LANES == 16 && defined(__AVX512VNNI__)
#define ACTIVATION_LEVELS 127
INLINE bytes dot(bytes sums, bytes x, bytes w) { return _mm512_dpbusd_epi32(sums, x, w); }
#elif LANES == 8 && defined(__AVXVNNI__)
#define ACTIVATION_LEVELS 127
INLINE bytes dot(bytes sums, bytes x, bytes w) { return _mm256_dpbusd_avx_epi32(sums, x, w); }
#else
#define ACTIVATION_LEVELS 63 /* maddubs adds two products in 16 bits; 2 * 127 * 127 fits. */
INLINE bytes dot(bytes sums, bytes x, bytes w) {
    return SIMD_OP(add_epi32)(sums, SIMD_OP(madd_epi16)(SIMD_OP(maddubs_epi16)(x, w), SIMD_OP(set1_epi16)(1)));
}
#endif
#define ACTIVATION_ZERO (ACTIVATION_LEVELS + 1)

int64_t antiphon_activation_levels(void) { return ACTIVATION_LEVELS; }

INLINE int64_t ceil_div(int64_t count, int64_t divisor) { return (count + divisor - 1) / divisor; }

/* Maximum absolute value, NaN if any element is NaN: non-negative floats compare like their bit patterns. */
static float abs_max(const float *x, int64_t size) {
    ivec maxima[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 * LANES <= size; i += 4 * LANES)
        for (int n = 0; n < 4; n++) {
            const ivec bits = (ivec)abs_lanes(load(x + i + n * LANES));
            maxima[n] = (ivec)SIMD_OP(max_epi32)((bytes)maxima[n], (bytes)bits);
        }
    for (; i < size; i++) {
        int32_t bits;
        memcpy(&bits, x + i, 4);
        bits &= 0x7fffffff;
        if (bits > maxima[0][0]) maxima[0][0] = bits;
    }
    for (int n = 1; n < 4; n++) maxima[0] = (ivec)SIMD_OP(max_epi32)((bytes)maxima[0], (bytes)maxima[n]);
    int32_t max_bits = maxima[0][0];
    for (int n = 1; n < LANES; n++) if (maxima[0][n] > max_bits) max_bits = maxima[0][n];
    float row_max;
    memcpy(&row_max, &max_bits, 4);
    return row_max;
}

/* Quantizes a tile of rows, each to levels of its own maximum. A row of zeros gets arbitrary levels with scale 0. */
static void quantize_rows(const void *context, int64_t tile) {
    const struct linear_args *args = context;
    const int64_t size = args->inputs, steps = ceil_div(size, TILE_INPUTS);
    for (int64_t r = tile * TILE_ROWS, end = r + TILE_ROWS; r < end && r < args->count; r++) {
        float *x = (float *)args->x + r * (args->silu_mul ? 2 * size : size);
        if (args->silu_mul) silu_mul_row(x, x, size);
        uint8_t *to = (uint8_t *)args->levels + r / TILE_ROWS * steps * TILE_BYTES + r % TILE_ROWS * TILE_INPUTS;
        const float row_max = abs_max(x, size), inverse_scale = ACTIVATION_LEVELS / row_max;
        int64_t i = 0;
        /* Adding 1.5 * 2^23 leaves the rounded level in the lowest bits. */
        for (; i + LANES <= size; i += LANES) {
            const vec level = load(x + i) * inverse_scale + (12582912.0f + ACTIVATION_ZERO);
            store_levels(to + i / TILE_INPUTS * TILE_BYTES + i % TILE_INPUTS, (bytes)level);
        }
        for (; i < size; i++) {
            float level = x[i] * inverse_scale + (12582912.0f + ACTIVATION_ZERO);
            memcpy(to + i / TILE_INPUTS * TILE_BYTES + i % TILE_INPUTS, &level, 1);
        }
        ((float *)args->row_scales)[r] = row_max / ACTIVATION_LEVELS;
    }
}

/* Per-output parameters that dequantize the sums of a block. */
struct dequant_params {
    vec scale, bias;
    ivec zero;
    int64_t remaining; /* outputs of the weight from here on; a block may be cut short */
};

INLINE struct dequant_params load_dequant_params(const struct linear_args *args, int64_t first) {
    struct dequant_params params = {
        load((const float *)args->scales + first), {0}, *(const ivec *)((const int32_t *)args->zeros + first),
        args->outputs - first,
    };
    const float *bias = (const float *)args->bias + first;
    if (args->bias && params.remaining >= LANES) params.bias = load(bias);
    else if (args->bias) for (int64_t i = 0; i < params.remaining; i++) params.bias[i] = bias[i];
    return params;
}

INLINE void dequantize_store(const struct linear_args *args, const struct dequant_params *params, int64_t row,
                             int64_t first, ivec sums) {
    float *to = (float *)args->out + row * args->outputs + first;
    const float *residual = args->residual ? (const float *)args->residual + row * args->outputs + first : 0;
    const vec scale = ((const float *)args->row_scales)[row] * params->scale;
    vec result = __builtin_convertvector(sums - params->zero, vec) * scale + params->bias;
    if (params->remaining >= LANES) {
        if (residual) result += load(residual);
        store(to, result);
    } else {
        for (int64_t i = 0; i < params->remaining; i++) to[i] = residual ? result[i] + residual[i] : result[i];
    }
}

/* `count` rows of one tile with a pair of blocks, summed in registers. */
INLINE void multiply_strip(const int count, const struct linear_args *args, int64_t row, int64_t pair) {
    const int64_t steps = ceil_div(args->inputs, TILE_INPUTS);
    const uint8_t *x =
        (const uint8_t *)args->levels + row / TILE_ROWS * steps * TILE_BYTES + row % TILE_ROWS * TILE_INPUTS;
    const bytes *first_block = (const bytes *)args->weights + pair * 2 * steps * TILE_ROWS;
    const bytes *second_block = first_block + steps * TILE_ROWS;
    bytes sums[2][MAX_STRIP_ROWS] = {0};
    for (int64_t s = 0; s < steps; s++, x += TILE_BYTES)
        for (int i = 0; i < TILE_ROWS; i++, first_block++, second_block++) {
            const bytes w[2] = {*first_block, *second_block};
            for (int r = 0; r < count; r++) {
                const bytes level = broadcast_four(x + r * TILE_INPUTS + 4 * i);
                sums[0][r] = dot(sums[0][r], level, w[0]);
                sums[1][r] = dot(sums[1][r], level, w[1]);
            }
        }
    for (int i = 0; i < 2; i++) {
        const int64_t first = pair * PAIR_OUTPUTS + i * LANES;
        const struct dequant_params params = load_dequant_params(args, first);
        for (int r = 0; r < count; r++) dequantize_store(args, &params, row + r, first, (ivec)sums[i][r]);
    }
}

static void multiply_strips(const struct linear_args *args, int64_t row, int64_t end, int64_t pair) {
    while (row < end) {
        const int64_t tile_end = (row / TILE_ROWS + 1) * TILE_ROWS, left = (tile_end < end ? tile_end : end) - row;
        /* Two even strips are faster than a full one and a short rest. */
        const int64_t count =
            left <= MAX_STRIP_ROWS ? left : left < 2 * MAX_STRIP_ROWS ? (left + 1) / 2 : MAX_STRIP_ROWS;
        switch (count) {
#define STRIP(n) case n: multiply_strip(n, args, row, pair); break;
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

/* Linux enables the AMX tile registers on request, per process. */
static int amx_permitted(void) {
    static int permitted = -1;
    if (permitted < 0)
        permitted = syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XFEATURE_XTILEDATA */) == 0;
    return permitted;
}

static const struct {
    uint8_t palette, start, reserved[14];
    uint16_t widths[16];
    uint8_t heights[16];
} __attribute__((packed, aligned(64))) TILE_CONFIG = {
    1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16},
};

INLINE void store_tile(const struct linear_args *args, int64_t row, int64_t first, const int32_t (*sums)[LANES]) {
    const struct dequant_params params = load_dequant_params(args, first);
    const int64_t count = args->count - row < TILE_ROWS ? args->count - row : TILE_ROWS;
    for (int64_t r = 0; r < count; r++) dequantize_store(args, &params, row + r, first, *(const ivec *)sums[r]);
}

/* One tile of rows, or two (`tall`), with a pair of blocks. */
INLINE void multiply_tiles(const int tall, const struct linear_args *args, int64_t row, int64_t pair) {
    const int64_t steps = ceil_div(args->inputs, TILE_INPUTS);
    const uint8_t *x = (const uint8_t *)args->levels + row / TILE_ROWS * steps * TILE_BYTES;
    const int8_t *w = (const int8_t *)args->weights + pair * 2 * steps * TILE_BYTES;
    int32_t sums[TILE_ROWS][LANES] __attribute__((aligned(64)));
    _tile_zero(0);
    _tile_zero(1);
    if (tall) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t s = 0; s < steps; s++, x += TILE_BYTES, w += TILE_BYTES) {
        _tile_loadd(4, x, TILE_INPUTS);
        _tile_loadd(6, w, TILE_INPUTS);
        _tile_loadd(7, w + steps * TILE_BYTES, TILE_INPUTS);
        if (!tall) /* With few rows, weights are the bottleneck: prefetch the next ones. */
            for (int i = 0; i < TILE_BYTES; i += 64) {
                __builtin_prefetch(w + TILE_BYTES + i, 0, 3);
                __builtin_prefetch(w + (steps + 1) * TILE_BYTES + i, 0, 3);
            }
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        if (tall) {
            _tile_loadd(5, x + steps * TILE_BYTES, TILE_INPUTS);
            _tile_dpbusd(2, 5, 6);
            _tile_dpbusd(3, 5, 7);
        }
    }
#define STORE_TILE(tile, down, right) \
    _tile_stored(tile, sums, TILE_INPUTS); \
    store_tile(args, row + down * TILE_ROWS, pair * PAIR_OUTPUTS + right * LANES, sums);
    STORE_TILE(0, 0, 0)
    STORE_TILE(1, 0, 1)
    if (tall) {
        STORE_TILE(2, 1, 0)
        STORE_TILE(3, 1, 1)
    }
}

static void multiply_all_tiles(const struct linear_args *args, int64_t pair, int64_t end) {
    _tile_loadconfig(&TILE_CONFIG);
    for (int64_t row = 0; row < args->count; row += 2 * TILE_ROWS)
        for (int64_t i = pair; i < end; i++) {
            if (row + TILE_ROWS < args->count) multiply_tiles(1, args, row, i);
            else multiply_tiles(0, args, row, i);
        }
    _tile_release();
}
#endif

/* Pairs of blocks per work item: as many as fit into the L2 cache, few enough to keep all threads busy. */
static int64_t pairs_per_item(const struct linear_args *args) {
    const int64_t share = ceil_div(args->outputs, PAIR_OUTPUTS) / (4 * args->threads);
    const int64_t cached = L2_BYTES / (PAIR_OUTPUTS * ceil_div(args->inputs, TILE_INPUTS) * TILE_INPUTS);
    const int64_t pairs = share < cached ? share : cached;
    return pairs > 1 ? pairs : 1;
}

static void multiply_pairs(const void *context, int64_t item) {
    const struct linear_args *args = context;
    const int64_t pairs = pairs_per_item(args), pair = item * pairs, total = ceil_div(args->outputs, PAIR_OUTPUTS);
    const int64_t end = pair + pairs < total ? pair + pairs : total;
#ifdef AMX
    if (args->count > MAX_UNTILED_ROWS && amx_permitted()) {
        multiply_all_tiles(args, pair, end);
        return;
    }
#endif
    for (int64_t i = pair; i < end; i++) multiply_strips(args, 0, args->count, i);
}

void antiphon_int8_linear(const struct linear_args *args) {
    if (!args->count) return;
    const int64_t tiles = ceil_div(args->count, TILE_ROWS), pairs = ceil_div(args->outputs, PAIR_OUTPUTS);
    const int64_t quantize_threads = args->count * args->inputs > PARALLEL_THRESHOLD ? args->threads : 1;
    const int64_t multiply_threads = args->outputs * args->inputs > PARALLEL_THRESHOLD ? args->threads : 1;
    parallel_for(quantize_rows, args, tiles, quantize_threads);
    parallel_for(multiply_pairs, args, ceil_div(pairs, pairs_per_item(args)), multiply_threads);
}

#else

/* Other CPUs have no int8 kernel. */
int64_t antiphon_activation_levels(void) { return 0; }
void antiphon_int8_linear(const struct linear_args *args) { (void)args; }

#endif
