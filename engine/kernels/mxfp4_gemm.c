/* fp32 activations times a weight in MXFP4: quantizes the rows to 8 bits, multiplies in integers, in one call.
 *
 * A weight is an E2M1 number times the power of two that GROUP_INPUTS inputs of an output share (E8M0). Twice an E2M1
 * number is a small integer, so the products of a group are added in integers, in any order. Activations have a scale
 * for each group, too: experts' inner activations have outliers, which would leave few levels for the rest of a row.
 * Each group's sum is added to an output in fp32, always from the first group to the last, by one fused multiply-add.
 * So a row has the same bits alone or in a batch, with any of the instruction sets below.
 *
 * The weight is packed as (outputs / LANES, inputs / 64, 8, LANES, 4) bytes. The low half of a byte is the E2M1 code of
 * an input of one group, the high half that of the input 32 further on. The group scales are (outputs / LANES,
 * inputs / 32, LANES) bytes. Levels of the activations are laid out as for int4. Behind them lie, for each group,
 * -WEIGHT_ZERO times the sum of its levels and its scale: two tables (rows / 16, inputs / 32, 16).
 */

#include "gemm.h"

#define GROUP_INPUTS 32
#define STEP_GROUPS (TILE_INPUTS / GROUP_INPUTS)
#define WEIGHT_ZERO 12                         /* makes every doubled E2M1 number positive */
#define PACKED_BYTES (LANES * TILE_INPUTS / 2) /* a block's weights of two groups */
#define PACKED_VECTORS (TILE_INPUTS / 8)

/* Doubled E2M1 numbers plus WEIGHT_ZERO, by code. */
#define E2M1_LEVELS 12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0

INLINE vec load_group_scales(const struct linear_args *args, int64_t block, int64_t group) {
    const int64_t groups = ceil_div(args->inputs, TILE_INPUTS) * STEP_GROUPS;
    const uint8_t *from = (const uint8_t *)args->group_scales + (block * groups + group) * LANES;
#ifdef HAS_BYTE_PRODUCTS
#if LANES == 16
    const ivec exponents = (ivec)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from));
#else
    const ivec exponents = (ivec)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from));
#endif
#else
    ivec exponents;
    for (int i = 0; i < LANES; i++) exponents[i] = from[i];
#endif
    return (vec)max_lanes(exponents << 23, (ivec){0} + (1 << 22)); /* the least power, 2^-127, is subnormal */
}

/* The tables behind the levels, at the first group of a row. The next group's entries are TILE_ROWS further on. */
struct group_tables { int32_t *zero_sums; float *scales; };

INLINE struct group_tables find_tables(const struct linear_args *args, int64_t row) {
    const int64_t steps = ceil_div(args->inputs, TILE_INPUTS), tiles = ceil_div(args->count, TILE_ROWS);
    const int64_t size = tiles * steps * STEP_GROUPS * TILE_ROWS;
    int32_t *sums = (int32_t *)((uint8_t *)args->levels + tiles * steps * TILE_BYTES);
    const int64_t first = row / TILE_ROWS * steps * STEP_GROUPS * TILE_ROWS + row % TILE_ROWS;
    return (struct group_tables){sums + first, (float *)(sums + size) + first};
}

/* Maximum absolute value of a group, NaN if any element is NaN: non-negative floats compare like their bit patterns. */
INLINE float group_abs_max(const float *x, int64_t size) {
    if (size < GROUP_INPUTS) return abs_max(x, size);
    ivec maxima = (ivec)abs_lanes(load(x));
    for (int i = LANES; i < GROUP_INPUTS; i += LANES) maxima = max_lanes(maxima, (ivec)abs_lanes(load(x + i)));
    int32_t lanes[LANES];
    memcpy(lanes, &maxima, sizeof(lanes));
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
    float group_max;
    memcpy(&group_max, lanes, 4);
    return group_max;
}

/* Quantizes a group to levels of its own maximum. A group of zeros gets arbitrary levels with scale 0. */
INLINE float quantize_group(const float *x, int64_t size, int8_t *to) {
    const float group_max = group_abs_max(x, size), inverse_scale = ACTIVATION_LEVELS / group_max;
    int64_t i = 0;
    /* Adding 1.5 * 2^23 leaves the rounded level in the lowest bits. */
    for (; i + LANES <= size; i += LANES) {
        const vec level = load(x + i) * inverse_scale + 12582912.0f;
        store_levels((uint8_t *)to + i, (bytes)level);
    }
    for (; i < size; i++) {
        const float level = x[i] * inverse_scale + 12582912.0f;
        memcpy(to + i, &level, 1);
    }
    memset(to + size, 0, GROUP_INPUTS - size);
    return group_max / ACTIVATION_LEVELS;
}

static void quantize_tile(const void *context, int64_t tile) {
    const struct linear_args *args = context;
    const int64_t steps = ceil_div(args->inputs, TILE_INPUTS);
    for (int64_t r = tile * TILE_ROWS, end = r + TILE_ROWS; r < end && r < args->count; r++) {
        float *x = (float *)args->x + r * (args->silu_mul ? 2 * args->inputs : args->inputs);
        if (args->silu_mul) silu_mul_row(x, x, args->inputs);
        int8_t *levels = (int8_t *)args->levels + tile * steps * TILE_BYTES + r % TILE_ROWS * TILE_INPUTS;
        const struct group_tables tables = find_tables(args, r);
        for (int64_t g = 0; g < steps * STEP_GROUPS; g++) {
            int8_t *to = levels + g / STEP_GROUPS * TILE_BYTES + g % STEP_GROUPS * GROUP_INPUTS;
            const int64_t left = args->inputs - g * GROUP_INPUTS;
            const int64_t size = left < 0 ? 0 : left < GROUP_INPUTS ? left : GROUP_INPUTS;
            tables.scales[g * TILE_ROWS] = quantize_group(x + g * GROUP_INPUTS, size, to);
            int32_t sum = 0;
            for (int i = 0; i < GROUP_INPUTS; i++) sum += to[i];
            tables.zero_sums[g * TILE_ROWS] = -WEIGHT_ZERO * sum;
        }
        ((float *)args->row_scales)[r] = 1.0f;
    }
}

#ifdef HAS_BYTE_PRODUCTS

#if LANES == 16
#define BITWISE_AND(a, b) _mm512_and_si512(a, b)
INLINE bytes load_level_table(void) { return _mm512_broadcast_i32x4(_mm_setr_epi8(E2M1_LEVELS)); }
#else
#define BITWISE_AND(a, b) _mm256_and_si256(a, b)
INLINE bytes load_level_table(void) { return _mm256_broadcastsi128_si256(_mm_setr_epi8(E2M1_LEVELS)); }
#endif

/* The levels of one group of the pair that `packed` holds. */
INLINE bytes unpack(bytes packed, const int group) {
    const bytes codes = BITWISE_AND(group ? SIMD_OP(srli_epi16)(packed, 4) : packed, SIMD_OP(set1_epi8)(15));
    return SIMD_OP(shuffle_epi8)(load_level_table(), codes);
}

#define RUN_VECTORS 4 /* vectors whose products are added in 16 bits without VNNI: 4 * 2 * 24 * 127 fits */

/* Adds four products of unsigned weights and signed levels to each sum; without VNNI, two to each half of it. */
INLINE bytes dot(bytes sums, bytes w, bytes x) {
#if LANES == 16 && defined(__AVX512VNNI__)
    return _mm512_dpbusd_epi32(sums, w, x);
#elif LANES == 8 && defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(sums, w, x);
#else
#define SUMS_IN_HALVES 1
    return SIMD_OP(add_epi16)(sums, SIMD_OP(maddubs_epi16)(w, x));
#endif
}

#define MAX_STRIP_ROWS (LANES == 16 ? 6 : 2) /* rows whose sums with a pair of blocks fit into registers */

/* `count` rows of one tile with one group of a pair of blocks. */
INLINE void multiply_group(const int count, const int group, const bytes *const *packed, const int8_t *x,
                           const struct group_tables *tables, bytes (*sums)[MAX_STRIP_ROWS]) {
    for (int r = 0; r < count; r++) sums[0][r] = sums[1][r] = SIMD_OP(set1_epi32)(tables->zero_sums[r]);
    for (int first = 0; first < PACKED_VECTORS; first += RUN_VECTORS) {
#ifdef SUMS_IN_HALVES
        bytes run[2][MAX_STRIP_ROWS] = {0};
#else
        bytes(*const run)[MAX_STRIP_ROWS] = sums;
#endif
        for (int n = first; n < first + RUN_VECTORS; n++) {
            const bytes w[2] = {unpack(packed[0][n], group), unpack(packed[1][n], group)};
            for (int r = 0; r < count; r++) {
                const bytes level = broadcast_four((const uint8_t *)x + r * TILE_INPUTS + group * GROUP_INPUTS + 4 * n);
                for (int i = 0; i < 2; i++) run[i][r] = dot(run[i][r], w[i], level);
            }
        }
#ifdef SUMS_IN_HALVES
        for (int r = 0; r < count; r++)
            for (int i = 0; i < 2; i++)
                sums[i][r] = SIMD_OP(add_epi32)(sums[i][r], SIMD_OP(madd_epi16)(run[i][r], SIMD_OP(set1_epi16)(1)));
#endif
    }
}

#elif defined(HAS_NEON)

#define MAX_STRIP_ROWS 4

/* `count` rows of one tile with one group of a pair of blocks. */
INLINE void multiply_group(const int count, const int group, const bytes *const *packed, const int8_t *x,
                           const struct group_tables *tables, bytes (*sums)[MAX_STRIP_ROWS]) {
    static const uint8_t levels[16] = {E2M1_LEVELS};
    const uint8x16_t level_table = vld1q_u8(levels);
    for (int r = 0; r < count; r++) sums[0][r] = sums[1][r] = (bytes)vdupq_n_s32(tables->zero_sums[r]);
    for (int part = 0; part < GROUP_INPUTS; part += 16) {
        int8x16_t inputs[MAX_STRIP_ROWS];
        for (int r = 0; r < count; r++) inputs[r] = vld1q_s8(x + r * TILE_INPUTS + group * GROUP_INPUTS + part);
#define FOUR_INPUTS(lane) \
        for (int i = 0; i < 2; i++) { \
            const uint8x16_t both = vld1q_u8((const uint8_t *)(packed[i] + part / 4 + lane)); \
            const uint8x16_t codes = group ? vshrq_n_u8(both, 4) : vandq_u8(both, vdupq_n_u8(15)); \
            const int8x16_t w = vreinterpretq_s8_u8(vqtbl1q_u8(level_table, codes)); \
            for (int r = 0; r < count; r++) \
                sums[i][r] = (bytes)ADD_PRODUCTS((int32x4_t)sums[i][r], w, inputs[r], lane); \
        }
        FOUR_INPUTS(0) FOUR_INPUTS(1) FOUR_INPUTS(2) FOUR_INPUTS(3)
    }
}
#endif

#ifdef MAX_STRIP_ROWS

/* `count` rows of one tile with a pair of blocks, summed in registers. */
INLINE void multiply_strip(const int count, const struct linear_args *args, int64_t row, int64_t pair) {
    const int64_t steps = ceil_div(args->inputs, TILE_INPUTS);
    const int8_t *x =
        (const int8_t *)args->levels + row / TILE_ROWS * steps * TILE_BYTES + row % TILE_ROWS * TILE_INPUTS;
    struct group_tables tables = find_tables(args, row);
    const bytes *packed[2];
    for (int i = 0; i < 2; i++) packed[i] = (const bytes *)args->weights + (2 * pair + i) * steps * PACKED_VECTORS;
    vec results[2][MAX_STRIP_ROWS] = {0};
    for (int64_t s = 0; s < steps; s++, x += TILE_BYTES) {
        for (int group = 0; group < STEP_GROUPS; group++) {
            bytes sums[2][MAX_STRIP_ROWS];
            multiply_group(count, group, packed, x, &tables, sums);
            for (int i = 0; i < 2; i++) {
                const vec scales = load_group_scales(args, 2 * pair + i, s * STEP_GROUPS + group);
                for (int r = 0; r < count; r++) {
                    const vec products = __builtin_convertvector((ivec)sums[i][r], vec);
                    results[i][r] = fma_lanes(products, scales * tables.scales[r], results[i][r]);
                }
            }
            tables.zero_sums += TILE_ROWS;
            tables.scales += TILE_ROWS;
        }
        for (int i = 0; i < 2; i++) packed[i] += PACKED_VECTORS;
    }
    for (int i = 0; i < 2; i++) {
        const int64_t first = pair * PAIR_OUTPUTS + i * LANES;
        const struct output_params params = load_output_params(args, first);
        for (int r = 0; r < count; r++) store_outputs(args, &params, row + r, first, results[i][r]);
    }
}

#include "strips.h"

#else

/* Any other CPU. */
static void multiply_strips(const struct linear_args *args, int64_t pair) {
    static const uint8_t level_table[16] = {E2M1_LEVELS};
    const int64_t steps = ceil_div(args->inputs, TILE_INPUTS);
    for (int64_t block = 2 * pair; block < 2 * pair + 2; block++)
        for (int64_t row = 0; row < args->count; row++) {
            const int8_t *x =
                (const int8_t *)args->levels + row / TILE_ROWS * steps * TILE_BYTES + row % TILE_ROWS * TILE_INPUTS;
            const uint8_t *packed = (const uint8_t *)args->weights + block * steps * PACKED_BYTES;
            const struct group_tables tables = find_tables(args, row);
            vec result = {0};
            for (int64_t g = 0; g < steps * STEP_GROUPS; g++) {
                const int shift = g % STEP_GROUPS * 4;
                ivec sums = tables.zero_sums[g * TILE_ROWS] - (ivec){0};
                for (int n = 0; n < PACKED_VECTORS; n++)
                    for (int i = 0; i < LANES; i++)
                        for (int k = 4 * n; k < 4 * n + 4; k++)
                            sums[i] += level_table[packed[(n * LANES + i) * 4 + k % 4] >> shift & 15] *
                                       x[g % STEP_GROUPS * GROUP_INPUTS + k];
                const vec scales = load_group_scales(args, block, g) * tables.scales[g * TILE_ROWS];
                result = fma_lanes(__builtin_convertvector(sums, vec), scales, result);
                if (g % STEP_GROUPS == STEP_GROUPS - 1) {
                    x += TILE_BYTES;
                    packed += PACKED_BYTES;
                }
            }
            const struct output_params params = load_output_params(args, block * LANES);
            if (params.remaining > 0) store_outputs(args, &params, row, block * LANES, result);
        }
}
#endif

static void multiply_pairs(const void *context, int64_t item) {
    const struct linear_args *args = context;
    const struct pair_range range = find_pairs(args, item, INT64_MAX);
    for (int64_t i = range.first; i < range.end; i++) multiply_strips(args, i);
}

/* Blocks (outputs, groups, GROUP_INPUTS / 2) and scales (outputs, groups) of a checkpoint, and the packed weight. */
struct mxfp4_pack_args { int64_t blocks, scales, outputs, groups, weights, group_scales, threads; };

/* The codes of four inputs, which follow each other in two bytes, in the low halves of four bytes. */
INLINE uint32_t spread_codes(const uint8_t *from) {
    uint32_t codes = from[0] | (uint32_t)from[1] << 8;
    codes = (codes | codes << 8) & 0x00ff00ff;
    return (codes | codes << 4) & 0x0f0f0f0f;
}

static void pack_block(const void *context, int64_t block) {
    static const uint8_t no_codes[GROUP_INPUTS / 2];
    const struct mxfp4_pack_args *args = context;
    const int64_t steps = ceil_div(args->groups, STEP_GROUPS);
    uint8_t *weights = (uint8_t *)args->weights + block * steps * PACKED_BYTES;
    uint8_t *group_scales = (uint8_t *)args->group_scales + block * steps * STEP_GROUPS * LANES;
    for (int64_t s = 0; s < steps; s++, weights += PACKED_BYTES, group_scales += STEP_GROUPS * LANES)
        for (int lane = 0; lane < LANES; lane++) {
            const uint8_t *from[STEP_GROUPS];
            for (int g = 0; g < STEP_GROUPS; g++) {
                const int64_t row = block * LANES + lane, group = s * STEP_GROUPS + g, i = row * args->groups + group;
                const int is_stored = row < args->outputs && group < args->groups;
                from[g] = is_stored ? (const uint8_t *)args->blocks + i * (GROUP_INPUTS / 2) : no_codes;
                group_scales[g * LANES + lane] = is_stored ? ((const uint8_t *)args->scales)[i] : 0;
            }
            for (int n = 0; n < PACKED_VECTORS; n++) {
                const uint32_t codes = spread_codes(from[0] + 2 * n) | spread_codes(from[1] + 2 * n) << 4;
                for (int k = 0; k < 4; k++) weights[(n * LANES + lane) * 4 + k] = codes >> 8 * k;
            }
        }
}

void antiphon_pack_mxfp4(const struct mxfp4_pack_args *args) {
    const int64_t blocks = ceil_div(args->outputs, PAIR_OUTPUTS) * 2;
    parallel_for(pack_block, args, blocks, args->outputs * args->groups > PARALLEL_THRESHOLD / 32 ? args->threads : 1);
}

void antiphon_mxfp4_linear(const struct linear_args *args) {
    run_quantized_linear(args, quantize_tile, multiply_pairs, INT64_MAX);
}
