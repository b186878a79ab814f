/* Vectors of this CPU, and torch's own team of threads: what the compiled kernels are made of. */

#ifndef ANTIPHON_VECTORS_H
#define ANTIPHON_VECTORS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __AVX512F__
#define LANES 16
#else
#define LANES 8
#endif

typedef float vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const float *from) { return *(const vec *)from; }
INLINE void store(float *to, vec value) { *(vec *)to = value; }
INLINE vec all(float value) { return value - (vec){0}; }
INLINE vec magnitude(vec v) { return (vec)((ivec)v & 0x7fffffff); }
INLINE vec choose(ivec where, vec yes, vec no) { return (vec)((where & (ivec)yes) | (~where & (ivec)no)); }

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
static void share(void (*work)(const void *, int64_t), const void *what, int64_t count, int64_t threads) {
    struct team team = {work, what, count, 0};
    if (GOMP_parallel && threads > 1 && count > 1) GOMP_parallel(member, &team, (unsigned)threads, 0);
    else member(&team);
}

#define SMALL (1 << 16) /* So few numbers are not worth waking anybody. */

#endif
