/* softmax(q k^T / sqrt(D)) v within each sequence of a packed batch, on one core, in float32.
 *
 * Torch's operations bring rows of D values into the order of heads and back, fill sequences up to registers, and
 * write every score to memory three times. Here six queries at a time meet all keys of their sequence, and their
 * scores never leave the nearest cache. GCC's vectors of one register make it the same code for AVX2 and AVX-512.
 *
 * N tokens, B sequences, L tokens of one, A heads, D head size.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#ifdef __AVX512F__
enum { WIDE = 16, PANEL = 4 }; /* values of a register; registers of keys at a time, of 32 */
#define LANES {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
#else
enum { WIDE = 8, PANEL = 2 }; /* of 16 */
#define LANES {0, 1, 2, 3, 4, 5, 6, 7}
#endif
enum { ROWS = 6, COLUMNS = 2 }; /* queries at a time; registers of values at a time */

#define INLINE static inline __attribute__((always_inline))
typedef float Floats __attribute__((vector_size(4 * WIDE), aligned(4)));
typedef int32_t Ints __attribute__((vector_size(4 * WIDE), aligned(4)));
typedef uint16_t Halves __attribute__((vector_size(2 * WIDE), aligned(2)));

static const Ints LANE = LANES;

INLINE Floats load(const float *from) { return *(const Floats *)from; }
INLINE void store(float *to, Floats x) { *(Floats *)to = x; }
INLINE Floats all(float x) { return x - (Floats){0}; }
INLINE Floats choose(Ints which, Floats a, Floats b) { return (Floats)((which & (Ints)a) | (~which & (Ints)b)); }
INLINE Floats larger(Floats a, Floats b) { return choose(a > b, a, b); }

/* From and to a tensor of float32 or bfloat16. */
INLINE Floats read(const void *from, int64_t at, int half) {
    if (!half) return load((const float *)from + at);
    return (Floats)(__builtin_convertvector(*(const Halves *)((const uint16_t *)from + at), Ints) << 16);
}
INLINE void write(void *to, int64_t at, Floats x, int half) {
    if (!half) { store((float *)to + at, x); return; }
    Ints bits = (Ints)x;
    bits += 0x7fff + ((bits >> 16) & 1); /* to the nearest, ties to even */
    *(Halves *)((uint16_t *)to + at) = __builtin_convertvector(bits >> 16, Halves);
}

/* What lies `distance` lanes away joins each lane, until all lanes have the same. */
INLINE Floats neighbours(Floats x, int distance) {
    return __builtin_shuffle(x, LANE ^ distance);
}
INLINE Floats sum(Floats x) {
    for (int distance = 1; distance < WIDE; distance *= 2) x += neighbours(x, distance);
    return x;
}
INLINE Floats highest(Floats x) {
    for (int distance = 1; distance < WIDE; distance *= 2) x = larger(neighbours(x, distance), x);
    return x;
}

/* Of values up to 0; 2^-126 for all below. The polynomial's error is 1e-7 of 2^x between -1/2 and 1/2. */
INLINE Floats power_of_two(Floats x) {
    const Floats rounding = all(12582912.f); /* 1.5 * 2^23: a sum with it has no digits after the point */
    x = choose(x < -126, all(-126), x);
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

/* Rows become columns: in each step, blocks beside the diagonal change places. */
INLINE void transpose(Floats rows[WIDE]) {
    for (int size = 1; size < WIDE; size *= 2) {
        Ints odd = (LANE & size) != 0, upper = LANE + (odd & (WIDE - size)), lower = LANE + size + (odd & (WIDE - size));
        for (int i = 0; i < WIDE; i++) {
            if (i & size) continue;
            Floats above = rows[i], below = rows[i + size];
            rows[i] = __builtin_shuffle(above, below, upper);
            rows[i + size] = __builtin_shuffle(above, below, lower);
        }
    }
}

/* Scores of `rows` queries (rows, D) with `panel` blocks of keys, each (D, WIDE). Keys from `real` on are filler. */
INLINE void score(const float *queries, const float *keys, int64_t size, float *scores, int64_t filled, Floats *top,
                  int64_t real, const int rows, const int panel) {
    Floats found[ROWS][PANEL] = {0};
    for (int64_t d = 0; d < size; d++) {
        Floats key[PANEL];
        for (int p = 0; p < panel; p++) key[p] = load(keys + (p * size + d) * WIDE);
        for (int r = 0; r < rows; r++) {
            Floats query = all(queries[r * size + d]);
            for (int p = 0; p < panel; p++) found[r][p] += query * key[p];
        }
    }
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < panel; p++) {
            Floats x = found[r][p];
            if (p == panel - 1) x = choose(LANE + (panel - 1) * WIDE < (int32_t)real, x, all(-INFINITY));
            store(scores + r * filled + p * WIDE, x);
            top[r] = larger(top[r], x);
        }
}

/* Scores become weights, whose sums are still to divide by. */
INLINE Floats weigh(float *scores, int64_t filled, Floats top) {
    Floats sums = {0}, highest_score = highest(top);
    for (int64_t j = 0; j < filled; j += WIDE) {
        Floats weights = power_of_two(load(scores + j) - highest_score);
        store(scores + j, weights);
        sums += weights;
    }
    return 1 / sum(sums);
}

/* Values (L, D) mixed by the weights of `rows` queries. */
INLINE void mix(const float *weights, int64_t filled, const float *values, int64_t length, int64_t size,
                const Floats *shares, void *to, int64_t to_width, int half, const int rows, const int columns) {
    Floats mixed[ROWS][COLUMNS] = {0};
    for (int64_t j = 0; j < length; j++) {
        Floats value[COLUMNS];
        for (int c = 0; c < columns; c++) value[c] = load(values + j * size + c * WIDE);
        for (int r = 0; r < rows; r++) {
            Floats weight = all(weights[r * filled + j]);
            for (int c = 0; c < columns; c++) mixed[r][c] += weight * value[c];
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) write(to, r * to_width + c * WIDE, mixed[r][c] * shares[r], half);
}

INLINE void attend_rows(const float *queries, const float *keys, const float *values, float *scores, int64_t length,
                        int64_t filled, int64_t size, void *to, int64_t to_width, int half, const int rows) {
    Floats top[ROWS];
    int64_t j = 0, d = 0;
    for (int r = 0; r < rows; r++) top[r] = all(-INFINITY);
    for (; j + PANEL * WIDE <= filled; j += PANEL * WIDE)
        score(queries, keys + j * size, size, scores + j, filled, top, length - j, rows, PANEL);
    for (; j < filled; j += WIDE) score(queries, keys + j * size, size, scores + j, filled, top, length - j, rows, 1);
    for (int r = 0; r < rows; r++) top[r] = weigh(scores + r * filled, filled, top[r]);
    for (; d + COLUMNS * WIDE <= size; d += COLUMNS * WIDE)
        mix(scores, filled, values + d, length, size, top, (char *)to + d * (half ? 2 : 4), to_width, half, rows, COLUMNS);
    for (; d < size; d += WIDE)
        mix(scores, filled, values + d, length, size, top, (char *)to + d * (half ? 2 : 4), to_width, half, rows, 1);
}

/* One head of one sequence: `from` is its first query, keys and values follow `width` later, the next token 3 width. */
INLINE void attend_head(const void *from, void *to, int64_t width, int64_t length, int64_t size, float *scratch, int half) {
    const int64_t filled = (length + WIDE - 1) / WIDE * WIDE, wide = 3 * width;
    float *queries = scratch, *keys = queries + filled * size, *values = keys + filled * size,
          *scores = values + filled * size;
    const Floats scale = all(1.44269504088896f / sqrtf(size)); /* powers are of two: log2(e) */
    for (int64_t j = 0; j < filled; j += WIDE)
        for (int64_t d = 0; d < size; d += WIDE) {
            Floats tile[WIDE];
            for (int i = 0; i < WIDE; i++)
                tile[i] = j + i < length ? read(from, (j + i) * wide + width + d, half) : (Floats){0};
            transpose(tile);
            for (int i = 0; i < WIDE; i++) store(keys + j * size + (d + i) * WIDE, tile[i]);
        }
    for (int64_t i = 0; i < length; i++)
        for (int64_t d = 0; d < size; d += WIDE) {
            store(queries + i * size + d, read(from, i * wide + d, half) * scale);
            store(values + i * size + d, read(from, i * wide + 2 * width + d, half));
        }
    const int64_t bytes = half ? 2 : 4;
    if (length < ROWS) {
        for (int64_t i = 0; i < length; i++)
            attend_rows(queries + i * size, keys, values, scores, length, filled, size, (char *)to + i * width * bytes, width,
                        half, 1);
        return;
    }
    for (int64_t i = 0; i < length; i += ROWS) {
        if (i > length - ROWS) i = length - ROWS; /* the last ones, some of them again */
        attend_rows(queries + i * size, keys, values, scores, length, filled, size, (char *)to + i * width * bytes, width, half,
                    ROWS);
    }
}

/* qkv (N, 3, A, D) -> to (N, A, D), of float32 or, if `half`, bfloat16; lengths (B,); D a multiple of 16.
 * Returns 1 where there is no memory, else 0. */
int attend(const void *qkv, const int64_t *lengths, int64_t sequences, int64_t heads, int64_t size, int half, void *to) {
    int64_t longest = 0, width = heads * size, first = 0, bytes = half ? 2 : 4;
    for (int64_t b = 0; b < sequences; b++) longest = lengths[b] > longest ? lengths[b] : longest;
    longest = (longest + WIDE - 1) / WIDE * WIDE;
    float *scratch = aligned_alloc(64, (longest * (3 * size + ROWS) * 4 + 63) / 64 * 64);
    if (!scratch) return 1;
    for (int64_t b = 0; b < sequences; first += lengths[b++])
        for (int64_t a = 0; a < heads; a++) {
            const char *from = (const char *)qkv + (first * 3 * width + a * size) * bytes;
            char *place = (char *)to + (first * width + a * size) * bytes;
            if (half) attend_head(from, place, width, lengths[b], size, scratch, 1);
            else attend_head(from, place, width, lengths[b], size, scratch, 0);
        }
    free(scratch);
    return 0;
}
