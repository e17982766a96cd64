/* Attention's products: of six vectors with many, and sums of many vectors for six. */
#ifndef ATTENTION_TILES_H
#define ATTENTION_TILES_H
#include "registers.h"

enum { COLUMNS = 2 }; /* registers of values at a time */

/* Keys, or queries, from the first one up to the last one. */
typedef struct {
    int64_t begin, end;
} Span;

/* Loops whose sums fill all registers: none are left for what lies around them. */
#define ALONE static __attribute__((noinline))

/* Products of ROWS vectors with those in `blocks` registers, which stand as columns (blocks, size, WIDE):
 * (ROWS, blocks WIDE), `stride` values from row to row. */
INLINE void meet_some(const float *vectors, const float *columns, int64_t size, float *to, int64_t stride,
                      const int blocks) {
    Floats found[ROWS][BLOCKS] = {0};
    for (int64_t d = 0; d < size; d++) {
        Floats column[BLOCKS];
        for (int b = 0; b < blocks; b++) column[b] = load(columns + (b * size + d) * WIDE);
        for (int r = 0; r < ROWS; r++) {
            Floats x = all(vectors[r * size + d]);
            for (int b = 0; b < blocks; b++) found[r][b] += x * column[b];
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int b = 0; b < blocks; b++) store(to + r * stride + b * WIDE, found[r][b]);
}
ALONE void meet_one(const float *vectors, const float *columns, int64_t size, float *to, int64_t stride) {
    meet_some(vectors, columns, size, to, stride, 1);
}
ALONE void meet_more(const float *vectors, const float *columns, int64_t size, float *to, int64_t stride) {
    meet_some(vectors, columns, size, to, stride, BLOCKS);
}

/* The same with all of these keys, or values: to[j] is that of key j. */
INLINE void meet(const float *vectors, const float *columns, int64_t size, Span keys, float *to,
                 int64_t stride) {
    int64_t at = keys.begin;
    for (; at + BLOCKS * WIDE <= keys.end; at += BLOCKS * WIDE)
        meet_more(vectors, columns + at * size, size, to + at, stride);
    for (; at < keys.end; at += WIDE) meet_one(vectors, columns + at * size, size, to + at, stride);
}

/* Sums over `count` vectors, (count, size), of which weights[r across + j along] is for vector j in row r. */
typedef struct {
    const float *weights;
    int64_t across, along;
    const float *vectors;
    int64_t count, size;
    const float *before; /* what they are added to, (ROWS, size), or NULL */
} Mix;

INLINE void mix_some(const Mix *job, int64_t at, Floats sums[ROWS][COLUMNS], const int columns) {
    const float *weights = job->weights, *vectors = job->vectors + at;
    const int64_t across = job->across, along = job->along, size = job->size;
    Floats mixed[ROWS][COLUMNS] = {0};
    for (int r = 0; r < ROWS && job->before; r++)
        for (int c = 0; c < columns; c++) mixed[r][c] = load(job->before + r * size + at + c * WIDE);
    for (int64_t left = job->count; left > 0; left--, weights += along, vectors += size) {
        Floats vector[COLUMNS];
        for (int c = 0; c < columns; c++) vector[c] = load(vectors + c * WIDE);
        for (int r = 0; r < ROWS; r++) {
            Floats weight = all(weights[r * across]);
            for (int c = 0; c < columns; c++) mixed[r][c] += weight * vector[c];
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < columns; c++) sums[r][c] = mixed[r][c];
}
ALONE void mix_one(const Mix *job, int64_t at, Floats sums[ROWS][COLUMNS]) { mix_some(job, at, sums, 1); }
ALONE void mix_more(const Mix *job, int64_t at, Floats sums[ROWS][COLUMNS]) {
    mix_some(job, at, sums, COLUMNS);
}

/* All of it, times a row's share, or 1: the first `rows` written out, `token` values from one to the next. */
INLINE void mix(const Mix *job, const Floats *shares, void *to, int64_t token, int64_t rows, const int is_bf16) {
    for (int64_t at = 0; at < job->size; at += COLUMNS * WIDE) {
        Floats sums[ROWS][COLUMNS];
        const int columns = at + COLUMNS * WIDE <= job->size ? COLUMNS : 1;
        if (columns == COLUMNS)
            mix_more(job, at, sums);
        else
            mix_one(job, at, sums);
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c++)
                write(to, r * token + at + c * WIDE, shares ? sums[r][c] * shares[r] : sums[r][c], is_bf16);
    }
}

#endif
