/* A layer of BERT: what of it fits stays in a core's cache from one product to the next.
 *
 * A hundred rows go through a layer together. A sequence's values don't depend on the others, nor on the
 * number of threads.
 */
#include "product.h"

enum { TOGETHER = 96 }; /* rows */

INLINE int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

int64_t arguments_bytes(void) { return sizeof(Layer) + sizeof(Attention); }

/* One row. The mean and the variance are of all H values (Ba et al. 2016). */
INLINE void normalise(float *row, int64_t size, const Norm *norm) {
    Floats total = {0}, squares = {0};
    for (int64_t i = 0; i < size; i += WIDE) total += load(row + i);
    const Floats mean = sum(total) / (float)size;
    for (int64_t i = 0; i < size; i += WIDE) {
        Floats centred = load(row + i) - mean;
        squares += centred * centred;
    }
    const float variance = sum(squares)[0] / size;
    /* NaN of a variance that overflows, which else would hide as zeros */
    const Floats share = all(1 / sqrtf(variance + norm->epsilon) + 0 * variance);
    for (int64_t i = 0; i < size; i += WIDE)
        store(row + i, (load(row + i) - mean) * share * load(norm->gain + i) + load(norm->shift + i));
}

typedef struct {
    const Layer *layer;
    const float *mixed, *states;
    const int64_t *lengths;
    int64_t count, scratch_of_one; /* sequences or rows */
    int threads;
    float *to, *scratch, *own;
    Rounded rounded;
} Job;

INLINE Attention attention_of(const Layer *layer, const float *qkv, const int64_t *lengths,
                              int64_t sequences, float *to) {
    return (Attention){.qkv = qkv,
                       .to = to,
                       .lengths = lengths,
                       .sequences = sequences,
                       .heads = layer->heads,
                       .size = layer->qkv.inputs / layer->heads,
                       .window = INT64_MAX};
}

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
        multiply(&layer->qkv, states, rows, NULL, NONE, job->scratch, job->rounded, share);
        wait_for_all(share);
        const Attention attention = attention_of(layer, job->scratch, job->lengths + b, end - b, to);
        attend_part(&attention, job->own + share.part * job->scratch_of_one, share.part, share.parts);
        wait_for_all(share);
        states += rows * hidden;
        to += rows * hidden;
    }
}

int self_attend(const Layer *layer, const float *states, const int64_t *lengths, int64_t sequences,
                int threads, float *to) {
    const Attention attention = attention_of(layer, NULL, lengths, sequences, NULL);
    const int64_t of_one = attention_scratch(&attention);
    int64_t rows = TOGETHER;
    for (int64_t b = 0; b < sequences; b++) rows = lengths[b] > rows ? lengths[b] : rows;
    const int64_t shared = rows * layer->qkv.outputs;
    const int64_t floats = shared + threads * of_one;
    float *scratch = aligned_alloc(64, whole_lines(4 * floats + rounded_bytes(rows, layer->qkv.inputs)));
    if (!scratch) return 1;
    Job job = {
        .layer = layer,
        .states = states,
        .lengths = lengths,
        .count = sequences,
        .scratch_of_one = of_one,
        .threads = threads,
        .to = to,
        .scratch = scratch,
        .own = scratch + shared,
        .rounded = rounded_at(scratch + floats, rows, layer->qkv.inputs),
    };
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
                 to, job->rounded, share);
        wait_for_all(share);
        normalise_share(to, rows, hidden, &layer->attention_norm, share);
        multiply(&layer->up, to, rows, NULL, layer->activation, job->scratch, job->rounded, share);
        wait_for_all(share);
        multiply(&layer->down, job->scratch, rows, to, NONE, to, job->rounded, share);
        wait_for_all(share);
        normalise_share(to, rows, hidden, &layer->feed_forward_norm, share);
    }
}

int feed_forward(const Layer *layer, const float *mixed, const float *states, int64_t rows, int threads,
                 float *to) {
    const int64_t hidden = layer->up.inputs, wide = layer->up.outputs, most = wide > hidden ? wide : hidden;
    float *scratch = aligned_alloc(64, whole_lines(4 * TOGETHER * wide + rounded_bytes(TOGETHER, most)));
    if (!scratch) return 1;
    Job job = {
        .layer = layer,
        .mixed = mixed,
        .states = states,
        .count = rows,
        .threads = threads,
        .to = to,
        .scratch = scratch,
        .rounded = rounded_at(scratch + TOGETHER * wide, TOGETHER, most),
    };
    run(feed_forward_share, &job, threads);
    free(scratch);
    return 0;
}
