/* The steps of MCLMC between two gradients: refresh, kicks and drifts, the energy error of a step, and its tuning.
   compiled/microcanonical.py compiles this file; dynamics/microcanonical.py describes the same, with the equations.

   A step has `stages` gradients. It begins with the kick by the gradient that the last step has left, and moves θ to where
   the first one is taken. One step by itself and a step among many give the same bits, because both are these functions. */

#include "common.h"

#define NUMBERS 2 /* of a step: lr and tau */

/* The names of the state are those of `Microcanonical` in Python. g: where a step takes it, that of the mean loss */
typedef struct {
    CHAIN_FIELDS
    I stages, steps; /* steps: of this walk */
    float *gradient, *direction, *mean, *square;
    double *potential, *length, *log_factor, *errors, *weights, *error, *undone, *level;
    double kicks[3], drifts[2]; /* as shares of a step */
    double energy_var, energy_var_start, width, memory, shift; /* shift: of the level per step */
    I adjusted, adapt_steps, first, last; /* first, last: the spread of θ is measured after the one and up to the other */
    I finds_length, made;       /* made: how many steps the state has made before this walk */
    float *start, *before, *u;  /* (chains, dim) θ, and u after its refresh, where the step began; u now */
    double *potentials;         /* (steps, chains) U/N at which each step of the walk ends; NULL: nobody reads them */
    double *kinetic, *size;     /* (chains) ΔK of the step so far, and ε */
} Walk;

/* x·y in double of numbers in float */
static double dot(const float *x, const float *y, I n) {
    double sums[LANES] = {0}, total = 0;
    I i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) sums[j] += (double)x[i + j] * (double)y[i + j];
    for (; i < n; i++) sums[i % LANES] += (double)x[i] * (double)y[i];
    for (int j = 0; j < LANES; j++) total += sums[j];
    return total;
}

static void make_unit(float *x, I n) {
    float by = (float)(1 / sqrt(dot(x, x, n)));
    for (I i = 0; i < n; i++) x[i] *= by;
}

/* g += precision (θ - centre) / N. Returns -log p(θ), nats. */
static double add_prior(const Walk *w, const float *restrict theta, float *restrict g) {
    double sums[LANES] = {0}, total = 0, by = 1 / w->items;
    for (I i = 0; i < w->dim; i++) {
        double p = w->precision ? w->precision[i] : w->one_precision;
        double x = (double)theta[i] - (w->centre ? w->centre[i] : w->one_centre);
        g[i] += (float)(p * by * x);
        sums[i % LANES] += p * x * x;
    }
    for (int j = 0; j < LANES; j++) total += sums[j];
    return total / 2;
}

/* u after a kick by the gradient g of U/N for a length h; returns ΔK. See `kick` in Python. */
static double kick(const Walk *w, float *restrict u, const float *restrict g, double tau, double h) {
    I d = w->dim;
    double norm = sqrt(dot(g, g, d)), c = norm > 0 ? -dot(g, u, d) / norm : 0;
    c = c > 1 ? 1 : c < -1 ? -1 : c; /* NaN stays NaN */
    double delta = h * norm / tau / (double)(d - 1), q = exp(-delta);
    float along = norm > 0 ? (float)(-(1 - q) * (1 + q + c * (1 - q)) / norm) : 0.0f, kept = (float)(2 * q);
    for (I i = 0; i < d; i++) u[i] = along * g[i] + kept * u[i];
    make_unit(u, d);
    return (double)(d - 1) * (delta - log(2) + log(1 + c + (1 - c) * q * q));
}

/* θ += length u */
static void drift(float *restrict theta, const float *restrict u, double length, I d) {
    float by = (float)length;
    for (I i = 0; i < d; i++) theta[i] += by * u[i];
}

/* Step k up to its first gradient */
static void begin(Walk *w, I k) {
    I d = w->dim;
    double lr = w->numbers[k * NUMBERS], tau = w->numbers[k * NUMBERS + 1];
    normal(w->key, w->step + k, 0, w->chains * d, w->u);
    memcpy(w->start, w->theta, (size_t)(w->chains * d) * 4);
    for (I c = 0; c < w->chains; c++) {
        float *u = w->u + c * d, *direction = w->direction + c * d;
        double size = w->size[c] = sqrt(2 * lr * tau * (double)d * exp(w->log_factor[c]));
        float nu = (float)sqrt(expm1(2 * size / w->length[c]) / (double)d);
        for (I i = 0; i < d; i++) u[i] = direction[i] + nu * u[i];
        make_unit(u, d);
        memcpy(w->before + c * d, u, (size_t)d * 4);
        w->kinetic[c] = kick(w, u, w->gradient + c * d, tau, w->kicks[0] * size);
        drift(w->theta + c * d, u, w->drifts[0] * size, d);
    }
}

/* From the gradient of this stage (1, 2, ..) of step k to where the next one is taken */
static void go_on(Walk *w, I k, I stage) {
    double tau = w->numbers[k * NUMBERS + 1];
    for (I c = 0; c < w->chains; c++) {
        float *theta = w->theta + c * w->dim, *g = w->g + c * w->dim, *u = w->u + c * w->dim;
        add_prior(w, theta, g);
        w->kinetic[c] += kick(w, u, g, tau, w->kicks[stage] * w->size[c]);
        drift(theta, u, w->drifts[stage] * w->size[c], w->dim);
    }
}

/* `_tune_lr` of Python; square = ΔE²/d */
static void tune(Walk *w, I c, I steps, double square, int done) {
    I half = w->first;
    double start = w->energy_var_start, part = (double)steps / (double)(half > 1 ? half : 1);
    double target = start + (w->energy_var - start) * (part < 1 ? part : 1);
    double late = 1 - 1 / (double)(steps - half > 1 ? steps - half : 1);
    double memory = late > w->memory ? late : w->memory, factor = w->log_factor[c];
    double xi = square / target + 1e-20, by = log(xi) / w->width, weight = exp(-0.5 * by * by);
    w->errors[c] = memory * w->errors[c] + weight * target * xi * exp(-3 * factor);
    w->weights[c] = memory * w->weights[c] + weight;
    if (done) {
        double wanted = log(target * w->weights[c] / w->errors[c]) / 3, raised = factor + log(4);
        w->log_factor[c] = wanted < raised ? wanted : raised;
    } else {
        w->log_factor[c] = factor - log(4);
        w->errors[c] = target * exp(-3 * w->log_factor[c]); /* forget the steps before one undone */
        w->weights[c] = 1;
    }
}

/* The spread of θ, from which L follows */
static void measure_spread(Walk *w, I c, I steps) {
    I at = c * w->dim;
    float *mean = w->mean + at, *square = w->square + at, by = (float)(1 / (double)(steps - w->first));
    for (I i = 0; i < w->dim; i++) {
        float change = w->theta[at + i] - mean[i];
        mean[i] += by * change;
        square[i] += change * (w->theta[at + i] - mean[i]);
    }
    if (steps < w->last || !w->finds_length) return;
    double total = 0;
    for (I i = 0; i < w->dim; i++) total += square[i];
    if (total > 0) w->length[c] = sqrt(total / (double)(w->last - w->first));
}

/* Step k from its last gradient on. A step whose ΔE is not finite is undone, and one that is refused. losses: of that gradient */
static void finish(Walk *w, I k, const float *losses) {
    I steps = w->made + k + 1, d = w->dim;
    double tau = w->numbers[k * NUMBERS + 1];
    for (I c = 0; c < w->chains; c++) {
        float *theta = w->theta + c * d, *g = w->g + c * d, *u = w->u + c * d, *direction = w->direction + c * d;
        double potential = (double)losses[c] + add_prior(w, theta, g) / w->items;
        double kinetic = w->kinetic[c] + kick(w, u, g, tau, w->kicks[w->stages] * w->size[c]);
        double error = (potential - w->potential[c]) / tau + kinetic;
        int done = isfinite(error) && all_finite(g, d);
        if (w->adjusted && steps > w->adapt_steps) {
            double level = w->level[c] + w->shift;
            if (level > 1) level -= 2;
            done = done && fabs(level) < exp(-error);
            w->level[c] = done ? level * exp(error) : level;
        }
        if (done) {
            memcpy(w->gradient + c * d, g, (size_t)d * 4);
            memcpy(direction, u, (size_t)d * 4);
            w->potential[c] = potential;
        } else {
            memcpy(theta, w->start + c * d, (size_t)d * 4);
            for (I i = 0; i < d; i++) direction[i] = -w->before[c * d + i];
            error = 0;
        }
        if (w->potentials) w->potentials[k * w->chains + c] = w->potential[c];
        w->undone[c] = steps == w->adapt_steps ? 0 : w->undone[c] + !done;
        if (steps > w->adapt_steps) w->error[c] += error * error / (double)d;
        else tune(w, c, steps, error * error / (double)d, done);
        if (w->first < steps && steps <= w->last) measure_spread(w, c, steps);
    }
}

void bdl_microcanonical_begin(Walk *w) { begin(w, 0); }

/* What follows gradient number e of a walk, with which the next step begins, if there is one. 0: it can go on. */
I bdl_microcanonical_after(Walk *w, I e) {
    I k = e / w->stages, stage = e % w->stages + 1;
    if (stage < w->stages) go_on(w, k, stage);
    else {
        finish(w, k, w->losses + e * w->chains);
        if (k + 1 < w->steps) begin(w, k + 1);
    }
    return 0;
}

LAYOUT(bdl_microcanonical_layout, Walk, size)
