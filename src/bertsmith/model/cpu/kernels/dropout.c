/* Dropout's masks: a random byte for each value, from a number that stands for its place and a seed.
 *
 * So neither the processor's registers nor the number of threads change a mask.
 */
#include <string.h>

#include "kernels.h"
#include "team.h"

enum { BYTES = 64, WORDS = BYTES / 4, FEWEST = 1 << 16 }; /* of a block; values worth waking a thread for */

typedef struct {
    char *to;
    int64_t count;
    uint64_t seed;
    int dropped, is_bf16, threads;
    float scale;
} Mask;

/* Hash of 32 bits without visible bias (C. Wellons, hash-prospector: triple32). */
INLINE Ints mixed(Ints x) {
    typedef uint32_t Bits __attribute__((vector_size(4 * WIDE), aligned(4)));
    Bits y = (Bits)x;
    y ^= y >> 17;
    y *= 0xed5ad4bbu;
    y ^= y >> 11;
    y *= 0xac4c1b51u;
    y ^= y >> 15;
    y *= 0x31848babu;
    y ^= y >> 14;
    return (Ints)y;
}

/* Value i of a block is decided by byte i / WORDS of word i % WORDS. */
INLINE void write_block(const Mask *mask, int64_t block, void *to, const int is_bf16) {
    for (int word = 0; word < WORDS; word += WIDE) {
        Ints random = mixed((LANE + (int32_t)(block * WORDS + word)) ^ (int32_t)mask->seed);
        random = mixed(random ^ (int32_t)(mask->seed >> 32));
        for (int byte = 0; byte < 4; byte++) {
            Ints keep = (random >> 8 * byte & 255) >= mask->dropped;
            write(to, byte * WORDS + word, choose(keep, all(mask->scale), all(0)), is_bf16);
        }
    }
}

INLINE void write_mask(const Mask *mask, int64_t block, int64_t end, const int is_bf16) {
    const int64_t size = is_bf16 ? 2 : 4;
    for (; block < end; block++) {
        char last[BYTES * 4], *to = mask->to + block * BYTES * size;
        const int64_t left = mask->count - block * BYTES;
        if (left >= BYTES)
            write_block(mask, block, to, is_bf16);
        else {
            write_block(mask, block, last, is_bf16);
            memcpy(to, last, left * size);
        }
    }
}

static void write_share(void *given) {
    const Mask *mask = given;
    const Share share = my_share(mask->threads);
    const int64_t blocks = (mask->count + BYTES - 1) / BYTES;
    const int64_t first = blocks * share.part / share.parts, end = blocks * (share.part + 1) / share.parts;
    if (mask->is_bf16)
        write_mask(mask, first, end, 1);
    else
        write_mask(mask, first, end, 0);
}

void dropout_mask(void *to, int64_t count, uint64_t seed, int dropped, float scale, int is_bf16, int threads) {
    Mask mask = {to, count, seed, dropped, is_bf16, count < FEWEST ? 1 : threads, scale};
    run(write_share, &mask, mask.threads);
}
