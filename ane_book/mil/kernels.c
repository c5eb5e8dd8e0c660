/* Matrix products that read constant weights as the package stores them.
 *
 * One token of a language model costs as much as reading every weight once. These products read
 * them where they lie in the mapped weight file: two bytes a weight in half precision, one with a
 * scale for each row, half a byte with a palette of 16 values. All sum in float32 and round once.
 *
 * Letters: R rows and C columns of the weight, T tokens. Weights lie row by row; nibbles are packed
 * as MIL packs uint4, the even column in the low half of a byte.
 *
 * `native.py` compiles this file with the machine's C compiler. Every product here has a plain twin
 * in `ops/`, which runs where there is no compiler. research/executor-speed.md has measurements.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LANES 16
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define ROUND_UP(a, b) (((a) + (b) - 1) / (b) * (b))

typedef _Float16 half;
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int8_t bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef uint8_t pairs __attribute__((vector_size(LANES), aligned(1), may_alias));

enum { SINGLE, HALF, INT8, PALETTE16 };

typedef struct {
    const void *weight;
    const float *table; /* INT8: a scale for each row. PALETTE16: 16 values for each `group` rows */
    const float *bias;  /* one for each row, or NULL */
    int64_t rows, columns, group;
    int32_t kind, half_activations; /* half_activations: x and y are half, not float32 */
} Matrix;

/* --- sixteen values at a time ---------------------------------------------------------------- */

static inline lanes load_single(const float *p) { return *(const lanes *)p; }

static inline lanes load_half(const half *p)
{
#if defined(__AVX512F__)
    return (lanes)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
#elif defined(__F16C__)
    union { __m256 part[2]; lanes whole; } u;
    u.part[0] = _mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
    u.part[1] = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 8)));
    return u.whole;
#else
    lanes v;
    for (int i = 0; i < LANES; i++) v[i] = (float)p[i];
    return v;
#endif
}

static inline lanes load_int8(const int8_t *p)
{
#if defined(__AVX512F__)
    return (lanes)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
#else
    return __builtin_convertvector(*(const bytes *)p, lanes);
#endif
}

static inline ints load_pairs(const uint8_t *p)
{
#if defined(__AVX512F__)
    return (ints)_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
#else
    return __builtin_convertvector(*(const pairs *)p, ints);
#endif
}

/* The palette's values at the low four bits of each index. */
static inline lanes look_up(lanes palette, ints index)
{
#if defined(__AVX512F__)
    return (lanes)_mm512_permutexvar_ps((__m512i)index, (__m512)palette);
#else
    lanes v;
    for (int i = 0; i < LANES; i++) v[i] = palette[index[i] & 15];
    return v;
#endif
}

static inline float sum(lanes v)
{
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#else
    float total = 0;
    for (int i = 0; i < LANES; i++) total += v[i];
    return total;
#endif
}

static inline void store_half(half *p, lanes v)
{
#if defined(__AVX512F__)
    _mm256_storeu_si256((void *)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < LANES; i++) p[i] = (half)v[i];
#endif
}

/* --- activations ----------------------------------------------------------------------------- */

/* Where a column's activation goes: a palette's row is read as 16 even columns, then 16 odd ones. */
static inline int64_t place(const Matrix *m, int64_t c)
{
    return m->kind == PALETTE16 ? (c & ~31) | (c & 1) << 4 | (c & 31) >> 1 : c;
}

/* n values from p on to float32, and the rest of `width` to zero. */
static void widen(const void *p, int is_half, int64_t n, float *out, int64_t width)
{
    int64_t i = 0;
    if (is_half)
        for (; i + LANES <= n; i += LANES) *(lanes *)(out + i) = load_half((const half *)p + i);
    for (; i < n; i++) out[i] = is_half ? (float)((const half *)p)[i] : ((const float *)p)[i];
    for (; i < width; i++) out[i] = 0;
}

static void narrow(const float *p, int64_t n, void *out, int is_half)
{
    int64_t i = 0;
    if (!is_half) {
        memcpy(out, p, n * sizeof(float));
        return;
    }
    for (; i + LANES <= n; i += LANES) store_half((half *)out + i, *(const lanes *)(p + i));
    for (; i < n; i++) ((half *)out)[i] = (half)p[i];
}

/* --- one token: y = W x ---------------------------------------------------------------------- */

#define AHEAD 4096 /* bytes; the hardware's own prefetch stops at each page */

#define DOT(name, type, load)                                                                    \
    static float name(const type *w, const float *x, int64_t columns)                            \
    {                                                                                            \
        lanes part[4] = {{0}, {0}, {0}, {0}};                                                    \
        int64_t i = 0;                                                                           \
        for (; i + 4 * LANES <= columns; i += 4 * LANES) {                                       \
            for (unsigned line = 0; line < sizeof(type); line++)                                 \
                __builtin_prefetch((const char *)(w + i) + AHEAD + 64 * line);                   \
            for (int k = 0; k < 4; k++)                                                          \
                part[k] += load(w + i + k * LANES) * load_single(x + i + k * LANES);             \
        }                                                                                        \
        for (; i + LANES <= columns; i += LANES) part[0] += load(w + i) * load_single(x + i);    \
        float total = sum((part[0] + part[1]) + (part[2] + part[3]));                            \
        for (; i < columns; i++) total += (float)w[i] * x[i];                                    \
        return total;                                                                            \
    }

DOT(dot_single, float, load_single)
DOT(dot_half, half, load_half)
DOT(dot_int8, int8_t, load_int8)

static float dot_palette16(const uint8_t *w, const float *table, const float *x, int64_t columns)
{
    lanes palette = load_single(table), even = {0}, odd = {0};
    for (int64_t i = 0; i < columns; i += 2 * LANES) {
        __builtin_prefetch(w + i / 2 + AHEAD);
        ints both = load_pairs(w + i / 2);
        even += look_up(palette, both) * load_single(x + i);
        odd += look_up(palette, both >> 4) * load_single(x + i + LANES);
    }
    return sum(even + odd);
}

static float dot(const Matrix *m, int64_t r, const float *x)
{
    int64_t at = r * m->columns;
    switch (m->kind) {
    case SINGLE: return dot_single((const float *)m->weight + at, x, m->columns);
    case HALF: return dot_half((const half *)m->weight + at, x, m->columns);
    case INT8: return m->table[r] * dot_int8((const int8_t *)m->weight + at, x, m->columns);
    default:
        return dot_palette16((const uint8_t *)m->weight + at / 2,
                             m->table + r / m->group * LANES, x, m->columns);
    }
}

/* x (C) -> y (R). Returns 0, or -1 where there is no memory. */
int matvec(const Matrix *m, const void *x, void *y)
{
    float *wide = malloc(2 * m->columns * sizeof(float)), *ordered = wide + m->columns;
    if (!wide) return -1;
    widen(x, m->half_activations, m->columns, wide, m->columns);
    if (m->kind == PALETTE16)
        for (int64_t c = 0; c < m->columns; c++) ordered[place(m, c)] = wide[c];
    else
        ordered = wide;
#pragma omp parallel for schedule(static) if (m->rows * m->columns > 1 << 16)
    for (int64_t r = 0; r < m->rows; r++) {
        float value = dot(m, r, ordered) + (m->bias ? m->bias[r] : 0);
        if (m->half_activations)
            ((half *)y)[r] = (half)value;
        else
            ((float *)y)[r] = value;
    }
    free(wide);
    return 0;
}

/* --- several tokens: Y = W X ----------------------------------------------------------------- */

#define ROWS 6      /* rows of a tile: 6 x 4 sums stay in registers */
#define WIDE 4      /* vectors of a tile: 64 tokens */
#define DEPTH 128   /* columns at a time: so many rows of X, 32 kB, stay in the first cache */

/* Columns c .. c + n of row r as float32; n is at most DEPTH. */
static void unpack(const Matrix *m, int64_t r, int64_t c, int64_t n, float *out)
{
    int64_t at = r * m->columns + c, i = 0;
    if (m->kind == HALF || m->kind == SINGLE) {
        widen((const char *)m->weight + at * (m->kind == HALF ? 2 : 4), m->kind == HALF, n, out, n);
        return;
    }
    if (m->kind == PALETTE16) {
        lanes palette = load_single(m->table + r / m->group * LANES);
        for (; i < n; i += 2 * LANES) {
            ints both = load_pairs((const uint8_t *)m->weight + (at + i) / 2);
            *(lanes *)(out + i) = look_up(palette, both);
            *(lanes *)(out + i + LANES) = look_up(palette, both >> 4);
        }
        return;
    }
    const int8_t *w = (const int8_t *)m->weight + at;
    for (; i + LANES <= n; i += LANES) *(lanes *)(out + i) = load_int8(w + i);
    for (; i < n; i++) out[i] = w[i];
}

/* y (ROWS, 16 vectors) += w (ROWS, n) x (n, 16 vectors); stride: elements of a row of x and y. */
#define TILE(name, vectors)                                                                      \
    static void name(const float *w, const float *x, float *y, int64_t n, int64_t stride)        \
    {                                                                                            \
        lanes total[ROWS][vectors];                                                              \
        for (int r = 0; r < ROWS; r++)                                                           \
            for (int j = 0; j < vectors; j++)                                                    \
                total[r][j] = load_single(y + r * stride + LANES * j);                           \
        for (int64_t c = 0; c < n; c++, x += stride)                                             \
            for (int r = 0; r < ROWS; r++)                                                       \
                for (int j = 0; j < vectors; j++)                                                \
                    total[r][j] += w[r * DEPTH + c] * load_single(x + LANES * j);                \
        for (int r = 0; r < ROWS; r++)                                                           \
            for (int j = 0; j < vectors; j++)                                                    \
                *(lanes *)(y + r * stride + LANES * j) = total[r][j];                            \
    }

TILE(wide_tile, WIDE)
TILE(slim_tile, 1)

/* Rows r .. r + ROWS of y += columns c .. c + n of W times x; x and y are `stride` tokens wide. */
static void rows_times(const Matrix *m, int64_t r, int64_t c, int64_t n, const float *x, float *y,
                       int64_t stride)
{
    float w[ROWS * DEPTH];
    int64_t rows = MIN(ROWS, m->rows - r), t = 0;
    if (rows < ROWS) memset(w, 0, sizeof w);
    for (int64_t k = 0; k < rows; k++) unpack(m, r + k, c, n, w + k * DEPTH);
    for (; t + WIDE * LANES <= stride; t += WIDE * LANES)
        wide_tile(w, x + c * stride + t, y + r * stride + t, n, stride);
    for (; t < stride; t += LANES)
        slim_tile(w, x + c * stride + t, y + r * stride + t, n, stride);
}

/* x (C, T) -> y (R, T). Returns 0, or -1 where there is no memory. */
int matmat(const Matrix *m, const void *x, void *y, int64_t tokens)
{
    int64_t stride = ROUND_UP(tokens, LANES), rows = ROUND_UP(m->rows, ROWS);
    int64_t size = m->half_activations ? 2 : 4;
    float *wide = malloc(m->columns * stride * sizeof(float));
    float *sums = calloc(rows * stride, sizeof(float));
    int ready = wide && sums;
    if (ready) {
#pragma omp parallel
        {
#pragma omp for schedule(static)
            for (int64_t c = 0; c < m->columns; c++)
                widen((const char *)x + c * tokens * size, m->half_activations, tokens,
                      wide + place(m, c) * stride, stride);
            for (int64_t c = 0; c < m->columns; c += DEPTH) {
#pragma omp for schedule(static) nowait /* the same rows go to the same thread each time */
                for (int64_t r = 0; r < m->rows; r += ROWS)
                    rows_times(m, r, c, MIN(DEPTH, m->columns - c), wide, sums, stride);
            }
#pragma omp barrier
#pragma omp for schedule(static)
            for (int64_t r = 0; r < m->rows; r++) {
                float scale = m->kind == INT8 ? m->table[r] : 1, bias = m->bias ? m->bias[r] : 0;
                float *line = sums + r * stride;
                if (scale != 1 || bias != 0)
                    for (int64_t t = 0; t < tokens; t++) line[t] = line[t] * scale + bias;
                narrow(line, tokens, (char *)y + r * tokens * size, m->half_activations);
            }
        }
    }
    free(wide);
    free(sums);
    return ready ? 0 : -1;
}

/* --- small ops: one thread, one pass ---------------------------------------------------------- */

/* sums (M, N) = x (M, K) times the transpose of y (N, K). */
static void times_rows(const float *x, const char *y, int is_half, float *sums, int64_t M,
                       int64_t N, int64_t K)
{
    for (int64_t j = 0; j < N; j++)
        for (int64_t i = 0; i < M; i++)
            sums[i * N + j] = is_half ? dot_half((const half *)y + j * K, x + i * K, K)
                                      : dot_single((const float *)y + j * K, x + i * K, K);
}

/* The sum of rows y (K, N) weighed by x (K), at 16 * vectors columns from column j on. */
static inline __attribute__((always_inline)) void weigh(const float *x, const char *y, int is_half,
                                                        float *out, int64_t K, int64_t N,
                                                        int64_t j, int vectors)
{
    lanes total[WIDE] = {{0}, {0}, {0}, {0}};
    for (int64_t k = 0; k < K; k++)
        for (int v = 0; v < vectors; v++) {
            int64_t at = k * N + j + v * LANES;
            total[v] += x[k] * (is_half ? load_half((const half *)y + at)
                                        : load_single((const float *)y + at));
        }
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
        for (; j < N; j++) {
            sums[j] = 0;
            for (int64_t k = 0; k < K; k++)
                sums[j] += x[k] * (is_half ? (float)((const half *)y)[k * N + j]
                                           : ((const float *)y)[k * N + j]);
        }
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

/* e^x for x <= 0, to about 2 units in the last place; below -87, where float32 ends, 0. */
static inline lanes exponential(lanes x)
{
    const float shift = 12582912; /* 1.5 * 2^23: adding it rounds to whole numbers */
    lanes n = x * 1.44269504f + shift;
    ints exponent = (ints)n << 23;
    n -= shift;
    lanes r = x - n * 0.693359375f + n * 2.12194440e-4f; /* ln 2 in two parts */
    lanes p = r * 1.9875691500e-4f + 1.3981999507e-3f;   /* Cephes' expf */
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1;
    return (lanes)(((ints)p + exponent) & ~(x < -87.0f));
}

/* x (rows, n) -> y, every row e^x / sum e^x. */
int softmax(const void *x, void *y, int64_t rows, int64_t n, int32_t is_half)
{
    int64_t size = is_half ? 2 : 4, width = ROUND_UP(n, LANES);
    float *line = malloc(width * sizeof(float));
    if (!line) return -1;
    for (int64_t r = 0; r < rows; r++) {
        widen((const char *)x + r * n * size, is_half, n, line, n);
        for (int64_t i = n; i < width; i++) line[i] = line[0];
        lanes tops = load_single(line), parts = {0};
        for (int64_t i = LANES; i < width; i += LANES) {
            lanes v = load_single(line + i);
            ints above = v > tops;
            tops = (lanes)(((ints)v & above) | ((ints)tops & ~above));
        }
        float top = tops[0];
        for (int i = 1; i < LANES; i++) top = tops[i] > top ? tops[i] : top;
        for (int64_t i = n; i < width; i++) line[i] = top - 100; /* e^-100 counts as 0 */
        for (int64_t i = 0; i < width; i += LANES)
            parts += *(lanes *)(line + i) = exponential(load_single(line + i) - top);
        float total = 1 / sum(parts);
        for (int64_t i = 0; i < width; i += LANES) *(lanes *)(line + i) *= total;
        narrow(line, n, (char *)y + r * n * size, is_half);
    }
    free(line);
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

/* The same for sixteen columns side by side. */
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
