/* A layer of BERT in float32: what of it fits stays in a core's cache from one product to the next.
 *
 * oneDNN's products of few rows reach half of what the processor can do, and each operation between two
 * products goes through memory. Here a tile of 6 rows and 64 columns is summed in registers (16 columns with
 * AVX2), and a hundred rows go through a layer together. A sum is of one order whatever lies beside it: a
 * sequence's values don't depend on the others, nor on the number of threads.
 *
 * Threads share the columns of a product. They are OpenMP's, of the library that torch has brought with it.
 */
#include "kernels.h"
#include "registers.h"

enum { PANEL = 16, PER_PANEL = PANEL / WIDE, PANELS = BLOCKS / PER_PANEL }; /* of columns; of a tile */
enum { TOGETHER = 96, DEPTH = 384 }; /* rows; products of a sum, longer ones are sums of such: more exact */
enum { NONE = -1 };                  /* activation */

void GOMP_parallel(void (*work)(void *), void *job, unsigned threads, unsigned flags);
void GOMP_barrier(void);
int omp_get_thread_num(void);
int omp_get_num_threads(void);

/* One thread of a team. */
typedef struct {
    int part, parts;
} Share;

INLINE Share my_share(int threads) {
    return threads > 1 ? (Share){omp_get_thread_num(), omp_get_num_threads()} : (Share){0, 1};
}
INLINE void wait_for_all(Share share) {
    if (share.parts > 1) GOMP_barrier();
}
INLINE void run(void (*work)(void *), void *job, int threads) {
    if (threads > 1)
        GOMP_parallel(work, job, threads, 0);
    else
        work(job);
}

/* x (1 + erf(x / sqrt(2))) / 2: erf(x / sqrt(2)) / x is a polynomial of x^2, off by 4e-8, up to 5.5. */
INLINE Floats gelu(Floats x) {
    const float end = 5.5f;
    const Floats inside = larger(all(-end), smaller(all(end), x));
    const Floats t = inside * inside * (2 / (end * end)) - 1;
    Floats y = all(-1.90655113e-4f);
    y = y * t + 5.92047342e-4f;
    y = y * t - 6.73304295e-4f;
    y = y * t + 8.41155953e-4f;
    y = y * t - 2.24018004e-3f;
    y = y * t + 4.4775146e-3f;
    y = y * t - 6.92995838e-3f;
    y = y * t + 1.03121182e-2f;
    y = y * t - 1.49637485e-2f;
    y = y * t + 2.03396219e-2f;
    y = y * t - 2.60538685e-2f;
    y = y * t + 3.20737185e-2f;
    y = y * t - 3.87924128e-2f;
    y = y * t + 4.77374508e-2f;
    y = y * t - 6.41723453e-2f;
    y = y * t + 1.28551932e-1f;
    return larger(all(-end), x) * (inside * y + .5f);
}

/* x / (1 + e^-z), z = 2 sqrt(2 / pi) (x + 0.044715 x^3): the form with tanh. */
INLINE Floats gelu_new(Floats x) {
    const Floats z = x * (x * x * .0713548162726f + 1.59576912160573f) * 1.44269504088896f;
    const Floats small = power_of_two(smaller(z, -z));
    return x * choose(z > 0, all(1), small) / (small + 1);
}

/* One row. The mean and the variance are of all H values (Ba et al. 2016). */
INLINE void normalise(float *row, int64_t size, const Norm *norm) {
    Floats total = {0}, squares = {0};
    for (int64_t i = 0; i < size; i += WIDE) total += load(row + i);
    const Floats mean = sum(total) / (float)size;
    for (int64_t i = 0; i < size; i += WIDE) {
        Floats centred = load(row + i) - mean;
        squares += centred * centred;
    }
    const Floats share = all(1 / sqrtf(sum(squares)[0] / size + norm->epsilon));
    for (int64_t i = 0; i < size; i += WIDE)
        store(row + i, (load(row + i) - mean) * share * load(norm->gain + i) + load(norm->shift + i));
}

/* `rows` rows of x times the columns of `panels` panels, from column `at` on; panel `soon` is fetched into the
 * cache meanwhile. */
INLINE void tile(const Linear *linear, const float *x, int64_t at, const float *added, float *to,
                 int64_t soon, const int rows, const int panels) {
    const int64_t inputs = linear->inputs, outputs = linear->outputs;
    const float *weight = linear->weight + at * inputs, *next = linear->weight + soon * inputs * PANEL;
    const int blocks = panels * PER_PANEL;
    for (int64_t begin = 0, end; begin < inputs; begin = end) {
        Floats sums[ROWS][BLOCKS] = {0};
        end = inputs - begin < DEPTH ? inputs : begin + DEPTH;
        for (int64_t k = begin; k < end; k++) {
            Floats column[BLOCKS];
            for (int b = 0; b < blocks; b++)
                column[b] = load(weight + (b / PER_PANEL * inputs + k) * PANEL + b % PER_PANEL * WIDE);
            __builtin_prefetch(next + k * PANEL, 0, 2);
            for (int r = 0; r < rows; r++) {
                Floats value = all(x[r * inputs + k]);
                for (int b = 0; b < blocks; b++) sums[r][b] += value * column[b];
            }
        }
        for (int r = 0; r < rows; r++)
            for (int b = 0; b < blocks; b++) {
                const int64_t column = at + b * WIDE, place = r * outputs + column;
                Floats before = begin ? load(to + place) : load(linear->bias + column);
                if (added && !begin) before += load(added + place);
                store(to + place, before + sums[r][b]);
            }
    }
}

/* A tile of so many rows and panels, out of those that are compiled. */
#define TILE(r, p) \
    case (r) * 8 + (p): \
        tile(linear, x, at, added, to, soon, r, p); \
        break;
#if defined(__AVX512F__)
#define TILES(r) TILE(r, 1) TILE(r, 2) TILE(r, 3) TILE(r, 4)
#else
#define TILES(r) TILE(r, 1)
#endif
static void any_tile(const Linear *linear, const float *x, int64_t at, const float *added, float *to,
                     int64_t soon, int rows, int panels) {
    switch (rows * 8 + panels) { TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6) }
}

static void activate(float *x, int64_t count, int64_t activation) {
    for (float *end = x + count; x < end; x += WIDE) {
        Floats y = load(x);
        store(x, activation == GELU ? gelu(y) : activation == GELU_NEW ? gelu_new(y) : larger(all(0), y));
    }
}

/* x (rows, inputs) -> to (rows, outputs): a thread's panels of the product, what is `added` to it, and the
 * activation. */
static void multiply(const Linear *linear, const float *x, int64_t rows, const float *added,
                     int64_t activation, float *to, Share share) {
    const int64_t panels = linear->outputs / PANEL, last = (share.part + 1) * panels / share.parts;
    int64_t tiles = (rows + ROWS - 1) / ROWS;
    if (tiles < PANELS) tiles = rows < PANELS ? rows : PANELS; /* each fetches a panel */
    for (int64_t panel = share.part * panels / share.parts, some; panel < last; panel += some) {
        some = last - panel < PANELS ? last - panel : PANELS;
        for (int64_t i = 0; i < tiles; i++) { /* of rows / tiles rows, or one more */
            const int64_t first = i * rows / tiles, end = (i + 1) * rows / tiles, at = panel * PANEL;
            const int64_t offset = first * linear->outputs;
            any_tile(linear, x + first * linear->inputs, at, added ? added + offset : added, to + offset,
                     panel + some + i % some, end - first, some);
            if (activation == NONE) continue;
            for (float *row = to + offset + at; row < to + end * linear->outputs; row += linear->outputs)
                activate(row, some * PANEL, activation);
        }
    }
}

typedef struct {
    const Layer *layer;
    const float *mixed, *states;
    const int64_t *lengths;
    int64_t count, scratch_of_one; /* sequences or rows */
    int threads;
    float *to, *scratch, *own;
} Job;

static void self_attend_share(void *given) {
    const Job *job = given;
    const Layer *layer = job->layer;
    const Share share = my_share(job->threads);
    const int64_t hidden = layer->qkv.inputs;
    const float *states = job->states;
    float *to = job->to;
    for (int64_t b = 0, end; b < job->count; b = end) {
        int64_t rows = job->lengths[b];
        for (end = b + 1; end < job->count && rows + job->lengths[end] <= TOGETHER; end++)
            rows += job->lengths[end];
        multiply(&layer->qkv, states, rows, NULL, NONE, job->scratch, share);
        wait_for_all(share);
        attend_part(job->scratch, job->lengths + b, end - b, layer->heads, hidden / layer->heads, 0, to,
                    job->own + share.part * job->scratch_of_one, share.part, share.parts);
        wait_for_all(share);
        states += rows * hidden;
        to += rows * hidden;
    }
}

int self_attend(const Layer *layer, const float *states, const int64_t *lengths, int64_t sequences,
                int threads, float *to) {
    const int64_t of_one = attention_scratch(lengths, sequences, layer->qkv.inputs / layer->heads);
    int64_t rows = TOGETHER;
    for (int64_t b = 0; b < sequences; b++) rows = lengths[b] > rows ? lengths[b] : rows;
    const int64_t shared = rows * layer->qkv.outputs;
    float *scratch = aligned_alloc(64, 4 * (shared + threads * of_one));
    if (!scratch) return 1;
    Job job = {layer, NULL, states, lengths, sequences, of_one, threads, to, scratch, scratch + shared};
    run(self_attend_share, &job, threads);
    free(scratch);
    return 0;
}

static void normalise_share(float *x, int64_t rows, int64_t size, const Norm *norm, Share share) {
    for (int64_t i = share.part; i < rows; i += share.parts) normalise(x + i * size, size, norm);
    wait_for_all(share);
}

static void feed_forward_share(void *given) {
    const Job *job = given;
    const Layer *layer = job->layer;
    const Share share = my_share(job->threads);
    const int64_t hidden = layer->output.inputs, chunks = (job->count + TOGETHER - 1) / TOGETHER;
    for (int64_t i = 0; i < chunks; i++) {
        const int64_t first = i * job->count / chunks, rows = (i + 1) * job->count / chunks - first;
        float *to = job->to + first * hidden;
        multiply(&layer->output, job->mixed + first * hidden, rows, job->states + first * hidden, NONE,
                 to, share);
        wait_for_all(share);
        normalise_share(to, rows, hidden, &layer->attention_norm, share);
        multiply(&layer->up, to, rows, NULL, layer->activation, job->scratch, share);
        wait_for_all(share);
        multiply(&layer->down, job->scratch, rows, to, NONE, to, share);
        wait_for_all(share);
        normalise_share(to, rows, hidden, &layer->feed_forward_norm, share);
    }
}

int feed_forward(const Layer *layer, const float *mixed, const float *states, int64_t rows, int threads,
                 float *to) {
    float *scratch = aligned_alloc(64, 4 * TOGETHER * layer->up.outputs);
    if (!scratch) return 1;
    Job job = {layer, mixed, states, NULL, rows, 0, threads, to, scratch, NULL};
    run(feed_forward_share, &job, threads);
    free(scratch);
    return 0;
}
