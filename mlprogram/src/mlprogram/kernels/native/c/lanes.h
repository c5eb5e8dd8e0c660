/* Loops that the kernels share, over vectors of as many float32 as the processor has. */
#ifndef LANES_H
#define LANES_H

#include "vectors.h"

#include <math.h>
#include <stdlib.h>

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define ROUND_UP(a, b) (((a) + (b) - 1) / (b) * (b))

#if defined(__AVX512F__)

/* The sums of four vectors, in two parts of four. */
static inline __m256 turned_sums(lanes a, lanes b, lanes c, lanes d)
{
    __m512 p = (__m512)a, q = (__m512)b, r = (__m512)c, s = (__m512)d;
    p = _mm512_add_ps(_mm512_unpacklo_ps(p, q), _mm512_unpackhi_ps(p, q));
    r = _mm512_add_ps(_mm512_unpacklo_ps(r, s), _mm512_unpackhi_ps(r, s));
    __m512d x = _mm512_castps_pd(p), y = _mm512_castps_pd(r);
    p = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), q = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
    x = _mm512_castps_pd(_mm512_add_ps(p, q));
    return _mm256_add_ps(_mm256_castpd_ps(_mm512_castpd512_pd256(x)),
                         _mm256_castpd_ps(_mm512_extractf64x4_pd(x, 1)));
}

#elif LANES == 8

/* The sums of four vectors, in two parts of four. */
static inline __m256 turned_sums(lanes a, lanes b, lanes c, lanes d)
{
    return _mm256_hadd_ps(_mm256_hadd_ps((__m256)a, (__m256)b), _mm256_hadd_ps((__m256)c, (__m256)d));
}

#endif

/* The sums of four vectors, that are `step` apart. */
static inline void four_sums(const lanes *v, int64_t step, float *out)
{
#if LANES > 4
    __m256 a = turned_sums(v[0], v[step], v[2 * step], v[3 * step]);
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1)));
#elif defined(__aarch64__)
    float32x4_t a = vpaddq_f32((float32x4_t)v[0], (float32x4_t)v[step]);
    vst1q_f32(out, vpaddq_f32(a, vpaddq_f32((float32x4_t)v[2 * step], (float32x4_t)v[3 * step])));
#else
    for (int k = 0; k < 4; k++) out[k] = sum(v[k * step]);
#endif
}

/* Whether all bytes are zero. */
static inline int is_zero(const char *p, int64_t bytes)
{
    typedef uint64_t words __attribute__((vector_size(4 * LANES), aligned(1), may_alias));
    words bits = {0};
    uint64_t any = 0;
    int64_t i = 0;
    for (; i + 4 * LANES <= bytes; i += 4 * LANES) bits |= *(const words *)(p + i);
    for (; i < bytes; i++) any |= (uint64_t)(p[i] != 0);
    for (int k = 0; k < LANES / 2; k++) any |= bits[k];
    return !any;
}

static inline lanes load_lanes(const void *p, int is_half, int64_t at)
{
    return is_half ? load_half((const half *)p + at) : load_single((const float *)p + at);
}

/* n < LANES halves to and from float32. */
static inline void widen_rest(const half *p, int64_t n, float *out)
{
    half bits[LANES] = {0};
    memcpy(bits, p, n * sizeof(half));
    lanes v = load_half(bits);
    memcpy(out, &v, n * sizeof(float));
}

static inline void narrow_rest(const float *p, int64_t n, half *out)
{
    half bits[LANES];
    lanes v = {0};
    memcpy(&v, p, n * sizeof(float));
    store_half(bits, v);
    memcpy(out, bits, n * sizeof(half));
}

/* n float32, vector by vector: most are few, and a call takes longer than they do. */
static inline void copy_single(const float *p, int64_t n, float *out)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) *(lanes *)(out + i) = load_single(p + i);
    if (i < n) memcpy(out + i, p + i, (n - i) * sizeof(float));
}

/* n values from p on to float32, and the rest of `width` to zero. */
static inline void widen(const void *p, int is_half, int64_t n, float *out, int64_t width)
{
    if (is_half) {
        const half *h = p;
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES) *(lanes *)(out + i) = load_half(h + i);
        if (i < n && n >= LANES) /* the last ones, with some before them once more */
            *(lanes *)(out + n - LANES) = load_half(h + n - LANES);
        else if (i < n)
            widen_rest(h, n, out);
    } else {
        copy_single(p, n, out);
    }
    for (int64_t i = n; i < width; i++) out[i] = 0;
}

static inline void narrow(const float *p, int64_t n, void *out, int is_half)
{
    if (!is_half) {
        copy_single(p, n, out);
        return;
    }
    half *h = out;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) store_half(h + i, load_single(p + i));
    if (i < n) narrow_rest(p + i, n - i, h + i);
}

/* float32 values to the nearest half and back; n is a multiple of LANES. */
static inline void round_to_half(float *p, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES) *(lanes *)(p + i) = nearest_half(load_single(p + i));
}

/* Where half precision rounds: the result alone, or where the usual ops do, or as many small ones. */
enum { AS_ONE, AS_OPS, SPELLED_OUT };

/* --- softmax --------------------------------------------------------------------------------- */

/* e^x for x <= 0, to about 2 units in the last place; below -87, where float32 ends, 0. */
static inline lanes exponential(lanes x)
{
    const float shift = 12582912 + 127; /* 1.5 * 2^23: adding it rounds to whole numbers */
    lanes n = x * 1.44269504f + shift;
    lanes power = (lanes)((ints)n << 23); /* 2^n; 127 is the bias of float32's exponents */
    n -= shift;
    lanes r = x - n * 0.693359375f + n * 2.12194440e-4f; /* ln 2 in two parts */
    lanes p = r * 1.9875691500e-4f + 1.3981999507e-3f;   /* Cephes' expf */
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1;
    return (lanes)((ints)(p * power) & ~(x < -87.0f)); /* the product is nan where x is */
}

/* The largest of n values but for those that are nan; there is room up to the next multiple of
 * LANES. */
static inline float largest(float *line, int64_t n)
{
    int64_t width = ROUND_UP(n, LANES);
    for (int64_t i = n; i < width; i++) line[i] = line[0];
    lanes tops = load_single(line);
    for (int64_t i = LANES; i < width; i += LANES) {
        lanes v = load_single(line + i);
        ints above = v > tops;
        tops = (lanes)(((ints)v & above) | ((ints)tops & ~above));
    }
    float top = tops[0];
    for (int i = 1; i < LANES; i++) top = tops[i] > top ? tops[i] : top;
    return top;
}

/* n values to e^x / sum e^x, in place; room and result are those of `largest`. */
static inline float softmax_row(float *line, int64_t n)
{
    int64_t width = ROUND_UP(n, LANES);
    float top = largest(line, n);
    lanes parts = {0};
    for (int64_t i = n; i < width; i++) line[i] = -INFINITY; /* whose weight is 0 */
    for (int64_t i = 0; i < width; i += LANES)
        parts += *(lanes *)(line + i) = exponential(load_single(line + i) - top);
    float scale = 1 / sum(parts);
    for (int64_t i = 0; i < width; i += LANES) *(lanes *)(line + i) *= scale;
    return top;
}

/* --- rows times x ----------------------------------------------------------------------------- */

/* One thread reads memory faster where it reads in several places: rows that are far apart are
 * multiplied side by side. To the second cache, so many bytes ahead: the hardware's own prefetch
 * stops at each page. */
#if LANES > 4
#define STREAMS 4
#define AHEAD 3072
#else
#define STREAMS 1
#define AHEAD 6144
#endif
#if defined(__znver3__) || defined(__znver4__) /* their own prefetch does better */
#define prefetch(p) (void)(p)
#else
#define prefetch(p) __builtin_prefetch((const char *)(p) + AHEAD, 0, 2)
#endif
/* Sums at the same time, of each row, since adding takes a few cycles: as the registers hold. */
#define PARTS (LANES == 4 ? 8 : LANES == 8 ? 2 : 4)
#define STEP (4 * CHUNK)
#define UNROLLED _Pragma("GCC unroll 16") /* what is indexed by the loop stays in registers */

static inline __attribute__((always_inline)) void add_product(lanes *part, chunk w, const float *x)
{
    UNROLLED for (int k = 0; k < VECTORS; k++) part[k] += w.v[k] * load_single(x + k * LANES);
}

static inline __attribute__((always_inline)) float add_parts(lanes *part)
{
    for (int k = 1; k < PARTS; k++) part[0] += part[k];
    return sum(part[0]);
}

/* out (rows) = rows of w, `across` values apart, times x (columns). What `load` says of a row may
 * depend on its number, s. */
#define DOT(name, rows, type, load, ...)                                                         \
    static inline void name(const type *w, int64_t across, const float *x, int64_t columns,      \
                            float *out, ##__VA_ARGS__)                                           \
    {                                                                                            \
        lanes part[rows][PARTS] = {{{0}}};                                                       \
        int64_t i = 0;                                                                           \
        for (; i + STEP <= columns; i += STEP) {                                                 \
            UNROLLED for (int s = 0; s < rows; s++)                                              \
                for (unsigned line = 0; line < sizeof(type); line++)                             \
                    prefetch((const char *)(w + s * across + i) + 64 * line);                    \
            UNROLLED for (int k = 0; k < STEP / CHUNK; k++)                                      \
                UNROLLED for (int s = 0; s < rows; s++)                                          \
                    add_product(part[s] + k * VECTORS % PARTS,                                   \
                                load(w + s * across + i + k * CHUNK), x + i + k * CHUNK);        \
        }                                                                                        \
        for (; i + CHUNK <= columns; i += CHUNK)                                                 \
            UNROLLED for (int s = 0; s < rows; s++)                                              \
                add_product(part[s], load(w + s * across + i), x + i);                           \
        if (i < columns) {                                                                       \
            float x_rest[CHUNK] = {0};                                                           \
            memcpy(x_rest, x + i, (columns - i) * sizeof(float));                                \
            UNROLLED for (int s = 0; s < rows; s++) {                                            \
                type w_rest[CHUNK] = {0};                                                        \
                memcpy(w_rest, w + s * across + i, (columns - i) * sizeof(type));                \
                add_product(part[s], load(w_rest), x_rest);                                      \
            }                                                                                    \
        }                                                                                        \
        UNROLLED for (int s = 0; s < rows; s++) out[s] = add_parts(part[s]);                     \
    }

DOT(dot_single, 1, float, single_chunk)
DOT(dots_single, STREAMS, float, single_chunk)
DOT(dot_half, 1, half, half_chunk)
DOT(dots_half, STREAMS, half, half_chunk)
DOT(dots_int8, STREAMS, int8_t, int8_chunk)
#define SCALED_BY_ROW(w) scaled_chunk(w, scale[s])
DOT(dots_scaled, STREAMS, int8_t, SCALED_BY_ROW, const float *scale)

/* --- tiles of a matrix product ---------------------------------------------------------------- */

#define DEPTH 128 /* columns at a time: so many rows of X, 32 kB, stay in the first cache */

#define FETCHES (LANES == 16) /* whether tiles fetch: narrower ones have no registers for it, .. */
#define FETCHED 16            /* .. and for so many columns at a time */

/* Rows that are fetched while others are multiplied: the first one, and the bytes from one to the
 * next; bits of a value. */
typedef struct {
    const char *row;
    int64_t apart, bits;
} Later;

/* y (ROWS, LANES vectors) += w (ROWS, n) x (n, LANES vectors); rows of x and y `across` apart. Row r
 * and column c of w are `at`. */
#define TILE(name, vectors, at)                                                                  \
    static inline void name(const float *w, const float *x, float *y, int64_t n, int64_t across,  \
                            Later later)                                                         \
    {                                                                                            \
        lanes total[ROWS][vectors];                                                              \
        for (int r = 0; r < ROWS; r++)                                                           \
            for (int j = 0; j < vectors; j++)                                                    \
                total[r][j] = load_single(y + r * across + LANES * j);                           \
        for (int64_t c = 0; c < n; c++, x += across) {                                           \
            for (int r = 0; FETCHES && c % FETCHED == 0 && r < ROWS; r++)                        \
                __builtin_prefetch(later.row + r * later.apart + c * later.bits / 8);            \
            lanes v[vectors];                                                                    \
            for (int j = 0; j < vectors; j++) v[j] = load_single(x + LANES * j);                 \
            for (int r = 0; r < ROWS; r++)                                                       \
                for (int j = 0; j < vectors; j++) total[r][j] += w[at] * v[j];                   \
        }                                                                                        \
        for (int r = 0; r < ROWS; r++)                                                           \
            for (int j = 0; j < vectors; j++)                                                    \
                *(lanes *)(y + r * across + LANES * j) = total[r][j];                            \
    }

/* y (ROWS, width) += w (ROWS, n) x (n, width), of whole vectors. */
#define TILES_OF(name, at)                                                                       \
    TILE(name##_wide, WIDE, at)                                                                  \
    TILE(name##_half, 2, at)                                                                     \
    TILE(name##_slim, 1, at)                                                                     \
    static inline void name(const float *w, const float *x, float *y, int64_t n, int64_t width,   \
                            Later later)                                                         \
    {                                                                                            \
        int64_t i = 0;                                                                           \
        for (; i + WIDE * LANES <= width; i += WIDE * LANES)                                     \
            name##_wide(w, x + i, y + i, n, width, later);                                       \
        for (; i + 2 * LANES <= width; i += 2 * LANES)                                           \
            name##_half(w, x + i, y + i, n, width, later);                                       \
        if (i < width) name##_slim(w, x + i, y + i, n, width, later);                            \
    }

TILES_OF(multiply_tiles, r * DEPTH + c)

#define AT_HAND(w) ((Later){(const char *)(w), 0, 0}) /* nothing is fetched that is not there */

static inline void add_tiles(const float *w, const float *x, float *y, int64_t n, int64_t width)
{
    multiply_tiles(w, x, y, n, width, AT_HAND(w));
}

#define LONG 768 /* columns at a time where vectors go along them */

/* y (tokens, ROWS), a vector each, += x (tokens, n) times w (ROWS, n), lane by lane. Rows of w are
 * LONG apart, and of x `across`; zeros fill them up to whole vectors. */
#define DOTS(name, tokens)                                                                       \
    static inline void name(const float *w, const float *x, lanes *y, int64_t n, int64_t across)  \
    {                                                                                            \
        lanes total[tokens][ROWS];                                                               \
        memcpy(total, y, sizeof total);                                                          \
        for (int64_t c = 0; c < n; c += LANES) {                                                 \
            lanes v[ROWS];                                                                       \
            for (int r = 0; r < ROWS; r++) v[r] = load_single(w + r * LONG + c);                 \
            for (int t = 0; t < tokens; t++)                                                     \
                for (int r = 0; r < ROWS; r++)                                                   \
                    total[t][r] += v[r] * load_single(x + t * across + c);                       \
        }                                                                                        \
        memcpy(y, total, sizeof total);                                                          \
    }

DOTS(wide_dots, WIDE)
DOTS(slim_dots, 1)

#endif
