/* Threads that share a layer: OpenMP's, of the library that torch has brought with it. */
#ifndef TEAM_H
#define TEAM_H
#include "registers.h"

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

#endif
