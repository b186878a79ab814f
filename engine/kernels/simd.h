/* Vectors of this CPU, and torch's own team of threads: what the compiled kernels are made of. */

#ifndef ANTIPHON_VECTORS_H
#define ANTIPHON_VECTORS_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX__
#include <immintrin.h>
#endif

#ifdef __AVX512F__
#define LANES 16
#else
#define LANES 8
#endif

typedef float vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

/* Numbers of one vector or of two, in the order that is said: those of the second are counted on. */
#if defined(__clang__) || __GNUC__ >= 12
#define MIX(one, two, ...) __builtin_shufflevector(one, two, __VA_ARGS__)
#else
#define MIX(one, two, ...) __builtin_shuffle(one, two, (ivec){__VA_ARGS__})
#endif

INLINE vec load(const float *from) { return *(const vec *)from; }
INLINE void store(float *to, vec value) { *(vec *)to = value; }
INLINE vec all(float value) { return value - (vec){0}; }
INLINE vec magnitude(vec v) { return (vec)((ivec)v & 0x7fffffff); }
INLINE vec choose(ivec where, vec yes, vec no) { return (vec)((where & (ivec)yes) | (~where & (ivec)no)); }

/* Orders of two vectors' numbers: first of four vectors halves stand next to each other, then of two of those quarters. */
#if LANES == 16
#define COUNTED ((ivec){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
#define LOW_HALVES 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define HIGH_HALVES 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#define LOW_QUARTERS 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27
#define HIGH_QUARTERS 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31
#define PAIRS_TURNED 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13
#define TURNED 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14
#define HALVES_TURNED 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7
#define QUARTERS_TURNED 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11
#define FOUR 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12
#else
#define COUNTED ((ivec){0, 1, 2, 3, 4, 5, 6, 7})
#define LOW_HALVES 0, 1, 2, 3, 8, 9, 10, 11
#define HIGH_HALVES 4, 5, 6, 7, 12, 13, 14, 15
#define LOW_QUARTERS 0, 1, 8, 9, 4, 5, 12, 13
#define HIGH_QUARTERS 2, 3, 10, 11, 6, 7, 14, 15
#define TURNED 1, 0, 3, 2, 5, 4, 7, 6
#define HALVES_TURNED 4, 5, 6, 7, 0, 1, 2, 3
#define QUARTERS_TURNED 2, 3, 0, 1, 6, 7, 4, 5
#define FOUR 0, 4, 2, 6, 0, 4, 2, 6
#endif

/* The sums of four vectors, each times a number. */
INLINE void four_sums(float *to, const vec *v, float by) {
    const vec one = MIX(v[0], v[1], LOW_HALVES) + MIX(v[0], v[1], HIGH_HALVES);
    const vec two = MIX(v[2], v[3], LOW_HALVES) + MIX(v[2], v[3], HIGH_HALVES);
    vec sums = MIX(one, two, LOW_QUARTERS) + MIX(one, two, HIGH_QUARTERS);
#if LANES == 16
    sums += MIX(sums, sums, PAIRS_TURNED);
#endif
    sums = (sums + MIX(sums, sums, TURNED)) * by;
    sums = MIX(sums, sums, FOUR);
    memcpy(to, &sums, 4 * sizeof(float));
}

/* The larger of each two, and the largest of all; no number, once there is one that is none. */
INLINE vec larger(vec one, vec two) {
#if LANES == 16
    const vec most = (vec)_mm512_max_ps((__m512)one, (__m512)two); /* the second, if one of them is none */
#elif defined(__AVX__)
    const vec most = (vec)_mm256_max_ps((__m256)one, (__m256)two);
#else
    const vec most = choose(one > two, one, two);
#endif
    return choose(one != one, one, most);
}

INLINE float largest(vec v) {
    v = larger(v, MIX(v, v, HALVES_TURNED));
    v = larger(v, MIX(v, v, QUARTERS_TURNED));
#if LANES == 16
    v = larger(v, MIX(v, v, PAIRS_TURNED));
#endif
    return larger(v, MIX(v, v, TURNED))[0];
}

/* Numbers of 16 bits, where this CPU converts them; those that are too large become the largest. */
#define MOST_HALF 65504.0f
#if LANES == 16
#define HALVES 1
INLINE vec widened(const uint16_t *from) { return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from)); }
#elif defined(__F16C__)
#define HALVES 1
INLINE vec widened(const uint16_t *from) { return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from)); }
#else
#define HALVES 0
INLINE vec widened(const uint16_t *from) { return all(from[0]); }
#endif

INLINE void narrow(uint16_t *to, vec v) {
    v = choose(v > MOST_HALF, all(MOST_HALF), v);
    v = choose(v < -MOST_HALF, all(-MOST_HALF), v);
#if LANES == 16
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    _mm_storeu_si128((__m128i *)to, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#endif
}

INLINE float sum(vec v) {
    float lanes[LANES];
    store(lanes, v);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
}

/* e to the power of what is at most 88, to about the last bit; no number stays none. The polynomial is Cephes'. */
INLINE vec exponential(vec x) {
    ivec nothing = x < -87.0f;
    vec n = choose(nothing, all(0), (x * 1.44269504f + 12582912.0f) - 12582912.0f); /* 1.5 * 2^23: to the nearest */
    vec f = x - n * 0.693145752f - n * 1.42860677e-6f;
    vec p = all(1.9875691500e-4f);
    p = p * f + 1.3981999507e-3f;
    p = p * f + 8.3334519073e-3f;
    p = p * f + 4.1665795894e-2f;
    p = p * f + 1.6666665459e-1f;
    p = p * f + 5.0000001201e-1f;
    p = p * f * f + f + 1.0f;
    ivec power = (__builtin_convertvector(n, ivec) + 127) << 23;
    return choose(nothing, all(0), p * (vec)power);
}

/* x · sigmoid(x) · what stands so many numbers behind it; it may be written where it was read. */
INLINE void gated(const float *x, float *out, int64_t size) {
    for (int64_t i = 0; i < size; i += LANES) {
        vec v = load(x + i), e = exponential(-magnitude(v));
        vec share = choose(v < 0, e, all(1)) / (1 + e); /* so that no power is too large */
        store(out + i, v * share * load(x + size + i));
    }
}

/* Threads: the team that torch computes with, by the one call of its OpenMP; a team of their own would fight it. */

#ifdef __linux__
extern void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));
#else
static void (*const GOMP_parallel)(void (*)(void *), void *, unsigned, unsigned) = 0;
#endif

struct team {
    void (*work)(const void *, int64_t);
    const void *what;
    int64_t count, next;
};

static void member(void *given) {
    struct team *team = given;
    for (;;) {
        int64_t i = __atomic_fetch_add(&team->next, 1, __ATOMIC_RELAXED);
        if (i >= team->count) return;
        team->work(team->what, i);
    }
}

/* Whoever is free takes the next piece. Always all threads: another number of them would make a new team. */
INLINE void share(void (*work)(const void *, int64_t), const void *what, int64_t count, int64_t threads) {
    struct team team = {work, what, count, 0};
    if (GOMP_parallel && threads > 1 && count > 1) GOMP_parallel(member, &team, (unsigned)threads, 0);
    else member(&team);
}

#define SMALL (1 << 16) /* So few numbers are not worth waking anybody. */

#endif
