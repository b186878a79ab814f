/* fp32 activations times a weight of 16 bits, bf16 or fp16, exactly as it is stored. The error is that of fp32.
 *
 * Without AMX, weights are converted to fp32 in registers. The products of GROUP_INPUTS inputs are added to a sum, each
 * by one fused multiply-add, and the sums of groups to the result, always from the first to the last. So a row has the
 * same bits alone or in a batch, with AVX512, AVX2 and portable C.
 *
 * AMX multiplies bf16 by bf16 and adds in fp32. An activation is cut into three bf16 numbers whose sum it is; each of
 * them is a row of a tile. The instruction adds the products of 16 even and of 16 odd inputs, both from the first to
 * the last, then both sums to the result. A single row takes as long as its weights take to arrive from memory, so AMX
 * computes any number of rows, and a row has the same bits alone or in a batch here, too. They are not those of the
 * other instruction sets.
 *
 * A weight is packed as (outputs / LANES, inputs / 2, LANES, 2) in bf16, as AMX requires it, and as (outputs / LANES,
 * inputs, LANES) in fp16. Both are padded with zeros: inputs to STEP_INPUTS, outputs to ITEM_BLOCKS blocks.
 */

#include "gemm.h"

#define STEP_INPUTS 32   /* inputs of an AMX tile */
#define GROUP_INPUTS 256 /* inputs whose products are added up before they are added to the result */
#define ITEM_BLOCKS 4    /* blocks of LANES outputs that are computed together without AMX */

/* Adds the bias and the residual to a block of outputs of a row, and stores it. */
INLINE void store_row(const struct linear_args *args, int64_t row, int64_t first, vec sums) {
    const int64_t remaining = args->outputs - first;
    float *to = (float *)args->out + row * args->outputs + first;
    const float *bias = args->bias ? (const float *)args->bias + first : 0;
    const float *residual = args->residual ? (const float *)args->residual + row * args->outputs + first : 0;
    if (remaining >= LANES) {
        if (bias) sums += load(bias);
        if (residual) sums += load(residual);
        store(to, sums);
    } else {
        for (int64_t i = 0; i < remaining; i++)
            to[i] = sums[i] + (bias ? bias[i] : 0) + (residual ? residual[i] : 0);
    }
}

INLINE int64_t row_stride(const struct linear_args *args) { return args->silu_mul ? 2 * args->inputs : args->inputs; }
INLINE int64_t count_steps(const struct linear_args *args) { return ceil_div(args->inputs, STEP_INPUTS); }

/* Forms in which weights are read. */
enum { BF16, FP16, FP32 };

/* Reads the weights of a block for an even input and the next one, in fp32. */
INLINE void load_two_inputs(const int form, const void *weights, int64_t at, vec *even, vec *odd) {
    if (form == BF16) {
        const ivec both = *(const ivec *)((const uint16_t *)weights + at);
        *even = (vec)(both << 16);
        *odd = (vec)(both & (int32_t)0xffff0000);
    } else if (form == FP16) {
        *even = fp16_to_fp32((const uint16_t *)weights + at);
        *odd = fp16_to_fp32((const uint16_t *)weights + at + LANES);
    } else {
        *even = load((const float *)weights + at);
        *odd = load((const float *)weights + at + LANES);
    }
}

#if LANES == 16 || defined(HAS_NEON)
#define MANY_REGISTERS 1
#else
#define MANY_REGISTERS 0
#endif
#define TALL_STRIP_ROWS (MANY_REGISTERS ? 12 : 5) /* rows whose sums with two blocks fit into registers */
#define MAX_WIDE_ROWS (MANY_REGISTERS ? 6 : 4)    /* rows that are multiplied with all blocks of an item */
#define MIN_TALL_STRIPS 3                      /* strips for which it is worth while to convert weights once */
#define MAX_TALL_STRIPS 16                     /* strips that share weights converted to fp32 */

/* Adds the products of `count` rows with `blocks` blocks, for a group of inputs, to the totals. Sums are in registers. */
INLINE void add_group(const int form, const int count, const int blocks, const float *x, int64_t stride,
                      const void *weights, int64_t block_size, int64_t inputs, vec (*totals)[TALL_STRIP_ROWS]) {
    vec sums[ITEM_BLOCKS][TALL_STRIP_ROWS] = {0}, even[ITEM_BLOCKS], odd[ITEM_BLOCKS];
    int64_t k = 0;
    for (; k + 2 <= inputs; k += 2) {
        for (int b = 0; b < blocks; b++)
            load_two_inputs(form, weights, b * block_size + k * LANES, &even[b], &odd[b]);
        for (int r = 0; r < count; r++) {
            const vec first = broadcast(x[r * stride + k]), second = broadcast(x[r * stride + k + 1]);
            for (int b = 0; b < blocks; b++) sums[b][r] = fma_lanes(even[b], first, sums[b][r]);
            for (int b = 0; b < blocks; b++) sums[b][r] = fma_lanes(odd[b], second, sums[b][r]);
        }
    }
    if (k < inputs)
        for (int b = 0; b < blocks; b++) {
            load_two_inputs(form, weights, b * block_size + k * LANES, &even[b], &odd[b]);
            for (int r = 0; r < count; r++)
                sums[b][r] = fma_lanes(even[b], broadcast(x[r * stride + k]), sums[b][r]);
        }
    for (int b = 0; b < blocks; b++)
        for (int r = 0; r < count; r++) totals[b][r] += sums[b][r];
}

INLINE void store_strip(const int count, const int blocks, const struct linear_args *args, int64_t row, int64_t block,
                        const vec (*totals)[TALL_STRIP_ROWS]) {
    for (int b = 0; b < blocks; b++)
        for (int r = 0; r < count; r++)
            if ((block + b) * LANES < args->outputs) store_row(args, row + r, (block + b) * LANES, totals[b][r]);
}

INLINE int64_t group_inputs(const struct linear_args *args, int64_t first) {
    return args->inputs - first < GROUP_INPUTS ? args->inputs - first : GROUP_INPUTS;
}

/* `count` rows with `blocks` blocks. */
INLINE void multiply_strip(const int form, const int count, const int blocks, const struct linear_args *args,
                           int64_t row, int64_t block) {
    const int64_t block_size = count_steps(args) * STEP_INPUTS * LANES, stride = row_stride(args);
    const float *x = (const float *)args->x + row * stride;
    const uint16_t *weights = (const uint16_t *)args->weights + block * block_size;
    vec totals[ITEM_BLOCKS][TALL_STRIP_ROWS] = {0};
    for (int64_t k = 0; k < args->inputs; k += GROUP_INPUTS)
        add_group(form, count, blocks, x + k, stride, weights + k * LANES, block_size, group_inputs(args, k), totals);
    store_strip(count, blocks, args, row, block, totals);
}

/* Many rows with two blocks: strip by strip for each group of inputs, whose weights are converted to fp32 once. */
INLINE void multiply_tall_strips(const int form, const struct linear_args *args, int64_t row, int64_t strips,
                                 int64_t block) {
    const int64_t block_size = count_steps(args) * STEP_INPUTS * LANES, stride = row_stride(args);
    const uint16_t *weights = (const uint16_t *)args->weights + block * block_size;
    const float *x = (const float *)args->x + row * stride;
    vec totals[MAX_TALL_STRIPS][2][TALL_STRIP_ROWS] = {0}, converted[2][GROUP_INPUTS];
    for (int64_t k = 0; k < args->inputs; k += GROUP_INPUTS) {
        const int64_t inputs = group_inputs(args, k);
        for (int b = 0; b < 2; b++)
            for (int64_t i = 0; i < inputs; i += 2)
                load_two_inputs(form, weights + b * block_size, (k + i) * LANES, &converted[b][i],
                                &converted[b][i + 1]);
        for (int64_t s = 0; s < strips; s++)
            add_group(FP32, TALL_STRIP_ROWS, 2, x + s * TALL_STRIP_ROWS * stride + k, stride, converted,
                      GROUP_INPUTS * LANES, inputs, totals[s]);
    }
    for (int64_t s = 0; s < strips; s++)
        store_strip(TALL_STRIP_ROWS, 2, args, row + s * TALL_STRIP_ROWS, block, totals[s]);
}

/* All rows with the blocks of an item: tall strips with two blocks, then one or two strips with all of them. */
INLINE void multiply_strips(const int form, const struct linear_args *args, int64_t item) {
    const int64_t block = item * ITEM_BLOCKS;
    int64_t row = 0;
    while (args->count - row >= MIN_TALL_STRIPS * TALL_STRIP_ROWS) {
        const int64_t left = (args->count - row) / TALL_STRIP_ROWS;
        const int64_t strips = left < MAX_TALL_STRIPS ? left : MAX_TALL_STRIPS;
        for (int n = 0; n < ITEM_BLOCKS; n += 2) multiply_tall_strips(form, args, row, strips, block + n);
        row += strips * TALL_STRIP_ROWS;
    }
    while (row < args->count) {
        const int64_t left = args->count - row, even = left < 2 * MAX_WIDE_ROWS ? ceil_div(left, 2) : MAX_WIDE_ROWS;
        const int64_t count = left <= MAX_WIDE_ROWS ? left : even;
        switch (count) {
#define STRIP(n) case n: multiply_strip(form, n, ITEM_BLOCKS, args, row, block); break;
            STRIP(1) STRIP(2) STRIP(3)
#if MANY_REGISTERS
            STRIP(4) STRIP(5) STRIP(6)
#else
            case 4:
                multiply_strip(form, 4, 2, args, row, block);
                multiply_strip(form, 4, 2, args, row, block + 2);
#endif
        }
        row += count;
    }
}

static void multiply_bf16_item(const void *args, int64_t item) { multiply_strips(BF16, args, item); }
static void multiply_fp16_item(const void *args, int64_t item) { multiply_strips(FP16, args, item); }

static void activate_row(const void *context, int64_t row) {
    const struct linear_args *args = context;
    float *x = (float *)args->x + row * row_stride(args);
    silu_mul_row(x, x, args->inputs);
}

#if defined(HAS_AMX) && defined(__AMX_BF16__)
#define PARTS 3 /* bf16 numbers whose sum is an fp32 number */
#define TILE_SHARE (TILE_ROWS / PARTS) /* rows of activations in a tile */
#define STEP_BYTES (TILE_ROWS * STEP_INPUTS * 2)
#define TALL_ROWS (2 * TILE_SHARE) /* rows of activations that are multiplied at a time */
#define MAX_TALLS 8                /* number whose incomplete sums fit into the L2 cache */
#define MAX_PAIRS 4                /* pairs of blocks whose weights fit into it, too */
#define MAX_STEPS 64               /* steps of inputs of these weights */

/* Cuts the rows of a tile into parts: (inputs / 32, 16, 32). The last row of the tile is not used. */
static void cut_tile(const void *context, int64_t tile) {
    const struct linear_args *args = context;
    const int64_t size = args->inputs, first = tile * TILE_SHARE;
    for (int64_t r = 0; r < TILE_SHARE && first + r < args->count; r++) {
        const float *x = (const float *)args->x + (first + r) * row_stride(args);
        uint16_t *to = (uint16_t *)(args->levels + tile * count_steps(args) * STEP_BYTES) + r * PARTS * STEP_INPUTS;
        for (int64_t k = 0; k < count_steps(args) * STEP_INPUTS; k += LANES) {
            vec v = {0};
            if (k + LANES <= size) v = load(x + k);
            else for (int64_t i = k; i < size; i++) v[i - k] = x[i];
            uint16_t *step = to + k / STEP_INPUTS * (STEP_BYTES / 2) + k % STEP_INPUTS;
            for (int part = 0; part < PARTS; part++) {
                const ivec top = (ivec)v & (int32_t)0xffff0000;
                _mm256_storeu_si256((__m256i *)(step + part * STEP_INPUTS), _mm512_cvtepi32_epi16((__m512i)(top >> 16)));
                v -= (vec)top;
            }
        }
    }
}

/* Adds up the parts of the rows of a tile of sums, and stores them. */
INLINE void store_tile(const struct linear_args *args, int64_t row, int64_t first, const float (*sums)[LANES]) {
    if (first >= args->outputs) return;
    for (int64_t r = 0; r < TILE_SHARE && row + r < args->count; r++, sums += PARTS)
        store_row(args, row + r, first, load(sums[0]) + (load(sums[1]) + load(sums[2])));
}

/* One tile of rows, or two (`tall`), with a pair of blocks, in the steps from `first` to `end`.
 *
 * `partial` keeps the four tiles of sums from one part of the steps to the next.
 */
INLINE void multiply_tiles(const int tall, const struct linear_args *args, int64_t row, int64_t pair, int64_t first,
                           int64_t end, float (*partial)[TILE_ROWS][LANES]) {
    const int64_t steps = count_steps(args);
    const uint8_t *x = (const uint8_t *)args->levels + (row / TILE_SHARE * steps + first) * STEP_BYTES;
    const uint8_t *w = (const uint8_t *)args->weights + (pair * 2 * steps + first) * STEP_BYTES;
#define START_TILE(tile) \
    if (first) _tile_loadd(tile, partial[tile], 64); \
    else _tile_zero(tile);
    START_TILE(0)
    START_TILE(1)
    if (tall) {
        START_TILE(2)
        START_TILE(3)
    }
    for (int64_t s = first; s < end; s++, x += STEP_BYTES, w += STEP_BYTES) {
        _tile_loadd(4, x, 64);
        _tile_loadd(6, w, 64);
        _tile_loadd(7, w + steps * STEP_BYTES, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (tall) {
            _tile_loadd(5, x + steps * STEP_BYTES, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
#define END_TILE(tile, down, right) \
    _tile_stored(tile, partial[tile], 64); \
    if (end == steps) store_tile(args, row + down * TILE_SHARE, (2 * pair + right) * LANES, partial[tile]);
    END_TILE(0, 0, 0)
    END_TILE(1, 0, 1)
    if (tall) {
        END_TILE(2, 1, 0)
        END_TILE(3, 1, 1)
    }
}

/* At most MAX_TALLS times TALL_ROWS rows with the pairs of an item, part by part of the steps. */
static void multiply_chunk(const struct linear_args *args, int64_t row, int64_t pair, int64_t last) {
    const int64_t steps = count_steps(args), left = ceil_div(args->count - row, TALL_ROWS);
    const int64_t talls = left < MAX_TALLS ? left : MAX_TALLS, part = talls > 1 ? MAX_STEPS : steps;
    float partial[MAX_TALLS][MAX_PAIRS][4][TILE_ROWS][LANES] __attribute__((aligned(64)));
    for (int64_t first = 0; first < steps; first += part) {
        const int64_t end = first + part < steps ? first + part : steps;
        for (int64_t n = 0; n < talls; n++)
            for (int64_t i = pair; i < last; i++) {
                const int64_t top = row + n * TALL_ROWS;
                if (top + TILE_SHARE < args->count) multiply_tiles(1, args, top, i, first, end, partial[n][i - pair]);
                else multiply_tiles(0, args, top, i, first, end, partial[n][i - pair]);
            }
    }
}

static void multiply_pairs(const void *context, int64_t item) {
    const struct linear_args *args = context;
    const struct pair_range range = find_pairs(args, item, MAX_PAIRS);
    _tile_loadconfig(&TILE_CONFIG);
    for (int64_t row = 0; row < args->count; row += MAX_TALLS * TALL_ROWS)
        multiply_chunk(args, row, range.first, range.end);
    _tile_release();
}

static int uses_tiles(const struct linear_args *args) { return !args->is_fp16 && amx_permitted(); }

/* Bytes of `levels` that the rows need. */
int64_t antiphon_half_workspace(const struct linear_args *args) {
    return uses_tiles(args) ? ceil_div(args->count, TILE_SHARE) * count_steps(args) * STEP_BYTES : 0;
}
#else
int64_t antiphon_half_workspace(const struct linear_args *args) { return (void)args, 0; }
#endif

void antiphon_half_linear(const struct linear_args *args) {
    const int64_t row_threads = args->count * args->inputs > PARALLEL_THRESHOLD ? args->threads : 1;
    const int64_t threads = args->outputs * args->inputs > PARALLEL_THRESHOLD ? args->threads : 1;
    if (!args->count) return;
    if (args->silu_mul) parallel_for(activate_row, args, args->count, row_threads);
#ifdef PARTS
    if (uses_tiles(args)) {
        const int64_t items = ceil_div(ceil_div(args->outputs, PAIR_OUTPUTS), pairs_per_item(args, MAX_PAIRS));
        parallel_for(cut_tile, args, ceil_div(args->count, TILE_SHARE), row_threads);
        parallel_for(multiply_pairs, args, items, threads);
        return;
    }
#endif
    parallel_for(args->is_fp16 ? multiply_fp16_item : multiply_bf16_item, args,
                 ceil_div(args->outputs, ITEM_BLOCKS * LANES), threads);
}
