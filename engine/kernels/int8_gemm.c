/* fp32 activations times an int8 weight: quantizes the rows, multiplies in integers, and dequantizes, in one call.
 *
 * Integer sums do not depend on their order, and one expression turns each of them into fp32. So a row has the same
 * bits alone or in a batch, with any of the instruction sets below.
 *
 * The weight is packed as (outputs / LANES, inputs / 4, LANES, 4), the quantized rows as (rows / 16, inputs / 64, 16,
 * 64). Both are padded to whole tiles: inputs to 64 with zero weights, outputs to two blocks of LANES.
 */

#include "gemm.h"

#define L2_BYTES (1 << 19) /* part of the L2 cache that the weights of a work item may fill */
#define MAX_UNTILED_ROWS 1 /* rows up to which AMX tiles cost more than they save */
/* Rows whose sums with a pair of blocks fit into registers. */
#if LANES == 16
#define MAX_STRIP_ROWS 12
#elif defined(HAS_NEON)
#define MAX_STRIP_ROWS 8
#else
#define MAX_STRIP_ROWS 4
#endif

#ifdef HAS_BYTE_PRODUCTS
#if (LANES == 16 && defined(__AVX512VNNI__)) || (LANES == 8 && defined(__AVXVNNI__))
#define ACTIVATION_ZERO UNSIGNED_ZERO
typedef bytes factors;
INLINE factors load_factors(const bytes *weights) { return *weights; }

/* Adds four products of unsigned levels and signed weights to each sum. */
INLINE bytes dot(bytes sums, bytes x, factors w) {
#if LANES == 16
    return _mm512_dpbusd_epi32(sums, x, w);
#else
    return _mm256_dpbusd_avx_epi32(sums, x, w);
#endif
}
#else
#if LANES == 16
typedef __mmask64 signs;
INLINE signs signs_of(bytes w) { return _mm512_movepi8_mask(w); }
INLINE bytes apply_signs(bytes x, signs of) { return _mm512_mask_sub_epi8(x, of, _mm512_setzero_si512(), x); }
#else
typedef bytes signs;
INLINE signs signs_of(bytes w) { return w; }
INLINE bytes apply_signs(bytes x, signs of) { return _mm256_sign_epi8(x, of); }
#endif
typedef struct { bytes magnitudes; signs signs; } factors;
INLINE factors load_factors(const bytes *weights) { return (factors){SIMD_OP(abs_epi8)(*weights), signs_of(*weights)}; }

/* As above, with signed levels. maddubs adds two products in 16 bits: with unsigned levels of 8 bits, they would not fit. */
INLINE bytes dot(bytes sums, bytes x, factors w) {
    const bytes pairs = SIMD_OP(maddubs_epi16)(w.magnitudes, apply_signs(x, w.signs)); /* at most 2 * 127 * 128 */
    return SIMD_OP(add_epi32)(sums, SIMD_OP(madd_epi16)(pairs, SIMD_OP(set1_epi16)(1)));
}
#endif
#endif

#ifndef ACTIVATION_ZERO
#define ACTIVATION_ZERO 0
#endif

static void quantize_tile(const void *context, int64_t tile) {
    const struct linear_args *args = context;
    for (int64_t r = tile * TILE_ROWS, end = r + TILE_ROWS; r < end && r < args->count; r++)
        quantize_row(args, r, ACTIVATION_LEVELS, ACTIVATION_ZERO);
}

INLINE void dequantize_store(const struct linear_args *args, const struct output_params *params, int64_t row,
                             int64_t first, ivec sums) {
    if (ACTIVATION_ZERO) sums -= *(const ivec *)((const int32_t *)args->zeros + first);
    store_outputs(args, params, row, first, __builtin_convertvector(sums, vec));
}

#ifdef HAS_BYTE_PRODUCTS

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
            const factors w[2] = {load_factors(first_block), load_factors(second_block)};
            for (int r = 0; r < count; r++) {
                const bytes level = broadcast_four(x + r * TILE_INPUTS + 4 * i);
                sums[0][r] = dot(sums[0][r], level, w[0]);
                sums[1][r] = dot(sums[1][r], level, w[1]);
            }
        }
    for (int i = 0; i < 2; i++) {
        const int64_t first = pair * PAIR_OUTPUTS + i * LANES;
        const struct output_params params = load_output_params(args, first);
        for (int r = 0; r < count; r++) dequantize_store(args, &params, row + r, first, (ivec)sums[i][r]);
    }
}

#elif defined(HAS_NEON)

/* As above. One row alone has two chains of additions. */
INLINE void multiply_strip(const int count, const struct linear_args *args, int64_t row, int64_t pair) {
    const int64_t steps = ceil_div(args->inputs, TILE_INPUTS);
    const int8_t *x =
        (const int8_t *)args->levels + row / TILE_ROWS * steps * TILE_BYTES + row % TILE_ROWS * TILE_INPUTS;
    const int8_t *blocks[2];
    for (int i = 0; i < 2; i++)
        blocks[i] = (const int8_t *)args->weights + (2 * pair + i) * steps * TILE_INPUTS * LANES;
    int32x4_t sums[2][MAX_STRIP_ROWS] = {0}, more[2] = {0};
    for (int64_t s = 0; s < steps; s++, x += TILE_BYTES)
        for (int part = 0; part < TILE_INPUTS; part += 16) {
            int8x16_t levels[MAX_STRIP_ROWS];
            for (int r = 0; r < count; r++) levels[r] = vld1q_s8(x + r * TILE_INPUTS + part);
#define FOUR_INPUTS(lane) \
            for (int i = 0; i < 2; i++, blocks[i - 1] += 4 * LANES) { \
                const int8x16_t w = vld1q_s8(blocks[i]); \
                for (int r = 0; r < count; r++) { \
                    int32x4_t *sum = count == 1 && lane % 2 ? &more[i] : &sums[i][r]; \
                    *sum = ADD_PRODUCTS(*sum, w, levels[r], lane); \
                } \
            }
            FOUR_INPUTS(0) FOUR_INPUTS(1) FOUR_INPUTS(2) FOUR_INPUTS(3)
        }
    for (int i = 0; i < 2; i++) {
        const int64_t first = pair * PAIR_OUTPUTS + i * LANES;
        const struct output_params params = load_output_params(args, first);
        if (count == 1) sums[i][0] = vaddq_s32(sums[i][0], more[i]);
        for (int r = 0; r < count; r++) dequantize_store(args, &params, row + r, first, (ivec)sums[i][r]);
    }
}

#else

/* As above, on any other CPU. */
INLINE void multiply_strip(const int count, const struct linear_args *args, int64_t row, int64_t pair) {
    const int64_t steps = ceil_div(args->inputs, TILE_INPUTS);
    const int8_t *x =
        (const int8_t *)args->levels + row / TILE_ROWS * steps * TILE_BYTES + row % TILE_ROWS * TILE_INPUTS;
    for (int64_t block = 2 * pair; block < 2 * pair + 2; block++) {
        const struct output_params params = load_output_params(args, block * LANES);
        const int8_t *weights = (const int8_t *)args->weights + block * steps * TILE_INPUTS * LANES;
        for (int r = 0; r < count; r++) {
            int32_t sums[LANES] __attribute__((aligned(64))) = {0};
            const int8_t *w = weights, *levels = x + r * TILE_INPUTS;
            for (int64_t s = 0; s < steps; s++, levels += TILE_BYTES)
                for (int k = 0; k < TILE_INPUTS; k += 4, w += 4 * LANES)
                    for (int i = 0; i < 4 * LANES; i++) sums[i / 4] += w[i] * levels[k + i % 4];
            dequantize_store(args, &params, row + r, block * LANES, *(const ivec *)sums);
        }
    }
}
#endif

#include "strips.h"

#ifdef HAS_AMX
INLINE void store_tile(const struct linear_args *args, int64_t row, int64_t first, const int32_t (*sums)[LANES]) {
    const struct output_params params = load_output_params(args, first);
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

/* Pairs of blocks that fit into the L2 cache. */
static int64_t count_cached_pairs(const struct linear_args *args) {
    return L2_BYTES / (PAIR_OUTPUTS * ceil_div(args->inputs, TILE_INPUTS) * TILE_INPUTS);
}

static void multiply_pairs(const void *context, int64_t item) {
    const struct linear_args *args = context;
    const struct pair_range range = find_pairs(args, item, count_cached_pairs(args));
#ifdef HAS_AMX
    if (args->count > MAX_UNTILED_ROWS && amx_permitted()) {
        multiply_all_tiles(args, range.first, range.end);
        return;
    }
#endif
    for (int64_t i = range.first; i < range.end; i++) multiply_strips(args, i);
}

void antiphon_int8_linear(const struct linear_args *args) {
    run_quantized_linear(args, quantize_tile, multiply_pairs, count_cached_pairs(args));
}
