/* int4 with a scale for each block of columns, which makes a palette of 16 values of it.
 *
 * The product with a scale that is a half has 15 bits, so that it is exact in float32, and is
 * rounded once, to half, as the package declares; with a scale in float32 the multiplication
 * rounds, as it does there.
 */
#ifndef BLOCKS_H
#define BLOCKS_H

#include "lanes.h"

#define INT4 {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1}
#define TOGETHER (LANES == 16 ? STREAMS : 1) /* rows whose sums and palettes fit the registers */
#define SCALES 64                            /* of a row, that are made float32 at a time */

static inline void scaled_table(float scale, int half_weights, float *table)
{
    static const float int4[] = INT4;
    for (int k = 0; k < 16; k += LANES) {
        lanes v = load_single(int4 + k) * scale;
        *(lanes *)(table + k) = half_weights ? nearest_half(v) : v;
    }
}

static inline void single_palette(Palette *p, float scale)
{
    float table[16];
    scaled_table(scale, 0, table);
    read_palette(p, table);
}

#if defined(__AVX512FP16__) && defined(__AVX512VL__)

#define SCALE(stored, wide) (stored) /* which one half_palette takes */
typedef Palette HalfPalette;

static inline void half_palette(HalfPalette *p, half scale)
{
    static const _Float16 int4[] = INT4;
    __m256h factor = _mm256_castsi256_ph(_mm256_set1_epi16(scale));
    *p = _mm512_cvtph_ps(_mm256_castph_si256(_mm256_mul_ph(_mm256_loadu_ph(int4), factor)));
}

#define look_up_half look_up

#elif LANES == 8

#define SCALE(stored, wide) (wide)
typedef struct {
    __m256i low, high; /* bytes of 16 halves, twice */
} HalfPalette;

static inline void half_palette(HalfPalette *p, float scale)
{
    const __m256 even = _mm256_setr_ps(0, 2, 4, 6, -8, -6, -4, -2);
    const __m256 odd = _mm256_setr_ps(1, 3, 5, 7, -7, -5, -3, -1);
    const __m128i byte = _mm_set1_epi16(0xff);
    __m256 factor = _mm256_set1_ps(scale);
    __m128i a = _mm256_cvtps_ph(_mm256_mul_ps(even, factor), _MM_FROUND_TO_NEAREST_INT);
    __m128i b = _mm256_cvtps_ph(_mm256_mul_ps(odd, factor), _MM_FROUND_TO_NEAREST_INT);
    __m128i low = _mm_or_si128(_mm_and_si128(a, byte), _mm_slli_epi16(b, 8));
    __m128i high = _mm_or_si128(_mm_srli_epi16(a, 8), _mm_andnot_si128(byte, b));
    p->low = _mm256_broadcastsi128_si256(low), p->high = _mm256_broadcastsi128_si256(high);
}

/* As look_up, which looks four bytes up. */
static inline void look_up_half(const HalfPalette *p, const uint8_t *nibbles, chunk *first,
                                chunk *second)
{
    __m128i even = _mm_loadu_si128((const void *)nibbles), odd = _mm_srli_epi16(even, 4);
    __m256i index = _mm256_set_m128i(_mm_unpackhi_epi32(even, odd), _mm_unpacklo_epi32(even, odd));
    index = _mm256_and_si256(index, _mm256_set1_epi8(15));
    __m256i low = _mm256_shuffle_epi8(p->low, index), high = _mm256_shuffle_epi8(p->high, index);
    __m256i a = _mm256_unpacklo_epi8(low, high), b = _mm256_unpackhi_epi8(low, high);
    first->v[0] = (lanes)_mm256_cvtph_ps(_mm256_castsi256_si128(a));
    first->v[1] = (lanes)_mm256_cvtph_ps(_mm256_castsi256_si128(b));
    second->v[0] = (lanes)_mm256_cvtph_ps(_mm256_extracti128_si256(a, 1));
    second->v[1] = (lanes)_mm256_cvtph_ps(_mm256_extracti128_si256(b, 1));
}

#else

#define SCALE(stored, wide) (wide)
typedef Palette HalfPalette;

static inline void half_palette(HalfPalette *p, float scale)
{
    float table[16];
    scaled_table(scale, 1, table);
    read_palette(p, table);
}

#define look_up_half look_up

#endif

/* out (TOGETHER) = rows of w, of n blocks of `block` columns, times x. Rows are `across` bytes from
 * one to the next, and their scales `apart` values. */
#define BLOCKS(name, type, is_half, palette_type, read, look, choose)                            \
    static void name(const uint8_t *w, int64_t across, const type *scale, int64_t apart,         \
                     int64_t n, int64_t block, const float *x, float *out)                       \
    {                                                                                            \
        lanes part[TOGETHER][2 * VECTORS] = {{{0}}};                                             \
        float wide[TOGETHER][SCALES];                                                            \
        for (int64_t k = 0; k < n; k++, scale++) {                                               \
            palette_type palette[TOGETHER];                                                      \
            if (k % SCALES == 0)                                                                 \
                UNROLLED for (int s = 0; s < TOGETHER; s++)                                      \
                    widen(scale + s * apart, is_half, MIN(SCALES, n - k), wide[s], 0);           \
            UNROLLED for (int s = 0; s < TOGETHER; s++)                                          \
                read(palette + s, choose(scale[s * apart], wide[s][k % SCALES]));                \
            for (int64_t i = 0; i < block; i += 2 * CHUNK, w += CHUNK, x += 2 * CHUNK)           \
                UNROLLED for (int s = 0; s < TOGETHER; s++) {                                    \
                    chunk first, second;                                                         \
                    prefetch(w + s * across);                                                    \
                    look(palette + s, w + s * across, &first, &second);                          \
                    add_product(part[s], first, x);                                              \
                    add_product(part[s] + VECTORS, second, x + CHUNK);                           \
                }                                                                                \
        }                                                                                        \
        UNROLLED for (int s = 0; s < TOGETHER; s++) {                                            \
            for (int k = 1; k < 2 * VECTORS; k++) part[s][0] += part[s][k];                      \
            out[s] = sum(part[s][0]);                                                            \
        }                                                                                        \
    }

#define STORED(stored, wide) (stored)
BLOCKS(dots_half_blocks, half, 1, HalfPalette, half_palette, look_up_half, SCALE)
BLOCKS(dots_single_blocks, float, 0, Palette, single_palette, look_up, STORED)

#endif
