/* The update of a stack of chains: the prior's part of the gradient, and then the dynamics. compiled/update.py compiles
   this file.

   A linear dynamics is six numbers, which Python reads off the dynamics itself. SGNHT has a form of its own. All
   chains, one after the other, go through the cache in tiles, for which the noise is made where it is used.
   Every coordinate of a chain is computed alike, and no sum depends on the other chains, so one step by itself and a step
   among many give the same bits. */

#include "common.h"

#define TILE 1024 /* numbers, whole groups of noise: five arrays of them fit into the first cache of any CPU */
#define NUMBERS 6 /* of a step */

enum { LINEAR, THERMOSTAT };

typedef struct {
    CHAIN_FIELDS
    I form;
    float *m, *xi; /* m is NULL in a dynamics of first order, xi in all but the thermostat */
    const float *multiplier; /* (chains) of the gradient of U/N; NULL: 1 */
    float *const *seen; /* (steps) where the gradient of the loss is copied to; NULL: nowhere */
} Update;

/* out = g + precision (θ - centre) / N; out may be g */
static void add_prior(const Update *u, const float *theta, const float *g, float *out, I from, I n) {
    double per_item = 1 / u->items;
    float one = (float)(u->one_precision * per_item), centre = (float)u->one_centre, by = (float)per_item;
    const float *p = u->precision ? u->precision + from : NULL, *c = u->centre ? u->centre + from : NULL;
    if (p && c)
        for (I i = 0; i < n; i++) out[i] = ADD(p[i] * by, theta[i] - c[i], g[i]);
    else if (p)
        for (I i = 0; i < n; i++) out[i] = ADD(p[i] * by, theta[i] - centre, g[i]);
    else if (c)
        for (I i = 0; i < n; i++) out[i] = ADD(one, theta[i] - c[i], g[i]);
    else
        for (I i = 0; i < n; i++) out[i] = ADD(one, theta[i] - centre, g[i]);
}

/* θ += b0 m + b1 g + b2 z, m <- a0 m + a1 g + a2 z, with the m from before the step */
static void second_order(float *restrict theta, float *restrict m, const float *restrict g, const float *restrict z,
                         const double *numbers, I n) {
    float a[3], b[3];
    for (int j = 0; j < 3; j++) a[j] = (float)numbers[j], b[j] = (float)numbers[3 + j];
    for (I i = 0; i < n; i++) {
        float before = m[i];
        theta[i] += ADD(b[2], z[i], ADD(b[1], g[i], b[0] * before));
        m[i] = ADD(a[2], z[i], ADD(a[1], g[i], a[0] * before));
    }
}

static void first_order(float *restrict theta, const float *restrict g, const float *restrict z, const double *numbers,
                        I n) {
    float b1 = (float)numbers[4], b2 = (float)numbers[5];
    for (I i = 0; i < n; i++) theta[i] += ADD(b2, z[i], b1 * g[i]);
}

/* m <- keep m - lr g + c z, θ += m; adds m² to the sum of the coordinate's place in the chain. numbers = lr, c */
static void thermostatted(float *restrict theta, float *restrict m, const float *restrict g, const float *restrict z,
                          float keep, const double *numbers, float *restrict sums, I from, I n) {
    float lr = (float)numbers[0], c = (float)numbers[1];
    I i = 0, head = -from & (LANES - 1);
    for (; i < n; i++) {
        if (i == head)
            for (; i + LANES <= n; i += LANES)
                for (int j = 0; j < LANES; j++) {
                    float to = m[i + j] = ADD(c, z[i + j], ADD(-lr, g[i + j], keep * m[i + j]));
                    theta[i + j] += to;
                    sums[j] = ADD(to, to, sums[j]);
                }
        if (i == n) break;
        float to = m[i] = ADD(c, z[i], ADD(-lr, g[i], keep * m[i]));
        theta[i] += to;
        sums[(from + i) % LANES] = ADD(to, to, sums[(from + i) % LANES]);
    }
}

/* ξ += rate ((1 - ξ/2) |m|²/d - lr tau); numbers[2:] = lr tau, rate. Empties the sums. */
static void turn_thermostat(const Update *u, I chain, const double *numbers, float *sums) {
    double square = 0;
    for (int j = 0; j < LANES; j++) square += sums[j], sums[j] = 0;
    float *xi = u->xi + chain;
    *xi += (float)(numbers[3] * ((1 - *xi / 2) * square / (double)u->dim - numbers[2]));
}

/* n coordinates of a chain. adds_prior: g is that of the loss still, and stays it. */
static void move_part(const Update *u, I chain, I from, I n, const float *z, const double *numbers, int adds_prior,
                      float *sums) {
    I at = chain * u->dim + from;
    float *theta = u->theta + at, *m = u->m ? u->m + at : NULL, whole[TILE];
    const float *g = u->g + at;
    if (adds_prior) {
        add_prior(u, theta, g, whole, from, n);
        g = whole;
        if (u->multiplier)
            for (I i = 0; i < n; i++) whole[i] *= u->multiplier[chain];
    }
    if (u->form == THERMOSTAT) thermostatted(theta, m, g, z, 1 - u->xi[chain], numbers, sums, from, n);
    else if (m) second_order(theta, m, g, z, numbers, n);
    else first_order(theta, g, z, numbers, n);
}

static void move(const Update *u, I step, const double *numbers, int adds_prior) {
    int noisy = u->form == THERMOSTAT ? numbers[1] != 0 : numbers[2] != 0 || numbers[5] != 0;
    I all = u->chains * u->dim;
    float z[TILE] = {0}, sums[LANES] = {0};
    for (I start = 0, chain = 0, from = 0; start < all; start += TILE) {
        I left = all - start < TILE ? all - start : TILE;
        if (noisy) normal(u->key, step, start, left, z);
        for (const float *at = z; left;) {
            I n = u->dim - from < left ? u->dim - from : left;
            move_part(u, chain, from, n, at, numbers, adds_prior, sums);
            at += n, left -= n, from += n;
            if (from < u->dim) continue;
            if (u->form == THERMOSTAT) turn_thermostat(u, chain, numbers, sums);
            chain++, from = 0;
        }
    }
}

/* One step of all chains from g. adds_prior: whether g is that of the loss still */
void bdl_update_step(const Update *u, I adds_prior) { move(u, u->step, u->numbers, (int)adds_prior); }

void bdl_update_prior(const Update *u) {
    for (I chain = 0; chain < u->chains; chain++)
        add_prior(u, u->theta + chain * u->dim, u->g + chain * u->dim, u->g + chain * u->dim, 0, u->dim);
}

/* Step k of many, after its losses and its gradient. Returns 1, and changes nothing, where they are not finite. */
I bdl_update_after(const Update *u, I k) {
    I all = u->chains * u->dim;
    if (!all_finite(u->losses + k * u->chains, u->chains) || !all_finite(u->g, all)) return 1;
    if (u->seen[k]) memcpy(u->seen[k], u->g, (size_t)all * 4);
    move(u, u->step + k, u->numbers + k * NUMBERS, 1);
    return 0;
}

LAYOUT(bdl_update_layout, Update, seen)
