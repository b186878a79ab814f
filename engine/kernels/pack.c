/* Quantizes a weight to 8 or 4 bits and packs it for int8_gemm.c or int4_gemm.c, from the type in which it is stored.
 *
 * The rows of LANES outputs are transposed, so that a vector holds one input of each of them. Every value goes through
 * the same fp32 operations on every CPU, so the packed bits do not depend on the instruction set. int8_layout.py and
 * int4_layout.py compute the same bits with torch.
 */

#include "gemm.h"

#define ROUNDING_TERM 12582912.0f /* 1.5 * 2^23: adding it leaves the rounded level in the lowest bits */
#define ROUNDING_BITS 0x4b400000  /* the bits of ROUNDING_TERM */
#define MIN_SCALE 0x1p-126f
#define INT4_MIN -8
#define INT4_MAX 7
#define SUMS_OF_A_GROUP 16 /* partial sums of a group's squared errors, on every CPU */

static const float SCALE_FACTORS[] = {1.0f, 0.93f, 0.86f, 0.79f};
#define SCALES_TRIED (int)(sizeof(SCALE_FACTORS) / sizeof(*SCALE_FACTORS))

enum stored_type { STORED_FP32, STORED_BF16, STORED_FP16 };

struct pack_args {
    int64_t rows;            /* the address of each row of the weight */
    int64_t outputs, inputs; /* sizes of the weight */
    int64_t type;            /* enum stored_type */
    int64_t first_block, end_block; /* blocks of LANES outputs to pack */
    int64_t weights, scales;
    int64_t zeros;        /* int8: the sum of each output's levels, times UNSIGNED_ZERO */
    int64_t group_scales; /* int4 */
    int64_t threads;
};

/* Rounds a product to fp32: the compiler cannot join it with a sum in an operation that rounds once. */
INLINE vec round_product(vec product) {
    __asm__("" : "+m"(product));
    return product;
}

INLINE float widen_bf16(uint16_t stored) {
    const uint32_t bits = (uint32_t)stored << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

INLINE float widen_fp16(uint16_t stored) {
    const uint32_t magnitude = stored & 0x7fff, sign = (uint32_t)(stored & 0x8000) << 16;
    uint32_t bits = magnitude << 13 | (magnitude < 0x7c00 ? 0 : 0x7f800000); /* infinity and NaN */
    float value;
    memcpy(&value, &bits, 4);
    if (magnitude < 0x7c00) value *= 0x1p112f; /* corrects the exponent, exactly */
    memcpy(&bits, &value, 4);
    bits |= sign;
    memcpy(&value, &bits, 4);
    return value;
}

/* Largest magnitude of a row, NaN if it has one: without their signs, floats compare like their bits. */
static float row_max(const struct pack_args *args, const void *row) {
    uint32_t max_bits = 0;
    uint16_t max_half = 0;
    float value;
    if (args->type == STORED_FP32) {
        const uint32_t *bits = row;
        for (int64_t i = 0; i < args->inputs; i++) {
            const uint32_t magnitude = bits[i] & 0x7fffffff;
            max_bits = magnitude > max_bits ? magnitude : max_bits;
        }
        memcpy(&value, &max_bits, 4);
        return value;
    }
    const uint16_t *bits = row;
    for (int64_t i = 0; i < args->inputs; i++) {
        const uint16_t magnitude = bits[i] & 0x7fff;
        max_half = magnitude > max_half ? magnitude : max_half;
    }
    return args->type == STORED_BF16 ? widen_bf16(max_half) : widen_fp16(max_half);
}

INLINE const void *row_address(const struct pack_args *args, int64_t output) {
    return (const void *)((const int64_t *)args->rows)[output];
}

/* The largest magnitudes of a block's outputs; zeros for outputs that only fill up the block. */
static vec block_max(const struct pack_args *args, int64_t block) {
    vec maxima = {0};
    for (int lane = 0; lane < LANES && block * LANES + lane < args->outputs; lane++)
        maxima[lane] = row_max(args, row_address(args, block * LANES + lane));
    return maxima;
}

INLINE void widen_row(const struct pack_args *args, const void *row, int64_t first, const int count, float *to) {
    switch (args->type) {
        case STORED_FP32: memcpy(to, (const float *)row + first, count * sizeof(float)); break;
        case STORED_BF16: for (int i = 0; i < count; i++) to[i] = widen_bf16(((const uint16_t *)row)[first + i]); break;
        default: for (int i = 0; i < count; i++) to[i] = widen_fp16(((const uint16_t *)row)[first + i]);
    }
}

/* One step of TILE_INPUTS inputs of a block's outputs, in fp32: a vector for each input, zeros behind the end. */
static void load_step(const struct pack_args *args, int64_t block, int64_t step, vec *values) {
    const int64_t first = step * TILE_INPUTS;
    for (int lane = 0; lane < LANES; lane++) {
        float row[TILE_INPUTS] = {0};
        if (block * LANES + lane < args->outputs) {
            const void *from = row_address(args, block * LANES + lane);
            if (first + TILE_INPUTS <= args->inputs) widen_row(args, from, first, TILE_INPUTS, row);
            else widen_row(args, from, first, args->inputs - first, row);
        }
        for (int k = 0; k < TILE_INPUTS; k++) ((float *)values)[k * LANES + lane] = row[k];
    }
}

INLINE vec clamp_scale(vec scale) { return select_lanes(scale < MIN_SCALE, broadcast(MIN_SCALE), scale); }

INLINE ivec clamp_levels(ivec levels, int least, int most) {
    const ivec low = levels < least, high = levels > most;
    return (low & least) | (high & most) | (~(low | high) & levels);
}

static void pack_int8_block(const void *context, int64_t item) {
    const struct pack_args *args = context;
    const int64_t block = args->first_block + item, steps = ceil_div(args->inputs, TILE_INPUTS);
    const vec scale = clamp_scale(block_max(args, block) / 127.0f);
    int32_t *to = (int32_t *)args->weights + block * steps * TILE_INPUTS / 4 * LANES;
    vec values[TILE_INPUTS];
    ivec sums = {0};
    for (int64_t s = 0; s < steps; s++) {
        load_step(args, block, s, values);
        for (int n = 0; n < TILE_INPUTS / 4; n++, to += LANES) {
            ivec word = {0};
            for (int k = 0; k < 4; k++) {
                const vec rounded = values[4 * n + k] / scale + ROUNDING_TERM;
                const ivec levels = clamp_levels((ivec)rounded - ROUNDING_BITS, -127, 127);
                sums += levels;
                word |= (levels & 0xff) << (8 * k);
            }
            *(ivec *)to = word;
        }
    }
    store((float *)args->scales + block * LANES, scale);
    *(ivec *)((int32_t *)args->zeros + block * LANES) = sums * UNSIGNED_ZERO;
}

/* The nearest fp16 of values below 65504; its bits, and its value in fp32. */
struct half_lanes { ivec bits; vec value; };

INLINE struct half_lanes round_to_half(vec v) {
    const ivec sign = (ivec)v & (int32_t)0x80000000, magnitude = (ivec)v ^ sign;
    /* fp16 has no smaller exponent than 2^-14: the sum's last bit is then that of the result. */
    const ivec small = (ivec)((vec)magnitude + 0.5f) - 0x3f000000;
    const ivec normal = (magnitude + (0xfff - (112 << 23)) + (magnitude >> 13 & 1)) >> 13;
    const ivec is_small = magnitude < 113 << 23;
    const ivec bits = (is_small & small) | (~is_small & normal);
    const vec value = (vec)(bits << 13) * 0x1p112f;
    return (struct half_lanes){(sign >> 16 & 0x8000) | bits, (vec)((ivec)value | sign)};
}

INLINE vec invert(vec scale) { return select_lanes(scale == 0, (vec){0}, 1.0f / scale); }

INLINE vec round_levels(vec value, vec inverse) {
    const vec level = round_product(value * inverse) + ROUNDING_TERM - ROUNDING_TERM;
    const vec bounded = select_lanes(level < INT4_MIN, broadcast(INT4_MIN), level);
    return select_lanes(bounded > INT4_MAX, broadcast(INT4_MAX), bounded);
}

/* Sum of the squared errors of a group, always in the same order. */
static vec group_error(const vec *values, vec scale) {
    const vec inverse = invert(scale);
    vec total = {0};
    for (int lane = 0; lane < SUMS_OF_A_GROUP; lane++) {
        vec sum = {0};
        for (int k = lane; k < TILE_INPUTS; k += SUMS_OF_A_GROUP) {
            const vec error = round_levels(values[k], inverse) * scale - values[k]; /* the product is exact */
            sum += round_product(error * error);
        }
        total += sum;
    }
    return total;
}

/* The scale of SCALE_FACTORS with the smallest error; the first of several. */
static struct half_lanes choose_scale(const vec *values) {
    vec extreme = values[0], largest = abs_lanes(values[0]);
    for (int k = 1; k < TILE_INPUTS; k++) {
        const vec magnitude = abs_lanes(values[k]);
        const ivec larger = magnitude > largest;
        extreme = select_lanes(larger, values[k], extreme);
        largest = select_lanes(larger, magnitude, largest);
    }
    extreme /= INT4_MIN;
    struct half_lanes best = round_to_half(extreme * SCALE_FACTORS[0]);
    vec smallest = group_error(values, best.value);
    for (int i = 1; i < SCALES_TRIED; i++) {
        const struct half_lanes scale = round_to_half(extreme * SCALE_FACTORS[i]);
        const vec error = group_error(values, scale.value);
        const ivec better = error < smallest;
        best.bits = (better & scale.bits) | (~better & best.bits);
        best.value = select_lanes(better, scale.value, best.value);
        smallest = select_lanes(better, error, smallest);
    }
    return best;
}

static void pack_int4_block(const void *context, int64_t item) {
    const struct pack_args *args = context;
    const int64_t block = args->first_block + item, steps = ceil_div(args->inputs, TILE_INPUTS);
    const vec output_scale = clamp_scale(block_max(args, block));
    int32_t *to = (int32_t *)args->weights + block * steps * TILE_INPUTS / 8 * LANES;
    uint16_t *scales = (uint16_t *)args->group_scales + block * steps * LANES;
    vec values[TILE_INPUTS];
    store((float *)args->scales + block * LANES, output_scale);
    for (int64_t s = 0; s < steps; s++, scales += LANES) {
        load_step(args, block, s, values);
        for (int k = 0; k < TILE_INPUTS; k++) values[k] /= output_scale;
        const struct half_lanes chosen = choose_scale(values);
        const vec inverse = invert(chosen.value);
        for (int lane = 0; lane < LANES; lane++) scales[lane] = chosen.bits[lane];
        for (int n = 0; n < TILE_INPUTS / 8; n++, to += LANES) {
            ivec word = {0};
            for (int k = 4 * n; k < 4 * n + 4; k++) {
                const vec low = round_levels(values[k], inverse) - INT4_MIN;
                const vec high = round_levels(values[TILE_INPUTS / 2 + k], inverse) - INT4_MIN;
                const ivec levels = __builtin_convertvector(low + 16 * high, ivec);
                word |= (levels & 0xff) << (8 * (k % 4));
            }
            *(ivec *)to = word;
        }
    }
}

static void pack_blocks(void (*pack)(const void *, int64_t), const struct pack_args *args) {
    parallel_for(pack, args, args->end_block - args->first_block, args->threads);
}

void antiphon_pack_int8(const struct pack_args *args) { pack_blocks(pack_int8_block, args); }

void antiphon_pack_int4(const struct pack_args *args) { pack_blocks(pack_int4_block, args); }
