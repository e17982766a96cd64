/* A layer of BERT: what of it fits stays in a core's cache from one product to the next.
 *
 * A hundred rows go through a layer together. A sequence's values don't depend on the others, nor on the
 * number of threads.
 */
#include "activations.h"
#include "product.h"
#include "rotary.h"

enum { TOGETHER = 96 }; /* rows */

INLINE int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

int64_t arguments_bytes(void) { return sizeof(Layer) + sizeof(Attention); }

/* One row, in place or not. The mean and the variance are of all H values (Ba et al. 2016), or the mean is
 * taken for zero (Zhang and Sennrich 2019). */
INLINE void normalise(const float *row, int64_t size, const Norm *norm, float *to) {
    Floats total = {0}, squares = {0};
    for (int64_t i = 0; norm->centred && i < size; i += WIDE) total += load(row + i);
    const Floats mean = sum(total) / (float)size;
    for (int64_t i = 0; i < size; i += WIDE) {
        Floats centred = load(row + i) - mean;
        squares += centred * centred;
    }
    const float variance = sum(squares)[0] / size;
    /* NaN of a variance that overflows, which else would hide as zeros */
    const Floats share = all(1 / sqrtf(variance + norm->epsilon) + 0 * variance);
    for (int64_t i = 0; i < size; i += WIDE) {
        Floats x = (load(row + i) - mean) * share * load(norm->gain + i);
        store(to + i, norm->shift ? x + load(norm->shift + i) : x);
    }
}

typedef struct {
    const Layer *layer;
    const float *mixed, *states, *added;
    const int64_t *lengths;
    const float *cosines, *sines, *bias;
    int64_t reach; /* of the bias */
    const int64_t *rows; /* of distances */
    int64_t count, scratch_of_one; /* sequences or rows */
    int threads;
    float *to;
    float *normed, *wide, *narrow, *own; /* scratch: before a product, behind it, its gated is_bf16; a core's */
    Rounded rounded;
} Job;

INLINE Attention attention_of(const Layer *layer, const float *qkv, const int64_t *lengths,
                              int64_t sequences, const Job *job, float *to) {
    return (Attention){.qkv = qkv,
                       .to = to,
                       .lengths = lengths,
                       .sequences = sequences,
                       .heads = layer->heads,
                       .size = layer->qkv.inputs / layer->heads,
                       .window = layer->window,
                       .bias = job->bias,
                       .reach = job->reach,
                       .distances = layer->distances,
                       .rows = job->rows};
}

/* A thread's rows. Returns where all of them are. */
static const float *normalise_share(const float *x, int64_t rows, int64_t size, const Norm *norm, float *to,
                                    Share share) {
    if (!norm->gain) return x;
    for (int64_t i = share.part; i < rows; i += share.parts)
        normalise(x + i * size, size, norm, to + i * size);
    wait_for_all(share);
    return to;
}

/* Queries and keys of these sequences, each from position 0 on. */
static void rotate_share(const Job *job, const int64_t *lengths, int64_t sequences, Share share) {
    const int64_t heads = job->layer->heads, size = job->layer->qkv.inputs / heads;
    int64_t row = 0;
    for (int64_t b = 0; b < sequences; b++)
        for (int64_t i = 0; i < lengths[b]; i++, row++) {
            const int64_t at = i * (size / 2);
            if (row % share.parts == share.part)
                rotate_vectors(job->wide + row * 3 * heads * size, 2 * heads, size, job->cosines + at,
                               job->sines + at, 1, 0);
        }
    wait_for_all(share);
}

static void self_attend_share(void *given) {
    const Job *job = given;
    const Layer *layer = job->layer;
    const Share share = my_share(job->threads);
    const int64_t hidden = layer->qkv.inputs;
    const float *states = job->states, *added = job->added;
    float *to = job->to;
    for (int64_t b = 0, end; b < job->count; b = end) {
        int64_t rows = job->lengths[b];
        for (end = b + 1; end < job->count && rows + job->lengths[end] <= TOGETHER; end++)
            rows += job->lengths[end];
        const float *x = states;
        if (layer->pre_norm)
            x = normalise_share(x, rows, hidden, &layer->attention_norm, job->normed, share);
        multiply(&layer->qkv, x, rows, added, NONE, job->wide, job->rounded, share);
        wait_for_all(share);
        if (job->cosines) rotate_share(job, job->lengths + b, end - b, share);
        const Attention attention = attention_of(layer, job->wide, job->lengths + b, end - b, job, to);
        attend_part(&attention, job->own + share.part * job->scratch_of_one, share.part, share.parts);
        wait_for_all(share);
        states += rows * hidden;
        added = added ? added + rows * layer->qkv.outputs : NULL;
        to += rows * hidden;
    }
}

int self_attend(const Layer *layer, const float *states, const int64_t *lengths, int64_t sequences,
                const float *cosines, const float *sines, const float *bias, int64_t reach,
                const int64_t *rows_of_distances, int threads, float *to) {
    return self_attend_added(layer, states, NULL, lengths, sequences, cosines, sines, bias, reach,
                             rows_of_distances, threads, to);
}

int self_attend_added(const Layer *layer, const float *states, const float *added, const int64_t *lengths,
                      int64_t sequences, const float *cosines, const float *sines, const float *bias,
                      int64_t reach, const int64_t *rows_of_distances, int threads, float *to) {
    const Job tables = {.bias = bias, .reach = reach, .rows = rows_of_distances};
    const Attention attention = attention_of(layer, NULL, lengths, sequences, &tables, NULL);
    const int64_t of_one = attention_scratch(&attention), hidden = layer->qkv.inputs;
    int64_t rows = TOGETHER;
    for (int64_t b = 0; b < sequences; b++) rows = lengths[b] > rows ? lengths[b] : rows;
    const int64_t wide = rows * layer->qkv.outputs, normed = layer->pre_norm ? rows * hidden : 0;
    const int64_t floats = wide + normed + threads * of_one;
    float *scratch = aligned_alloc(64, whole_lines(4 * floats + rounded_bytes(rows, hidden)));
    if (!scratch) return 1;
    Job job = {
        .layer = layer,
        .states = states,
        .added = added,
        .lengths = lengths,
        .cosines = cosines,
        .sines = sines,
        .bias = bias,
        .reach = reach,
        .rows = rows_of_distances,
        .count = sequences,
        .scratch_of_one = of_one,
        .threads = threads,
        .to = to,
        .wide = scratch,
        .normed = scratch + wide,
        .own = scratch + wide + normed,
        .rounded = rounded_at(scratch + floats, rows, hidden),
    };
    run(self_attend_share, &job, threads);
    free(scratch);
    return 0;
}

/* The first half of each row, activated, times the second one: (rows, 2 width) -> (rows, width). */
static void gate_share(const float *x, int64_t rows, int64_t width, int64_t activation, float *to,
                       Share share) {
    for (int64_t i = share.part; i < rows; i += share.parts)
        for (int64_t k = 0; k < width; k += WIDE) {
            const float *first = x + 2 * i * width + k;
            store(to + i * width + k, activated(load(first), activation) * load(first + width));
        }
    wait_for_all(share);
}

static void feed_forward_share(void *given) {
    const Job *job = given;
    const Layer *layer = job->layer;
    const Share share = my_share(job->threads);
    const int64_t hidden = layer->output.inputs, chunks = (job->count + TOGETHER - 1) / TOGETHER;
    const int64_t activation = layer->gated ? NONE : layer->activation;
    for (int64_t i = 0; i < chunks; i++) {
        const int64_t first = i * job->count / chunks, rows = (i + 1) * job->count / chunks - first;
        float *to = job->to + first * hidden;
        const float *x = to, *widened = job->wide;
        multiply(&layer->output, job->mixed + first * hidden, rows, job->states + first * hidden, NONE,
                 to, job->rounded, share);
        wait_for_all(share);
        if (layer->pre_norm)
            x = normalise_share(to, rows, hidden, &layer->feed_forward_norm, job->normed, share);
        else
            normalise_share(to, rows, hidden, &layer->attention_norm, to, share);
        multiply(&layer->up, x, rows, NULL, activation, job->wide, job->rounded, share);
        wait_for_all(share);
        if (layer->gated) {
            gate_share(job->wide, rows, layer->down.inputs, layer->activation, job->narrow, share);
            widened = job->narrow;
        }
        multiply(&layer->down, widened, rows, to, NONE, to, job->rounded, share);
        wait_for_all(share);
        if (!layer->pre_norm) normalise_share(to, rows, hidden, &layer->feed_forward_norm, to, share);
    }
}

int feed_forward(const Layer *layer, const float *mixed, const float *states, int64_t rows, int threads,
                 float *to) {
    const int64_t hidden = layer->up.inputs, inside = layer->down.inputs;
    const int64_t wide = TOGETHER * layer->up.outputs, narrow = layer->gated ? TOGETHER * inside : 0;
    const int64_t normed = layer->pre_norm ? TOGETHER * hidden : 0, floats = wide + narrow + normed;
    const int64_t most = inside > hidden ? inside : hidden;
    float *scratch = aligned_alloc(64, whole_lines(4 * floats + rounded_bytes(TOGETHER, most)));
    if (!scratch) return 1;
    Job job = {
        .layer = layer,
        .mixed = mixed,
        .states = states,
        .count = rows,
        .threads = threads,
        .to = to,
        .wide = scratch,
        .narrow = scratch + wide,
        .normed = scratch + wide + narrow,
        .rounded = rounded_at(scratch + floats, TOGETHER, most),
    };
    run(feed_forward_share, &job, threads);
    free(scratch);
    return 0;
}
