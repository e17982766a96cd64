/* Rotary positions: pairs of values turn by an angle that grows with their position (Su et al. 2021). */
#ifndef ROTARY_H
#define ROTARY_H
#include "registers.h"

/* Of eight pairs at a time, on every processor: is_bf16 a head of 16 values. */
enum { PAIRS = 8 };
typedef float Eight __attribute__((vector_size(4 * PAIRS), aligned(4)));
typedef int32_t EightInts __attribute__((vector_size(4 * PAIRS), aligned(4)));
typedef uint16_t EightHalves __attribute__((vector_size(2 * PAIRS), aligned(2)));

/* As `read` and `write`. */
INLINE Eight read_eight(const void *from, int64_t at, int is_bf16) {
    if (!is_bf16) return *(const Eight *)((const float *)from + at);
    const EightHalves found = *(const EightHalves *)((const uint16_t *)from + at);
    return (Eight)(__builtin_convertvector(found, EightInts) << 16);
}
INLINE void write_eight(void *to, int64_t at, Eight x, int is_bf16) {
    if (!is_bf16) {
        *(Eight *)((float *)to + at) = x;
        return;
    }
    EightInts bits = (EightInts)x;
    bits += 0x7fff + ((bits >> 16) & 1);
    *(EightHalves *)((uint16_t *)to + at) = __builtin_convertvector(bits >> 16, EightHalves);
}

/* A token's vectors of so many values, one behind the other, in place: value d and d + size / 2 are a pair.
 * cosines, sines (size / 2,) are those of its position; `direction` is 1, or -1 for the way back. */
INLINE void rotate_vectors(void *vectors, int64_t count, int64_t size, const float *cosines,
                           const float *sines, float direction, const int is_bf16) {
    for (int64_t d = 0; d < size / 2; d += PAIRS) {
        const Eight cosine = read_eight(cosines, d, 0), sine = read_eight(sines, d, 0) * direction;
        for (int64_t v = 0; v < count; v++) {
            const int64_t first = v * size + d, second = first + size / 2;
            const Eight x = read_eight(vectors, first, is_bf16), y = read_eight(vectors, second, is_bf16);
            write_eight(vectors, first, x * cosine - y * sine, is_bf16);
            write_eight(vectors, second, y * cosine + x * sine, is_bf16);
        }
    }
}

#endif
