/* Shared by the quantized matrix products: tiles of rows and outputs, row maxima, AMX tiles, and the last step. */

#ifndef ANTIPHON_GEMM_H
#define ANTIPHON_GEMM_H

#include "kernels.h"

#define TILE_BYTES (TILE_ROWS * TILE_INPUTS)
#define PAIR_OUTPUTS (2 * LANES) /* outputs of a pair of blocks, which are computed together */

INLINE int64_t ceil_div(int64_t count, int64_t divisor) { return (count + divisor - 1) / divisor; }

#define ITEMS_PER_THREAD 4

/* Pairs of blocks per work item: at most `most`, and few enough to keep all threads busy. */
INLINE int64_t pairs_per_item(const struct linear_args *args, int64_t most) {
    const int64_t share = ceil_div(args->outputs, PAIR_OUTPUTS) / (ITEMS_PER_THREAD * args->threads);
    const int64_t pairs = share < most ? share : most;
    return pairs > 1 ? pairs : 1;
}

struct pair_range { int64_t first, end; };

/* The pairs of blocks of a work item. */
INLINE struct pair_range find_pairs(const struct linear_args *args, int64_t item, int64_t most) {
    const int64_t pairs = pairs_per_item(args, most), total = ceil_div(args->outputs, PAIR_OUTPUTS), first = item * pairs;
    return (struct pair_range){first, first + pairs < total ? first + pairs : total};
}

/* Quantizes the rows tile by tile, then multiplies them by all pairs of blocks, item by item. */
INLINE void run_quantized_linear(const struct linear_args *args, void (*quantize_tile)(const void *, int64_t),
                                 void (*multiply_pairs)(const void *, int64_t), int64_t most) {
    if (!args->count) return;
    const int64_t tiles = ceil_div(args->count, TILE_ROWS), pairs = ceil_div(args->outputs, PAIR_OUTPUTS);
    const int64_t quantize_threads = args->count * args->inputs > PARALLEL_THRESHOLD ? args->threads : 1;
    const int64_t multiply_threads = args->outputs * args->inputs > PARALLEL_THRESHOLD ? args->threads : 1;
    parallel_for(quantize_tile, args, tiles, quantize_threads);
    parallel_for(multiply_pairs, args, ceil_div(pairs, pairs_per_item(args, most)), multiply_threads);
}

/* What turns the sums of a block of outputs into results. */
struct output_params {
    vec scale, bias;
    int64_t remaining; /* outputs of the weight from here on; a block may be cut short */
};

INLINE struct output_params load_output_params(const struct linear_args *args, int64_t first) {
    struct output_params params = {load((const float *)args->scales + first), {0}, args->outputs - first};
    const float *bias = (const float *)args->bias + first;
    if (args->bias && params.remaining >= LANES) params.bias = load(bias);
    else if (args->bias) for (int64_t i = 0; i < params.remaining; i++) params.bias[i] = bias[i];
    return params;
}

INLINE void store_outputs(const struct linear_args *args, const struct output_params *params, int64_t row,
                          int64_t first, vec sums) {
    float *to = (float *)args->out + row * args->outputs + first;
    const float *residual = args->residual ? (const float *)args->residual + row * args->outputs + first : 0;
    const vec scale = ((const float *)args->row_scales)[row] * params->scale;
    vec result = fma_lanes(sums, scale, params->bias);
    if (params->remaining >= LANES) {
        if (residual) result += load(residual);
        store(to, result);
    } else {
        for (int64_t i = 0; i < params->remaining; i++) to[i] = residual ? result[i] + residual[i] : result[i];
    }
}

#if (LANES == 16 && defined(__AVX512BW__)) || (LANES == 8 && defined(__AVX2__))
#define HAS_BYTE_PRODUCTS 1
#if LANES == 16
#define SIMD_OP(name) _mm512_##name
typedef __m512i bytes;
INLINE bytes broadcast_four(const uint8_t *x) { int32_t word; memcpy(&word, x, 4); return _mm512_set1_epi32(word); }
INLINE void store_levels(uint8_t *to, bytes v) { _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8(v)); }
#else
#define SIMD_OP(name) _mm256_##name
typedef __m256i bytes;
INLINE bytes broadcast_four(const uint8_t *x) { int32_t word; memcpy(&word, x, 4); return _mm256_set1_epi32(word); }
INLINE void store_levels(uint8_t *to, bytes v) {
    v = _mm256_shuffle_epi8(v, _mm256_set1_epi32(0x0c080400));
    const int32_t words[2] = {_mm256_extract_epi32(v, 0), _mm256_extract_epi32(v, 4)};
    memcpy(to, words, 8);
}
#endif
#elif defined(HAS_NEON)
typedef ivec bytes;
INLINE void store_levels(uint8_t *to, bytes v) {
    const uint16x4_t halves = vmovn_u32((uint32x4_t)v);
    const uint32_t word = vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(halves, halves))), 0);
    memcpy(to, &word, 4);
}

/* Adds four products of signed bytes to each of four sums: those of w with four inputs of x, at 4 * `lane`. */
#ifdef __ARM_FEATURE_DOTPROD
#define ADD_PRODUCTS(sums, w, x, lane) vdotq_laneq_s32(sums, w, x, lane)
#else
INLINE int32x4_t add_products(int32x4_t sums, int8x16_t w, int8x16_t inputs) {
    const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(inputs)), high = vmull_high_s8(w, inputs);
    return vpadalq_s16(sums, vpaddq_s16(low, high)); /* 2 * 127 * 127 fits into 16 bits. */
}
#define ADD_PRODUCTS(sums, w, x, lane) \
    add_products(sums, w, vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(x), lane)))
#endif
#else
typedef ivec bytes;
INLINE void store_levels(uint8_t *to, bytes v) { for (int i = 0; i < LANES; i++) to[i] = (uint8_t)v[i]; }
#endif

INLINE ivec max_lanes(ivec a, ivec b) {
    const ivec larger = a > b;
    return (larger & a) | (~larger & b);
}

/* Maximum absolute value, NaN if any element is NaN: non-negative floats compare like their bit patterns. */
static float abs_max(const float *x, int64_t size) {
    ivec maxima[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 * LANES <= size; i += 4 * LANES)
        for (int n = 0; n < 4; n++) {
            const ivec bits = (ivec)abs_lanes(load(x + i + n * LANES));
            maxima[n] = max_lanes(maxima[n], bits);
        }
    for (; i < size; i++) {
        int32_t bits;
        memcpy(&bits, x + i, 4);
        bits &= 0x7fffffff;
        if (bits > maxima[0][0]) maxima[0][0] = bits;
    }
    for (int n = 1; n < 4; n++) maxima[0] = max_lanes(maxima[0], maxima[n]);
    int32_t max_bits = maxima[0][0];
    for (int n = 1; n < LANES; n++) if (maxima[0][n] > max_bits) max_bits = maxima[0][n];
    float row_max;
    memcpy(&row_max, &max_bits, 4);
    return row_max;
}

/* Quantizes a row to levels of its own maximum, around `zero`. A row of zeros gets arbitrary levels with scale 0. */
INLINE void quantize_row(const struct linear_args *args, int64_t row, const int levels, const int zero) {
    const int64_t size = args->inputs, steps = ceil_div(size, TILE_INPUTS);
    float *x = (float *)args->x + row * (args->silu_mul ? 2 * size : size);
    if (args->silu_mul) silu_mul_row(x, x, size);
    uint8_t *to = (uint8_t *)args->levels + row / TILE_ROWS * steps * TILE_BYTES + row % TILE_ROWS * TILE_INPUTS;
    const float row_max = abs_max(x, size), inverse_scale = levels / row_max;
    int64_t i = 0;
    /* Adding 1.5 * 2^23 leaves the rounded level in the lowest bits. */
    for (; i + LANES <= size; i += LANES) {
        const vec level = load(x + i) * inverse_scale + (12582912.0f + zero);
        store_levels(to + i / TILE_INPUTS * TILE_BYTES + i % TILE_INPUTS, (bytes)level);
    }
    for (; i < size; i++) { /* little-endian: the lowest byte comes first */
        float level = x[i] * inverse_scale + (12582912.0f + zero);
        memcpy(to + i / TILE_INPUTS * TILE_BYTES + i % TILE_INPUTS, &level, 1);
    }
    ((float *)args->row_scales)[row] = row_max / levels;
}

#if defined(HAS_BYTE_PRODUCTS) && defined(__AMX_INT8__) && LANES == 16 && defined(__linux__)
#define HAS_AMX 1
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
#endif

#endif
