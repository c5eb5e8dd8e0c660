/* Small ops of a transformer. Where they are smaller still, one thread takes all: waking another
 * would take longer. */
#include "kernels.h"
#include "lanes.h"
#include "pool.h"

/* sums (M, N) = x (M, K) times the transpose of y (N, K). */
static void times_rows(const float *x, const char *y, int is_half, float *sums, int64_t M,
                       int64_t N, int64_t K)
{
    for (int64_t j = 0; j < N; j += j + STREAMS <= N ? STREAMS : 1)
        for (int64_t i = 0; i < M; i++) {
            float *out = sums + i * N + j;
            const char *row = y + j * K * (is_half ? 2 : 4);
            if (j + STREAMS <= N)
                is_half ? dots_half((const half *)row, K, x + i * K, K, out)
                        : dots_single((const float *)row, K, x + i * K, K, out);
            else
                is_half ? dot_half((const half *)row, 0, x + i * K, K, out)
                        : dot_single((const float *)row, 0, x + i * K, K, out);
        }
}

/* The sum of rows y (K, N) weighed by x (K), at LANES * vectors columns from column j on. */
static inline __attribute__((always_inline)) void weigh(const float *x, const char *y, int is_half,
                                                        float *out, int64_t K, int64_t N,
                                                        int64_t j, int vectors)
{
    lanes total[WIDE] = {{0}};
    for (int64_t k = 0; k < K; k++)
        for (int v = 0; v < vectors; v++)
            total[v] += x[k] * load_lanes(y, is_half, k * N + j + v * LANES);
    for (int v = 0; v < vectors; v++) *(lanes *)(out + j + v * LANES) = total[v];
}

/* sums (M, N) = x (M, K) times y (K, N). */
static void times_columns(const float *x, const char *y, int is_half, float *sums, int64_t M,
                          int64_t N, int64_t K)
{
    for (int64_t i = 0; i < M; i++, x += K, sums += N) {
        int64_t j = 0;
        for (; j + WIDE * LANES <= N; j += WIDE * LANES) weigh(x, y, is_half, sums, K, N, j, WIDE);
        for (; j + LANES <= N; j += LANES) weigh(x, y, is_half, sums, K, N, j, 1);
        if (j == N) continue;
        if (j) { /* the last ones once more, with those before them */
            weigh(x, y, is_half, sums, K, N, N - LANES, 1);
            continue;
        }
        lanes total = {0};
        for (int64_t k = 0; k < K; k++) {
            float rest[LANES];
            widen(y + k * N * (is_half ? 2 : 4), is_half, N, rest, LANES);
            total += x[k] * load_single(rest);
        }
        memcpy(sums, &total, N * sizeof(float));
    }
}

/* x (B, M, K) times y -> out (B, M, N), all half or all float32. y is (B, N, K) if `transposed`,
 * else (B, K, N). For few rows M, such as the query heads that share a key head. */
int batch_matmul(const void *x, const void *y, void *out, int64_t batch, int64_t M, int64_t N,
                 int64_t K, int32_t transposed, int32_t is_half)
{
    int64_t size = is_half ? 2 : 4;
    float *left = malloc(M * (K + N) * sizeof(float));
    if (!left) return -1;
    float *sums = left + M * K;
    for (int64_t b = 0; b < batch; b++) {
        const char *right = (const char *)y + b * N * K * size;
        widen((const char *)x + b * M * K * size, is_half, M * K, left, M * K);
        if (transposed)
            times_rows(left, right, is_half, sums, M, N, K);
        else
            times_columns(left, right, is_half, sums, M, N, K);
        narrow(sums, M * N, (char *)out + b * M * N * size, is_half);
    }
    free(left);
    return 0;
}

/* Up to LANES columns of n values to e^x / sum e^x, in place. */
static void softmax_columns(float *block, int64_t n)
{
    lanes *column = (lanes *)block, top = (lanes){0} - INFINITY, total = {0};
    for (int64_t k = 0; k < n; k++) {
        ints above = column[k] > top;
        top = (lanes)(((ints)column[k] & above) | ((ints)top & ~above));
    }
    for (int64_t k = 0; k < n; k++) total += column[k] = exponential(column[k] - top);
    for (int64_t k = 0; k < n; k++) column[k] *= 1 / total;
}

/* x (outer, n, inner) -> y, e^x / sum e^x over n. */
int softmax(const void *x, void *y, int64_t outer, int64_t n, int64_t inner, int32_t is_half)
{
    int64_t size = is_half ? 2 : 4, across = inner == 1 ? 1 : LANES;
    float *block = malloc(ROUND_UP(n * across, LANES) * sizeof(float));
    if (!block) return -1;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i += across) {
            int64_t at = (o * n * inner + i) * size, count = MIN(across, inner - i);
            if (inner == 1) {
                widen((const char *)x + at, is_half, n, block, n);
                softmax_row(block, n);
                narrow(block, n, (char *)y + at, is_half);
                continue;
            }
            for (int64_t k = 0; k < n; k++)
                widen((const char *)x + at + k * inner * size, is_half, count, block + k * LANES,
                      LANES);
            softmax_columns(block, n);
            for (int64_t k = 0; k < n; k++)
                narrow(block + k * LANES, count, (char *)y + at + k * inner * size, is_half);
        }
    free(block);
    return 0;
}

typedef struct {
    const void *x;
    void *y;
    const float *weight; /* (n), or NULL */
    int64_t n, inner;
    float added, epsilon;
    int32_t is_half, rounding;
    int failed;
} Rms;

static inline lanes rounded(const Rms *p, int mode, lanes v)
{
    return p->is_half && p->rounding >= mode ? nearest_half(v) : v;
}

/* What x is multiplied with: 1 / sqrt(squares / n + added + epsilon), of sums in each lane. */
static inline lanes rms_scale(const Rms *p, lanes squares)
{
    lanes mean = rounded(p, SPELLED_OUT, squares / (float)p->n);
    mean = rounded(p, SPELLED_OUT, mean + p->added) + p->epsilon;
    for (int j = 0; j < LANES; j++) mean[j] = 1 / __builtin_sqrtf(mean[j]);
    return rounded(p, SPELLED_OUT, mean);
}

/* One row of n values that lie side by side. */
static void rms_row(const Rms *p, int64_t at, float *row)
{
    lanes squares = {0}, *parts = (lanes *)row;
    int64_t n = p->n, width = ROUND_UP(n, LANES);
    widen((const char *)p->x + at, p->is_half, n, row, width);
    for (int64_t k = 0; k < width / LANES; k++)
        squares += rounded(p, SPELLED_OUT, parts[k] * parts[k]);
    float scale = rms_scale(p, (lanes){0} + sum(squares))[0];
    for (int64_t k = 0; k < n; k++) row[k] *= scale;
    if (p->is_half && p->rounding >= AS_OPS) round_to_half(row, width);
    for (int64_t k = 0; p->weight && k < n; k++) row[k] *= p->weight[k];
    narrow(row, n, (char *)p->y + at, p->is_half);
}

/* Up to LANES rows whose values lie `inner` apart, one in each lane. */
static void rms_columns(const Rms *p, int64_t at, int64_t count, float *block)
{
    lanes squares = {0}, *column = (lanes *)block;
    int64_t n = p->n, step = p->inner * (p->is_half ? 2 : 4);
    for (int64_t k = 0; k < n; k++) {
        widen((const char *)p->x + at + k * step, p->is_half, count, block + k * LANES, LANES);
        squares += rounded(p, SPELLED_OUT, column[k] * column[k]);
    }
    lanes scale = rms_scale(p, squares);
    for (int64_t k = 0; k < n; k++) column[k] *= scale;
    if (p->is_half && p->rounding >= AS_OPS) round_to_half(block, n * LANES);
    for (int64_t k = 0; k < n; k++) {
        if (p->weight) column[k] *= p->weight[k];
        narrow(block + k * LANES, count, (char *)p->y + at + k * step, p->is_half);
    }
}

static void some_rms(void *context, int64_t from, int64_t to)
{
    Rms *p = context;
    int64_t size = p->is_half ? 2 : 4, across = p->inner == 1 ? 1 : LANES;
    int64_t groups = (p->inner + across - 1) / across;
    float *block = malloc(ROUND_UP(p->n * across, LANES) * sizeof(float));
    if (!block) {
        p->failed = -1;
        return;
    }
    for (int64_t g = from; g < to; g++) {
        int64_t i = g % groups * across, at = (g / groups * p->n * p->inner + i) * size;
        if (p->inner == 1)
            rms_row(p, at, block);
        else
            rms_columns(p, at, MIN(across, p->inner - i), block);
    }
    free(block);
}

/* x (outer, n, inner) -> y, divided by the root of the mean square over n, plus what is added, plus
 * epsilon, then times weight (n) or NULL. */
int rms_norm(const void *x, void *y, const float *weight, int64_t outer, int64_t n, int64_t inner,
             float added, float epsilon, int32_t is_half, int32_t rounding, int32_t threads)
{
    Rms p = {x, y, weight, n, inner, added, epsilon, is_half, rounding, 0};
    int64_t groups = inner == 1 ? 1 : (inner + LANES - 1) / LANES;
    share(some_rms, &p, outer * groups, SOME / n + 1, threads);
    return p.failed;
}

/* 1 / (1 + e^-x), without a number that overflows. */
static inline lanes sigmoid(lanes x)
{
    const lanes one = (lanes){0} + 1;
    lanes e = exponential((lanes)((ints)x | INT32_MIN));
    ints positive = x > 0;
    return (lanes)(((ints)one & positive) | ((ints)e & ~positive)) / (1 + e);
}

typedef struct {
    const char *x, *gate;
    char *y;
    int32_t how, is_half;
} Gated;

static void some_gated(void *context, int64_t from, int64_t to)
{
    const Gated *p = context;
    int64_t size = p->is_half ? 2 : 4;
    float x[LANES], gate[LANES];
    for (int64_t i = from; i < to; i += LANES) {
        int64_t n = MIN(LANES, to - i);
        widen(p->gate + i * size, p->is_half, n, gate, LANES);
        widen(p->x + i * size, p->is_half, n, x, LANES);
        lanes g = load_single(gate);
        *(lanes *)gate = g * sigmoid(g);
        if (p->is_half) round_to_half(gate, LANES);
        *(lanes *)x *= load_single(gate);
        narrow(x, n, p->y + i * size, p->is_half);
    }
}

/* silu(gate) x -> y, n values each; half is rounded before the product and after it. */
int gated(const void *gate, const void *x, void *y, int64_t n, int32_t is_half, int32_t threads)
{
    Gated p = {x, gate, y, 0, is_half};
    share(some_gated, &p, n, SOME, threads);
    return 0;
}

enum { SIGMOID, SILU, GELU_TANH, GELU_SIGMOID, GELU, TANH, EXP, COS, SIN };

static lanes activated(int how, lanes x)
{
    lanes y = x;
    switch (how) {
    case SIGMOID: return sigmoid(x);
    case SILU: return x * sigmoid(x);
    case GELU_SIGMOID: return x * sigmoid(1.702f * x);
    case GELU_TANH: return x * sigmoid(1.595769122f * (x + 0.044715f * x * x * x));
    }
    for (int j = 0; j < LANES; j++)
        y[j] = how == GELU   ? 0.5f * x[j] * (1 + erff(x[j] * 0.70710678f))
               : how == TANH ? tanhf(x[j])
               : how == EXP  ? expf(x[j])
               : how == COS  ? cosf(x[j])
                             : sinf(x[j]);
    return y;
}

static void some_activated(void *context, int64_t from, int64_t to)
{
    const Gated *p = context;
    int64_t size = p->is_half ? 2 : 4;
    float x[LANES];
    for (int64_t i = from; i < to; i += LANES) {
        int64_t n = MIN(LANES, to - i);
        widen(p->x + i * size, p->is_half, n, x, LANES);
        *(lanes *)x = activated(p->how, load_single(x));
        narrow(x, n, p->y + i * size, p->is_half);
    }
}

/* x -> y, n values each, by one of the functions above. */
int activation(const void *x, void *y, int64_t n, int32_t how, int32_t is_half, int32_t threads)
{
    Gated p = {x, NULL, y, how, is_half};
    share(some_activated, &p, n, SOME, threads);
    return 0;
}

typedef struct {
    const char *x, *cos, *sin;
    char *y;
    int64_t block, run;
    int32_t turn, is_half;
} Rotary;

enum { SWAPPED, NEGATED, HALVED };

static void some_rotated(void *context, int64_t from, int64_t to)
{
    const Rotary *p = context;
    int64_t size = p->is_half ? 2 : 4;
    for (int64_t r = from; r < to; r++) {
        int64_t at = r * p->run, other = (r ^ 1) * p->run;
        int64_t row = p->turn == HALVED ? r / 2 * p->run : at;
        float sign = p->turn != SWAPPED && r % 2 == 0 ? -1 : 1;
        for (int64_t i = 0; i < p->run; i += LANES) {
            int64_t n = MIN(LANES, p->run - i), table = ((row + i) % p->block) * size;
            float x[LANES], across[LANES], cos[LANES], sin[LANES];
            widen(p->x + (at + i) * size, p->is_half, n, x, LANES);
            widen(p->x + (other + i) * size, p->is_half, n, across, LANES);
            widen(p->cos + table, p->is_half, n, cos, LANES);
            widen(p->sin + table, p->is_half, n, sin, LANES);
            *(lanes *)x *= load_single(cos);
            *(lanes *)across *= sign * load_single(sin);
            if (p->is_half) {
                round_to_half(x, LANES);
                round_to_half(across, LANES);
            }
            *(lanes *)x += load_single(across);
            narrow(x, n, p->y + (at + i) * size, p->is_half);
        }
    }
}

/* x (n) -> y: runs of values trade places two by two, and are turned: x cos + other sin, where the
 * first of two is negated unless they are but SWAPPED. The tables are `block` values that take turns,
 * and of HALVED two runs read one part; half is rounded at each step. */
int rotary(const void *x, const void *cos, const void *sin, void *y, int64_t n, int64_t block,
           int64_t run, int32_t turn, int32_t is_half, int32_t threads)
{
    Rotary p = {x, cos, sin, y, block, run, turn, is_half};
    share(some_rotated, &p, n / run, SOME / run + 1, threads);
    return 0;
}

/* n values in a row, in place: zero mean and unit variance, times gamma plus beta. */
static void norm_row(float *row, int64_t n, const float *gamma, const float *beta, float epsilon)
{
    int64_t width = ROUND_UP(n, LANES); /* what is beyond n is zero, and then as if it were mean */
    lanes parts = {0}, squares = {0};
    for (int64_t k = 0; k < width; k += LANES) parts += load_single(row + k);
    float mean = sum(parts) / (float)n;
    for (int64_t k = n; k < width; k++) row[k] = mean;
    for (int64_t k = 0; k < width; k += LANES) {
        lanes d = *(lanes *)(row + k) -= mean;
        squares += d * d;
    }
    float scale = 1 / __builtin_sqrtf(sum(squares) / (float)n + epsilon);
    for (int64_t k = 0; k < n; k++)
        row[k] = row[k] * scale * (gamma ? gamma[k] : 1) + (beta ? beta[k] : 0);
}

/* The same for LANES columns side by side. */
static void norm_columns(float *block, int64_t n, const float *gamma, const float *beta,
                         float epsilon)
{
    lanes mean = {0}, scale = {0}, *column = (lanes *)block;
    for (int64_t k = 0; k < n; k++) mean += column[k];
    mean /= (float)n;
    for (int64_t k = 0; k < n; k++) {
        lanes d = column[k] -= mean;
        scale += d * d;
    }
    scale = scale / (float)n + epsilon;
    for (int j = 0; j < LANES; j++) scale[j] = 1 / __builtin_sqrtf(scale[j]);
    for (int64_t k = 0; k < n; k++)
        column[k] = column[k] * scale * (gamma ? gamma[k] : 1) + (beta ? beta[k] : 0);
}

/* x (outer, n, inner) -> y, normalised over n; gamma and beta (n) or NULL. */
int layer_norm(const void *x, void *y, const float *gamma, const float *beta, int64_t outer,
               int64_t n, int64_t inner, float epsilon, int32_t is_half)
{
    int64_t size = is_half ? 2 : 4, step = inner == 1 ? 1 : LANES;
    float *block = malloc(ROUND_UP(n * step, LANES) * sizeof(float));
    if (!block) return -1;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i += step) {
            int64_t count = MIN(step, inner - i), at = (o * n * inner + i) * size;
            if (inner == 1) {
                widen((const char *)x + at, is_half, n, block, ROUND_UP(n, LANES));
                norm_row(block, n, gamma, beta, epsilon);
                narrow(block, n, (char *)y + at, is_half);
                continue;
            }
            for (int64_t k = 0; k < n; k++)
                widen((const char *)x + at + k * inner * size, is_half, count, block + k * LANES,
                      LANES);
            norm_columns(block, n, gamma, beta, epsilon);
            for (int64_t k = 0; k < n; k++)
                narrow(block + k * LANES, count, (char *)y + at + k * inner * size, is_half);
        }
    free(block);
    return 0;
}
