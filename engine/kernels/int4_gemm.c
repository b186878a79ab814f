/* fp32 activations times a weight of 4 bits: quantizes the rows to 8 bits, multiplies in integers, in one call.
 *
 * Groups of TILE_INPUTS inputs share a scale. The products of a group are added in integers, which do not depend on
 * their order; then each group's sum is added to an output in fp32, always from the first group to the last, by one
 * fused multiply-add. So a row has the same bits alone or in a batch, with any of the instruction sets below.
 *
 * The weight is packed as (outputs / LANES, inputs / 64, 8, LANES, 4) bytes. The low half of a byte is the level of one
 * of the first 32 inputs of its group, the high half that of the input 32 further on; both are 0 to 15 for -8 to 7. The
 * group scales are (outputs / LANES, inputs / 64, LANES). Levels of the activations are laid out as for int8, but are
 * signed. Behind them lies, for each of them, -8 times the sum of its group: (rows / 16, inputs / 64, 16) integers.
 */

#include "gemm.h"

#define WEIGHT_ZERO 8
#define PACKED_BYTES (LANES * TILE_INPUTS / 2) /* a block's weights of one group */
#define PACKED_VECTORS (TILE_INPUTS / 8)

INLINE vec load_group_scales(const struct linear_args *args, int64_t block, int64_t step) {
    const int64_t steps = ceil_div(args->inputs, TILE_INPUTS);
    const uint16_t *from = (const uint16_t *)args->group_scales + (block * steps + step) * LANES;
    return fp16_to_fp32(from);
}

INLINE int32_t *zero_sums(const struct linear_args *args, int64_t row) {
    const int64_t steps = ceil_div(args->inputs, TILE_INPUTS), tiles = ceil_div(args->count, TILE_ROWS);
    uint8_t *table = (uint8_t *)args->levels + tiles * steps * TILE_BYTES;
    return (int32_t *)table + row / TILE_ROWS * steps * TILE_ROWS + row % TILE_ROWS;
}

#define MAX_UNTILED_ROWS 6 /* rows up to which unpacking to AMX tiles costs more than the tiles save */

/* AMX multiplies signed weights and needs no zero sums. */
INLINE int uses_tiles(const struct linear_args *args) {
#ifdef HAS_AMX
    return args->count > MAX_UNTILED_ROWS && amx_permitted();
#else
    return (void)args, 0;
#endif
}

static void quantize_tile(const void *context, int64_t tile) {
    const struct linear_args *args = context;
    const int needs_sums = !uses_tiles(args);
    const int64_t steps = ceil_div(args->inputs, TILE_INPUTS), last = args->inputs - (steps - 1) * TILE_INPUTS;
    for (int64_t r = tile * TILE_ROWS, end = r + TILE_ROWS; r < end && r < args->count; r++) {
        int8_t *levels = (int8_t *)args->levels + tile * steps * TILE_BYTES + r % TILE_ROWS * TILE_INPUTS;
        int32_t *sums = zero_sums(args, r);
        memset(levels + (steps - 1) * TILE_BYTES + last, 0, TILE_INPUTS - last);
        quantize_row(args, r, ACTIVATION_LEVELS, 0);
        for (int64_t s = 0; needs_sums && s < steps; s++, levels += TILE_BYTES) {
            int32_t sum = 0;
            for (int i = 0; i < TILE_INPUTS; i++) sum += levels[i];
            sums[s * TILE_ROWS] = -WEIGHT_ZERO * sum;
        }
    }
}

#ifdef HAS_BYTE_PRODUCTS

/* Adds four products of unsigned weights and signed levels to each sum. */
INLINE bytes dot(bytes sums, bytes w, bytes x) {
#if LANES == 16 && defined(__AVX512VNNI__)
    return _mm512_dpbusd_epi32(sums, w, x);
#elif LANES == 8 && defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(sums, w, x);
#else
    const bytes pairs = SIMD_OP(maddubs_epi16)(w, x); /* 2 * 15 * 128 fits into 16 bits. */
    return SIMD_OP(add_epi32)(sums, SIMD_OP(madd_epi16)(pairs, SIMD_OP(set1_epi16)(1)));
#endif
}

#if LANES == 16
#define BITWISE_AND(a, b) _mm512_and_si512(a, b)
#else
#define BITWISE_AND(a, b) _mm256_and_si256(a, b)
#endif

struct level_pair { bytes low, high; };

INLINE struct level_pair unpack(bytes packed) {
    const bytes mask = SIMD_OP(set1_epi8)(15);
    return (struct level_pair){BITWISE_AND(packed, mask), BITWISE_AND(SIMD_OP(srli_epi16)(packed, 4), mask)};
}

#define MAX_STRIP_ROWS (LANES == 16 ? 6 : 2) /* rows whose sums with a pair of blocks fit into registers */

/* `count` rows of one tile with a pair of blocks, summed in registers. */
INLINE void multiply_strip(const int count, const struct linear_args *args, int64_t row, int64_t pair) {
    const int64_t steps = ceil_div(args->inputs, TILE_INPUTS);
    const uint8_t *x =
        (const uint8_t *)args->levels + row / TILE_ROWS * steps * TILE_BYTES + row % TILE_ROWS * TILE_INPUTS;
    const int32_t *zeros = zero_sums(args, row);
    const bytes *packed[2];
    for (int i = 0; i < 2; i++) packed[i] = (const bytes *)args->weights + (2 * pair + i) * steps * PACKED_VECTORS;
    vec results[2][MAX_STRIP_ROWS] = {0};
    for (int64_t s = 0; s < steps; s++, x += TILE_BYTES, zeros += TILE_ROWS) {
        bytes sums[2][MAX_STRIP_ROWS], more[2] = {0}; /* one row alone has two chains of additions */
        for (int r = 0; r < count; r++) sums[0][r] = sums[1][r] = SIMD_OP(set1_epi32)(zeros[r]);
        for (int n = 0; n < PACKED_VECTORS; n++) {
            const struct level_pair w[2] = {unpack(*packed[0]++), unpack(*packed[1]++)};
            for (int r = 0; r < count; r++) {
                const bytes low = broadcast_four(x + r * TILE_INPUTS + 4 * n);
                const bytes high = broadcast_four(x + r * TILE_INPUTS + TILE_INPUTS / 2 + 4 * n);
                for (int i = 0; i < 2; i++) {
                    sums[i][r] = dot(sums[i][r], w[i].low, low);
                    if (count == 1) more[i] = dot(more[i], w[i].high, high);
                    else sums[i][r] = dot(sums[i][r], w[i].high, high);
                }
            }
        }
        for (int i = 0; i < 2; i++) {
            const vec scales = load_group_scales(args, 2 * pair + i, s);
            if (count == 1) sums[i][0] = SIMD_OP(add_epi32)(sums[i][0], more[i]);
            for (int r = 0; r < count; r++)
                results[i][r] = fma_lanes(__builtin_convertvector((ivec)sums[i][r], vec), scales, results[i][r]);
        }
    }
    for (int i = 0; i < 2; i++) {
        const int64_t first = pair * PAIR_OUTPUTS + i * LANES;
        const struct output_params params = load_output_params(args, first);
        for (int r = 0; r < count; r++) store_outputs(args, &params, row + r, first, results[i][r]);
    }
}

#elif defined(HAS_NEON)

#define MAX_STRIP_ROWS 4

/* As above. */
INLINE void multiply_strip(const int count, const struct linear_args *args, int64_t row, int64_t pair) {
    const int64_t steps = ceil_div(args->inputs, TILE_INPUTS);
    const int8_t *x =
        (const int8_t *)args->levels + row / TILE_ROWS * steps * TILE_BYTES + row % TILE_ROWS * TILE_INPUTS;
    const int32_t *zeros = zero_sums(args, row);
    const uint8_t *packed[2];
    for (int i = 0; i < 2; i++) packed[i] = (const uint8_t *)args->weights + (2 * pair + i) * steps * PACKED_BYTES;
    vec results[2][MAX_STRIP_ROWS] = {0};
    for (int64_t s = 0; s < steps; s++, x += TILE_BYTES, zeros += TILE_ROWS) {
        int32x4_t sums[2][MAX_STRIP_ROWS], more[2] = {0};
        for (int r = 0; r < count; r++) sums[0][r] = sums[1][r] = vdupq_n_s32(zeros[r]);
        for (int part = 0; part < TILE_INPUTS / 2; part += 16) {
            int8x16_t low[MAX_STRIP_ROWS], high[MAX_STRIP_ROWS];
            for (int r = 0; r < count; r++) {
                low[r] = vld1q_s8(x + r * TILE_INPUTS + part);
                high[r] = vld1q_s8(x + r * TILE_INPUTS + TILE_INPUTS / 2 + part);
            }
#define FOUR_INPUTS(lane) \
            for (int i = 0; i < 2; i++, packed[i - 1] += 4 * LANES) { \
                const uint8x16_t both = vld1q_u8(packed[i]); \
                const int8x16_t w_low = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15))); \
                const int8x16_t w_high = vreinterpretq_s8_u8(vshrq_n_u8(both, 4)); \
                for (int r = 0; r < count; r++) { \
                    int32x4_t *sum = count == 1 ? &more[i] : &sums[i][r]; \
                    sums[i][r] = ADD_PRODUCTS(sums[i][r], w_low, low[r], lane); \
                    *sum = ADD_PRODUCTS(*sum, w_high, high[r], lane); \
                } \
            }
            FOUR_INPUTS(0) FOUR_INPUTS(1) FOUR_INPUTS(2) FOUR_INPUTS(3)
        }
        for (int i = 0; i < 2; i++) {
            const vec scales = load_group_scales(args, 2 * pair + i, s);
            if (count == 1) sums[i][0] = vaddq_s32(sums[i][0], more[i]);
            for (int r = 0; r < count; r++)
                results[i][r] = fma_lanes(__builtin_convertvector((ivec)sums[i][r], vec), scales, results[i][r]);
        }
    }
    for (int i = 0; i < 2; i++) {
        const int64_t first = pair * PAIR_OUTPUTS + i * LANES;
        const struct output_params params = load_output_params(args, first);
        for (int r = 0; r < count; r++) store_outputs(args, &params, row + r, first, results[i][r]);
    }
}
#endif

#ifdef MAX_STRIP_ROWS
#include "strips.h"

#ifdef HAS_AMX
/* Groups by which AMX is ahead of the addition of its sums, and unpacking is ahead of AMX: stores must reach the cache. */
#define TILES_AHEAD 2
#define UNPACKED_AHEAD 2
#define RING_TILES 8 /* more than either; a power of two */

/* Unpacks the weights of a block for one group to a tile of signed levels. */
INLINE void unpack_tile(const bytes *packed, bytes *tile) {
    const bytes zero = _mm512_set1_epi8(WEIGHT_ZERO);
    for (int n = 0; n < PACKED_VECTORS; n++) {
        const struct level_pair w = unpack(packed[n]);
        tile[n] = _mm512_sub_epi8(w.low, zero);
        tile[PACKED_VECTORS + n] = _mm512_sub_epi8(w.high, zero);
    }
}

/* The products of a tile of rows with one group of a block. */
INLINE void sum_group(const uint8_t *x, const bytes *tile, int32_t (*sums)[LANES]) {
    _tile_zero(0);
    _tile_loadd(1, x, TILE_INPUTS);
    _tile_loadd(2, tile, TILE_INPUTS);
    _tile_dpbssd(0, 1, 2);
    _tile_stored(0, sums, TILE_INPUTS);
}

/* Variables instead of an array: the compiler keeps no array in registers while AMX stores to memory. */
#define EACH_TILE_ROW(DO) \
    DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14) DO(15)
#define DECLARE_RESULT(r) vec result##r = {0};
#define ADD_GROUP(r) \
    if (r < count) result##r = fma_lanes(__builtin_convertvector(*(const ivec *)sum[r], vec), scales, result##r);
#define STORE_RESULT(r) \
    if (r < count && row + r < args->count) store_outputs(args, &params, row + r, block * LANES, result##r);

/* The first `count` rows of a tile with a block. The first tile of rows unpacks the weights for the others. */
INLINE void multiply_tile(const int count, const struct linear_args *args, int64_t row, int64_t block, bytes *tiles) {
    const int64_t steps = ceil_div(args->inputs, TILE_INPUTS);
    const uint8_t *x = (const uint8_t *)args->levels + row / TILE_ROWS * steps * TILE_BYTES;
    const bytes *packed = (const bytes *)args->weights + block * steps * PACKED_VECTORS;
    const int64_t kept_tiles = args->count > TILE_ROWS ? ~(int64_t)0 : RING_TILES - 1; /* a mask of their index */
    int32_t sums[RING_TILES][TILE_ROWS][LANES] __attribute__((aligned(64)));
    EACH_TILE_ROW(DECLARE_RESULT)
    for (int64_t s = -TILES_AHEAD - UNPACKED_AHEAD; s < steps; s++) {
        const int64_t next = s + TILES_AHEAD, unpacked = next + UNPACKED_AHEAD;
        if (row == 0 && unpacked < steps)
            unpack_tile(packed + unpacked * PACKED_VECTORS, tiles + (unpacked & kept_tiles) * 2 * PACKED_VECTORS);
        if (next >= 0 && next < steps)
            sum_group(x + next * TILE_BYTES, tiles + (next & kept_tiles) * 2 * PACKED_VECTORS, sums[next % RING_TILES]);
        if (s < 0) continue;
        const int32_t (*sum)[LANES] = sums[s % RING_TILES];
        const vec scales = load_group_scales(args, block, s);
        EACH_TILE_ROW(ADD_GROUP)
    }
    const struct output_params params = load_output_params(args, block * LANES);
    EACH_TILE_ROW(STORE_RESULT)
}

static void multiply_all_tiles(const struct linear_args *args, int64_t pair, int64_t end) {
    bytes tiles[(ceil_div(args->inputs, TILE_INPUTS) + RING_TILES) * 2 * PACKED_VECTORS]; /* 1 MiB; see MAX_GEMM_INPUTS */
    _tile_loadconfig(&TILE_CONFIG);
    for (int64_t block = 2 * pair; block < 2 * end; block++)
        for (int64_t row = 0; row < args->count; row += TILE_ROWS)
            switch (ceil_div(args->count - row, 4)) {
                case 1: multiply_tile(4, args, row, block, tiles); break;
                case 2: multiply_tile(8, args, row, block, tiles); break;
                default: multiply_tile(TILE_ROWS, args, row, block, tiles);
            }
    _tile_release();
}
#endif

#else

/* Any other CPU. */
static void multiply_strips(const struct linear_args *args, int64_t pair) {
    const int64_t steps = ceil_div(args->inputs, TILE_INPUTS);
    for (int64_t block = 2 * pair; block < 2 * pair + 2; block++)
        for (int64_t row = 0; row < args->count; row++) {
            const int8_t *x =
                (const int8_t *)args->levels + row / TILE_ROWS * steps * TILE_BYTES + row % TILE_ROWS * TILE_INPUTS;
            const uint8_t *packed = (const uint8_t *)args->weights + block * steps * PACKED_BYTES;
            const int32_t *zeros = zero_sums(args, row);
            vec result = {0};
            for (int64_t s = 0; s < steps; s++, x += TILE_BYTES, zeros += TILE_ROWS) {
                ivec sums = *zeros - (ivec){0};
                for (int n = 0; n < PACKED_VECTORS; n++)
                    for (int i = 0; i < LANES; i++)
                        for (int k = 4 * n; k < 4 * n + 4; k++, packed++)
                            sums[i] += (*packed & 15) * x[k] + (*packed >> 4) * x[TILE_INPUTS / 2 + k];
                result = fma_lanes(__builtin_convertvector(sums, vec), load_group_scales(args, block, s), result);
            }
            const struct output_params params = load_output_params(args, block * LANES);
            if (params.remaining > 0) store_outputs(args, &params, row, block * LANES, result);
        }
}
#endif

static void multiply_pairs(const void *context, int64_t item) {
    const struct linear_args *args = context;
    const struct pair_range range = find_pairs(args, item, INT64_MAX);
#ifdef HAS_AMX
    if (uses_tiles(args)) {
        multiply_all_tiles(args, range.first, range.end);
        return;
    }
#endif
    for (int64_t i = range.first; i < range.end; i++) multiply_strips(args, i);
}

void antiphon_int4_linear(const struct linear_args *args) {
    run_quantized_linear(args, quantize_tile, multiply_pairs, INT64_MAX);
}
