/* GCC's vectors of one register, which make the kernels' code the same for AVX2, AVX-512 and NEON. */
#ifndef REGISTERS_H
#define REGISTERS_H
#ifdef __aarch64__
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

/* WIDE: values of a register. ROWS, BLOCKS: rows and registers of columns of a product's tile, whose sums stay
 * in 24 of AVX-512's and NEON's 32 registers, 12 of AVX2's 16. */
#ifdef __AVX512F__
enum { WIDE = 16, BLOCKS = 4 };
#define MAX _mm512_max_ps
#define MIN _mm512_min_ps
#define LANES {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
#elif defined(__aarch64__)
enum { WIDE = 4, BLOCKS = 4 };
#define MAX(a, b) choose((a) > (b), a, b)
#define MIN(a, b) choose((a) < (b), a, b)
#define LANES {0, 1, 2, 3}
#else
enum { WIDE = 8, BLOCKS = 2 };
#define MAX _mm256_max_ps
#define MIN _mm256_min_ps
#define LANES {0, 1, 2, 3, 4, 5, 6, 7}
#endif
enum { ROWS = 6 };

#ifdef __AVX512F__
typedef __m512i Whole;
#elif defined(__aarch64__)
typedef int32x4_t Whole;
#else
typedef __m256i Whole;
#endif
/* Of int16 pairs a, b: the sums of their products, added to those so far. Exact while they fit. */
#if defined(__AVX512VNNI__)
#define ADD_PRODUCTS(sums, a, b) _mm512_dpwssd_epi32(sums, a, b)
#elif defined(__AVX512F__)
#define ADD_PRODUCTS(sums, a, b) _mm512_add_epi32(sums, _mm512_madd_epi16(a, b))
#elif defined(__aarch64__)
#define ADD_PRODUCTS(sums, a, b) add_products(sums, vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b))
#else
#define ADD_PRODUCTS(sums, a, b) _mm256_add_epi32(sums, _mm256_madd_epi16(a, b))
#endif

/* Of four uint8 in each lane of a and four int8 of b: the same. */
#if defined(__AVX512VNNI__)
#define ADD_FOUR(sums, a, b) _mm512_dpbusd_epi32(sums, a, b)
#elif defined(__AVX512F__)
#define ADD_FOUR(sums, a, b) add_four(sums, a, b)
#define EVEN(x) _mm512_and_si512(x, _mm512_set1_epi16(255))
#define ODD(x) _mm512_srli_epi16(x, 8)
#define EVEN_SIGNED(x) _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8)
#define ODD_SIGNED(x) _mm512_srai_epi16(x, 8)
#elif defined(__aarch64__)
#define ADD_FOUR(sums, a, b) add_four(sums, a, b)
#define EVEN(x) ((Whole)((uint16x8_t)(x) & 255))
#define ODD(x) ((Whole)((uint16x8_t)(x) >> 8))
#define EVEN_SIGNED(x) ((Whole)((int16x8_t)(x) << 8 >> 8))
#define ODD_SIGNED(x) ((Whole)((int16x8_t)(x) >> 8))
#else
#define ADD_FOUR(sums, a, b) add_four(sums, a, b)
#define EVEN(x) _mm256_and_si256(x, _mm256_set1_epi16(255))
#define ODD(x) _mm256_srli_epi16(x, 8)
#define EVEN_SIGNED(x) _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8)
#define ODD_SIGNED(x) _mm256_srai_epi16(x, 8)
#endif

#define INLINE static inline __attribute__((always_inline))
#ifdef __aarch64__
INLINE Whole add_products(Whole sums, int16x8_t a, int16x8_t b) {
    return vaddq_s32(sums, vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b)));
}
#endif
#ifdef EVEN
INLINE Whole add_four(Whole sums, Whole a, Whole b) {
    sums = ADD_PRODUCTS(sums, EVEN(a), EVEN_SIGNED(b));
    return ADD_PRODUCTS(sums, ODD(a), ODD_SIGNED(b));
}
#endif
typedef float Floats __attribute__((vector_size(4 * WIDE), aligned(4)));
typedef int32_t Ints __attribute__((vector_size(4 * WIDE), aligned(4)));
typedef int16_t Shorts __attribute__((vector_size(2 * WIDE), aligned(2)));
typedef uint8_t Bytes __attribute__((vector_size(WIDE), aligned(1)));
typedef uint16_t Halves __attribute__((vector_size(2 * WIDE), aligned(2)));

static const Ints LANE = LANES;

INLINE Floats load(const float *from) { return *(const Floats *)from; }
INLINE void store(float *to, Floats x) { *(Floats *)to = x; }
INLINE Floats all(float x) { return x - (Floats){0}; }
INLINE Floats choose(Ints which, Floats a, Floats b) {
    return (Floats)((which & (Ints)a) | (~which & (Ints)b));
}
INLINE Floats larger(Floats a, Floats b) { return MAX(a, b); } /* b where either is no number */
INLINE Ints larger_of(Ints a, Ints b) { return ((a > b) & a) | (~(a > b) & b); }
INLINE Floats smaller(Floats a, Floats b) { return MIN(a, b); }

/* From and to a tensor of float32, or of bfloat16 if `is_bf16`. */
INLINE Floats read(const void *from, int64_t at, int is_bf16) {
    if (!is_bf16) return load((const float *)from + at);
    return (Floats)(__builtin_convertvector(*(const Halves *)((const uint16_t *)from + at), Ints) << 16);
}
INLINE void write(void *to, int64_t at, Floats x, int is_bf16) {
    if (!is_bf16) {
        store((float *)to + at, x);
        return;
    }
    Ints bits = (Ints)x;
    bits += 0x7fff + ((bits >> 16) & 1); /* to the nearest, ties to even */
    *(Halves *)((uint16_t *)to + at) = __builtin_convertvector(bits >> 16, Halves);
}

/* What lies `distance` lanes away joins each lane, until all lanes have the same. */
INLINE Floats neighbours(Floats x, int distance) { return __builtin_shuffle(x, LANE ^ distance); }
INLINE Floats sum(Floats x) {
    for (int distance = 1; distance < WIDE; distance *= 2) x += neighbours(x, distance);
    return x;
}
INLINE Floats highest(Floats x) {
    for (int distance = 1; distance < WIDE; distance *= 2) x = larger(neighbours(x, distance), x);
    return x;
}

/* Of values up to 0; 2^-126 for all below -126. The polynomial is off by 1e-7 of 2^x between -1/2 and 1/2. */
INLINE Floats power_of_two(Floats x) {
    const Floats rounding = all(12582912.f); /* 1.5 * 2^23: a sum with it has no digits after the point */
    x = larger(all(-126), x);
    Floats rounded = x + rounding, rest = x - (rounded - rounding);
    Floats y = all(1.535336188319500e-4f);
    y = y * rest + 1.339887440266574e-3f;
    y = y * rest + 9.618437357674640e-3f;
    y = y * rest + 5.550332471162809e-2f;
    y = y * rest + 2.402264791363012e-1f;
    y = y * rest + 6.931472028550421e-1f;
    y = y * rest + 1;
    return y * (Floats)(((Ints)rounded + 127) << 23);
}

/* Rows become columns: at each step, blocks beside the diagonal change places. */
INLINE void transpose(Floats rows[WIDE]) {
    for (int size = 1; size < WIDE; size *= 2) {
        Ints odd = (LANE & size) != 0, upper = LANE + (odd & (WIDE - size)), lower = upper + size;
        for (int i = 0; i < WIDE; i++) {
            if (i & size) continue;
            Floats above = rows[i], below = rows[i + size];
            rows[i] = __builtin_shuffle(above, below, upper);
            rows[i + size] = __builtin_shuffle(above, below, lower);
        }
    }
}

#endif
