/* Rotary positions of a batch's queries and keys, in place: once read, once written. */
#include "kernels.h"
#include "rotary.h"
#include "team.h"

enum { FEWEST = 1 << 14 }; /* values worth waking a thread for */

typedef struct {
    char *qkv;
    const int64_t *positions;
    const float *cosines, *sines;
    int64_t tokens, heads, size;
    int is_bf16, threads;
    float direction;
} Rotation;

INLINE void rotate_token(const Rotation *job, int64_t token, const int is_bf16) {
    const int64_t vectors = 2 * job->heads; /* of the three, queries and keys come first */
    const int64_t row = job->positions[token] * (job->size / 2);
    char *from = job->qkv + token * 3 * job->heads * job->size * (is_bf16 ? 2 : 4);
    rotate_vectors(from, vectors, job->size, job->cosines + row, job->sines + row, job->direction, is_bf16);
}

static void rotate_share(void *given) {
    const Rotation *job = given;
    const Share share = my_share(job->threads);
    const int64_t end = job->tokens * (share.part + 1) / share.parts;
    for (int64_t token = job->tokens * share.part / share.parts; token < end; token++)
        if (job->is_bf16)
            rotate_token(job, token, 1);
        else
            rotate_token(job, token, 0);
}

void rotate(void *qkv, const int64_t *positions, const float *cosines, const float *sines, int64_t tokens,
            int64_t heads, int64_t size, int is_bf16, int backward, int threads) {
    const int64_t values = 2 * tokens * heads * size;
    Rotation job = {
        .qkv = qkv,
        .positions = positions,
        .cosines = cosines,
        .sines = sines,
        .tokens = tokens,
        .heads = heads,
        .size = size,
        .is_bf16 = is_bf16,
        .threads = values < FEWEST ? 1 : threads,
        .direction = backward ? -1 : 1,
    };
    run(rotate_share, &job, job.threads);
}
