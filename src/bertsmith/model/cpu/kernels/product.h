/* Products of a layer's states and weights. */
#include "kernels.h"
#include "team.h"

enum { NONE = -1 }; /* activation */

/* What float32 rows become for a product in int16: codes (rows, inputs) and scales (rows, inputs / GROUP),
 * rounded up. In int8 the codes are uint8, and a row's scales are two: its scale, and its code for 0, an
 * int32. */
typedef struct {
    int16_t *codes;
    float *scales;
} Rounded;

/* Bytes for `rows` rows of so many inputs; and the same, placed there. */
int64_t rounded_bytes(int64_t rows, int64_t inputs);
Rounded rounded_at(void *place, int64_t rows, int64_t inputs);

/* x (rows, inputs) -> to (rows, outputs): a thread's panels of the product, what is `added` to it, and the
 * activation. `rounded` is for what the team makes of x where the weight is in int16 or int8. */
void multiply(const Linear *linear, const float *x, int64_t rows, const float *added, int64_t activation,
              float *to, Rounded rounded, Share share);
