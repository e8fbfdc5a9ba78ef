/* Loss, gradient and outputs of a stack of multilayer perceptrons, one chain after the other. mlp_library.py compiles
   this file.

   The items of a batch are the contiguous axis: a layer's values are (features, ld) in scratch memory, with ld >= B
   rounded up to whole vectors. The columns beyond B repeat the last item, and their gradients are zero. Where the loss is
   computed here, a large batch goes through all layers in blocks of items whose values stay in the cache. The order of
   every sum depends on the shapes alone, so the numbers do not depend on alignment or on the other chains. Subnormal
   numbers count as zero: the gradients of items that a network is sure of are so small, and a CPU takes many times longer
   for a product of one. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

_Static_assert(sizeof(void *) == 8 && sizeof(float) == 4, "the plan holds 64-bit pointers");

#if defined(__AVX512F__)
#define WIDTH 16
#elif defined(__AVX__)
#define WIDTH 8
#else
#define WIDTH 4
#endif

typedef float vec __attribute__((vector_size(4 * WIDTH)));
typedef int32_t ivec __attribute__((vector_size(4 * WIDTH)));
typedef float quad __attribute__((vector_size(16)));
typedef int32_t iquad __attribute__((vector_size(16)));
typedef int64_t I;

#define INLINE static inline __attribute__((always_inline))
#define BLOCK 256 /* items: the values of a network of width 50 then fit into the second cache of any CPU */
#define COLUMNS 3 /* vectors of a tile: ROWS x COLUMNS sums + COLUMNS + 1 operands fill the registers, 16 of AVX2 */
#define WIDE 4    /* columns of a tile of dot products */
#if defined(__AVX512F__) /* 32 registers */
#define ROWS 8 /* outputs of a tile */
#define HIGH 4 /* rows of a tile of dot products */
#else
#define ROWS 4
#define HIGH 3
#endif

/* The numbers of a, numbered 0 to 3, and of b, numbered 4 to 7, in another order */
#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (iquad){__VA_ARGS__})
#endif

/* Hold a vector in a register. Without this, gcc reads it from memory for every product, and the loads take longer. */
#if defined(__x86_64__)
#define HOLD(vector) __asm__("" : "+v"(vector))
#else
#define HOLD(vector)
#endif

/* What the CPU does with subnormal numbers, set for a call of this file and put back after it */
#if defined(__x86_64__)
typedef unsigned Mode;
static Mode flush_subnormals(void) {
    Mode before = _mm_getcsr();
    _mm_setcsr(before | 0x8040); /* results and operands */
    return before;
}
static void restore(Mode before) { _mm_setcsr(before); }
#elif defined(__aarch64__)
typedef uint64_t Mode;
static void restore(Mode before) { __asm__ volatile("msr fpcr, %0" : : "r"(before) : "memory"); }
static Mode flush_subnormals(void) {
    Mode before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    restore(before | 1 << 24);
    return before;
}
#else
typedef int Mode;
static Mode flush_subnormals(void) { return 0; }
static void restore(Mode before) { (void)before; }
#endif
#define APART static __attribute__((noinline)) /* so that no arithmetic moves out of the mode that is set around it */

enum { NONE, TANH, RELU, SIGMOID, SILU };
enum { CATEGORICAL, NORMAL, HETEROSCEDASTIC };

static const double HALF_LOG_2PI = 0.91893853320467274178;
static const double WIDER = 5; /* the standard deviation of an outlier, in that of the others: bdl/likelihoods/contaminated.py */
static const int32_t LANES[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* A Linear layer, and the elementwise layer after it. Strides are those between chains, in floats. */
typedef struct {
    I in, out, activation;
    const float *weight; /* (out, in) */
    I weight_stride;
    const float *bias; /* (out), or NULL */
    I bias_stride;
    float *weight_gradient;
    I weight_gradient_stride;
    float *bias_gradient;
    I bias_gradient_stride;
} Layer;

typedef struct {
    I chains, layers;
    Layer layer[];
} Plan;

/* Sizes of the scratch rows of a batch. */
typedef struct {
    I items, vectors, ld;
} Batch;

static Batch batch_of(I items) {
    I vectors = (items + WIDTH - 1) / WIDTH, ld = vectors * WIDTH;
    if (ld % 64 == 0) ld += WIDTH; /* rows a power of two apart would share few lines of the cache */
    return (Batch){items, vectors, ld};
}

INLINE vec splat(float value) { return value - (vec){0}; }
INLINE vec choose(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }

/* The larger and the smaller of x and a number; NaN stays NaN, because x86 returns the second operand then. */
#if defined(__AVX512F__)
INLINE vec at_least(vec x, float low) { return (vec)_mm512_max_ps((__m512)splat(low), (__m512)x); }
INLINE vec at_most(vec x, float high) { return (vec)_mm512_min_ps((__m512)splat(high), (__m512)x); }
#elif defined(__AVX__)
INLINE vec at_least(vec x, float low) { return (vec)_mm256_max_ps((__m256)splat(low), (__m256)x); }
INLINE vec at_most(vec x, float high) { return (vec)_mm256_min_ps((__m256)splat(high), (__m256)x); }
#else
INLINE vec at_least(vec x, float low) { return choose(x < splat(low), splat(low), x); }
INLINE vec at_most(vec x, float high) { return choose(x > splat(high), splat(high), x); }
#endif

/* exp(x) - 1 = power * (1 + tail) - 1 for |x| <= 87; x = n log 2 + r, polynomial of Cephes' expf in r (Moshier). */
INLINE vec exp_parts(vec x, vec *power) {
    const float round = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number, held in the lowest bits */
    vec shifted = x * 1.44269504088896341f + round, n = shifted - round;
    vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vec q = r * 1.9875691500e-4f + 1.3981999507e-3f;
    q = q * r + 8.3334519073e-3f;
    q = q * r + 4.1665795894e-2f;
    q = q * r + 1.6666665459e-1f;
    q = q * r + 5.0000001201e-1f;
    *power = (vec)(((ivec)shifted + (127 - 0x4B400000)) << 23);
    return q * (r * r) + r;
}

/* exp(x) for x <= 87, zero below -87 */
INLINE vec exponential(vec x) {
    vec power, tail = exp_parts(at_least(x, -87.0f), &power);
    return choose(x < splat(-87.0f), splat(0), power * tail + power);
}

/* tanh(x) = x p(x^2) / q(x^2) up to 9, where it is 1 in float. The coefficients have the least relative error of this
   form, 2e-8; rounding makes it 3e-7, also near zero. exp would take twice as long. */
INLINE vec hyperbolic(vec x) {
    vec at = at_most(at_least(x, -9.0f), 9.0f), z = at * at;
    vec p = z * 1.335446586e-8f + 2.060893749e-5f, q = z * 7.776476996e-7f + 3.285620354e-4f;
    p = p * z + 3.495579274e-3f;
    q = q * z + 2.587694855e-2f;
    p = p * z + 1.338101820e-1f;
    q = q * z + 4.671433380e-1f;
    p = p * z + 9.999999795e-1f;
    q = q * z + 1.0f;
    return at * p / q;
}

INLINE vec sigmoid(vec x) { return 1.0f / (1.0f + exponential(at_most(-x, 87.0f))); }

/* The sum of a vector's numbers, of which the first four are left to add */
INLINE quad quarter(vec x) {
    quad parts[WIDTH / 4];
    memcpy(parts, &x, sizeof x);
    for (int i = WIDTH / 8; i > 0; i /= 2)
        for (int j = 0; j < i; j++) parts[j] += parts[j + i];
    return parts[0];
}

INLINE float sum(vec x) {
    quad q = quarter(x);
    return (q[0] + q[2]) + (q[1] + q[3]);
}

/* The sums of four vectors, each in the order of `sum` */
INLINE quad sums_of_four(vec a, vec b, vec c, vec d) {
    quad p = quarter(a), q = quarter(b), r = quarter(c), s = quarter(d);
    quad left = SHUFFLE(p, q, 0, 4, 1, 5) + SHUFFLE(p, q, 2, 6, 3, 7);
    quad right = SHUFFLE(r, s, 0, 4, 1, 5) + SHUFFLE(r, s, 2, 6, 3, 7);
    return SHUFFLE(left, right, 0, 1, 4, 5) + SHUFFLE(left, right, 2, 3, 6, 7);
}

/* What follows a product while the registers still hold a tile of it: the elementwise layer, or its derivative. SiLU
   leaves its derivative in `slope`, because its output does not tell it. */
typedef struct {
    I activation; /* NONE: nothing follows */
    int backwards;
    float *slope;       /* forwards: where SiLU's derivative is left */
    const float *value; /* backwards: the output of the layer, or SiLU's derivative */
} Then;

/* The same for the rows, or columns, from there on */
INLINE Then from(Then then, I at) {
    if (then.slope) then.slope += at;
    if (then.value) then.value += at;
    return then;
}

INLINE vec activated(I activation, vec z, vec *slope) {
    if (activation == TANH) return hyperbolic(z);
    if (activation == RELU) return at_least(z, 0);
    if (activation == SIGMOID) return sigmoid(z);
    vec p = sigmoid(z);
    *slope = p * (1.0f + z * (1.0f - p));
    return z * p;
}

/* d times the derivative of the elementwise layer whose output is h, or SiLU's derivative */
INLINE vec times_derivative(I activation, vec d, vec h) {
    if (activation == TANH) return d * (1.0f - h * h);
    if (activation == RELU) return choose(h <= splat(0), splat(0), d);
    if (activation == SIGMOID) return d * (h * (1.0f - h));
    return d * h;
}

/* out (m rows, n vectors) = bias + w (m, k) x (k, n vectors); w[row, i] = w[row * rs + i * cs]; bias may be NULL */
INLINE void product_tile(int m, int n, I k, const float *w, I rs, I cs, const float *bias, const float *x, float *out,
                         I ld, Then then) {
    vec sums[ROWS][COLUMNS];
    for (int r = 0; r < m; r++)
        for (int v = 0; v < n; v++) sums[r][v] = splat(bias ? bias[r] : 0.0f);
    for (I i = 0; i < k; i++) {
        vec row[COLUMNS];
        for (int v = 0; v < n; v++) {
            row[v] = ((const vec *)(x + i * ld))[v];
            HOLD(row[v]);
        }
        for (int r = 0; r < m; r++)
            for (int v = 0; v < n; v++) sums[r][v] += w[r * rs + i * cs] * row[v];
    }
    for (int r = 0; r < m; r++)
        for (int v = 0; v < n; v++) {
            vec *place = (vec *)(out + r * ld) + v, value = sums[r][v], slope;
            if (then.activation == NONE) *place = value;
            else if (then.backwards)
                *place = times_derivative(then.activation, value, ((const vec *)(then.value + r * ld))[v]);
            else {
                *place = activated(then.activation, value, &slope);
                if (then.activation == SILU) ((vec *)(then.slope + r * ld))[v] = slope;
            }
        }
}

#define TILE(m) product_tile(m, n, k, w + r * rs, rs, cs, bias ? bias + r : 0, x, out + r * ld, ld, from(then, r * ld))

INLINE void product_columns(int n, I rows, I k, const float *w, I rs, I cs, const float *bias, const float *x,
                            float *out, I ld, Then then) {
    I r = 0;
    for (; r + ROWS <= rows; r += ROWS) TILE(ROWS);
    if (ROWS > 4 && r + 4 <= rows) {
        TILE(4);
        r += 4;
    }
    switch (rows - r) {
        case 3: TILE(3); break;
        case 2: TILE(2); break;
        case 1: TILE(1); break;
    }
}

/* out (rows, B) = bias + w (rows, k) x (k, B) */
static void product(I rows, I k, const float *w, I rs, I cs, const float *bias, const float *x, float *out, Batch b,
                    Then then) {
    for (I v = 0, left = b.vectors; left > 0;) {
        int n = left == 4 ? 2 : left < COLUMNS ? (int)left : COLUMNS; /* 2 + 2 is faster than 3 + 1 */
        const float *at = x + v * WIDTH;
        float *to = out + v * WIDTH;
        Then here = from(then, v * WIDTH);
        if (n == 3) product_columns(3, rows, k, w, rs, cs, bias, at, to, b.ld, here);
        else if (n == 2) product_columns(2, rows, k, w, rs, cs, bias, at, to, b.ld, here);
        else product_columns(1, rows, k, w, rs, cs, bias, at, to, b.ld, here);
        v += n;
        left -= n;
    }
}

INLINE void put(float *place, float value, int add) { *place = add ? *place + value : value; }

/* out (m, n) = d (m, B) x (n, B)^T, rows of out `stride` apart, and total (m), if it is not NULL, the sums of the rows of
   d; with `add`, added to out and total. Four sums of a row leave the registers together, so the tile is as wide as that
   and not as high. */
INLINE void dots_tile(int m, int n, const float *d, const float *x, float *out, float *total, I stride, int add,
                      Batch b) {
    vec sums[HIGH][WIDE], totals[HIGH];
    for (int r = 0; r < m; r++) totals[r] = splat(0);
    for (int r = 0; r < m; r++)
        for (int q = 0; q < n; q++) sums[r][q] = splat(0);
    for (I v = 0; v < b.vectors; v++) {
        vec rows[HIGH];
        for (int r = 0; r < m; r++) {
            rows[r] = ((const vec *)(d + r * b.ld))[v];
            HOLD(rows[r]);
            if (total) totals[r] += rows[r];
        }
        for (int q = 0; q < n; q++) {
            vec column = ((const vec *)(x + q * b.ld))[v];
            HOLD(column);
            for (int r = 0; r < m; r++) sums[r][q] += rows[r] * column;
        }
    }
    for (int r = 0; total && r < m; r++) put(total + r, sum(totals[r]), add);
    for (int r = 0; r < m; r++) {
        float *to = out + r * stride;
        if (n < WIDE) {
            for (int q = 0; q < n; q++) put(to + q, sum(sums[r][q]), add);
            continue;
        }
        quad row = sums_of_four(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
        if (add) {
            quad before;
            memcpy(&before, to, sizeof before);
            row += before;
        }
        memcpy(to, &row, sizeof row);
    }
}

INLINE void dots_rows(int m, I columns, const float *d, const float *x, float *out, float *total, int add, Batch b) {
    I q = 0;
    if (total && WIDE <= columns) {
        dots_tile(m, WIDE, d, x, out, total, columns, add, b);
        q = WIDE;
        total = NULL;
    }
    for (; q + WIDE <= columns; q += WIDE) dots_tile(m, WIDE, d, x + q * b.ld, out + q, NULL, columns, add, b);
    switch (columns - q) {
        case 3: dots_tile(m, 3, d, x + q * b.ld, out + q, total, columns, add, b); break;
        case 2: dots_tile(m, 2, d, x + q * b.ld, out + q, total, columns, add, b); break;
        case 1: dots_tile(m, 1, d, x + q * b.ld, out + q, total, columns, add, b); break;
    }
}

/* out (rows, columns) = d (rows, B) x (columns, B)^T, and total (rows), see `dots_tile` */
static void dots(I rows, I columns, const float *d, const float *x, float *out, float *total, int add, Batch b) {
#define DOTS(m) dots_rows(m, columns, d + r * b.ld, x, out + r * columns, total ? total + r : NULL, add, b)
    I r = 0;
    for (; r + HIGH <= rows; r += HIGH) DOTS(HIGH);
    switch (rows - r) {
        case 3: DOTS(3); break;
        case 2: DOTS(2); break;
        case 1: DOTS(1); break;
    }
}

/* The items of a batch: one after the other, or as rows of a data set */
typedef struct {
    const float *x;
    const int32_t *rows; /* NULL: x begins with the first item */
} Items;

static Items from_item(Items items, I from, I features) {
    return items.rows ? (Items){items.x, items.rows + from} : (Items){items.x + from * features, NULL};
}

/* Items (B, features) -> (features, B), where the columns beyond B repeat the last item */
static void transpose(Items items, I features, float *out, Batch b) {
    for (I item = 0; item < b.vectors * WIDTH; item += 4) {
        const float *x[4];
        for (int j = 0; j < 4; j++) {
            I at = item + j < b.items ? item + j : b.items - 1;
            x[j] = items.x + (items.rows ? items.rows[at] : at) * features;
        }
        I i = 0;
        for (; i + 4 <= features; i += 4) { /* four features of four items */
            quad a[4];
            for (int j = 0; j < 4; j++) memcpy(a + j, x[j] + i, sizeof(quad));
            quad low = SHUFFLE(a[0], a[1], 0, 4, 1, 5), high = SHUFFLE(a[0], a[1], 2, 6, 3, 7);
            quad next_low = SHUFFLE(a[2], a[3], 0, 4, 1, 5), next_high = SHUFFLE(a[2], a[3], 2, 6, 3, 7);
            float *to = out + i * b.ld + item;
            *(quad *)to = SHUFFLE(low, next_low, 0, 1, 4, 5);
            *(quad *)(to + b.ld) = SHUFFLE(low, next_low, 2, 3, 6, 7);
            *(quad *)(to + 2 * b.ld) = SHUFFLE(high, next_high, 0, 1, 4, 5);
            *(quad *)(to + 3 * b.ld) = SHUFFLE(high, next_high, 2, 3, 6, 7);
        }
        for (; i < features; i++)
            for (int j = 0; j < 4; j++) out[i * b.ld + item + j] = x[j][i];
    }
}

static I rows_of(const Layer *layer) { return layer->activation == SILU ? 2 * layer->out : layer->out; }

/* `values` holds the input and the output of every layer, (features, ld) each. Returns the output of the last. */
static const float *forward(const Plan *p, I chain, Items items, float *values, Batch b) {
    transpose(items, p->layer[0].in, values, b);
    const float *input = values;
    float *output = values + p->layer[0].in * b.ld;
    for (I l = 0; l < p->layers; l++) {
        const Layer *layer = &p->layer[l];
        const float *bias = layer->bias ? layer->bias + chain * layer->bias_stride : 0;
        const float *weight = layer->weight + chain * layer->weight_stride;
        Then then = {layer->activation, 0, output + layer->out * b.ld, NULL};
        product(layer->out, layer->in, weight, layer->in, 1, bias, input, output, b, then);
        input = output;
        output += rows_of(layer) * b.ld;
    }
    return input;
}

/* The gradients of all layers from d (outputs, ld), which is overwritten; `spare` has the rows of the widest layer. With
   `add` they are added to those of earlier blocks. */
static void backward(const Plan *p, I chain, const float *values, float *d, float *spare, int add, Batch b) {
    const float *output = values + p->layer[0].in * b.ld;
    for (I l = 0; l + 1 < p->layers; l++) output += rows_of(&p->layer[l]) * b.ld;
    const Layer *last = &p->layer[p->layers - 1];
    for (I r = 0; last->activation != NONE && r < last->out; r++) {
        const float *h = (last->activation == SILU ? output + last->out * b.ld : output) + r * b.ld;
        vec *row = (vec *)(d + r * b.ld);
        for (I v = 0; v < b.vectors; v++) row[v] = times_derivative(last->activation, row[v], ((const vec *)h)[v]);
    }
    for (I l = p->layers - 1; l >= 0; l--) {
        const Layer *layer = &p->layer[l], *below = layer - 1;
        const float *input = l ? output - rows_of(below) * b.ld : values;
        float *bias = layer->bias ? layer->bias_gradient + chain * layer->bias_gradient_stride : NULL;
        float *weight = layer->weight_gradient + chain * layer->weight_gradient_stride;
        dots(layer->out, layer->in, d, input, weight, bias, add, b);
        if (l) {
            const float *h = below->activation == SILU ? input + below->out * b.ld : input;
            Then then = {below->activation, 1, NULL, h};
            const float *w = layer->weight + chain * layer->weight_stride;
            product(layer->in, layer->out, w, 1, layer->in, 0, d, spare, b, then);
            float *swap = d;
            d = spare;
            spare = swap;
        }
        output = input;
    }
}

/* What a likelihood of numbers is given: a scale, and the share of items that are wider */
typedef struct {
    double scale, outliers;
} Given;

/* The losses below return their sum over the block. d is the gradient of `scale` times the sum; `work` has two rows. */

/* -log softmax(z)[y], z (classes, ld) */
static double categorical(I classes, const float *z, const int64_t *y, float *d, float *work, float scale, Batch b) {
    float *largest = work, *total = work + b.ld;
    for (I v = 0; v < b.vectors; v++) {
        vec most = ((const vec *)z)[v], all = splat(0);
        for (I k = 1; k < classes; k++) {
            vec value = ((const vec *)(z + k * b.ld))[v];
            most = choose(value > most, value, most);
        }
        for (I k = 0; k < classes; k++) {
            vec e = exponential(((const vec *)(z + k * b.ld))[v] - most);
            ((vec *)(d + k * b.ld))[v] = e;
            all += e;
        }
        vec factor = scale / all;
        for (I k = 0; k < classes; k++) ((vec *)(d + k * b.ld))[v] *= factor;
        ((vec *)largest)[v] = most;
        ((vec *)total)[v] = all;
    }
    double loss = 0;
    for (I item = 0; item < b.items; item++) {
        I at = y[item] * b.ld + item;
        loss += (largest[item] - z[at]) + logf(total[item]);
        d[at] -= scale;
    }
    for (I k = 0; k < classes; k++) memset(d + k * b.ld + b.items, 0, (size_t)(b.vectors * WIDTH - b.items) * 4);
    return loss;
}

/* x where a column stands for an item, 0 beyond */
INLINE vec inside(vec x, I v, Batch b) {
    ivec lanes;
    memcpy(&lanes, LANES, sizeof lanes);
    return choose(lanes < (int32_t)(b.items - v * WIDTH) - (ivec){0}, x, splat(0));
}

/* Column t of y (B, k) as a row */
static void pick(I k, I t, const float *y, float *row, Batch b) {
    for (I item = 0; item < b.vectors * WIDTH; item++) row[item] = y[(item < b.items ? item : b.items - 1) * k + t];
}

/* -log N(y; z, std^2), z (k, ld), y (B, k) */
static double normal(I k, const float *z, const float *y, double std, float *d, float *work, float scale, Batch b) {
    float by = (float)(1.0 / (std * std));
    double loss = (double)(b.items * k) * (log(std) + HALF_LOG_2PI);
    for (I t = 0; t < k; t++) {
        pick(k, t, y, work, b);
        vec squares = splat(0);
        for (I v = 0; v < b.vectors; v++) {
            vec r = inside(((const vec *)(z + t * b.ld))[v] - ((const vec *)work)[v], v, b);
            squares += r * r;
            ((vec *)(d + t * b.ld))[v] = r * (by * scale);
        }
        loss += 0.5 / (std * std) * (double)sum(squares);
    }
    return loss;
}

/* -log N(y; mean, exp(s)), z (2k, ld) = mean and s, y (B, k). With r = mean - y and e = exp(-s), twice the loss is
   r^2 e + s + log 2 pi. */
static double heteroscedastic(I k, const float *z, const float *y, float *d, float *work, float scale, Batch b) {
    double loss = (double)(b.items * k) * HALF_LOG_2PI;
    for (I t = 0; t < k; t++) {
        pick(k, t, y, work, b);
        vec total = splat(0);
        for (I v = 0; v < b.vectors; v++) {
            vec s = ((const vec *)(z + (k + t) * b.ld))[v], r = ((const vec *)(z + t * b.ld))[v] - ((const vec *)work)[v];
            vec by_mean = r * exponential(at_most(-s, 87.0f)), square = r * by_mean;
            total += inside(square + s, v, b);
            ((vec *)(d + t * b.ld))[v] = inside(by_mean * scale, v, b);
            ((vec *)(d + (k + t) * b.ld))[v] = inside((1.0f - square) * (0.5f * scale), v, b);
        }
        loss += 0.5 * (double)sum(total);
    }
    return loss;
}

/* -log of (1 - share) N(y; mean, V) + share N(y; mean, WIDER^2 V), V = exp(s) + least^2. With q = r^2 / V the odds of being an
   outlier are e^t, t = cut q + odds, and twice the loss is log V + log 2 pi - 2 log(1 - share) and
   q - 2 log(1 + e^t), or q / WIDER^2 - 2 odds - 2 log(1 + e^-t) for t > 0, where large q would cancel. With the probability
   p of being an outlier r^2 / V and r / V get the factor 1 - 2 cut p in the gradients. Without outliers odds is minus infinity,
   p and e^t are 0, and it is -log N(y; mean, V). */
static double bounded(I k, const float *z, const float *y, Given given, float *d, float *work, float scale, Batch b) {
    const double share = given.outliers, cut = 0.5 - 0.5 / (WIDER * WIDER);
    const float floor = (float)(given.scale * given.scale), odds = (float)log(share / (WIDER * (1 - share)));
    float *variance = work + b.ld; /* V / (1 + e^-|t|)^2 */
    double loss = (double)(b.items * k) * (HALF_LOG_2PI - log1p(-share));
    for (I t = 0; t < k; t++) {
        double logs = 0;
        pick(k, t, y, work, b);
        vec total = splat(0);
        for (I v = 0; v < b.vectors; v++) {
            vec s = ((const vec *)(z + (k + t) * b.ld))[v], r = ((const vec *)(z + t * b.ld))[v] - ((const vec *)work)[v];
            vec predicted = exponential(at_most(s, 87.0f)), all = predicted + floor, by_mean = r / all, square = r * by_mean;
            vec log_odds = square * (float)cut + odds;
            ivec outlier = log_odds > splat(0);
            vec e = exponential(choose(outlier, -log_odds, log_odds)), p = choose(outlier, splat(1), e) / (1.0f + e);
            vec pull = 1.0f - p * (float)(2 * cut);
            total += inside(choose(outlier, square * (float)(1 / (WIDER * WIDER)) - 2 * odds, square), v, b);
            ((vec *)variance)[v] = all / ((1.0f + e) * (1.0f + e));
            ((vec *)(d + t * b.ld))[v] = inside(by_mean * pull * scale, v, b);
            ((vec *)(d + (k + t) * b.ld))[v] = inside((1.0f - square * pull) * (predicted / all) * (0.5f * scale), v, b);
        }
        for (I item = 0; item < b.items; item++) logs += logf(variance[item]);
        loss += 0.5 * ((double)sum(total) + logs);
    }
    return loss;
}

/* Where the fields of a plan lie, in 8 bytes: its head, a layer, and in a layer what mlp_library.py writes */
void bdl_mlp_layout(I *places) {
    places[0] = offsetof(Plan, layer) / 8;
    places[1] = sizeof(Layer) / 8;
    places[2] = offsetof(Layer, weight) / 8;
    places[3] = offsetof(Layer, bias) / 8;
    places[4] = offsetof(Layer, weight_gradient) / 8;
    places[5] = offsetof(Layer, bias_gradient) / 8;
}

/* Floats of scratch: *values for one chain's `values`, *work for what a chain needs besides */
void bdl_mlp_scratch(const Plan *p, I items, I *values, I *work) {
    Batch b = batch_of(items);
    I rows = p->layer[0].in, widest = 0;
    for (I l = 0; l < p->layers; l++) {
        rows += rows_of(&p->layer[l]);
        if (p->layer[l].out > widest) widest = p->layer[l].out;
    }
    *values = rows * b.ld;
    *work = (2 * widest + 2) * b.ld;
}

/* Items that go through the layers together where the loss is computed here: scratch for so many is enough. */
I bdl_mlp_block(void) { return BLOCK; }

static int knows(const Plan *p, I likelihood, const int64_t *y, I items, I *wrong) {
    for (I item = 0; likelihood == CATEGORICAL && item < items; item++)
        if (y[item] < 0 || y[item] >= p->layer[p->layers - 1].out) {
            *wrong = item;
            return 0;
        }
    return 1;
}

/* The mean loss of a chain, and its gradients */
static float loss_of_chain(const Plan *p, I c, Items x, I likelihood, const void *y, Given given, I items, float *values,
                           float *work) {
    I outputs = p->layer[p->layers - 1].out, k = likelihood == HETEROSCEDASTIC ? outputs / 2 : outputs;
    I values_size, work_size;
    float scale = 1.0f / (float)items;
    double loss = 0;
    for (I from = 0; from < items; from += BLOCK) {
        Batch b = batch_of(items - from < BLOCK ? items - from : BLOCK);
        bdl_mlp_scratch(p, b.items, &values_size, &work_size);
        float *d = work + 2 * b.ld, *other = d + (work_size - 2 * b.ld) / 2;
        const float *z = forward(p, c, from_item(x, from, p->layer[0].in), values, b);
        const float *targets = (const float *)y + from * k;
        if (likelihood == CATEGORICAL) loss += categorical(outputs, z, (const int64_t *)y + from, d, work, scale, b);
        else if (likelihood == NORMAL) loss += normal(k, z, targets, given.scale, d, work, scale, b);
        else if (given.scale > 0 || given.outliers > 0) loss += bounded(k, z, targets, given, d, work, scale, b);
        else loss += heteroscedastic(k, z, targets, d, work, scale, b);
        backward(p, c, values, d, other, from > 0, b);
    }
    return (float)(loss / (double)items);
}

APART I loss_of(const Plan *p, const float *x, I x_stride, I likelihood, const void *y, I y_stride, Given given, I items,
                float *losses, float *values, float *work) {
    I size = likelihood == CATEGORICAL ? 8 : 4, wrong;
    for (I c = 0; c < p->chains; c++)
        if (!knows(p, likelihood, (const int64_t *)y + c * y_stride, items, &wrong)) return c * items + wrong;
    for (I c = 0; c < p->chains; c++)
        losses[c] = loss_of_chain(p, c, (Items){x + c * x_stride, NULL}, likelihood, (const char *)y + c * y_stride * size,
                                  given, items, values, work);
    return -1;
}

/* Mean losses (C) and all gradients. y holds int64 classes (B) under the categorical likelihood, and otherwise float
   targets (B, k). `given` is the standard deviation of NORMAL, and the least one of HETEROSCEDASTIC; `outliers` is
   the share of items that are wider under the latter. Returns -1, or the
   first class that is none, as its place chain * B + item; then nothing is written. `values` and `work` are aligned to 64 bytes. */
I bdl_mlp_loss(const Plan *p, const float *x, I x_stride, I likelihood, const void *y, I y_stride, double given,
               double outliers, I items, float *losses, float *values, float *work) {
    Mode before = flush_subnormals();
    I wrong = loss_of(p, x, x_stride, likelihood, y, y_stride, (Given){given, outliers}, items, losses, values, work);
    restore(before);
    return wrong;
}

/* A data set, and which of its rows make the batch of each step and chain: (steps, chains, items), with strides in rows;
   NULL: all */
typedef struct {
    const float *x; /* (N, features) */
    const void *y;  /* (N), or (N, k) floats */
    const int32_t *rows;
    I step, chain, items;
} Rows;

/* The losses and gradients of step k; 0 where it has a class that is none. `targets` has room for those of a chain. */
APART I losses_of_step(const Plan *p, const Rows *r, I k, I likelihood, Given given, float *losses, float *values,
                       float *work, float *targets) {
    I outputs = p->layer[p->layers - 1].out, wrong;
    I size = likelihood == CATEGORICAL ? 8 : 4 * (likelihood == HETEROSCEDASTIC ? outputs / 2 : outputs);
    if (!r->rows && !knows(p, likelihood, r->y, r->items, &wrong)) return 0;
    for (I c = 0; c < p->chains; c++) {
        const int32_t *rows = r->rows ? r->rows + k * r->step + c * r->chain : NULL;
        for (I item = 0; rows && item < r->items; item++)
            memcpy((char *)targets + item * size, (const char *)r->y + rows[item] * size, (size_t)size);
        const void *y = rows ? targets : r->y;
        if (rows && !knows(p, likelihood, y, r->items, &wrong)) return 0;
        losses[c] = loss_of_chain(p, c, (Items){r->x, rows}, likelihood, y, given, r->items, values, work);
    }
    return 1;
}

typedef I (*After)(const void *context, I step);

/* Steps in a row: losses (steps, C) and gradients of a batch, then what `after` does with them. Returns the number of
   steps made: fewer where a batch has a class that is none, or where `after` refused a step by another value than 0. */
I bdl_mlp_walk(const Plan *p, I steps, const float *x, const void *y, const int32_t *rows, I step, I chain, I items,
               I likelihood, double given, double outliers, float *losses, float *values, float *work, float *targets,
               After after, const void *context) {
    Rows r = {x, y, rows, step, chain, items};
    for (I k = 0; k < steps; k++) {
        Mode before = flush_subnormals();
        I known = losses_of_step(p, &r, k, likelihood, (Given){given, outliers}, losses + k * p->chains, values, work, targets);
        restore(before);
        if (!known || after(context, k)) return k;
    }
    return steps;
}

APART void forward_of(const Plan *p, const float *x, I x_stride, I items, float *outputs, float *values) {
    Batch b = batch_of(items);
    I classes = p->layer[p->layers - 1].out, values_size, work_size;
    bdl_mlp_scratch(p, items, &values_size, &work_size);
    for (I c = 0; c < p->chains; c++) {
        const float *z = forward(p, c, (Items){x + c * x_stride, NULL}, values + c * values_size, b);
        for (I k = 0; k < classes; k++)
            memcpy(outputs + (c * classes + k) * items, z + k * b.ld, (size_t)items * 4);
    }
}

/* Outputs (C, K, B). `values` holds those of all chains, for bdl_mlp_backward. */
void bdl_mlp_forward(const Plan *p, const float *x, I x_stride, I items, float *outputs, float *values) {
    Mode before = flush_subnormals();
    forward_of(p, x, x_stride, items, outputs, values);
    restore(before);
}

APART void outputs_of(const Plan *p, const float *x, I x_stride, I items, float *outputs, float *values) {
    I in = p->layer[0].in, out = p->layer[p->layers - 1].out;
    for (I c = 0; c < p->chains; c++)
        for (I from = 0; from < items; from += BLOCK) {
            Batch b = batch_of(items - from < BLOCK ? items - from : BLOCK);
            const float *z = forward(p, c, (Items){x + c * x_stride + from * in, NULL}, values, b);
            for (I k = 0; k < out; k++)
                memcpy(outputs + (c * out + k) * items + from, z + k * b.ld, (size_t)b.items * 4);
        }
}

/* Outputs (C, K, B) alone, of blocks of items: `values` holds those of one block of one chain. */
void bdl_mlp_outputs(const Plan *p, const float *x, I x_stride, I items, float *outputs, float *values) {
    Mode before = flush_subnormals();
    outputs_of(p, x, x_stride, items, outputs, values);
    restore(before);
}

APART void backward_of(const Plan *p, const float *gradient, I items, const float *values, float *work) {
    Batch b = batch_of(items);
    I classes = p->layer[p->layers - 1].out, values_size, work_size;
    bdl_mlp_scratch(p, items, &values_size, &work_size);
    float *d = work + 2 * b.ld, *other = d + (work_size - 2 * b.ld) / 2;
    for (I c = 0; c < p->chains; c++) {
        for (I k = 0; k < classes; k++) {
            memcpy(d + k * b.ld, gradient + (c * classes + k) * items, (size_t)items * 4);
            memset(d + k * b.ld + items, 0, (size_t)(b.vectors * WIDTH - items) * 4);
        }
        backward(p, c, values + c * values_size, d, other, 0, b);
    }
}

/* All gradients from the gradient (C, K, B) of the losses with respect to the outputs */
void bdl_mlp_backward(const Plan *p, const float *gradient, I items, const float *values, float *work) {
    Mode before = flush_subnormals();
    backward_of(p, gradient, items, values, work);
    restore(before);
}
