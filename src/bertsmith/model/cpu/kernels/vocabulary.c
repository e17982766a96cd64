/* A tile of the vocabulary loss on its way through the nearest caches: twice read, once written.
 *
 * T vocabulary rows of the tile, K masked positions, a multiple of WIDE.
 */
#include "kernels.h"
#include "team.h"

enum { STRIP = 64 / WIDE, BEFORE_ADDING = 32 }; /* registers of columns; rows whose sum is one summand */

typedef struct {
    void *scores;
    const float *bias;
    int64_t rows, columns;
    int is_bf16, threads;
    float *largest, *total, *shrink;
} Tile;

INLINE void exponentiate_strip(const Tile *tile, int64_t at, const int is_bf16, const int registers) {
    const Floats log2e = all(1.44269504088896f);
    Floats top[STRIP], total[STRIP];
    for (int b = 0; b < registers; b++) top[b] = load(tile->largest + at + b * WIDE);
    for (int64_t t = 0; t < tile->rows; t++)
        for (int b = 0; b < registers; b++) {
            Floats score = read(tile->scores, t * tile->columns + at + b * WIDE, is_bf16) + tile->bias[t];
            top[b] = larger(top[b], score);
        }
    for (int b = 0; b < registers; b++) {
        const int64_t column = at + b * WIDE;
        Floats shrink = power_of_two((load(tile->largest + column) - top[b]) * log2e);
        store(tile->shrink + column, shrink);
        store(tile->largest + column, top[b]);
        total[b] = load(tile->total + column) * shrink;
    }
    for (int64_t first = 0, t = 0; first < tile->rows; first += BEFORE_ADDING) {
        Floats sums[STRIP] = {0};
        for (; t < tile->rows && t < first + BEFORE_ADDING; t++)
            for (int b = 0; b < registers; b++) {
                const int64_t cell = t * tile->columns + at + b * WIDE;
                Floats score = read(tile->scores, cell, is_bf16) + tile->bias[t];
                Floats exponential = power_of_two((score - top[b]) * log2e);
                write(tile->scores, cell, exponential, is_bf16);
                sums[b] += exponential;
            }
        for (int b = 0; b < registers; b++) total[b] += sums[b];
    }
    for (int b = 0; b < registers; b++) store(tile->total + at + b * WIDE, total[b]);
}

INLINE void exponentiate_columns(const Tile *tile, int64_t at, int64_t end, const int is_bf16) {
    for (; at + STRIP * WIDE <= end; at += STRIP * WIDE) exponentiate_strip(tile, at, is_bf16, STRIP);
    for (; at < end; at += WIDE) exponentiate_strip(tile, at, is_bf16, 1);
}

static void exponentiate_share(void *given) {
    const Tile *tile = given;
    const Share share = my_share(tile->threads);
    const int64_t registers = tile->columns / WIDE;
    const int64_t at = registers * share.part / share.parts * WIDE;
    const int64_t end = registers * (share.part + 1) / share.parts * WIDE;
    if (tile->is_bf16)
        exponentiate_columns(tile, at, end, 1);
    else
        exponentiate_columns(tile, at, end, 0);
}

void exponentiate(void *scores, const float *bias, int64_t rows, int64_t columns, int is_bf16, int threads,
                  float *largest, float *total, float *shrink) {
    Tile tile = {scores, bias, rows, columns, is_bf16, threads, largest, total, shrink};
    run(exponentiate_share, &tile, threads);
}
