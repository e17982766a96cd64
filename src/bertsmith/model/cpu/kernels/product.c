/* A layer's products, of float32 or of int16 or int8 codes.
 *
 * oneDNN's products of few rows reach half of what the processor can do, and each operation between two
 * products goes through memory. Here a tile of 6 rows and 64 columns is summed in registers (16 columns with
 * AVX2). A sum is of one order whatever lies beside it. Threads share the columns.
 *
 * Of int16 a processor multiplies twice as many at once as of float32. Each 128 values of a row become whole
 * numbers up to 11,585, by a scale of their own, and those of a weight such that no sum of 128 products
 * leaves int32: that sum is exact.
 *
 * Of int8 it multiplies four times as many. A row has one scale and, since its values seldom lie evenly about
 * 0, a code of its own for 0; a weight has one scale for each output. A whole row's sum is exact, and what the
 * code for 0 has added to it, that code times the sum of the weights' codes, is taken off again.
 */
#include "activations.h"
#include "product.h"

enum { PANEL = 16, PER_PANEL = PANEL / WIDE, PANELS = BLOCKS / PER_PANEL }; /* of columns; of a tile */
enum { DEPTH = 384 };     /* float32 products of a sum; longer ones are sums of such: more exact */
enum { LARGEST = 11585 }; /* code of a state in int16 */
enum { STEPS = 253 };     /* between the smallest and the largest code in int8: 1 to 254, and rounding */

typedef int32_t __attribute__((may_alias)) Value; /* a float32, two int16 or four int8 */
typedef enum { FLOAT32, INT16, INT8 } Kind;
INLINE Kind kind_of(const Linear *linear) { return linear->sums ? INT8 : linear->scales ? INT16 : FLOAT32; }
INLINE int64_t values_of(int64_t inputs, Kind kind) { return inputs >> kind; }

INLINE int64_t groups_of(int64_t inputs) { return (inputs + GROUP - 1) / GROUP; }

int64_t rounded_bytes(int64_t rows, int64_t inputs) {
    return rows * (2 * inputs + 4 * (groups_of(inputs) + 1)); /* of int16, which take more than int8 */
}

Rounded rounded_at(void *place, int64_t rows, int64_t inputs) {
    return (Rounded){place, (float *)((int16_t *)place + rows * inputs)};
}

/* A row in int8: its codes are from 1 on, its scale and, behind it, the code for 0. No number, or an infinite
 * one, makes its scale none. */
INLINE void round_row(const float *x, int64_t size, uint8_t *codes, float *scale) {
    Floats low = {0}, high = {0}, none = {0};
    for (int64_t k = 0; k < size; k += WIDE) {
        const Floats values = load(x + k);
        low = smaller(values, low);
        high = larger(values, high);
        none += values * 0;
    }
    const Floats range = highest(high) + highest(-low);
    const Floats share = STEPS / range, zero = -highest(-low) * share; /* up to 0 */
    const Floats shift = 12582912.f + 1 - (zero + 12582912.f - 12582912.f);
    for (int64_t k = 0; k < size; k += WIDE) {
        const Ints whole = (Ints)(load(x + k) * share + shift);
        *(Bytes *)(codes + k) = __builtin_convertvector(whole, Bytes);
    }
    scale[0] = range[0] / STEPS + sum(none)[0];
    ((int32_t *)scale)[1] = ((Ints)shift)[0] & 0xff;
}

/* Of a row's values in one group. The largest is no number where one of them is none, and so is its scale. */
INLINE void round_group(const float *x, int64_t size, int16_t *codes, float *scale) {
    Ints top = {0};
    for (int64_t k = 0; k < size; k += WIDE) {
        const Ints bits = (Ints)load(x + k) & 0x7fffffff;
        top = larger_of(bits, top);
    }
    for (int distance = 1; distance < WIDE; distance *= 2)
        top = larger_of(__builtin_shuffle(top, LANE ^ distance), top);
    const float largest = ((Floats)top)[0], share = LARGEST / largest;
    for (int64_t k = 0; k < size; k += WIDE) { /* a sum with 1.5 * 2^23 ends in the whole number's bits */
        const Ints whole = (Ints)(load(x + k) * share + 12582912.f);
        *(Shorts *)(codes + k) = __builtin_convertvector(whole, Shorts);
    }
    *scale = largest / LARGEST;
}

static void round_share(const float *x, int64_t rows, int64_t inputs, Kind kind, Rounded to, Share share) {
    const int64_t groups = kind == INT8 ? 1 : groups_of(inputs);
    for (int64_t i = share.part; i < rows * groups; i += share.parts) {
        if (kind == INT8) {
            round_row(x + i * inputs, inputs, (uint8_t *)to.codes + i * inputs, to.scales + 2 * i);
            continue;
        }
        const int64_t begin = i % groups * GROUP, place = i / groups * inputs + begin;
        const int64_t size = inputs - begin < GROUP ? inputs - begin : GROUP;
        round_group(x + place, size, to.codes + place, to.scales + i);
    }
    wait_for_all(share);
}

typedef struct {
    const Linear *linear;
    const Value *x;      /* of the tile's first row */
    const float *scales; /* its own */
    const float *added;
    float *to;
    int64_t at, soon; /* the tile's first column; the panel that is fetched into the cache meanwhile */
} Tile;

INLINE void sum_tile(const Tile *tile, const int rows, const int panels, const Kind kind) {
    const Linear *linear = tile->linear;
    const int blocks = panels * PER_PANEL;
    const int64_t values = values_of(linear->inputs, kind), outputs = linear->outputs;
    const int64_t depth = kind == INT8 ? values : kind == INT16 ? GROUP / 2 : DEPTH;
    const int64_t parts = kind == INT8 ? 1 : (values + depth - 1) / depth;
    const Value *weight = (const Value *)linear->weight + tile->at * values;
    const Value *next = (const Value *)linear->weight + tile->soon * values * PANEL;
    for (int64_t part = 0; part < parts; part++) {
        const int64_t begin = part * depth, end = values - begin < depth ? values : begin + depth;
        Floats sums[ROWS][BLOCKS] = {0};
        for (int64_t k = begin; k < end; k++) {
            Ints column[BLOCKS];
            for (int b = 0; b < blocks; b++) {
                const int64_t panel = b / PER_PANEL, lane = b % PER_PANEL * WIDE;
                column[b] = *(const Ints *)(weight + (panel * values + k) * PANEL + lane);
            }
            __builtin_prefetch(next + k * PANEL, 0, 2);
            for (int r = 0; r < rows; r++) {
                const Ints value = tile->x[r * values + k] - (Ints){0};
                for (int b = 0; b < blocks; b++)
                    if (kind == INT8)
                        sums[r][b] = (Floats)ADD_FOUR((Whole)sums[r][b], (Whole)value, (Whole)column[b]);
                    else if (kind == INT16)
                        sums[r][b] = (Floats)ADD_PRODUCTS((Whole)sums[r][b], (Whole)value, (Whole)column[b]);
                    else
                        sums[r][b] += (Floats)value * (Floats)column[b];
            }
        }
        for (int r = 0; r < rows; r++)
            for (int b = 0; b < blocks; b++) {
                const int64_t column = tile->at + b * WIDE, place = r * outputs + column;
                Floats before = {0}, sum = sums[r][b];
                if (part)
                    before = load(tile->to + place);
                else if (linear->bias)
                    before = load(linear->bias + column);
                if (tile->added && !part) before += load(tile->added + place);
                if (kind == INT8) {
                    const Ints zero = ((const Value *)tile->scales)[2 * r + 1] - (Ints){0};
                    const Floats unit = load(linear->scales + column) * tile->scales[2 * r];
                    const Ints whole = (Ints)sum - zero * *(const Ints *)(linear->sums + column);
                    sum = __builtin_convertvector(whole, Floats) * unit;
                }
                if (kind == INT16) {
                    const Floats unit = load(linear->scales + part * outputs + column);
                    sum = __builtin_convertvector((Ints)sum, Floats) * (unit * tile->scales[r * parts + part]);
                }
                store(tile->to + place, before + sum);
            }
    }
}

/* A tile of so many rows and panels, out of those that are compiled. */
#define TILE_OF(kind, r, p) \
    case (kind) * 64 + (r) * 8 + (p): \
        sum_tile(tile, r, p, kind); \
        break;
#define TILE(r, p) TILE_OF(FLOAT32, r, p) TILE_OF(INT16, r, p) TILE_OF(INT8, r, p)
#if defined(__AVX512F__)
#define TILES(r) TILE(r, 1) TILE(r, 2) TILE(r, 3) TILE(r, 4)
#else
#define TILES(r) TILE(r, 1)
#endif
static void any_tile(const Tile *tile, int rows, int panels, Kind kind) {
    switch (kind * 64 + rows * 8 + panels) { TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6) }
}

static void activate(float *x, int64_t count, int64_t activation, Kind kind) {
    for (float *end = x + count; x < end; x += WIDE)
        if (kind == INT8 && activation == GELU)
            store(x, rough_gelu(load(x)));
        else
            store(x, activated(load(x), activation));
}

void multiply(const Linear *linear, const float *x, int64_t rows, const float *added, int64_t activation,
              float *to, Rounded rounded, Share share) {
    const Kind kind = kind_of(linear);
    const int64_t values = values_of(linear->inputs, kind), scales = kind == INT8 ? 2 : groups_of(linear->inputs);
    const int64_t panels = linear->outputs / PANEL, last = (share.part + 1) * panels / share.parts;
    const Value *given = (const Value *)(kind ? (const void *)rounded.codes : x);
    int64_t tiles = (rows + ROWS - 1) / ROWS;
    if (tiles < PANELS) tiles = rows < PANELS ? rows : PANELS; /* each fetches a panel */
    if (kind) round_share(x, rows, linear->inputs, kind, rounded, share);
    for (int64_t panel = share.part * panels / share.parts, some; panel < last; panel += some) {
        some = last - panel < PANELS ? last - panel : PANELS;
        for (int64_t i = 0; i < tiles; i++) { /* of rows / tiles rows, or one more */
            const int64_t first = i * rows / tiles, end = (i + 1) * rows / tiles, at = panel * PANEL;
            const int64_t offset = first * linear->outputs;
            const Tile tile = {
                .linear = linear,
                .x = given + first * values,
                .scales = kind ? rounded.scales + first * scales : NULL,
                .added = added ? added + offset : NULL,
                .to = to + offset,
                .at = at,
                .soon = panel + some + i % some,
            };
            any_tile(&tile, end - first, some, kind);
            if (activation == NONE) continue;
            for (float *row = to + offset + at; row < to + end * linear->outputs; row += linear->outputs)
                activate(row, some * PANEL, activation, kind);
        }
    }
}

typedef struct {
    const Linear *linear;
    const float *x;
    int64_t rows;
    int threads;
    float *to;
    Rounded rounded;
} Job;

static void product_share(void *given) {
    const Job *job = given;
    multiply(job->linear, job->x, job->rows, NULL, NONE, job->to, job->rounded, my_share(job->threads));
}

int product(const Linear *linear, const float *x, int64_t rows, int threads, float *to) {
    void *scratch = NULL;
    if (kind_of(linear) && !(scratch = malloc(rounded_bytes(rows, linear->inputs)))) return 1;
    Job job = {linear, x, rows, threads, to, rounded_at(scratch, rows, linear->inputs)};
    run(product_share, &job, threads);
    free(scratch);
    return 0;
}
