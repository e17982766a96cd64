/* An activation, the bias before it and a gate beside it in one pass through memory, and their gradients in
 * another.
 */
#include "activations.h"
#include "kernels.h"
#include "team.h"

/* Rows whose sum is one summand; values worth waking a thread for. */
enum { BEFORE_ADDING = 32, FEWEST = 1 << 14 };

typedef struct {
    const void *given, *x; /* the result's gradient, or NULL on the way forward; products */
    const float *bias;     /* or NULL */
    int64_t rows, width;   /* of the result; twice as wide are products if they are gated */
    int gated, is_bf16, threads;
    int64_t activation;
    void *to;
    float *to_bias; /* or NULL */
} Passed;

/* A row of the result, or of both gradients. */
INLINE void pass(const Passed *job, int64_t row, float *to_bias, const int is_bf16, const int64_t activation,
                 const int gated) {
    for (int64_t i = 0; i < job->width; i += WIDE) {
        const int64_t at = row * job->width + i, column = job->width + i; /* of the gate */
        const int64_t first = row * job->width * (gated ? 2 : 1) + i, second = first + job->width;
        Floats x = read(job->x, first, is_bf16), gate = gated ? read(job->x, second, is_bf16) : all(1);
        if (job->bias) x += load(job->bias + i);
        if (job->bias && gated) gate += load(job->bias + column);
        if (!job->given) {
            const Floats activated = activation == GELU ? gelu(x) : silu(x);
            write(job->to, at, gated ? activated * gate : activated, is_bf16);
            continue;
        }
        const Floats given = read(job->given, at, is_bf16);
        Floats found = given * (activation == GELU ? gelu_slope(x) : silu_slope(x));
        if (gated) found *= gate;
        write(job->to, first, found, is_bf16);
        if (to_bias) store(to_bias + i, load(to_bias + i) + found);
        if (!gated) continue;
        found = given * (activation == GELU ? gelu(x) : silu(x));
        write(job->to, second, found, is_bf16);
        if (to_bias) store(to_bias + column, load(to_bias + column) + found);
    }
}

INLINE void pass_row(const Passed *job, int64_t row, float *to_bias, const int is_bf16) {
    if (job->activation == GELU && job->gated)
        pass(job, row, to_bias, is_bf16, GELU, 1);
    else if (job->activation == GELU)
        pass(job, row, to_bias, is_bf16, GELU, 0);
    else if (job->gated)
        pass(job, row, to_bias, is_bf16, SILU, 1);
    else
        pass(job, row, to_bias, is_bf16, SILU, 0);
}

static void pass_share(void *given) {
    const Passed *job = given;
    const Share share = my_share(job->threads);
    const int64_t end = job->rows * (share.part + 1) / share.parts;
    const int64_t columns = job->width * (job->gated ? 2 : 1);
    float *sums = job->to_bias ? job->to_bias + 2 * share.part * columns : NULL;
    float *summand = sums ? sums + columns : NULL;
    for (int64_t row = job->rows * share.part / share.parts, left = end - row; left > 0; row++, left--) {
        if (job->is_bf16)
            pass_row(job, row, summand, 1);
        else
            pass_row(job, row, summand, 0);
        if (!sums || left % BEFORE_ADDING != 1) continue;
        for (int64_t i = 0; i < columns; i += WIDE) {
            store(sums + i, load(sums + i) + load(summand + i));
            store(summand + i, all(0));
        }
    }
}

INLINE int threads_for(int64_t values, int threads) { return values < FEWEST ? 1 : threads; }

void activate_forward(const void *x, const float *bias, int64_t rows, int64_t width, int gated,
                      int64_t activation, int is_bf16, int threads, void *to) {
    threads = threads_for(rows * width, threads);
    Passed job = {NULL, x, bias, rows, width, gated, is_bf16, threads, activation, to, NULL};
    run(pass_share, &job, threads);
}

void activate_backward(const void *given, const void *x, const float *bias, int64_t rows, int64_t width,
                       int gated, int64_t activation, int is_bf16, int threads, void *to, float *to_bias) {
    threads = threads_for(rows * width, threads);
    Passed job = {given, x, bias, rows, width, gated, is_bf16, threads, activation, to, to_bias};
    run(pass_share, &job, threads);
}
