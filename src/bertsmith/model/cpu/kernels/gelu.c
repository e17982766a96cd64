/* GELU and the bias before it in one pass through memory, and both gradients in another. */
#include "activations.h"
#include "kernels.h"
#include "team.h"

/* Rows whose sum is one summand; values worth waking a thread for. */
enum { BEFORE_ADDING = 32, FEWEST = 1 << 14 };

typedef struct {
    const void *given, *x; /* the result's gradient, or NULL on the way forward; products */
    const float *bias;
    int64_t rows, width;
    int half, threads;
    void *to;
    float *to_bias;
} Passed;

INLINE void pass(const Passed *job, int64_t row, float *to_bias, const int half) {
    for (int64_t i = 0; i < job->width; i += WIDE) {
        const int64_t at = row * job->width + i;
        const Floats x = read(job->x, at, half) + load(job->bias + i);
        if (!job->given) {
            write(job->to, at, gelu(x), half);
            continue;
        }
        const Floats found = read(job->given, at, half) * gelu_slope(x);
        write(job->to, at, found, half);
        store(to_bias + i, load(to_bias + i) + found);
    }
}

static void pass_share(void *given) {
    const Passed *job = given;
    const Share share = my_share(job->threads);
    const int64_t end = job->rows * (share.part + 1) / share.parts;
    float *sums = job->to_bias + 2 * share.part * job->width, *summand = sums + job->width;
    for (int64_t row = job->rows * share.part / share.parts, left = end - row; left > 0; row++, left--) {
        if (job->half)
            pass(job, row, summand, 1);
        else
            pass(job, row, summand, 0);
        if (!job->given || (left % BEFORE_ADDING != 1)) continue;
        for (int64_t i = 0; i < job->width; i += WIDE) {
            store(sums + i, load(sums + i) + load(summand + i));
            store(summand + i, all(0));
        }
    }
}

INLINE int threads_for(int64_t values, int threads) { return values < FEWEST ? 1 : threads; }

void gelu_forward(const void *x, const float *bias, int64_t rows, int64_t width, int half, int threads,
                  void *to) {
    Passed job = {NULL, x, bias, rows, width, half, threads_for(rows * width, threads), to, NULL};
    run(pass_share, &job, job.threads);
}

void gelu_backward(const void *given, const void *x, const float *bias, int64_t rows, int64_t width, int half,
                   int threads, void *to, float *to_bias) {
    Passed job = {given, x, bias, rows, width, half, threads_for(rows * width, threads), to, to_bias};
    run(pass_share, &job, job.threads);
}
