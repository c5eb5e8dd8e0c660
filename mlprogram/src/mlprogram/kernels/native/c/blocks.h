/* int4 with a scale for each block of columns.
 *
 * The product with a scale that is a half is rounded to half, as the package declares; with a scale
 * in float32 the multiplication rounds, as it does there. Where vectors look 16 values up, those of
 * a block are made once. AVX2 would look up each byte of a value: it multiplies each weight.
 */
#ifndef BLOCKS_H
#define BLOCKS_H

#include "lanes.h"

#define SUMS (LANES == 8 ? 2 : 2 * VECTORS) /* at the same time, of a row */
#define SCALES 64                           /* of a row, that are made float32 at a time */

#if LANES == 8

#define UNIT 0x1p-28f /* of an int4 that is read as the upper bits of 32 */

/* Where `read_int4` puts each of 32 columns: of 16, even ones first. */
#define PLACE_INT4(c) ((c & 16) | (c & 1) << 3 | (c & 14) >> 1)

typedef struct {
    lanes more, less;
} Scaling;

static inline void read_scaling(Scaling *s, float more, float less, int is_half)
{
    s->more = more - (lanes){0}, s->less = less - (lanes){0};
    (void)is_half;
}

static inline lanes scaled_int4(const Scaling *s, __m256i bits, int is_half)
{
    lanes whole = (lanes)_mm256_cvtepi32_ps(bits);
    if (is_half) return scaled(whole, s->more, s->less);
    return whole * UNIT * s->more;
}

/* 32 of them. */
static inline void read_int4(const Scaling *s, const uint8_t *nibbles, int is_half, chunk *first,
                             chunk *second)
{
    const __m256i upper = _mm256_set1_epi32(INT32_MIN >> 3);
    const __m256i low = _mm256_setr_epi32(0x00ffffff, 0x01ffffff, 0x02ffffff, 0x03ffffff,
                                          0x04ffffff, 0x05ffffff, 0x06ffffff, 0x07ffffff);
    __m256i all = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)nibbles));
    __m256i a = _mm256_shuffle_epi8(all, low);
    __m256i b = _mm256_shuffle_epi8(all, _mm256_add_epi32(low, _mm256_set1_epi32(8 << 24)));
    first->v[0] = scaled_int4(s, _mm256_slli_epi32(a, 4), is_half);
    first->v[1] = scaled_int4(s, _mm256_and_si256(a, upper), is_half);
    second->v[0] = scaled_int4(s, _mm256_slli_epi32(b, 4), is_half);
    second->v[1] = scaled_int4(s, _mm256_and_si256(b, upper), is_half);
}

#else

#define UNIT 1
#define PLACE_INT4(c) PLACE(c)
typedef Palette Scaling;

static inline void read_scaling(Scaling *s, float more, float less, int is_half)
{
    static const float int4[] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
    float table[16];
    for (int k = 0; k < 16; k += LANES) {
        lanes whole = load_single(int4 + k), *out = (lanes *)(table + k);
        *out = whole * more;
        if (is_half) *out = scaled(whole, more - (lanes){0}, less - (lanes){0});
    }
    read_palette(s, table);
}

static inline void read_int4(const Scaling *s, const uint8_t *nibbles, int is_half, chunk *first,
                             chunk *second)
{
    (void)is_half;
    look_up(s, nibbles, first, second);
}

#endif

/* n scales as `read_scaling` has them. */
static inline void read_scales(const void *scales, int is_half, int64_t n, float *more, float *less)
{
    const float by = is_half ? UNIT * (BEYOND + 1) : 1;
    float few[LANES];
    if (n < LANES) widen(scales, is_half, n, few, LANES);
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t at = MAX(0, MIN(i, n - LANES)); /* the last ones, with some before them once more */
        lanes scale = n < LANES ? load_single(few) : load_lanes(scales, is_half, at);
        *(lanes *)(less + at) = scale * (UNIT * BEYOND);
        *(lanes *)(more + at) = scale * by;
    }
}

/* n values of blocks of `size` columns; of the first block come the last `left`. */
static void unpack_int4(const char *scales, int is_half, const uint8_t *nibbles, int64_t size,
                        int64_t left, int64_t n, float *out)
{
    float more[SCALES], less[SCALES];
    int64_t k = 0;
    for (int64_t i = 0, end; i < n; i = end, left = size, k = (k + 1) % SCALES) {
        Scaling scaling;
        if (k == 0) {
            int64_t blocks = 1 + (n - i - left + size - 1) / size;
            read_scales(scales, is_half, MIN(SCALES, blocks), more, less);
            scales += SCALES * (is_half ? 2 : 4);
        }
        read_scaling(&scaling, more[k], less[k], is_half);
        for (end = MIN(n, i + left); i < end; i += 2 * CHUNK)
            read_int4(&scaling, nibbles + i / 2, is_half, (chunk *)(out + i),
                      (chunk *)(out + i + CHUNK));
    }
}

/* out (STREAMS) = rows of w, of n blocks of `block` columns, times x. Rows are `across` bytes from
 * one to the next, and their scales `apart` values. */
static inline __attribute__((always_inline)) void dots_int4(const uint8_t *w, int64_t across,
                                                            const char *scales, int is_half,
                                                            int64_t apart, int64_t n,
                                                            int64_t block, const float *x,
                                                            float *out)
{
    lanes part[STREAMS][SUMS] = {{{0}}};
    float more[STREAMS][SCALES], less[STREAMS][SCALES];
    int64_t size = is_half ? 2 : 4;
    for (int64_t k = 0; k < n; k += SCALES) {
        int64_t some = MIN(SCALES, n - k);
        UNROLLED for (int s = 0; s < STREAMS; s++)
            read_scales(scales + (s * apart + k) * size, is_half, some, more[s], less[s]);
        for (int64_t b = 0; b < some; b++) {
            Scaling scaling[STREAMS];
            UNROLLED for (int s = 0; s < STREAMS; s++)
                read_scaling(scaling + s, more[s][b], less[s][b], is_half);
            for (int64_t i = 0; i < block; i += 2 * CHUNK, w += CHUNK, x += 2 * CHUNK)
                UNROLLED for (int s = 0; s < STREAMS; s++) {
                    chunk first, second;
                    prefetch(w + s * across);
                    read_int4(scaling + s, w + s * across, is_half, &first, &second);
                    add_product(part[s], first, x);
                    add_product(part[s] + VECTORS % SUMS, second, x + CHUNK);
                }
        }
    }
    UNROLLED for (int s = 0; s < STREAMS; s++) {
        for (int k = 1; k < SUMS; k++) part[s][0] += part[s][k];
        out[s] = sum(part[s][0]);
    }
}

#endif
