/* What the C code of the samplers shares: the random generator, the first fields of each structure, and the finite check.

   Standard normal numbers: ThreeFry-4x32-20 (Salmon et al. 2011), and Box & Muller's transform. They come in groups of 64.
   Group i of step k is a function of key, k and i alone, so any part of any step can be made where it is needed, in any
   order. noise.py has the same in NumPy. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef int64_t I;
typedef uint32_t U;

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define ADD(a, b, c) __builtin_fmaf(a, b, c) /* a b + c, rounded once whatever the compiler would choose */
#else
#define ADD(a, b, c) ((a) * (b) + (c))
#endif

#define INLINE static inline __attribute__((always_inline))
#define LANES 16 /* counters of a group, each of which gives four numbers; and sums that run beside each other, so that the
                    order of a sum is that of no CPU in particular */
#define GROUP (4 * LANES)

/* What every structure begins with. Arrays hold the chains one after the other. */
#define CHAIN_FIELDS \
    I chains, dim; \
    float *theta, *g;                                /* g: gradient of the mean loss, or of U/N */ \
    const float *precision, *centre;                 /* of the prior, (dim); NULL where one number holds for all */ \
    double one_precision, one_centre, items;         /* items: N */ \
    const double *numbers;                           /* (steps, NUMBERS) */ \
    const U *key;                                    /* of the noise */ \
    I step;                                          /* the number of the first step */ \
    const float *losses;                             /* (gradients, chains) */

/* A function that tells Python the bytes of a structure, where its last field lies, and NUMBERS: it describes the same */
#define LAYOUT(function, type, last) \
    void function(I *places) { places[0] = sizeof(type), places[1] = offsetof(type, last), places[2] = NUMBERS; }

INLINE int all_finite(const float *x, I n) {
    int32_t bad = 0;
    for (I i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, x + i, 4);
        bad |= (bits & 0x7F800000) == 0x7F800000;
    }
    return !bad;
}

#define TURN(x, by) ((x) << (by) | (x) >> (32 - (by)))
#define MIX(x, y, by) x += y, y = TURN(y, by) ^ x
#define EVEN(r, s) MIX(a, b, r), MIX(c, d, s);
#define ODD(r, s) MIX(a, d, r), MIX(c, b, s);
#define INJECT(i) a += k[i % 5], b += k[(i + 1) % 5], c += k[(i + 2) % 5], d += k[(i + 3) % 5] + i;
#define FIRST EVEN(10, 26) ODD(11, 21) EVEN(13, 27) ODD(23, 5)
#define SECOND EVEN(6, 20) ODD(17, 11) EVEN(25, 10) ODD(18, 20)

/* out[w][j] = word w of the block whose counter is (group * LANES + j, step), 64 bits each */
INLINE void threefry(const U *key, I step, I group, U out[4][LANES]) {
    U k[5] = {key[0], key[1], key[2], key[3], 0x1BD11BDAu ^ key[0] ^ key[1] ^ key[2] ^ key[3]};
    U low = (U)(group * LANES), high = (U)(group * LANES >> 32), early = (U)step, late = (U)(step >> 32);
    for (int j = 0; j < LANES; j++) {
        U a = low + (U)j + k[0], b = high + k[1], c = early + k[2], d = late + k[3];
        FIRST INJECT(1) SECOND INJECT(2) FIRST INJECT(3) SECOND INJECT(4) FIRST INJECT(5)
        out[0][j] = a, out[1][j] = b, out[2][j] = c, out[3][j] = d;
    }
}

INLINE float float_of(U bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

INLINE U bits_of(float value) {
    U bits;
    memcpy(&bits, &value, 4);
    return bits;
}

/* log(x) for normal x > 0: x = 2^e (1 + m) with m in [sqrt(1/2) - 1, sqrt(2) - 1], polynomial of Cephes' logf in m (Moshier) */
INLINE float logarithm(float x) {
    int32_t e = (int32_t)(bits_of(x) - 0x3F3504F3u) >> 23;
    float m = float_of(bits_of(x) - ((U)e << 23)) - 1.0f, square = m * m, p = 7.0376836292e-2f;
    p = ADD(p, m, -1.1514610310e-1f);
    p = ADD(p, m, 1.1676998740e-1f);
    p = ADD(p, m, -1.2420140846e-1f);
    p = ADD(p, m, 1.4249322787e-1f);
    p = ADD(p, m, -1.6668057665e-1f);
    p = ADD(p, m, 2.0000714765e-1f);
    p = ADD(p, m, -2.4999993993e-1f);
    p = ADD(p, m, 3.3333331174e-1f);
    return ADD((float)e, 0.693147180559945f, ADD(p * m, square, ADD(-0.5f, square, m)));
}

/* Two independent normal numbers from 64 random bits: radius sqrt(-2 log u), angle v 2^-32 turns. u = (4 k + 1) 2^-33 for a
   whole k < 2^31, so that the radius reaches 6.7. */
INLINE void box_muller(U radius, U angle, float *x, float *y) {
    float r = sqrtf(-2.0f * logarithm(ADD((float)(int32_t)(radius >> 1), 0x1p-31f, 0x1p-33f)));
    int32_t quarter = (int32_t)(angle + 0x20000000u) >> 30; /* the nearest quarter of a turn, and the angle from there */
    float h = (float)(int32_t)(angle - ((U)quarter << 30)) * 1.4629180792671596e-9f, square = h * h; /* |h| <= pi / 4 */
    float s = ADD(ADD(-1.9515295891e-4f, square, 8.3321608736e-3f), square, -1.6666654611e-1f); /* Cephes' sinf, cosf */
    float c = ADD(ADD(2.443315711809948e-5f, square, -1.388731625493765e-3f), square, 4.166664568298827e-2f);
    U sine = bits_of(ADD(s * square, h, h)), cosine = bits_of(ADD(c * square, square, ADD(-0.5f, square, 1.0f)));
    U swap = (U)0 - (U)(quarter & 1);
    U cos_bits = (cosine & ~swap) | (sine & swap), sin_bits = (sine & ~swap) | (cosine & swap);
    *x = r * float_of(cos_bits ^ ((U)(quarter + 1) << 30 & 0x80000000u));
    *y = r * float_of(sin_bits ^ ((U)quarter << 30 & 0x80000000u));
}

/* z (n) = the numbers of a step from the number `from` on, which begins a group */
static __attribute__((noinline)) void normal(const U *key, I step, I from, I n, float *z) {
    U bits[4][LANES];
    float group[4][LANES];
    for (I at = 0; at < n; at += GROUP) {
        threefry(key, step, (from + at) / GROUP, bits);
        for (int w = 0; w < 4; w += 2)
            for (int j = 0; j < LANES; j++) box_muller(bits[w][j], bits[w + 1][j], &group[w][j], &group[w + 1][j]);
        memcpy(z + at, group, (size_t)(n - at < GROUP ? n - at : GROUP) * 4);
    }
}
