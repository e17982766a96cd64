/* What the kernels give each other and Python. Functions that return int: 1 where there is no memory, else 0.
 *
 * N tokens, B sequences, H hidden size, A heads, D head size, a multiple of 16, I feed-forward width, too.
 */
#ifndef KERNELS_H
#define KERNELS_H
#include <stdint.h>

/* qkv (N, 3, A, D) -> to (N, A, D), of float32 or, if `is_bf16`, bfloat16. With `given` (N, A, D), the gradient
 * of that, -> to (N, 3, A, D), that of qkv. Tokens up to a distance of `window` see each other.
 *
 * A mask, what weights are times, has as many values as attention_cells says, those of each sequence and each
 * of its heads behind one another: (L, L with padding up to whole lines), or with a window less. The weights
 * that are kept for the gradient, too, but for sequences where they would be too many. NULL: none.
 *
 * bias (A, 2 reach) or NULL: what a head's products are added to, at reach + d that of a key d tokens after its
 * query; reach is LINE tokens more than a sequence's longest at least. to_bias (SHARES, A, 2 reach) or NULL:
 * its gradient, of some sequences each, which begins as zeros.
 *
 * With `distances` attention is disentangled: rows[d] is the row of these tables for a key d tokens before its
 * query, d of either sign. There is no gradient of it. */
enum { LINE = 16, SHARES = 8 };
typedef struct {
    const float *keys, *queries; /* (rows, A, D), or NULL, one of them */
} Distances;
typedef struct {
    const void *qkv, *given, *mask;
    void *weights, *to;
    const int64_t *lengths; /* (B,) */
    int64_t sequences, heads, size;
    int64_t is_bf16, window;
    const float *bias;
    float *to_bias;
    int64_t reach;
    Distances distances;
    const int64_t *rows;
} Attention;

int64_t attention_cells(const Attention *job, int only_kept);
int attend(const Attention *job, int threads);

/* The same, of the heads that are one core's part; scratch, a core's own, is of so many values. */
void attend_part(const Attention *job, float *scratch, int part, int parts);
int64_t attention_scratch(const Attention *job);

/* A weight is in float32, or in int16 with scales, one for so many inputs of an output, or in int8 with one for
 * all of them and the sum of its codes. */
enum { GROUP = 128 };
typedef struct {
    int64_t inputs, outputs;
    const void *weight;  /* float32 (outputs / 16, inputs, 16), int16 (outputs / 16, inputs / 2, 16, 2) or int8
                            (outputs / 16, inputs / 4, 16, 4) */
    const float *scales; /* (inputs / GROUP, outputs), rounded up, of int16; (outputs,) of int8; or NULL */
    const float *bias;   /* (outputs,) or NULL */
    const int32_t *sums; /* (outputs,) of int8, or NULL */
} Linear;

typedef struct {
    const float *gain, *shift; /* (H,) or NULL: without a gain there is no norm */
    double epsilon;
    int64_t centred; /* LayerNorm, else RMSNorm */
} Norm;

/* Gated, `up` has 2 I outputs, of which the first half is activated and multiplied with the second. */
enum { GELU, GELU_NEW, RELU, SILU };
typedef struct {
    Linear qkv, output, up, down;
    Norm attention_norm, feed_forward_norm; /* behind their parts, or before */
    Distances distances;
    int64_t heads, window, activation, gated, pre_norm;
} Layer;

/* By which Python knows a library of another version. */
int64_t arguments_bytes(void);

/* states (N, H) -> to (N, H): queries, keys, values, and attention. With rotary positions cosines, sines are
 * (positions, D / 2) for a sequence's longest, else NULL; bias, reach and rows are Attention's. */
int self_attend(const Layer *layer, const float *states, const int64_t *lengths, int64_t sequences,
                const float *cosines, const float *sines, const float *bias, int64_t reach,
                const int64_t *rows, int threads, float *to);

/* The same; added (N, 3 H) is what the products that make queries, keys and values are added to, or NULL. */
int self_attend_added(const Layer *layer, const float *states, const float *added, const int64_t *lengths,
                      int64_t sequences, const float *cosines, const float *sines, const float *bias,
                      int64_t reach, const int64_t *rows, int threads, float *to);

/* mixed (N, H), states (N, H) -> to (N, H): the output, added, and the feed-forward part, with norms. */
int feed_forward(const Layer *layer, const float *mixed, const float *states, int64_t rows, int threads,
                 float *to);

/* x (rows, inputs) -> to (rows, outputs). A row's values don't depend on the others, nor on the number of
 * threads; those of a weight in int8 not on the instruction set either. */
int product(const Linear *linear, const float *x, int64_t rows, int threads, float *to);

/* x (rows, size), size a multiple of 8, -> to: LayerNorm as torch computes it, to the bit. */
void layer_norm(const float *x, int64_t rows, int64_t size, const Norm *norm, float *to);

/* count values in place, each rounded once. */
void hyperbolic_tangents(float *x, int64_t count);

/* Products (rows, columns) of a tile of the vocabulary with masked positions, of float32 or, if `is_bf16`,
 * bfloat16, in place: with their row's bias they become exponentials against the largest of their column so
 * far. largest, total, shrink (columns,): that, the sum of the exponentials so far, and what earlier tiles'
 * are to be multiplied with. Columns are a multiple of 16. */
void exponentiate(void *scores, const float *bias, int64_t rows, int64_t columns, int is_bf16, int threads,
                  float *largest, float *total, float *shrink);

/* count values of float32 or, if `is_bf16`, bfloat16: 0 with a probability of dropped / 256, else scale. */
void dropout_mask(void *to, int64_t count, uint64_t seed, int dropped, float scale, int is_bf16, int threads);

/* x (rows, width) of products, bias (width,) or NULL -> to (rows, width), the activation, GELU or SILU, of
 * x + bias; if `gated`, x and the bias are of 2 width, of which the first half is activated and multiplied
 * with the second. Of float32 or, if `is_bf16`, bfloat16. Backward, the gradient of that, given (rows, width)
 * -> to, that of x, and unless to_bias is NULL sums of it are added to those of each thread, to_bias (threads,
 * 2, of x), which begins as zeros and ends with them in the second half. The width is a multiple of 16. */
void activate_forward(const void *x, const float *bias, int64_t rows, int64_t width, int gated,
                      int64_t activation, int is_bf16, int threads, void *to);
void activate_backward(const void *given, const void *x, const float *bias, int64_t rows, int64_t width,
                       int gated, int64_t activation, int is_bf16, int threads, void *to, float *to_bias);

/* qkv (N, 3, A, D) in place, of float32 or, if `is_bf16`, bfloat16: value d and d + D / 2 of each query and key
 * turn by the angle of their token's position, or back; cosines, sines (positions, D / 2). */
void rotate(void *qkv, const int64_t *positions, const float *cosines, const float *sines, int64_t tokens,
            int64_t heads, int64_t size, int is_bf16, int backward, int threads);

#endif
