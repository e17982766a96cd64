/* A layer's products, of float32 or of int16 codes.
 *
 * oneDNN's products of few rows reach is_bf16 of what the processor can do, and each operation between two
 * products goes through memory. Here a tile of 6 rows and 64 columns is summed in registers (16 columns with
 * AVX2). A sum is of one order whatever lies beside it. Threads share the columns.
 *
 * Of int16 a processor multiplies twice as many at once as of float32. Each 128 values of a row become whole
 * numbers up to 11,585, by a scale of their own, and those of a weight such that no sum of 128 products
 * leaves int32: that sum is exact.
 */
#include "activations.h"
#include "product.h"

enum { PANEL = 16, PER_PANEL = PANEL / WIDE, PANELS = BLOCKS / PER_PANEL }; /* of columns; of a tile */
enum { DEPTH = 384 };     /* float32 products of a sum; longer ones are sums of such: more exact */
enum { LARGEST = 11585 }; /* code of a state */

typedef int32_t __attribute__((may_alias)) Value; /* a float32 or two int16 */

INLINE int64_t groups_of(int64_t inputs) { return (inputs + GROUP - 1) / GROUP; }

int64_t rounded_bytes(int64_t rows, int64_t inputs) { return rows * (2 * inputs + 4 * groups_of(inputs)); }

Rounded rounded_at(void *place, int64_t rows, int64_t inputs) {
    return (Rounded){place, (float *)((int16_t *)place + rows * inputs)};
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

static void round_share(const float *x, int64_t rows, int64_t inputs, Rounded to, Share share) {
    const int64_t groups = groups_of(inputs);
    for (int64_t i = share.part; i < rows * groups; i += share.parts) {
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

INLINE void sum_tile(const Tile *tile, const int rows, const int panels, const int whole) {
    const Linear *linear = tile->linear;
    const int blocks = panels * PER_PANEL, depth = whole ? GROUP / 2 : DEPTH;
    const int64_t values = linear->inputs / (whole ? 2 : 1), outputs = linear->outputs;
    const int64_t parts = (values + depth - 1) / depth;
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
                    if (whole)
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
                if (whole) {
                    const Floats unit = load(linear->scales + part * outputs + column);
                    sum = __builtin_convertvector((Ints)sum, Floats) * (unit * tile->scales[r * parts + part]);
                }
                store(tile->to + place, before + sum);
            }
    }
}

/* A tile of so many rows and panels, out of those that are compiled. */
#define TILE(r, p) \
    case (r) * 8 + (p): \
        sum_tile(tile, r, p, 0); \
        break; \
    case 64 + (r) * 8 + (p): \
        sum_tile(tile, r, p, 1); \
        break;
#if defined(__AVX512F__)
#define TILES(r) TILE(r, 1) TILE(r, 2) TILE(r, 3) TILE(r, 4)
#else
#define TILES(r) TILE(r, 1)
#endif
static void any_tile(const Tile *tile, int rows, int panels, int whole) {
    switch (whole * 64 + rows * 8 + panels) { TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6) }
}

static void activate(float *x, int64_t count, int64_t activation) {
    for (float *end = x + count; x < end; x += WIDE) store(x, activated(load(x), activation));
}

void multiply(const Linear *linear, const float *x, int64_t rows, const float *added, int64_t activation,
              float *to, Rounded rounded, Share share) {
    const int whole = linear->scales != NULL;
    const int64_t values = linear->inputs / (whole ? 2 : 1);
    const int64_t panels = linear->outputs / PANEL, last = (share.part + 1) * panels / share.parts;
    const Value *given = (const Value *)(whole ? (const void *)rounded.codes : x);
    int64_t tiles = (rows + ROWS - 1) / ROWS;
    if (tiles < PANELS) tiles = rows < PANELS ? rows : PANELS; /* each fetches a panel */
    if (whole) round_share(x, rows, linear->inputs, rounded, share);
    for (int64_t panel = share.part * panels / share.parts, some; panel < last; panel += some) {
        some = last - panel < PANELS ? last - panel : PANELS;
        for (int64_t i = 0; i < tiles; i++) { /* of rows / tiles rows, or one more */
            const int64_t first = i * rows / tiles, end = (i + 1) * rows / tiles, at = panel * PANEL;
            const int64_t offset = first * linear->outputs;
            const Tile tile = {
                .linear = linear,
                .x = given + first * values,
                .scales = whole ? rounded.scales + first * groups_of(linear->inputs) : NULL,
                .added = added ? added + offset : NULL,
                .to = to + offset,
                .at = at,
                .soon = panel + some + i % some,
            };
            any_tile(&tile, end - first, some, whole);
            if (activation == NONE) continue;
            for (float *row = to + offset + at; row < to + end * linear->outputs; row += linear->outputs)
                activate(row, some * PANEL, activation);
        }
    }
}

typedef struct {
    const Linear *linear;
    const float *x;
    int64_t rows;
    int threads;
    float *to;
} Job;

static void product_share(void *given) {
    const Job *job = given;
    multiply(job->linear, job->x, job->rows, NULL, NONE, job->to, (Rounded){0}, my_share(job->threads));
}

void product(const Linear *linear, const float *x, int64_t rows, int threads, float *to) {
    Job job = {linear, x, rows, threads, to};
    run(product_share, &job, threads);
}
