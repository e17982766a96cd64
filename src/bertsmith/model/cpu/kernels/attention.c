/* softmax(q k^T / sqrt(D)) v within each sequence of a packed batch, and its gradient, in float32.
 *
 * Torch's operations bring rows of D values into the order of heads and back, fill sequences up to registers,
 * and carry every score through memory three times. Here six queries at a time meet all keys of their
 * sequence, or those in their window, and their scores stay in the nearest cache. A head of a sequence is one
 * core's, whichever.
 *
 * N tokens, B sequences, L tokens of one, A heads, D head size.
 *
 * Weights of query i and key j lie at i stride + j: a square, whose rows are as far apart as it is wide. With
 * a window they are nearer, and share the places of keys that are out of reach.
 */
#include "attention_tiles.h"
#include "kernels.h"
#include "team.h"

enum { PASS = 16 * ROWS };  /* queries whose scores lie side by side where distances count */
enum { STEP = 8 * ROWS };   /* keys whose products with the distances do; both are whole registers, too */
enum { STRIP = 32 * ROWS }; /* queries whose gradients lie side by side */
enum { KEPT = 1024 };       /* weights of a query; more are computed once more for the gradient */

INLINE int64_t whole_lines(int64_t length) { return (length + LINE - 1) / LINE * LINE; }
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* One head of one sequence. */
typedef struct {
    int64_t length, filled; /* L, up to a whole line */
    int64_t size, token;    /* D, values from a token to the next one */
    int64_t window, stride; /* the largest distance that is seen, no more than L */
    const char *mask;       /* what weights are to be times, or NULL */
    const float *bias;      /* what the product with a key is added to, at its distance from the query, or NULL */
    float *to_bias;         /* its gradient */
    char *weights;          /* where they are kept for the gradient, or NULL */
    Floats scale;           /* of scores: with log2(e), that weights are powers of two */
    float *queries;         /* (L, D) and zeros up to a whole number of ROWS, in float32 as all that follow */
    float *keys;            /* (filled / WIDE, D, WIDE) */
    float *scores;          /* (ROWS, stride) */
    Distances distances;    /* of this head, `width` values from row to row */
    const int64_t *rows;
    int64_t width;
} Head;
INLINE int is_disentangled(const Distances *distances) { return distances->keys || distances->queries; }

/* What is within a distance of ROWS tokens from `first` on. */
INLINE Span within(int64_t first, int64_t distance, int64_t length) {
    return (Span){most(0, first - distance), least(length, first + ROWS + distance)};
}

/* Whole lines of keys whose weights are computed for these queries: so many that the weights of six keys side
 * by side, for all queries that see one of them, have places, if only for one that is zero. */
INLINE Span keys_of(const Head *head, int64_t first) {
    const Span near = within(first, head->window + ROWS - 1, head->filled);
    return (Span){near.begin / LINE * LINE, whole_lines(near.end)};
}
INLINE int64_t stride_of(int64_t length, int64_t window) {
    return least(whole_lines(length), whole_lines(2 * (window + ROWS - 1) + ROWS + LINE - 1));
}
INLINE int64_t cells_of(int64_t length, int64_t window) {
    return length ? (length - 1) * stride_of(length, window) + whole_lines(length) : 0;
}

/* What is out of a query's reach, and padding, has no weight: scores[j] is that of key j. */
INLINE void hide(const Head *head, int64_t query, Span keys, float *scores) {
    const int64_t low = query - head->window, high = least(head->length, query + head->window + 1);
    for (int64_t j = keys.begin; j < least(low, keys.end); j += WIDE)
        store(scores + j, choose(LANE >= (int)(low - j), load(scores + j), all(-INFINITY)));
    for (int64_t j = most(keys.begin, high / WIDE * WIDE); j < keys.end; j += WIDE)
        store(scores + j, choose(LANE < (int)(high - j), load(scores + j), all(-INFINITY)));
}

/* A query's products become weights. Returns what they are to be multiplied with for a sum of 1. */
INLINE Floats weigh(const Head *head, int64_t query, Span keys, float *scores) {
    Floats top = all(-INFINITY), sums = {0};
    if (head->bias)
        for (int64_t j = keys.begin; j < keys.end; j += WIDE)
            store(scores + j, load(scores + j) + load(head->bias + j - query));
    hide(head, query, keys, scores);
    for (int64_t j = keys.begin; j < keys.end; j += WIDE) top = larger(top, load(scores + j));
    top = highest(top);
    for (int64_t j = keys.begin; j < keys.end; j += WIDE) {
        Floats weights = power_of_two((load(scores + j) - top) * head->scale);
        store(scores + j, weights);
        sums += weights;
    }
    return 1 / sum(sums);
}

/* Weights of ROWS queries and these keys, and the share of each row. */
INLINE void weigh_rows(const Head *head, int64_t first, Span keys, Floats *shares) {
    float *scores = head->scores - keys.begin;
    meet(head->queries + first * head->size, head->keys, head->size, keys, scores, head->stride);
    for (int r = 0; r < ROWS; r++) shares[r] = weigh(head, first + r, keys, scores + r * head->stride);
}

/* In training a row's weights are kept, and some dropped. */
INLINE void keep_and_drop(const Head *head, int64_t row, Span keys, float *scores, Floats share,
                          const int is_bf16) {
    for (int64_t j = keys.begin; j < keys.end; j += WIDE, scores += WIDE) {
        const int64_t at = row * head->stride + j;
        const Floats weights = load(scores);
        if (head->weights) write(head->weights, at, weights * share, is_bf16);
        if (head->mask) store(scores, weights * read(head->mask, at, is_bf16));
    }
}

/* ROWS queries from `first` on. */
INLINE void attend_rows(const Head *head, const float *values, int64_t first, char *to, const int is_bf16) {
    const Span keys = keys_of(head, first), seen = within(first, head->window, head->length);
    const int64_t rows = least(ROWS, head->length - first), width = head->token / 3;
    Floats shares[ROWS];
    weigh_rows(head, first, keys, shares);
    if (head->weights || head->mask)
        for (int r = 0; r < rows; r++)
            keep_and_drop(head, first + r, keys, head->scores + r * head->stride, shares[r], is_bf16);
    const Mix mixed = {.weights = head->scores + seen.begin - keys.begin,
                       .across = head->stride,
                       .along = 1,
                       .vectors = values + seen.begin * head->size,
                       .count = seen.end - seen.begin,
                       .size = head->size};
    mix(&mixed, shares, to + first * width * (is_bf16 ? 2 : 4), width, rows, is_bf16);
}

/* Rows of `token` values from one to the next, (L, D): in order, then zeros up to a whole number of ROWS; or
 * as columns (filled / WIDE, D, WIDE). */
INLINE void copy_rows(const char *from, int64_t token, int64_t length, int64_t size, float *to,
                      const int is_bf16) {
    for (int64_t i = 0; i < length; i++)
        for (int64_t d = 0; d < size; d += WIDE) store(to + i * size + d, read(from, i * token + d, is_bf16));
    for (int64_t i = length; i % ROWS; i++)
        for (int64_t d = 0; d < size; d += WIDE) store(to + i * size + d, (Floats){0});
}
INLINE void copy_columns(const char *from, const Head *head, float *to, const int is_bf16) {
    for (int64_t i = 0; i < head->filled; i += WIDE)
        for (int64_t d = 0; d < head->size; d += WIDE) {
            Floats tile[WIDE];
            for (int r = 0; r < WIDE; r++)
                tile[r] = i + r < head->length ? read(from, (i + r) * head->token + d, is_bf16) : (Floats){0};
            transpose(tile);
            for (int r = 0; r < WIDE; r++) store(to + i * head->size + (d + r) * WIDE, tile[r]);
        }
}

/* The next (L, D) of the scratch, with room for zeros. */
INLINE int64_t room_for(int64_t length, int64_t size) { return (whole_lines(length) + LINE) * size; }
INLINE float *take(float **scratch, int64_t count) {
    float *taken = *scratch;
    *scratch += count;
    return taken;
}

INLINE void attend_head(Head *head, const char *from, char *to, float *scratch, const int is_bf16) {
    const int64_t one = room_for(head->length, head->size), third = head->token / 3 * (is_bf16 ? 2 : 4);
    float *values = take(&scratch, one);
    head->queries = take(&scratch, one);
    head->keys = take(&scratch, one);
    head->scores = scratch;
    copy_rows(from, head->token, head->length, head->size, head->queries, is_bf16);
    copy_columns(from + third, head, head->keys, is_bf16);
    copy_rows(from + 2 * third, head->token, head->length, head->size, values, is_bf16);
    for (int64_t i = 0; i < head->length; i += ROWS) attend_rows(head, values, i, to, is_bf16);
}

/* The rows of distances from `first` on, each `step` further, as columns (count / WIDE, D, WIDE). */
INLINE void copy_distances(const Head *head, const float *table, int64_t first, int64_t step, int64_t count,
                           float *to) {
    for (int64_t w = 0; w < count; w += WIDE)
        for (int64_t d = 0; d < head->size; d += WIDE) {
            Floats tile[WIDE];
            for (int r = 0; r < WIDE; r++) {
                const int64_t distance = first + (w + r) * step, most = head->length - 1;
                const int is_met = -most <= distance && distance <= most;
                tile[r] = is_met ? load(table + head->rows[distance] * head->width + d) : (Floats){0};
            }
            transpose(tile);
            for (int r = 0; r < WIDE; r++) store(to + w * head->size + (d + r) * WIDE, tile[r]);
        }
}

/* Of a head where distances count: products of six queries with keys of distances, from the furthest one behind
 * the last query to the nearest; and of a STEP of keys with queries of distances, from the furthest one before
 * on. So those of a query, or of a key, are in the order of what they meet, one place on from row to row. */
typedef struct {
    float *keys, *queries, *key_rows; /* (distances / WIDE, D, WIDE) twice, (L, D) */
    float *products;                  /* (ROWS, 2 filled) or (STEP, met_stride) */
    int64_t count;                    /* of distances, with room for whole registers of keys */
} Far;
enum { MET_STRIDE = PASS + STEP + 2 * LINE };
INLINE int64_t distances_of(int64_t length) { return whole_lines(length - 1 + whole_lines(length)); }
INLINE int64_t far_cells(int64_t length, int64_t size) {
    const int64_t count = distances_of(length);
    return 2 * count * size + room_for(length, size) + most(ROWS * count, STEP * MET_STRIDE) + LINE;
}

/* Scores of ROWS queries from `first` on with the keys of their distances are added to those with the keys. */
INLINE void add_far_keys(const Head *head, const Far *far, int64_t first, float *scores) {
    const int64_t nearest = head->length - 1 - first; /* column of key 0's distance from the first query */
    const int64_t begin = most(0, nearest - ROWS + 1) / WIDE * WIDE;
    const Span columns = {begin, least(far->count, whole_lines(nearest + head->filled))};
    meet(head->queries + first * head->size, far->keys, head->size, columns, far->products - begin,
         far->count);
    for (int r = 0; r < ROWS && first + r < head->length; r++)
        for (int64_t j = 0; j < head->filled; j += WIDE) {
            float *score = scores + r * head->stride + j;
            store(score, load(score) + load(far->products + r * far->count + nearest - r - begin + j));
        }
}

/* Scores of a pass of queries with a STEP of keys, of these with the queries of their distances. */
INLINE void add_far_queries(const Head *head, const Far *far, Span pass, int64_t step, float *scores) {
    const int64_t zero = head->length - 1; /* column of the distance 0 */
    const int64_t origin = most(0, zero + pass.begin - (step + STEP - 1)) / WIDE * WIDE;
    for (int64_t j = step; j < least(step + STEP, head->length); j += ROWS) {
        const int64_t begin = most(0, zero + pass.begin - (j + ROWS - 1)) / WIDE * WIDE;
        const int64_t end = least(far->count, (zero + pass.end - j + WIDE - 1) / WIDE * WIDE);
        meet(far->key_rows + j * head->size, far->queries, head->size, (Span){begin, end},
             far->products + (j - step) * MET_STRIDE - origin, MET_STRIDE);
    }
    for (int64_t j = step; j < least(step + STEP, head->filled); j += WIDE)
        for (int64_t i = pass.begin; i < pass.end; i += WIDE) {
            Floats tile[WIDE];
            for (int r = 0; r < WIDE; r++) { /* no key lies before the first distance, but padding may */
                const int64_t column = most(0, zero + i - (j + r) - origin);
                tile[r] = load(far->products + (j - step + r) * MET_STRIDE + column);
            }
            transpose(tile);
            for (int r = 0; r < WIDE; r++) {
                float *score = scores + (i - pass.begin + r) * head->stride + j;
                store(score, load(score) + tile[r]);
            }
        }
}

INLINE void attend_head_far(Head *head, const char *from, char *to, float *scratch, const int is_bf16) {
    const int64_t one = room_for(head->length, head->size), third = head->token / 3 * (is_bf16 ? 2 : 4);
    const int64_t size = head->size, stride = head->stride, width = head->token / 3;
    const Span keys = {0, head->filled};
    float *values = take(&scratch, one);
    head->queries = take(&scratch, one);
    head->keys = take(&scratch, one);
    Far far = {.count = distances_of(head->length)};
    far.keys = take(&scratch, far.count * size);
    far.queries = take(&scratch, far.count * size);
    far.key_rows = take(&scratch, one);
    far.products = take(&scratch, most(ROWS * far.count, STEP * MET_STRIDE) + LINE);
    float *scores = scratch; /* (PASS, stride) */
    copy_rows(from, head->token, head->length, size, head->queries, is_bf16);
    copy_rows(from + third, head->token, head->length, size, far.key_rows, is_bf16);
    copy_columns(from + third, head, head->keys, is_bf16);
    copy_rows(from + 2 * third, head->token, head->length, size, values, is_bf16);
    const int64_t last = head->length - 1;
    if (head->distances.keys) copy_distances(head, head->distances.keys, last, -1, far.count, far.keys);
    if (head->distances.queries) copy_distances(head, head->distances.queries, -last, 1, far.count, far.queries);
    for (int64_t begin = 0; begin < head->length; begin += PASS) {
        const int64_t rows = least(PASS, head->length - begin);
        for (int64_t i = 0; i < rows; i += ROWS) {
            meet(head->queries + (begin + i) * size, head->keys, size, keys, scores + i * stride, stride);
            if (head->distances.keys) add_far_keys(head, &far, begin + i, scores + i * stride);
        }
        const Span pass = {begin, begin + whole_lines(rows)};
        for (int64_t j = 0; head->distances.queries && j < head->length; j += STEP)
            add_far_queries(head, &far, pass, j, scores);
        for (int64_t i = 0; i < rows; i += ROWS) {
            Floats shares[ROWS];
            const int64_t count = least(ROWS, rows - i);
            for (int r = 0; r < count; r++)
                shares[r] = weigh(head, begin + i + r, keys, scores + (i + r) * stride);
            const Mix mixed = {.weights = scores + i * stride,
                               .across = stride,
                               .along = 1,
                               .vectors = values,
                               .count = head->length,
                               .size = size};
            mix(&mixed, shares, to + (begin + i) * width * (is_bf16 ? 2 : 4), width, count, is_bf16);
        }
    }
}

/* What one head of a sequence needs for its gradient beside. */
typedef struct {
    const Head *head;
    float *keys, *given;        /* (L, D) */
    float *values;              /* (filled / WIDE, D, WIDE) */
    float *dropped, *to_scores; /* of a strip: weights times their mask, and the gradient of scores */
    float *to_keys, *to_values; /* (L, D), of the strips so far */
    char *to;                   /* of the first query's gradient; keys and values follow */
    int64_t third;              /* bytes from one to the next */
} Back;

/* Queries of a strip, and the place of the first one's weight of key 0 in it. */
typedef struct {
    int64_t begin, end, origin;
} Strip;

INLINE int64_t place(const Back *back, Strip strip, int64_t i, int64_t j) {
    return (i - strip.begin) * back->head->stride + j - strip.origin;
}

/* The gradient of the scores of ROWS queries from `first` on. */
INLINE void scores_back(const Back *back, Strip strip, int64_t first, const int is_bf16) {
    const Head *head = back->head;
    const int64_t size = head->size, stride = head->stride;
    const Span keys = keys_of(head, first);
    const Floats scale = all(1 / sqrtf(size));
    Floats shares[ROWS];
    meet(back->given + first * size, back->values, size, keys, back->to_scores + place(back, strip, first, 0),
         stride);
    if (!head->weights) weigh_rows(head, first, keys, shares);
    for (int r = 0; r < ROWS && first + r < head->length; r++) {
        const int64_t kept = (first + r) * stride, own = place(back, strip, first + r, 0);
        float *weights = back->dropped + own, *row = back->to_scores + own;
        const float *scores = head->scores + r * stride - keys.begin;
        Floats sums = {0};
        for (int64_t j = keys.begin; j < keys.end; j += WIDE) {
            Floats weight, to_weight = load(row + j);
            weight = head->weights ? read(head->weights, kept + j, is_bf16) : load(scores + j) * shares[r];
            if (head->mask) to_weight *= read(head->mask, kept + j, is_bf16);
            store(weights + j, weight);
            store(row + j, to_weight);
            sums += weight * to_weight;
        }
        const Floats mean = sum(sums);
        for (int64_t j = keys.begin; j < keys.end; j += WIDE) {
            const Floats weight = load(weights + j);
            store(row + j, weight * scale * (load(row + j) - mean));
            if (head->mask) store(weights + j, weight * read(head->mask, kept + j, is_bf16));
        }
        if (!head->to_bias) continue;
        float *to_bias = head->to_bias - (first + r);
        for (int64_t j = keys.begin; j < keys.end; j += WIDE)
            store(to_bias + j, load(to_bias + j) + load(row + j));
    }
}

/* The gradient of ROWS queries from `first` on. */
INLINE void queries_back(const Back *back, Strip strip, int64_t first, const int is_bf16) {
    const Head *head = back->head;
    const Span seen = within(first, head->window, head->length);
    scores_back(back, strip, first, is_bf16);
    const Mix mixed = {.weights = back->to_scores + place(back, strip, first, seen.begin),
                       .across = head->stride,
                       .along = 1,
                       .vectors = back->keys + seen.begin * head->size,
                       .count = seen.end - seen.begin,
                       .size = head->size};
    mix(&mixed, NULL, back->to + first * head->token * (is_bf16 ? 2 : 4), head->token,
        least(ROWS, head->length - first), is_bf16);
}

/* A strip's part of the gradient of ROWS keys or values from `first` on: kept where more strips follow. */
INLINE void part_back(const Back *back, Strip strip, int64_t first, const float *weights,
                      const float *vectors, float *so_far, char *to, const int is_bf16) {
    const Head *head = back->head;
    const Span by = within(first, head->window, head->length);
    const int64_t begin = most(by.begin, strip.begin), size = head->size;
    so_far += first * size;
    const Mix mixed = {.weights = weights + place(back, strip, begin, first),
                       .across = 1,
                       .along = head->stride,
                       .vectors = vectors + begin * size,
                       .count = least(by.end, strip.end) - begin,
                       .size = size,
                       .before = by.begin < strip.begin ? so_far : NULL};
    if (by.end > strip.end)
        mix(&mixed, NULL, so_far, size, ROWS, 0);
    else
        mix(&mixed, NULL, to + first * head->token * (is_bf16 ? 2 : 4), head->token,
            least(ROWS, head->length - first), is_bf16);
}

INLINE void strip_back(const Back *back, Strip strip, const int is_bf16) {
    const Head *head = back->head;
    const int64_t end = least(head->length, strip.end + head->window);
    for (int64_t i = strip.begin; i < strip.end; i += ROWS) queries_back(back, strip, i, is_bf16);
    for (int64_t j = most(0, strip.begin - head->window) / ROWS * ROWS; j < end; j += ROWS) {
        char *keys = back->to + back->third, *values = keys + back->third;
        part_back(back, strip, j, back->to_scores, head->queries, back->to_keys, keys, is_bf16);
        part_back(back, strip, j, back->dropped, back->given, back->to_values, values, is_bf16);
    }
}

INLINE int64_t strip_cells(int64_t stride) { return STRIP * (stride + 1) + 2 * LINE; }

INLINE void attend_head_back(Head *head, const char *from, const char *given, char *to, float *scratch,
                             const int is_bf16) {
    const int64_t one = room_for(head->length, head->size), cells = strip_cells(head->stride);
    const int64_t third = head->token / 3 * (is_bf16 ? 2 : 4);
    head->queries = take(&scratch, one);
    head->keys = take(&scratch, one);
    head->scores = take(&scratch, ROWS * head->stride);
    const Back back = {.head = head,
                       .keys = take(&scratch, one),
                       .given = take(&scratch, one),
                       .values = take(&scratch, one),
                       .to_keys = take(&scratch, one),
                       .to_values = take(&scratch, one),
                       .dropped = take(&scratch, cells),
                       .to_scores = take(&scratch, cells),
                       .to = to,
                       .third = third};
    copy_rows(from, head->token, head->length, head->size, head->queries, is_bf16);
    copy_rows(from + third, head->token, head->length, head->size, back.keys, is_bf16);
    copy_rows(given, head->token / 3, head->length, head->size, back.given, is_bf16);
    copy_columns(from + 2 * third, head, back.values, is_bf16);
    if (!head->weights) copy_columns(from + third, head, head->keys, is_bf16);
    for (int64_t i = 0; i < head->length; i += STRIP)
        strip_back(&back, (Strip){i, least(head->length, i + STRIP), keys_of(head, i).begin}, is_bf16);
}

int64_t attention_scratch(const Attention *job) {
    int64_t longest = 1;
    for (int64_t b = 0; b < job->sequences; b++) longest = most(longest, job->lengths[b]);
    const int64_t stride = stride_of(longest, least(job->window, longest));
    const int64_t one = room_for(longest, job->size);
    if (is_disentangled(&job->distances))
        return 3 * one + far_cells(longest, job->size) + PASS * stride;
    return job->given ? 7 * one + ROWS * stride + 2 * strip_cells(stride) : 3 * one + ROWS * stride;
}

INLINE void attend_some(const Attention *job, float *scratch, int part, int parts, const int is_bf16) {
    const int64_t width = job->heads * job->size, bytes = is_bf16 ? 2 : 4;
    int64_t first = 0, masked = 0, kept = 0;
    const int64_t types = 1 + !!job->distances.keys + !!job->distances.queries;
    for (int64_t b = 0; b < job->sequences; first += job->lengths[b++])
        for (int64_t a = 0; a < job->heads; a++) {
            /* one core adds up a share of the bias's gradient, in the order of the sequences */
            const int64_t number = (job->to_bias ? b % SHARES : b) * job->heads + a;
            const int64_t length = job->lengths[b], window = least(job->window, length);
            const int64_t stride = stride_of(length, window), cells = cells_of(length, window);
            const int64_t three = (first * 3 * width + a * job->size) * bytes;
            const int64_t one = (first * width + a * job->size) * bytes;
            const char *from = (const char *)job->qkv + three, *given = job->given;
            Head head = {.length = length,
                         .filled = whole_lines(length),
                         .size = job->size,
                         .token = 3 * width,
                         .window = window,
                         .stride = stride,
                         .distances = job->distances,
                         .rows = job->rows,
                         .width = width,
                         .scale = all(1.44269504088896f / sqrtf(types * job->size))};
            if (head.distances.keys) head.distances.keys += a * job->size;
            if (head.distances.queries) head.distances.queries += a * job->size;
            if (job->mask) head.mask = (const char *)job->mask + masked * bytes;
            if (job->weights && stride <= KEPT) head.weights = (char *)job->weights + kept * bytes;
            if (job->bias) head.bias = job->bias + (2 * a + 1) * job->reach;
            if (job->to_bias) head.to_bias = job->to_bias + (2 * number + 1) * job->reach;
            masked += cells;
            kept += stride <= KEPT ? cells : 0;
            if (number % parts != part) continue;
            if (types > 1)
                attend_head_far(&head, from, (char *)job->to + one, scratch, is_bf16);
            else if (given)
                attend_head_back(&head, from, given + one, (char *)job->to + three, scratch, is_bf16);
            else
                attend_head(&head, from, (char *)job->to + one, scratch, is_bf16);
        }
}

int64_t attention_cells(const Attention *job, int only_kept) {
    int64_t cells = 0;
    for (int64_t b = 0; b < job->sequences; b++) {
        const int64_t length = job->lengths[b], window = least(job->window, length);
        if (!only_kept || stride_of(length, window) <= KEPT) cells += job->heads * cells_of(length, window);
    }
    return cells;
}

void attend_part(const Attention *job, float *scratch, int part, int parts) {
    if (job->is_bf16)
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
