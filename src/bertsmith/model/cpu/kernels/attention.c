/* softmax(q k^T / sqrt(D)) v within each sequence of a packed batch, and its gradient, in float32.
 *
 * Torch's operations bring rows of D values into the order of heads and back, fill sequences up to registers,
 * and carry every score through memory three times. Here six queries at a time meet all keys of their
 * sequence, and their scores stay in the nearest cache. A head of a sequence is one core's, whichever.
 *
 * N tokens, B sequences, L tokens of one, A heads, D head size.
 */
#include "kernels.h"
#include "registers.h"
#include "team.h"

enum { COLUMNS = 2 }; /* registers of values at a time */

/* One head of one sequence, in order and in float32. Filler follows the last key, up to a whole line. */
typedef struct {
    int64_t length, filled, size; /* L, L with filler, D */
    float *queries;               /* (L, D), times what scores are to be times */
    float *keys;                  /* (filled / WIDE, D, WIDE) */
    float *values;                /* (L, D) */
    float *scores;                /* (ROWS, filled) */
    const char *mask;             /* (L, filled), or NULL: what weights are to be times */
    char *weights;                /* (L, filled), or NULL: where they are kept for the gradient */
} Head;

/* Products of `rows` vectors with those in `blocks` registers, which stand as columns (blocks, size, WIDE). */
INLINE void meet(const float *vectors, const float *columns, int64_t size, Floats found[ROWS][BLOCKS],
                 const int rows, const int blocks) {
    for (int r = 0; r < rows; r++)
        for (int b = 0; b < blocks; b++) found[r][b] = (Floats){0};
    for (int64_t d = 0; d < size; d++) {
        Floats column[BLOCKS];
        for (int b = 0; b < blocks; b++) column[b] = load(columns + (b * size + d) * WIDE);
        for (int r = 0; r < rows; r++) {
            Floats x = all(vectors[r * size + d]);
            for (int b = 0; b < blocks; b++) found[r][b] += x * column[b];
        }
    }
}

/* Sums over `length` vectors of so many registers, (length, size), of which weights[r across + j along] is for
 * vector j in row r. */
INLINE void mix(const float *weights, int64_t across, int64_t along, const float *vectors, int64_t length,
                int64_t size, Floats mixed[ROWS][COLUMNS], const int rows, const int columns) {
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) mixed[r][c] = (Floats){0};
    for (int64_t j = 0; j < length; j++) {
        Floats vector[COLUMNS];
        for (int c = 0; c < columns; c++) vector[c] = load(vectors + j * size + c * WIDE);
        for (int r = 0; r < rows; r++) {
            Floats weight = all(weights[r * across + j * along]);
            for (int c = 0; c < columns; c++) mixed[r][c] += weight * vector[c];
        }
    }
}

/* The same for all of `size`, times a row's share, or 1, and written out: `token` values from row to row. */
INLINE void mix_whole(const float *weights, int64_t across, int64_t along, const float *vectors,
                      int64_t length, int64_t size, const Floats *shares, char *to, int64_t token,
                      const int half, const int rows) {
    for (int64_t at = 0; at < size; at += COLUMNS * WIDE) {
        Floats mixed[ROWS][COLUMNS];
        const int columns = at + COLUMNS * WIDE <= size ? COLUMNS : 1;
        if (columns == COLUMNS)
            mix(weights, across, along, vectors + at, length, size, mixed, rows, COLUMNS);
        else
            mix(weights, across, along, vectors + at, length, size, mixed, rows, 1);
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c++)
                write(to, r * token + at + c * WIDE, shares ? mixed[r][c] * shares[r] : mixed[r][c], half);
    }
}

/* Scores of `rows` queries with the keys of `blocks` registers from key `at` on; `top` keeps the highest. */
INLINE void score(const Head *head, const float *queries, int64_t at, Floats *top, const int rows,
                  const int blocks) {
    Floats found[ROWS][BLOCKS];
    meet(queries, head->keys + at * head->size, head->size, found, rows, blocks);
    for (int r = 0; r < rows; r++)
        for (int b = 0; b < blocks; b++) {
            const int real = head->length - at - b * WIDE; /* keys of the block and after it */
            Floats x = real < WIDE ? choose(LANE < real, found[r][b], all(-INFINITY)) : found[r][b];
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

/* In training a row's weights are kept, and some dropped. */
INLINE void keep_and_drop(const Head *head, int64_t row, float *scores, Floats share, const int half) {
    for (int64_t j = 0; j < head->filled; j += WIDE) {
        const int64_t at = row * head->filled + j;
        const Floats weights = load(scores + j);
        if (head->weights) write(head->weights, at, weights * share, half);
        if (head->mask) store(scores + j, weights * read(head->mask, at, half));
    }
}

/* `rows` queries from `first` on, whose results are `token` values apart. */
INLINE void attend_rows(const Head *head, int64_t first, char *to, int64_t token, const int half,
                        const int rows) {
    const float *queries = head->queries + first * head->size;
    Floats top[ROWS];
    int64_t at = 0;
    for (int r = 0; r < rows; r++) top[r] = all(-INFINITY);
    for (; at + BLOCKS * WIDE <= head->filled; at += BLOCKS * WIDE)
        score(head, queries, at, top, rows, BLOCKS);
    for (; at < head->filled; at += WIDE) score(head, queries, at, top, rows, 1);
    for (int r = 0; r < rows; r++) {
        float *scores = head->scores + r * head->filled;
        top[r] = weigh(scores, head->filled, top[r]);
        if (head->weights || head->mask) keep_and_drop(head, first + r, scores, top[r], half);
    }
    mix_whole(head->scores, head->filled, 1, head->values, head->length, head->size, top,
              to + first * token * (half ? 2 : 4), token, half, rows);
}

/* Rows of `token` values from one to the next, (L, D): times `scale`; or as columns (filled / WIDE, D, WIDE). */
INLINE void copy_rows(const char *from, int64_t token, int64_t length, int64_t size, Floats scale, float *to,
                      const int half) {
    for (int64_t i = 0; i < length; i++)
        for (int64_t d = 0; d < size; d += WIDE)
            store(to + i * size + d, read(from, i * token + d, half) * scale);
}
INLINE void copy_columns(const char *from, int64_t token, int64_t length, int64_t filled, int64_t size,
                         float *to, const int half) {
    for (int64_t i = 0; i < filled; i += WIDE)
        for (int64_t d = 0; d < size; d += WIDE) {
            Floats tile[WIDE];
            for (int r = 0; r < WIDE; r++)
                tile[r] = i + r < length ? read(from, (i + r) * token + d, half) : (Floats){0};
            transpose(tile);
            for (int r = 0; r < WIDE; r++) store(to + i * size + (d + r) * WIDE, tile[r]);
        }
}

INLINE int64_t whole_lines(int64_t length) { return (length + LINE - 1) / LINE * LINE; }

/* One head of a sequence: where its queries and its results begin, and its weights and their mask, or NULL. */
INLINE void attend_head(const Attention *job, int64_t length, const char *from, const char *mask,
                        char *weights, char *to, float *scratch, const int half) {
    const int64_t filled = whole_lines(length), size = job->size, width = job->heads * size;
    const int64_t third = width * (half ? 2 : 4); /* bytes of a token's queries */
    const Head head = {.length = length,
                       .filled = filled,
                       .size = size,
                       .queries = scratch,
                       .keys = scratch + filled * size,
                       .values = scratch + 2 * filled * size,
                       .scores = scratch + 3 * filled * size,
                       .mask = mask,
                       .weights = weights};
    const Floats scale = all(1.44269504088896f / sqrtf(size)); /* log2(e) too: weights are powers of two */
    copy_rows(from, 3 * width, length, size, scale, head.queries, half);
    copy_columns(from + third, 3 * width, length, filled, size, head.keys, half);
    copy_rows(from + 2 * third, 3 * width, length, size, all(1), head.values, half);
    if (length < ROWS)
        for (int64_t i = 0; i < length; i++) attend_rows(&head, i, to, width, half, 1);
    else
        for (int64_t i = 0; i < length; i += ROWS) {
            if (i > length - ROWS) i = length - ROWS; /* the last ones, some of them once more */
            attend_rows(&head, i, to, width, half, ROWS);
        }
}

/* What one head of a sequence needs for its gradient, in order and in float32. */
typedef struct {
    int64_t length, filled, size;
    float *queries, *keys, *given; /* (L, D) */
    float *values;                 /* (filled / WIDE, D, WIDE) */
    float *dropped;                /* (L, filled): weights times their mask */
    float *to_scores;              /* (L, filled) */
    const char *mask, *weights;    /* (L, filled) */
} Back;

/* The gradient of the scores of `rows` queries from `first` on. */
INLINE void scores_back(const Back *back, int64_t first, const int half, const int rows) {
    const int64_t filled = back->filled, size = back->size;
    const float *given = back->given + first * size;
    const Floats scale = all(1 / sqrtf(size));
    float *rows_of = back->to_scores + first * filled;
    Floats found[ROWS][BLOCKS];
    int64_t at = 0;
    for (; at + BLOCKS * WIDE <= filled; at += BLOCKS * WIDE) {
        meet(given, back->values + at * size, size, found, rows, BLOCKS);
        for (int r = 0; r < rows; r++)
            for (int b = 0; b < BLOCKS; b++) store(rows_of + r * filled + at + b * WIDE, found[r][b]);
    }
    for (; at < filled; at += WIDE) {
        meet(given, back->values + at * size, size, found, rows, 1);
        for (int r = 0; r < rows; r++) store(rows_of + r * filled + at, found[r][0]);
    }
    for (int r = 0; r < rows; r++) {
        const int64_t row = (first + r) * filled;
        Floats sums = {0};
        for (int64_t j = row; j < row + filled; j += WIDE) {
            const Floats weights = read(back->weights, j, half);
            const Floats mask = back->mask ? read(back->mask, j, half) : all(1);
            const Floats to_weights = load(back->to_scores + j) * mask;
            store(back->dropped + j, weights * mask);
            store(back->to_scores + j, to_weights);
            sums += weights * to_weights;
        }
        const Floats mean = sum(sums);
        for (int64_t j = row; j < row + filled; j += WIDE) {
            const Floats weights = read(back->weights, j, half) * scale;
            store(back->to_scores + j, weights * (load(back->to_scores + j) - mean));
        }
    }
}

/* The gradient of `rows` queries, keys or values from `first` on, which are `token` values apart. */
INLINE void queries_back(const Back *back, int64_t first, char *to, int64_t token, const int half,
                         const int rows) {
    scores_back(back, first, half, rows);
    mix_whole(back->to_scores + first * back->filled, back->filled, 1, back->keys, back->length, back->size,
              NULL, to + first * token * (half ? 2 : 4), token, half, rows);
}
INLINE void keys_back(const Back *back, int64_t first, char *to, int64_t token, int64_t third,
                      const int half, const int rows) {
    char *keys = to + third + first * token * (half ? 2 : 4), *values = keys + third;
    mix_whole(back->to_scores + first, 1, back->filled, back->queries, back->length, back->size, NULL, keys,
              token, half, rows);
    mix_whole(back->dropped + first, 1, back->filled, back->given, back->length, back->size, NULL, values,
              token, half, rows);
}

INLINE void attend_head_back(const Attention *job, int64_t length, const char *from, const char *given,
                             const char *mask, const char *weights, char *to, float *scratch,
                             const int half) {
    const int64_t filled = whole_lines(length), size = job->size, width = job->heads * size;
    const int64_t third = width * (half ? 2 : 4), one = filled * size;
    float *squares = scratch + 4 * one;
    const Back back = {.length = length,
                       .filled = filled,
                       .size = size,
                       .queries = scratch,
                       .keys = scratch + one,
                       .given = scratch + 2 * one,
                       .values = scratch + 3 * one,
                       .dropped = squares,
                       .to_scores = squares + filled * filled,
                       .mask = mask,
                       .weights = weights};
    copy_rows(from, 3 * width, length, size, all(1), back.queries, half);
    copy_rows(from + third, 3 * width, length, size, all(1), back.keys, half);
    copy_columns(from + 2 * third, 3 * width, length, filled, size, back.values, half);
    copy_rows(given, width, length, size, all(1), back.given, half);
    if (length < ROWS) {
        for (int64_t i = 0; i < length; i++) queries_back(&back, i, to, 3 * width, half, 1);
        for (int64_t i = 0; i < length; i++) keys_back(&back, i, to, 3 * width, third, half, 1);
        return;
    }
    for (int64_t i = 0; i < length; i += ROWS) {
        if (i > length - ROWS) i = length - ROWS;
        queries_back(&back, i, to, 3 * width, half, ROWS);
    }
    for (int64_t i = 0; i < length; i += ROWS) {
        if (i > length - ROWS) i = length - ROWS;
        keys_back(&back, i, to, 3 * width, third, half, ROWS);
    }
}

int64_t attention_scratch(const Attention *job) {
    int64_t filled = LINE;
    for (int64_t b = 0; b < job->sequences; b++)
        filled = whole_lines(job->lengths[b]) > filled ? whole_lines(job->lengths[b]) : filled;
    return job->given ? filled * (4 * job->size + 2 * filled) : filled * (3 * job->size + ROWS);
}

INLINE void attend_some(const Attention *job, float *scratch, int part, int parts, const int half) {
    const int64_t width = job->heads * job->size, bytes = half ? 2 : 4;
    int64_t first = 0, square = 0, number = 0;
    for (int64_t b = 0; b < job->sequences; first += job->lengths[b++])
        for (int64_t a = 0; a < job->heads; a++, number++) {
            const int64_t length = job->lengths[b], weights = square * bytes;
            const int64_t three = (first * 3 * width + a * job->size) * bytes;
            const int64_t one = (first * width + a * job->size) * bytes;
            square += length * whole_lines(length);
            if (number % parts != part) continue;
            const char *from = (const char *)job->qkv + three;
            const char *mask = job->mask ? (const char *)job->mask + weights : NULL;
            char *kept = job->weights ? (char *)job->weights + weights : NULL;
            if (job->given)
                attend_head_back(job, length, from, (const char *)job->given + one, mask, kept,
                                 (char *)job->to + three, scratch, half);
            else
                attend_head(job, length, from, mask, kept, (char *)job->to + one, scratch, half);
        }
}

void attend_part(const Attention *job, float *scratch, int part, int parts) {
    if (job->half)
        attend_some(job, scratch, part, parts, 1);
    else
        attend_some(job, scratch, part, parts, 0);
}

typedef struct {
    const Attention *attention;
    float *scratch;
    int64_t of_one;
    int threads;
} Team;

static void attend_share(void *given) {
    const Team *team = given;
    const Share share = my_share(team->threads);
    attend_part(team->attention, team->scratch + share.part * team->of_one, share.part, share.parts);
}

int attend(const Attention *job, int threads) {
    const int64_t of_one = attention_scratch(job);
    float *scratch = aligned_alloc(64, 4 * of_one * threads);
    if (!scratch) return 1;
    Team team = {job, scratch, of_one, threads};
    run(attend_share, &team, threads);
    free(scratch);
    return 0;
}
