/* What differs between instruction sets: how many float32 a vector holds, how many sums stay in
 * registers, and how values are read as a package stores them: AVX-512; AVX2 with F16C and FMA;
 * NEON; and vectors of four in the compiler's own terms, which any processor has.
 *
 * Half precision is kept as its bits, and always converted by vectors: compilers turn a single
 * value into a call where the processor has no instruction for it.
 */
#ifndef VECTORS_H
#define VECTORS_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define INSTRUCTIONS "AVX-512"
#define LANES 16
#elif defined(__AVX2__) && defined(__F16C__) && defined(__FMA__)
#define INSTRUCTIONS "AVX2"
#define LANES 8
#elif defined(__aarch64__) && !defined(__AARCH64EB__)
#define INSTRUCTIONS "NEON"
#define LANES 4
#else
#define INSTRUCTIONS "plain"
#define LANES 4
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define CHUNK 16 /* values that are read together: one line of nibbles, two of a palette's rows */
#define VECTORS (CHUNK / LANES)

/* A tile of sums, ROWS x WIDE vectors, fills the registers: 32, or 16 in AVX2 and SSE. */
#define ROWS 6
#if defined(__AVX512F__) || defined(__aarch64__)
#define WIDE 4
#else
#define WIDE 2
#endif

typedef uint16_t half;
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef struct {
    lanes v[VECTORS];
} chunk;

static inline lanes load_single(const float *p) { return *(const lanes *)p; }

static inline chunk single_chunk(const float *p)
{
    chunk c;
    for (int k = 0; k < VECTORS; k++) c.v[k] = load_single(p + k * LANES);
    return c;
}

#if defined(__AVX512F__)

static inline lanes load_half(const half *p)
{
    return (lanes)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}

static inline void store_half(half *p, lanes v)
{
    _mm256_storeu_si256((void *)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
}

static inline lanes nearest_half(lanes v)
{
    return (lanes)_mm512_cvtph_ps(_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
}

static inline chunk half_chunk(const half *p) { return (chunk){{load_half(p)}}; }

static inline chunk int8_chunk(const int8_t *p)
{
    __m512i wide = _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p));
    return (chunk){{(lanes)_mm512_cvtepi32_ps(wide)}};
}

static inline float sum(lanes v) { return _mm512_reduce_add_ps((__m512)v); }

typedef __m512 Palette;

static inline void read_palette(Palette *p, const float *table) { *p = _mm512_loadu_ps(table); }

/* The values of 32 nibbles: of the even ones, and of the odd ones. */
static inline void look_up(const Palette *p, const uint8_t *nibbles, chunk *even, chunk *odd)
{
    __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)nibbles));
    even->v[0] = (lanes)_mm512_permutexvar_ps(both, *p); /* by the low four bits */
    odd->v[0] = (lanes)_mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), *p);
}

#elif LANES == 8

static inline lanes load_half(const half *p)
{
    return (lanes)_mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
}

static inline void store_half(half *p, lanes v)
{
    _mm_storeu_si128((void *)p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
}

static inline lanes nearest_half(lanes v)
{
    return (lanes)_mm256_cvtph_ps(_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
}

static inline chunk half_chunk(const half *p) { return (chunk){{load_half(p), load_half(p + 8)}}; }

static inline lanes load_int8(const int8_t *p)
{
    return (lanes)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)));
}

static inline chunk int8_chunk(const int8_t *p) { return (chunk){{load_int8(p), load_int8(p + 8)}}; }

static inline float sum(lanes v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

typedef struct {
    __m256i bytes[4]; /* the first byte of each of 16 values, twice, the second, .. */
} Palette;

static inline void read_palette(Palette *p, const float *table)
{
    const __m128i by_place = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m128i x[4];
    for (int k = 0; k < 4; k++)
        x[k] = _mm_shuffle_epi8(_mm_loadu_si128((const void *)(table + 4 * k)), by_place);
    for (int k = 0; k < 4; k++) {
        __m128i a = k < 2 ? _mm_unpacklo_epi32(x[0], x[1]) : _mm_unpackhi_epi32(x[0], x[1]);
        __m128i b = k < 2 ? _mm_unpacklo_epi32(x[2], x[3]) : _mm_unpackhi_epi32(x[2], x[3]);
        a = k % 2 ? _mm_unpackhi_epi64(a, b) : _mm_unpacklo_epi64(a, b);
        p->bytes[k] = _mm256_broadcastsi128_si256(a);
    }
}

/* The values of 32 nibbles, whose bytes are looked up and put together: of four even ones, then of
 * the four odd ones beside them. */
static inline void look_up(const Palette *p, const uint8_t *nibbles, chunk *first, chunk *second)
{
    __m128i both = _mm_loadu_si128((const void *)nibbles);
    __m256i index = _mm256_set_m128i(_mm_srli_epi16(both, 4), both), byte[4];
    index = _mm256_and_si256(index, _mm256_set1_epi8(15));
    for (int k = 0; k < 4; k++) byte[k] = _mm256_shuffle_epi8(p->bytes[k], index);
    __m256i low = _mm256_unpacklo_epi8(byte[0], byte[1]);
    __m256i high = _mm256_unpacklo_epi8(byte[2], byte[3]);
    first->v[0] = (lanes)_mm256_unpacklo_epi16(low, high);
    first->v[1] = (lanes)_mm256_unpackhi_epi16(low, high);
    low = _mm256_unpackhi_epi8(byte[0], byte[1]), high = _mm256_unpackhi_epi8(byte[2], byte[3]);
    second->v[0] = (lanes)_mm256_unpacklo_epi16(low, high);
    second->v[1] = (lanes)_mm256_unpackhi_epi16(low, high);
}

/* Where look_up puts each of 32 columns. */
#define PLACE(c) ((c & 24) | (c & 1) << 2 | (c & 6) >> 1)

#elif defined(__aarch64__)

static inline lanes load_half(const half *p)
{
    return (lanes)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

static inline void store_half(half *p, lanes v)
{
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v)));
}

static inline lanes nearest_half(lanes v)
{
    return (lanes)vcvt_f32_f16(vcvt_f16_f32((float32x4_t)v));
}

static inline chunk half_chunk(const half *p)
{
    float16x8_t a = vreinterpretq_f16_u16(vld1q_u16(p)), b = vreinterpretq_f16_u16(vld1q_u16(p + 8));
    return (chunk){{(lanes)vcvt_f32_f16(vget_low_f16(a)), (lanes)vcvt_high_f32_f16(a),
                    (lanes)vcvt_f32_f16(vget_low_f16(b)), (lanes)vcvt_high_f32_f16(b)}};
}

static inline chunk int8_chunk(const int8_t *p)
{
    int8x16_t bytes = vld1q_s8(p);
    int16x8_t a = vmovl_s8(vget_low_s8(bytes)), b = vmovl_high_s8(bytes);
    return (chunk){{(lanes)vcvtq_f32_s32(vmovl_s16(vget_low_s16(a))),
                    (lanes)vcvtq_f32_s32(vmovl_high_s16(a)),
                    (lanes)vcvtq_f32_s32(vmovl_s16(vget_low_s16(b))),
                    (lanes)vcvtq_f32_s32(vmovl_high_s16(b))}};
}

static inline float sum(lanes v) { return vaddvq_f32((float32x4_t)v); }

typedef uint8x16x4_t Palette; /* the first byte of each of 16 values, the second, .. */

static inline void read_palette(Palette *p, const float *table)
{
    *p = vld4q_u8((const uint8_t *)table);
}

/* 16 values, whose bytes are looked up four times and put together again. */
static inline chunk choose(const Palette *p, uint8x16_t index)
{
    uint8x16_t a = vqtbl1q_u8(p->val[0], index), b = vqtbl1q_u8(p->val[1], index);
    uint8x16_t c = vqtbl1q_u8(p->val[2], index), d = vqtbl1q_u8(p->val[3], index);
    uint16x8_t low[2] = {vreinterpretq_u16_u8(vzip1q_u8(a, b)), vreinterpretq_u16_u8(vzip2q_u8(a, b))};
    uint16x8_t high[2] = {vreinterpretq_u16_u8(vzip1q_u8(c, d)), vreinterpretq_u16_u8(vzip2q_u8(c, d))};
    return (chunk){{(lanes)vzip1q_u16(low[0], high[0]), (lanes)vzip2q_u16(low[0], high[0]),
                    (lanes)vzip1q_u16(low[1], high[1]), (lanes)vzip2q_u16(low[1], high[1])}};
}

/* The values of 32 nibbles: of the even ones, and of the odd ones. */
static inline void look_up(const Palette *p, const uint8_t *nibbles, chunk *even, chunk *odd)
{
    uint8x16_t both = vld1q_u8(nibbles);
    *even = choose(p, vandq_u8(both, vdupq_n_u8(15)));
    *odd = choose(p, vshrq_n_u8(both, 4));
}

#else

typedef uint16_t four_halves __attribute__((vector_size(8), aligned(2), may_alias));
typedef int8_t four_bytes __attribute__((vector_size(4), aligned(1), may_alias));
typedef uint64_t pairs __attribute__((vector_size(16), may_alias));

/* Float32 of halves whose bits stand in the upper half of each lane. */
static inline lanes widened(ints raised)
{
    lanes v = (lanes)((raised >> 3) & (int32_t)0x8fffe000) * 0x1p112f; /* other exponent bias */
    ints infinite_or_nan = (raised & 0x7fffffff) > 0x7bffffff;
    return (lanes)((ints)v | (infinite_or_nan & 0x7f800000));
}

static inline lanes load_half(const half *p)
{
    return widened(__builtin_convertvector(*(const four_halves *)p, ints) << 16);
}

/* To nearest, ties to even, by whole numbers. */
static inline void store_half(half *p, lanes v)
{
    ints sign = (ints)v & INT32_MIN, bits = (ints)v ^ sign;
    ints normal = (bits - (112 << 23) + 0xfff + (bits >> 13 & 1)) >> 13;
    ints small = (ints)((lanes)bits + 0.5f) - (126 << 23); /* the sum rounds at 2^-24 */
    ints is_small = bits < 113 << 23, is_large = bits > 0x477fffff, is_nan = bits > 0x7f800000;
    ints found = (small & is_small) | (normal & ~is_small);
    found = (found & ~is_large) | (is_large & 0x7c00) | (is_nan & 0x200) | (sign >> 16 & 0x8000);
    *(four_halves *)p = __builtin_convertvector(found, four_halves);
}

/* By adding a number so large that what is beyond a half's last place falls off. Finite values are
 * below 2^115, as all are that come of halves. */
static inline lanes nearest_half(lanes v)
{
    const ints least = (ints){0} + (113 << 23); /* 2^-14, below which the last place stays */
    ints power = (ints)v & 0x7f800000, above = (power > least) & (power < 0x7f800000);
    power = (power & above) | (least & ~above);
    lanes large = (lanes)(power + (13 << 23 | 1 << 22)); /* 1.5 * 2^13 times the power of two */
    return (v + large - large) * 0x1p112f * 0x1p-112f; /* from 2^16 on infinite */
}

#if defined(__SSE2__)

static inline chunk half_chunk(const half *p)
{
    const __m128i zero = _mm_setzero_si128();
    __m128i a = _mm_loadu_si128((const void *)p), b = _mm_loadu_si128((const void *)(p + 8));
    return (chunk){{widened((ints)_mm_unpacklo_epi16(zero, a)),
                    widened((ints)_mm_unpackhi_epi16(zero, a)),
                    widened((ints)_mm_unpacklo_epi16(zero, b)),
                    widened((ints)_mm_unpackhi_epi16(zero, b))}};
}

/* Bytes as the last bits of 2^23 + 128 + byte, which is then taken off. */
static inline chunk int8_chunk(const int8_t *p)
{
    const __m128i flip = _mm_set1_epi8(-128), zero = _mm_setzero_si128();
    const __m128i exponent = _mm_set1_epi16(0x4b00);
    __m128i bytes = _mm_xor_si128(_mm_loadu_si128((const void *)p), flip);
    __m128i a = _mm_unpacklo_epi8(bytes, zero), b = _mm_unpackhi_epi8(bytes, zero);
    chunk c = {{(lanes)_mm_unpacklo_epi16(a, exponent), (lanes)_mm_unpackhi_epi16(a, exponent),
                (lanes)_mm_unpacklo_epi16(b, exponent), (lanes)_mm_unpackhi_epi16(b, exponent)}};
    for (int k = 0; k < VECTORS; k++) c.v[k] -= 0x1p23f + 128;
    return c;
}

#else

static inline chunk half_chunk(const half *p)
{
    chunk c;
    for (int k = 0; k < VECTORS; k++) c.v[k] = load_half(p + k * LANES);
    return c;
}

static inline chunk int8_chunk(const int8_t *p)
{
    chunk c;
    for (int k = 0; k < VECTORS; k++)
        c.v[k] = __builtin_convertvector(*(const four_bytes *)(p + k * LANES), lanes);
    return c;
}

#endif

static inline float sum(lanes v) { return (v[0] + v[2]) + (v[1] + v[3]); }

#define PALETTE_IN_ORDER 1
#define PLACE(c) c
typedef struct {
    uint64_t values[256]; /* both values of each byte of nibbles */
} Palette;

static inline void read_palette(Palette *p, const float *table)
{
    for (int i = 0; i < 256; i++) {
        float both[2] = {table[i & 15], table[i >> 4]};
        memcpy(p->values + i, both, sizeof both);
    }
}

/* The values of 32 nibbles: the first 16, and the others. */
static inline void look_up(const Palette *p, const uint8_t *nibbles, chunk *first, chunk *second)
{
    for (int k = 0; k < 4; k++) {
        const uint8_t *a = nibbles + 2 * k, *b = a + 8;
        first->v[k] = (lanes)(pairs){p->values[a[0]], p->values[a[1]]};
        second->v[k] = (lanes)(pairs){p->values[b[0]], p->values[b[1]]};
    }
}

#endif

#if !defined(PLACE) /* where look_up puts each of 32 columns: even ones first */
#define PLACE(c) ((c & 1) << 4 | c >> 1)
#endif

/* A value is rounded here: no compiler may fuse the product that it is with a sum to come. */
#if defined(__x86_64__)
#define ROUNDED(v) __asm__("" : "+v"(v))
#elif defined(__aarch64__)
#define ROUNDED(v) __asm__("" : "+w"(v))
#else
#define ROUNDED(v) __asm__("" : "+m"(v))
#endif

#define BEYOND 8192 /* 2 to the bits that a float32's significand has beyond a half's */

/* Whole numbers of 8 bits at most times a scale that is a half below 256, to the nearest half, by
 * Veltkamp's splitting: BEYOND + 1 times the product is rounded where a half ends, and BEYOND times
 * it, which is exact, is taken off. `more` and `less` are as many times the scale. */
static inline lanes scaled(lanes whole, lanes more, lanes less)
{
    lanes product = whole * more;
    ROUNDED(product);
    return product - whole * less;
}

/* int8 so scaled. */
static inline chunk scaled_chunk(const int8_t *p, float scale)
{
#if defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC) && defined(__aarch64__)
    int8x16_t bytes = vld1q_s8(p);
    float16x8_t a = vcvtq_f16_s16(vmovl_s8(vget_low_s8(bytes)));
    float16x8_t b = vcvtq_f16_s16(vmovl_high_s8(bytes));
    a = vmulq_n_f16(a, (float16_t)scale), b = vmulq_n_f16(b, (float16_t)scale);
    return (chunk){{(lanes)vcvt_f32_f16(vget_low_f16(a)), (lanes)vcvt_high_f32_f16(a),
                    (lanes)vcvt_f32_f16(vget_low_f16(b)), (lanes)vcvt_high_f32_f16(b)}};
#else
    const lanes one = scale - (lanes){0};
    chunk c = int8_chunk(p);
    for (int k = 0; k < VECTORS; k++) c.v[k] = scaled(c.v[k], one * (BEYOND + 1), one * BEYOND);
    return c;
#endif
}

#endif
