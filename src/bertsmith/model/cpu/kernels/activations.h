/* What follows the first product of the feed-forward part. */
#ifndef ACTIVATIONS_H
#define ACTIVATIONS_H
#include "kernels.h"
#include "registers.h"

static const float END = 5.5f;

/* (1 + erf(x / sqrt(2))) / 2: erf(x / sqrt(2)) / x is a polynomial of x^2, off by 4e-8, up to END. */
INLINE Floats normal_below(Floats x) {
    const Floats inside = larger(all(-END), smaller(all(END), x));
    const Floats t = inside * inside * (2 / (END * END)) - 1;
    Floats y = all(-1.90655113e-4f);
    y = y * t + 5.92047342e-4f;
    y = y * t - 6.73304295e-4f;
    y = y * t + 8.41155953e-4f;
    y = y * t - 2.24018004e-3f;
    y = y * t + 4.4775146e-3f;
    y = y * t - 6.92995838e-3f;
    y = y * t + 1.03121182e-2f;
    y = y * t - 1.49637485e-2f;
    y = y * t + 2.03396219e-2f;
    y = y * t - 2.60538685e-2f;
    y = y * t + 3.20737185e-2f;
    y = y * t - 3.87924128e-2f;
    y = y * t + 4.77374508e-2f;
    y = y * t - 6.41723453e-2f;
    y = y * t + 1.28551932e-1f;
    return inside * y + .5f;
}

INLINE Floats gelu(Floats x) { return larger(all(-END), x) * normal_below(x); }

/* Off by 2e-4 at most, in half of the time: for what is rounded to int8 next, whose steps are larger. */
INLINE Floats rough_gelu(Floats x) {
    const Floats end = all(4), inside = larger(-end, smaller(end, x));
    const Floats t = inside * inside * .125f - 1;
    Floats y = all(.00597269f);
    y = y * t - .01655172f;
    y = y * t + .02409074f;
    y = y * t - .03546177f;
    y = y * t + .05541017f;
    y = y * t - .08442669f;
    y = y * t + .17597023f;
    return larger(-end, x) * (inside * y + .5f);
}

/* Its derivative: the normal distribution up to x, and x times its density there. */
INLINE Floats gelu_slope(Floats x) {
    const Floats density = power_of_two(x * x * -.721347520444482f) * .398942280401433f;
    return normal_below(x) + x * density;
}

/* x / (1 + e^-z), z = 2 sqrt(2 / pi) (x + 0.044715 x^3): the form with tanh. */
INLINE Floats gelu_new(Floats x) {
    const Floats z = x * (x * x * .0713548162726f + 1.59576912160573f) * 1.44269504088896f;
    const Floats small = power_of_two(smaller(z, -z));
    return x * choose(z > 0, all(1), small) / (small + 1);
}

/* 1 / (1 + e^-x). */
INLINE Floats logistic(Floats x) {
    const Floats small = power_of_two(smaller(x, -x) * 1.44269504088896f);
    return choose(x > 0, all(1), small) / (small + 1);
}

/* x / (1 + e^-x), of -inf next to nothing as GELU is. */
INLINE Floats silu(Floats x) { return larger(all(-100), x) * logistic(x); }

/* Its derivative. */
INLINE Floats silu_slope(Floats x) {
    const Floats share = logistic(x);
    return share + larger(all(-100), x) * share * logistic(-x);
}

INLINE Floats activated(Floats x, int64_t activation) {
    switch (activation) {
    case GELU:
        return gelu(x);
    case GELU_NEW:
        return gelu_new(x);
    case SILU:
        return silu(x);
    default:
        return larger(all(0), x);
    }
}

#endif
