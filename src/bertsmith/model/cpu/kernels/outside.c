/* What an encoder computes outside its layers: the norm of its embeddings, and tanh.
 *
 * The norm sums in torch's order (its moments of rows, of eight values at once), to the bit: so a program with
 * torch and one without give the same. Where torch rounds a product before it adds it, this does: GCC would make
 * one operation of both.
 */
#include "kernels.h"
#include "registers.h"

enum { EIGHT = 8, CHUNK = 16, LEVELS = 32 };
typedef float Eight __attribute__((vector_size(4 * EIGHT), aligned(4)));

#ifdef __aarch64__ /* two registers, so by way of memory */
INLINE Eight rounded(Eight x) {
    __asm__("" : "+m"(x));
    return x;
}
INLINE float rounded_one(float x) {
    __asm__("" : "+w"(x));
    return x;
}
INLINE Eight fused(Eight a, Eight b, Eight c) {
    for (int k = 0; k < EIGHT; k++) c[k] = fmaf(a[k], b[k], c[k]);
    return c;
}
#else
INLINE Eight rounded(Eight x) {
    __asm__("" : "+v"(x));
    return x;
}
INLINE float rounded_one(float x) {
    __asm__("" : "+v"(x));
    return x;
}
INLINE Eight fused(Eight a, Eight b, Eight c) { return _mm256_fmadd_ps(a, b, c); }
#endif
INLINE Eight of_eight(const float *from) { return *(const Eight *)from; }

/* Of some values in each of eight lanes: their number, mean, and squares of distances from it (Chan et al. 1979). */
typedef struct {
    int64_t count;
    Eight mean, squares;
} Moments;

static void join(const Moments *more, Moments *sum) {
    const int64_t count = sum->count + more->count;
    const float share = count ? (float)more->count / (float)count : 0;
    const Eight delta = rounded(more->mean - sum->mean), step = rounded(share * delta);
    const Eight weighted = rounded(step * (float)sum->count);
    sum->squares = fused(weighted, delta, rounded(sum->squares + more->squares));
    sum->mean = sum->mean + step;
    sum->count = count;
}

/* Of one row: its mean and its squares. Chunks are joined two and two, so that none is lost in a large sum. */
static void moments(const float *x, int64_t size, float *to_mean, float *to_squares) {
    const int64_t groups = size / EIGHT, chunks = (groups + CHUNK - 1) / CHUNK;
    int depth = 0;
    while ((int64_t)1 << depth < chunks) depth++;
    Moments levels[LEVELS] = {0};
    for (int64_t i = 0; i < chunks; i++) {
        const int64_t first = i * CHUNK, count = groups - first < CHUNK ? groups - first : CHUNK;
        Moments chunk = {.count = count};
        for (int64_t j = 0; j < count; j++) {
            const Eight value = of_eight(x + (first + j) * EIGHT), delta = rounded(value - chunk.mean);
            chunk.mean = fused(delta, 1 / (float)(j + 1) - (Eight){0}, chunk.mean);
            chunk.squares = fused(delta, rounded(value - chunk.mean), chunk.squares);
        }
        join(&chunk, &levels[0]);
        int64_t whole = i + 1;
        for (int j = 1; j < depth && whole % 2 == 0; j++, whole /= 2) {
            join(&levels[j - 1], &levels[j]);
            levels[j - 1] = (Moments){0};
        }
    }
    for (int j = 1; j < depth; j++) join(&levels[j], &levels[0]);
    float mean = 0, squares = 0, means[EIGHT], lanes[EIGHT];
    *(Eight *)means = levels[0].mean;
    *(Eight *)lanes = levels[0].squares;
    for (int k = 0; k < EIGHT; k++) {
        const float share = (float)groups / (float)(groups * (k + 1)), delta = rounded_one(means[k] - mean);
        mean = fmaf(share, delta, mean);
        const float squared = rounded_one(rounded_one(delta * delta) * share);
        squares = squares + rounded_one(fmaf(squared, (float)(groups * k), lanes[k]));
    }
    *to_mean = mean;
    *to_squares = squares;
}

void layer_norm(const float *x, int64_t rows, int64_t size, const Norm *norm, float *to) {
    for (int64_t i = 0; i < rows; i++, x += size, to += size) {
        float mean, squares;
        moments(x, size, &mean, &squares);
        const float share = 1 / sqrtf(rounded_one(squares / (float)size) + (float)norm->epsilon);
        for (int64_t k = 0; k < size; k += EIGHT) {
            const Eight centred = rounded(of_eight(x + k) - mean);
            const Eight shift = norm->shift ? of_eight(norm->shift + k) : (Eight){0};
            const Eight scaled = rounded(centred * share);
            *(Eight *)(to + k) = fused(scaled, of_eight(norm->gain + k), shift);
        }
    }
}

void hyperbolic_tangents(float *x, int64_t count) {
    for (int64_t i = 0; i < count; i++) x[i] = (float)tanh((double)x[i]);
}
