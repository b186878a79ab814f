/* SIMD vectors of this CPU, and parallel loops on the thread team of torch. Every kernel is built on these. */

#ifndef ANTIPHON_SIMD_H
#define ANTIPHON_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX__
#include <immintrin.h>
#endif
#if defined(__aarch64__) && defined(__ARM_NEON) && defined(__ARM_FEATURE_FMA)
#define HAS_NEON 1
#include <arm_neon.h>
#endif

/* Elements of a vector register. Sums over lanes have the same bits on all CPUs with the same number of them. */
#ifdef __AVX512F__
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

typedef float vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

/* Lanes of two vectors in the given order. Index LANES is the first lane of b. */
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (ivec){__VA_ARGS__})
#endif

INLINE vec load(const float *from) { return *(const vec *)from; }
INLINE void store(float *to, vec value) { *(vec *)to = value; }
INLINE vec broadcast(float value) { return value - (vec){0}; }
INLINE vec abs_lanes(vec v) { return (vec)((ivec)v & 0x7fffffff); }
INLINE vec select_lanes(ivec where, vec yes, vec no) { return (vec)((where & (ivec)yes) | (~where & (ivec)no)); }

/* a * b + c, rounded once on every CPU. */
INLINE vec fma_lanes(vec a, vec b, vec c) {
#if LANES == 16
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(HAS_NEON)
    return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    for (int i = 0; i < LANES; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#endif
}

/* a * b + c, rounded once where the CPU has an instruction for it. Compilers are told not to choose by themselves. */
INLINE vec multiply_add(vec a, vec b, vec c) {
#if LANES == 16 || defined(__FMA__) || defined(HAS_NEON) || defined(FUSED_MULTIPLY_ADD)
    return fma_lanes(a, b, c);
#else
    return a * b + c;
#endif
}

/* Lane orders for SHUFFLE. LOW_ and HIGH_ pick the same parts of both vectors; _SWAPPED orders serve reductions. */
#if LANES == 16
#define LANE_INDICES ((ivec){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
#define LOW_HALVES 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define HIGH_HALVES 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#define LOW_QUARTERS 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27
#define HIGH_QUARTERS 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31
#define PAIRS_SWAPPED 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13
#define LANES_SWAPPED 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14
#define HALVES_SWAPPED 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7
#define QUARTERS_SWAPPED 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11
#define EVERY_FOURTH 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12
#elif LANES == 8
#define LANE_INDICES ((ivec){0, 1, 2, 3, 4, 5, 6, 7})
#define LOW_HALVES 0, 1, 2, 3, 8, 9, 10, 11
#define HIGH_HALVES 4, 5, 6, 7, 12, 13, 14, 15
#define LOW_QUARTERS 0, 1, 8, 9, 4, 5, 12, 13
#define HIGH_QUARTERS 2, 3, 10, 11, 6, 7, 14, 15
#define LANES_SWAPPED 1, 0, 3, 2, 5, 4, 7, 6
#define HALVES_SWAPPED 4, 5, 6, 7, 0, 1, 2, 3
#define QUARTERS_SWAPPED 2, 3, 0, 1, 6, 7, 4, 5
#define EVERY_FOURTH 0, 4, 2, 6, 0, 4, 2, 6
#else
#define LANE_INDICES ((ivec){0, 1, 2, 3})
#define LOW_HALVES 0, 1, 4, 5
#define HIGH_HALVES 2, 3, 6, 7
#define EVEN_LANES 0, 2, 4, 6
#define ODD_LANES 1, 3, 5, 7
#define LANES_SWAPPED 1, 0, 3, 2
#define HALVES_SWAPPED 2, 3, 0, 1
#endif

/* Stores the sums of four vectors, each multiplied by factor. */
INLINE void reduce_sum_four(float *to, const vec *v, float factor) {
    const vec a = SHUFFLE(v[0], v[1], LOW_HALVES) + SHUFFLE(v[0], v[1], HIGH_HALVES);
    const vec b = SHUFFLE(v[2], v[3], LOW_HALVES) + SHUFFLE(v[2], v[3], HIGH_HALVES);
#if LANES == 4
    const vec sums = (SHUFFLE(a, b, EVEN_LANES) + SHUFFLE(a, b, ODD_LANES)) * factor;
#else
    vec sums = SHUFFLE(a, b, LOW_QUARTERS) + SHUFFLE(a, b, HIGH_QUARTERS);
#if LANES == 16
    sums += SHUFFLE(sums, sums, PAIRS_SWAPPED);
#endif
    sums = (sums + SHUFFLE(sums, sums, LANES_SWAPPED)) * factor;
    sums = SHUFFLE(sums, sums, EVERY_FOURTH);
#endif
    memcpy(to, &sums, 4 * sizeof(float));
}

/* Lane-wise maximum; NaN if either lane is NaN. */
INLINE vec max_or_nan(vec a, vec b) {
#if LANES == 16
    const vec maxima = (vec)_mm512_max_ps((__m512)a, (__m512)b); /* returns b if either is NaN */
#elif defined(__AVX__)
    const vec maxima = (vec)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(HAS_NEON)
    const vec maxima = (vec)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
#else
    const vec maxima = select_lanes(a > b, a, b);
#endif
    return select_lanes(a != a, a, maxima);
}

/* Maximum of all lanes; NaN if any lane is NaN. */
INLINE float reduce_max(vec v) {
    v = max_or_nan(v, SHUFFLE(v, v, HALVES_SWAPPED));
#if LANES > 4
    v = max_or_nan(v, SHUFFLE(v, v, QUARTERS_SWAPPED));
#endif
#if LANES == 16
    v = max_or_nan(v, SHUFFLE(v, v, PAIRS_SWAPPED));
#endif
    return max_or_nan(v, SHUFFLE(v, v, LANES_SWAPPED))[0];
}

/* fp16 conversion; HAS_FP16 tells whether the CPU has instructions for it. Values out of range saturate at MAX_FP16. */
#define MAX_FP16 65504.0f
#if LANES == 16
#define HAS_FP16 1
INLINE vec fp16_to_fp32(const uint16_t *from) {
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}
#elif defined(__F16C__)
#define HAS_FP16 1
INLINE vec fp16_to_fp32(const uint16_t *from) { return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from)); }
#elif defined(HAS_NEON)
#define HAS_FP16 1
INLINE vec fp16_to_fp32(const uint16_t *from) { return (vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))); }
#else
#define HAS_FP16 0
INLINE vec fp16_to_fp32(const uint16_t *from) {
    ivec halves;
    for (int i = 0; i < LANES; i++) halves[i] = from[i];
    const vec magnitudes = (vec)((halves & 0x7fff) << 13) * 0x1p112f; /* corrects the exponent, exactly */
    return (vec)((ivec)magnitudes | (halves & 0x8000) << 16);
}
#endif

INLINE void fp32_to_fp16(uint16_t *to, vec v) {
    v = select_lanes(v > MAX_FP16, broadcast(MAX_FP16), v);
    v = select_lanes(v < -MAX_FP16, broadcast(-MAX_FP16), v);
#if LANES == 16
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    _mm_storeu_si128((__m128i *)to, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(HAS_NEON)
    vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v)));
#endif
}

/* Sum of all lanes, by halving: the order of additions is the same on every call. */
INLINE float reduce_sum(vec v) {
    float lanes[LANES];
    store(lanes, v);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
}

/* exp(x) for x <= 88, accurate to about one ulp; NaN stays NaN. The polynomial is that of the Cephes library. */
INLINE vec exp_lanes(vec x) {
    ivec underflow = x < -87.0f;
    /* Adding 1.5 * 2^23 rounds to the nearest integer. */
    const vec to_integer = broadcast(12582912.0f);
    vec n = select_lanes(underflow, broadcast(0), multiply_add(x, broadcast(1.44269504f), to_integer) - to_integer);
    vec f = multiply_add(n, broadcast(-0.693145752f), x);
    f = multiply_add(n, broadcast(-1.42860677e-6f), f);
    vec p = broadcast(1.9875691500e-4f);
    p = multiply_add(p, f, broadcast(1.3981999507e-3f));
    p = multiply_add(p, f, broadcast(8.3334519073e-3f));
    p = multiply_add(p, f, broadcast(4.1665795894e-2f));
    p = multiply_add(p, f, broadcast(1.6666665459e-1f));
    p = multiply_add(p, f, broadcast(5.0000001201e-1f));
    p = multiply_add(p * f, f, f) + 1.0f;
    ivec power = (__builtin_convertvector(n, ivec) + 127) << 23;
    return select_lanes(underflow, broadcast(0), p * (vec)power);
}

/* out = silu(x[:size]) * x[size:]. out may be x. */
INLINE void silu_mul_row(const float *x, float *out, int64_t size) {
    for (int64_t i = 0; i < size; i += LANES) {
        vec v = load(x + i), e = exp_lanes(-abs_lanes(v));
        vec sigmoid = select_lanes(v < 0, e, broadcast(1)) / (1 + e); /* |v| keeps the exponential from overflowing */
        store(out + i, v * sigmoid * load(x + size + i));
    }
}

/* Parallel loops run on the OpenMP team that torch computes with. A second team would compete with it for the cores. */

#ifdef __linux__
extern void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));
#else
#include <dlfcn.h>
typedef void (*gomp_parallel)(void (*)(void *), void *, unsigned, unsigned);
#define GOMP_parallel ((gomp_parallel)dlsym(RTLD_DEFAULT, "GOMP_parallel")) /* LLVM's OpenMP has it, too */
#endif

struct parallel_loop {
    void (*body)(const void *, int64_t);
    const void *context;
    int64_t count, next;
};

static void run_loop_thread(void *argument) {
    struct parallel_loop *loop = argument;
    for (;;) {
        int64_t i = __atomic_fetch_add(&loop->next, 1, __ATOMIC_RELAXED);
        if (i >= loop->count) return;
        loop->body(loop->context, i);
    }
}

/* Calls body(context, i) for i < count; each free thread takes the next i.
 *
 * The team always has `threads` members, however small the count: another size makes OpenMP build a new team.
 */
INLINE void parallel_for(void (*body)(const void *, int64_t), const void *context, int64_t count, int64_t threads) {
    struct parallel_loop loop = {body, context, count, 0};
    if (threads > 1 && count > 1 && GOMP_parallel) GOMP_parallel(run_loop_thread, &loop, (unsigned)threads, 0);
    else run_loop_thread(&loop);
}

#define PARALLEL_THRESHOLD (1 << 16) /* Elements below which waking other threads costs more than it saves. */

#endif
