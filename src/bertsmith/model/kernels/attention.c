/* softmax(q k^T / sqrt(D)) v within each sequence of a packed batch, on one core, in float32.
 *
 * Torch's operations bring rows of D values into the order of heads and back, fill sequences up to registers,
 * and carry every score through memory three times. Here six queries at a time meet all keys of their
 * sequence, and their scores stay in the nearest cache.
 *
 * N tokens, B sequences, L tokens of one, A heads, D head size.
 */
#include "kernels.h"
#include "registers.h"

enum { COLUMNS = 2 }; /* registers of values at a time */

/* One head of one sequence, in order and in float32. Filler follows the last key, up to a whole register. */
typedef struct {
    int64_t length, filled, size; /* L, L with filler, D */
    float *queries;               /* (L, D), times what scores are to be times */
    float *keys;                  /* (filled / WIDE, D, WIDE) */
    float *values;                /* (L, D) */
    float *scores;                /* (ROWS, filled) */
} Head;

/* Scores of `rows` queries with the keys of `blocks` registers from key `at` on; `top` keeps the highest. */
INLINE void score(const Head *head, const float *queries, int64_t at, Floats *top, const int rows,
                  const int blocks) {
    const float *keys = head->keys + at * head->size;
    Floats found[ROWS][BLOCKS] = {0};
    for (int64_t d = 0; d < head->size; d++) {
        Floats key[BLOCKS];
        for (int b = 0; b < blocks; b++) key[b] = load(keys + (b * head->size + d) * WIDE);
        for (int r = 0; r < rows; r++) {
            Floats query = all(queries[r * head->size + d]);
            for (int b = 0; b < blocks; b++) found[r][b] += query * key[b];
        }
    }
    const int real = head->length - at - (blocks - 1) * WIDE; /* keys of the last block */
    for (int r = 0; r < rows; r++)
        for (int b = 0; b < blocks; b++) {
            Floats x = found[r][b];
            if (b == blocks - 1) x = choose(LANE < real, x, all(-INFINITY));
            store(head->scores + r * head->filled + at + b * WIDE, x);
            top[r] = larger(top[r], x);
        }
}

/* A row's scores become weights. Returns what they are to be multiplied with for a sum of 1. */
INLINE Floats weigh(float *scores, int64_t filled, Floats top) {
    const Floats most = highest(top);
    Floats sums = {0};
    for (int64_t j = 0; j < filled; j += WIDE) {
        Floats weights = power_of_two(load(scores + j) - most);
        store(scores + j, weights);
        sums += weights;
    }
    return 1 / sum(sums);
}

/* Values mixed by the weights of `rows` queries: `columns` registers of each from dimension `at` on. */
INLINE void mix(const Head *head, int64_t at, const Floats *shares, void *to, int64_t width, int half,
                const int rows, const int columns) {
    Floats mixed[ROWS][COLUMNS] = {0};
    for (int64_t j = 0; j < head->length; j++) {
        Floats value[COLUMNS];
        for (int c = 0; c < columns; c++) value[c] = load(head->values + j * head->size + at + c * WIDE);
        for (int r = 0; r < rows; r++) {
            Floats weight = all(head->scores[r * head->filled + j]);
            for (int c = 0; c < columns; c++) mixed[r][c] += weight * value[c];
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++)
            write(to, r * width + at + c * WIDE, mixed[r][c] * shares[r], half);
}

/* `rows` queries from `first` on; `to` has the first one's place, the next one's is `width` values later. */
INLINE void attend_rows(const Head *head, int64_t first, void *to, int64_t width, int half, const int rows) {
    const float *queries = head->queries + first * head->size;
    Floats top[ROWS];
    int64_t at = 0;
    for (int r = 0; r < rows; r++) top[r] = all(-INFINITY);
    for (; at + BLOCKS * WIDE <= head->filled; at += BLOCKS * WIDE)
        score(head, queries, at, top, rows, BLOCKS);
    for (; at < head->filled; at += WIDE) score(head, queries, at, top, rows, 1);
    for (int r = 0; r < rows; r++) top[r] = weigh(head->scores + r * head->filled, head->filled, top[r]);
    for (at = 0; at + COLUMNS * WIDE <= head->size; at += COLUMNS * WIDE)
        mix(head, at, top, to, width, half, rows, COLUMNS);
    for (; at < head->size; at += WIDE) mix(head, at, top, to, width, half, rows, 1);
}

/* Queries, keys and values of a head out of a packed batch, whose tokens have 3 `width` values each. */
INLINE void gather(const Head *head, const void *from, int64_t width, int half) {
    const int64_t size = head->size, token = 3 * width;
    const Floats scale = all(1.44269504088896f / sqrtf(size)); /* log2(e) too: weights are powers of two */
    for (int64_t i = 0; i < head->length; i++)
        for (int64_t d = 0; d < size; d += WIDE) {
            store(head->queries + i * size + d, read(from, i * token + d, half) * scale);
            store(head->values + i * size + d, read(from, i * token + 2 * width + d, half));
        }
    for (int64_t i = 0; i < head->filled; i += WIDE)
        for (int64_t d = 0; d < size; d += WIDE) {
            Floats tile[WIDE];
            for (int r = 0; r < WIDE; r++)
                tile[r] = i + r < head->length ? read(from, (i + r) * token + width + d, half) : (Floats){0};
            transpose(tile);
            for (int r = 0; r < WIDE; r++) store(head->keys + i * size + (d + r) * WIDE, tile[r]);
        }
}

INLINE int64_t whole_registers(int64_t length) { return (length + WIDE - 1) / WIDE * WIDE; }

INLINE void attend_head(const char *from, char *to, int64_t length, int64_t size, int64_t width,
                        float *scratch, const int half) {
    const int64_t filled = whole_registers(length), token = width * (half ? 2 : 4); /* bytes of a result */
    const Head head = {length, filled, size, scratch, scratch + filled * size, scratch + 2 * filled * size,
                       scratch + 3 * filled * size};
    gather(&head, from, width, half);
    if (length < ROWS)
        for (int64_t i = 0; i < length; i++) attend_rows(&head, i, to + i * token, width, half, 1);
    else
        for (int64_t i = 0; i < length; i += ROWS) {
            if (i > length - ROWS) i = length - ROWS; /* the last ones, some of them once more */
            attend_rows(&head, i, to + i * token, width, half, ROWS);
        }
}

int64_t attention_scratch(const int64_t *lengths, int64_t sequences, int64_t size) {
    int64_t longest = 1;
    for (int64_t b = 0; b < sequences; b++) longest = lengths[b] > longest ? lengths[b] : longest;
    return whole_registers(longest) * (3 * size + ROWS); /* a multiple of WIDE */
}

void attend_part(const void *qkv, const int64_t *lengths, int64_t sequences, int64_t heads, int64_t size,
                 int half, void *to, float *scratch, int part, int parts) {
    const int64_t width = heads * size, bytes = half ? 2 : 4;
    int64_t first = 0;
    for (int64_t b = 0; b < sequences; first += lengths[b++])
        for (int64_t a = 0; a < heads; a++) {
            if ((b * heads + a) % parts != part) continue;
            const char *from = (const char *)qkv + (first * 3 * width + a * size) * bytes;
            char *place = (char *)to + (first * width + a * size) * bytes;
            if (half)
                attend_head(from, place, lengths[b], size, width, scratch, 1);
            else
                attend_head(from, place, lengths[b], size, width, scratch, 0);
        }
}

int attend(const void *qkv, const int64_t *lengths, int64_t sequences, int64_t heads, int64_t size, int half,
           void *to) {
    float *scratch = aligned_alloc(64, 4 * attention_scratch(lengths, sequences, size));
    if (!scratch) return 1;
    attend_part(qkv, lengths, sequences, heads, size, half, to, scratch, 0, 1);
    free(scratch);
    return 0;
}
