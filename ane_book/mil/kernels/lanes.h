/* Sixteen float32 at a time: loads from what a package stores, sums, and the inner loops that the
 * kernels share. Written for AVX-512, with forms that any C compiler takes. */
#ifndef LANES_H
#define LANES_H

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

static inline int is_zero(const char *p, int64_t bytes)
{
    ints bits = {0};
    int64_t i = 0;
    for (; i + 64 <= bytes; i += 64) bits |= *(const ints *)(p + i);
    for (; i < bytes; i++) bits[0] |= p[i];
#if defined(__AVX512F__)
    return !_mm512_test_epi32_mask((__m512i)bits, (__m512i)bits);
#else
    int32_t any = 0;
    for (int k = 0; k < LANES; k++) any |= bits[k];
    return !any;
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

/* n values from p on to float32, and the rest of `width` to zero. */
static inline void widen(const void *p, int is_half, int64_t n, float *out, int64_t width)
{
    int64_t i = 0;
    if (is_half) {
        for (; i + LANES <= n; i += LANES) *(lanes *)(out + i) = load_half((const half *)p + i);
        for (; i < n; i++) out[i] = (float)((const half *)p)[i];
    } else {
        for (; i + LANES <= n; i += LANES) *(lanes *)(out + i) = load_single((const float *)p + i);
        for (; i < n; i++) out[i] = ((const float *)p)[i];
    }
    for (; i < width; i++) out[i] = 0;
}

static inline void narrow(const float *p, int64_t n, void *out, int is_half)
{
    int64_t i = 0;
    if (is_half) {
        for (; i + LANES <= n; i += LANES) store_half((half *)out + i, load_single(p + i));
        for (; i < n; i++) ((half *)out)[i] = (half)p[i];
    } else {
        for (; i + LANES <= n; i += LANES) *(lanes *)((float *)out + i) = load_single(p + i);
        for (; i < n; i++) ((float *)out)[i] = p[i];
    }
}

/* float32 values to the nearest half and back; n is a multiple of LANES. */
static inline void round_to_half(float *p, int64_t n)
{
    half rounded[LANES];
    for (int64_t i = 0; i < n; i += LANES) {
        store_half(rounded, load_single(p + i));
        *(lanes *)(p + i) = load_half(rounded);
    }
}

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

/* n values to e^x / sum e^x, in place; there is room up to the next multiple of LANES. Returns the
 * largest of them, but for those that are nan. */
static inline float softmax_row(float *line, int64_t n)
{
    int64_t width = ROUND_UP(n, LANES);
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
    float scale = 1 / sum(parts);
    for (int64_t i = 0; i < width; i += LANES) *(lanes *)(line + i) *= scale;
    return top;
}

/* --- a row times x ---------------------------------------------------------------------------- */

#define AHEAD 4096 /* bytes; the hardware's own prefetch stops at each page */

#define DOT(name, type, load)                                                                    \
    static inline float name(const type *w, const float *x, int64_t columns)                            \
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

/* --- tiles of a matrix product ---------------------------------------------------------------- */

#define ROWS 6      /* rows of a tile: 6 x 4 sums stay in registers */
#define WIDE 4      /* vectors of a tile: 64 tokens */
#define DEPTH 128   /* columns at a time: so many rows of X, 32 kB, stay in the first cache */

/* y (ROWS, 16 vectors) += w (ROWS, n) x (n, 16 vectors); a row of x is `across` elements long. */
#define TILE(name, vectors)                                                                      \
    static inline void name(const float *w, const float *x, float *y, int64_t n, int64_t across,  \
                            int64_t stride)                                                       \
    {                                                                                            \
        lanes total[ROWS][vectors];                                                              \
        for (int r = 0; r < ROWS; r++)                                                           \
            for (int j = 0; j < vectors; j++)                                                    \
                total[r][j] = load_single(y + r * stride + LANES * j);                           \
        for (int64_t c = 0; c < n; c++, x += across) {                                           \
            lanes v[vectors];                                                                    \
            for (int j = 0; j < vectors; j++) v[j] = load_single(x + LANES * j);                 \
            for (int r = 0; r < ROWS; r++)                                                       \
                for (int j = 0; j < vectors; j++) total[r][j] += w[r * DEPTH + c] * v[j];        \
        }                                                                                        \
        for (int r = 0; r < ROWS; r++)                                                           \
            for (int j = 0; j < vectors; j++)                                                    \
                *(lanes *)(y + r * stride + LANES * j) = total[r][j];                            \
    }

TILE(wide_tile, WIDE)
TILE(slim_tile, 1)

#endif
