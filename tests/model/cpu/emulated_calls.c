/* Calls the kernels in a process of another processor, by an emulator. Arguments lie in a file that both processes map
 * at the same address, so that pointers hold. A line of standard input is a call: a name and whole numbers.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels.h"

typedef int64_t (*Function)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                            int64_t, int64_t);

/* One of whose arguments isn't whole: 2^scale. */
static void mask(void *to, int64_t count, uint64_t seed, int64_t dropped, int64_t scale, int64_t is_bf16) {
    dropout_mask(to, count, seed, (int)dropped, (float)(1 << scale), (int)is_bf16, 1);
}

#define NAMED(function) {#function, (Function)function}
static const struct {
    const char *name;
    Function function;
} FUNCTIONS[] = {
    NAMED(product),          NAMED(self_attend_added), NAMED(feed_forward),      NAMED(layer_norm),
    NAMED(attend),           NAMED(attention_cells),   NAMED(activate_forward),  NAMED(activate_backward),
    NAMED(rotate),           NAMED(exponentiate),      NAMED(arguments_bytes),   NAMED(hyperbolic_tangents),
    NAMED(mask),
};

int main(int count, char **given) {
    const int64_t address = strtoll(given[2], NULL, 10), size = strtoll(given[3], NULL, 10);
    const int file = open(given[1], O_RDWR);
    const void *place = mmap((void *)address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    if (count != 4 || place == MAP_FAILED) return 1;
    char name[32];
    while (scanf("%31s", name) == 1) {
        int64_t a[12] = {0};
        for (int i = 0; i < 12; i++)
            if (scanf("%ld", &a[i]) != 1) return 1;
        for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++)
            if (!strcmp(name, FUNCTIONS[i].name)) {
                const Function call = FUNCTIONS[i].function;
                printf("%ld\n", call(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]));
                fflush(stdout);
            }
    }
    return 0;
}
