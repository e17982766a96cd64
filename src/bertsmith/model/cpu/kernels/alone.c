/* The team of one thread that computes where no OpenMP is loaded: in a process without torch, whose texts share
 * the cores in another way. A library that is loaded for all, as torch's is, comes before these.
 */
#include "team.h"

void GOMP_parallel(void (*work)(void *), void *job, unsigned threads, unsigned flags) {
    (void)threads, (void)flags;
    work(job);
}
void GOMP_barrier(void) {}
int omp_get_thread_num(void) { return 0; }
int omp_get_num_threads(void) { return 1; }
