/* Products with constant weights, read as the package stores them.
 *
 * One token of a language model costs as much as reading every weight once. These products read
 * them where they lie in the mapped weight file: two bytes a weight in half precision, one with a
 * scale for each row, half a byte with a palette of 16 values, or with a scale for each block
 * (blocks.h). All sum in float32 and round once. What scaling makes of int8 is rounded to half
 * first where the package declares it half.
 *
 * Letters: R rows and C columns of the weight, T tokens. Weights lie row by row; nibbles are packed
 * as MIL packs uint4, the even column in the low half of a byte.
 */
#include "blocks.h"
#include "kernels.h"
#include "lanes.h"
#include "pool.h"

#define PART 32768 /* bytes of weights that a thread takes at a time */
#define TILES 8    /* tiles of rows that it takes of a product of several tokens, .. */
#define SPAN 64    /* .. so many tokens at a time, which lie together */
#define LINE 64    /* bytes of a line of the caches; a vector that lies in two takes two reads */
#define FEW (3 * LANES / 4) /* tokens up to which vectors go along the columns */

enum { SINGLE, HALF, INT8, PALETTE16 };
static const int64_t BITS[] = {32, 16, 8, 4};

typedef struct Matrix {
    const void *weight;
    const float *table; /* INT8: a scale for each row. PALETTE16: 16 values for each `group` rows,
                         * or a scale for each `block` columns of a row, whose nibbles are int4,
                         * and which is a half where `half_weights` */
    const float *bias;  /* one for each row, or NULL */
    int64_t rows, columns, group;
    int32_t kind, half_activations; /* half_activations: x and y are half, not float32 */
    int32_t half_weights, block;    /* what scaling makes is rounded to half; 0 without blocks */
} Matrix;

/* Where a column's activation goes. */
static inline int64_t place(const Matrix *m, int64_t c)
{
    if (m->kind != PALETTE16) return c;
    return (c & ~31) | (m->block ? PLACE_INT4((c & 31)) : PLACE((c & 31)));
}

/* --- one token: y = W x ---------------------------------------------------------------------- */

static void dots_palette16(const uint8_t *w, int64_t across, const Palette *p, const float *x,
                           int64_t columns, float *out)
{
    lanes part[STREAMS][PARTS] = {{{0}}};
    chunk first, second;
    int64_t i = 0;
    for (; i + STEP <= columns; i += STEP)
        UNROLLED for (int s = 0; s < STREAMS; s++) {
            const uint8_t *row = w + s * across + i / 2;
            prefetch(row);
            UNROLLED for (int k = 0; k < STEP / CHUNK; k += 2) {
                look_up(p + s, row + k * CHUNK / 2, &first, &second);
                add_product(part[s] + k * VECTORS % PARTS, first, x + i + k * CHUNK);
                add_product(part[s] + (k + 1) * VECTORS % PARTS, second, x + i + (k + 1) * CHUNK);
            }
        }
    UNROLLED for (int s = 0; s < STREAMS; s++) {
        if (i < columns) {
            look_up(p + s, w + s * across + i / 2, &first, &second);
            add_product(part[s], first, x + i);
            add_product(part[s] + VECTORS % PARTS, second, x + i + CHUNK);
        }
        out[s] = add_parts(part[s]);
    }
}

static void dots_blocks(const Matrix *m, int64_t r, int64_t apart, const float *x, float *out)
{
    int64_t n = m->columns / m->block, across = apart * m->columns / 2, next = apart * n;
    const uint8_t *w = (const uint8_t *)m->weight + r * m->columns / 2;
    const char *scales = (const char *)m->table + r * n * (m->half_weights ? 2 : 4);
    if (m->half_weights && m->block == 32) /* as most have it: no loop within a block */
        dots_int4(w, across, scales, 1, next, n, 32, x, out);
    else if (m->half_weights)
        dots_int4(w, across, scales, 1, next, n, m->block, x, out);
    else
        dots_int4(w, across, scales, 0, next, n, m->block, x, out);
}

typedef struct {
    const Matrix *matrix;
    const float *x; /* several tokens are padded to `stride` of them */
    void *result;
    int64_t tokens, stride, apart; /* apart: values from one row of the result to the next */
} Product;

/* Rows r, r + apart, .. of STREAMS, times x. Palettes are read anew where another group begins. */
static void dots(const Matrix *m, int64_t r, int64_t apart, const float *x, Palette *palette,
                 int is_first, float *out)
{
    int64_t at = r * m->columns, across = apart * m->columns, C = m->columns;
    float scale[STREAMS];
    for (int s = 0; s < STREAMS && m->kind == INT8; s++) scale[s] = m->table[r + s * apart];
    switch (m->kind) {
    case SINGLE: dots_single((const float *)m->weight + at, across, x, C, out); break;
    case HALF: dots_half((const half *)m->weight + at, across, x, C, out); break;
    case INT8:
        if (m->half_weights) {
            dots_scaled((const int8_t *)m->weight + at, across, x, C, out, scale);
            break;
        }
        dots_int8((const int8_t *)m->weight + at, across, x, C, out);
        for (int s = 0; s < STREAMS; s++) out[s] *= scale[s];
        break;
    default:
        if (m->block) {
            dots_blocks(m, r, apart, x, out);
            break;
        }
        for (int s = 0; s < STREAMS; s++, r += apart)
            if (is_first || r % m->group == 0)
                read_palette(palette + s, m->table + r / m->group * 16);
        dots_palette16((const uint8_t *)m->weight + at / 2, across / 2, palette, x, C, out);
    }
}

/* Rows first .. end of each of STREAMS parts of the matrix, which are `apart` rows; or of the rest
 * beyond them, where it counts for all, apart = 0. */
static void some_streams(const Product *p, int64_t from, int64_t to, int64_t apart)
{
    const Matrix *m = p->matrix;
    Palette palette[STREAMS];
    for (int64_t first = from; first < to; first += CHUNK) {
        float sums[STREAMS][CHUNK], one[STREAMS];
        int64_t n = MIN(CHUNK, to - first), size = m->half_activations ? 2 : 4;
        for (int64_t r = first; r < first + n; r++) {
            dots(m, r, apart, p->x, palette, r == from, one);
            for (int s = 0; s < (apart ? STREAMS : 1); s++)
                sums[s][r - first] = one[s] + (m->bias ? m->bias[r + s * apart] : 0);
        }
        for (int s = 0; s < (apart ? STREAMS : 1); s++)
            narrow(sums[s], n, (char *)p->result + (first + s * apart) * size,
                   m->half_activations);
    }
}

/* Rows are counted within a stream; those beyond the streams come last. */
static void some_rows(void *context, int64_t from, int64_t to)
{
    const Product *p = context;
    int64_t apart = p->matrix->rows / STREAMS;
    if (from < apart) some_streams(p, from, MIN(to, apart), apart);
    if (to > apart) {
        int64_t beyond = apart * (STREAMS - 1);
        some_streams(p, MAX(from, apart) + beyond, to + beyond, 0);
    }
}

/* x (C) -> y (R). Returns 0, or -1 where there is no memory. */
int matvec(const Matrix *m, const void *x, void *y, int32_t threads)
{
    float *wide = malloc(2 * m->columns * sizeof(float)), *ordered = wide;
    if (!wide) return -1;
    widen(x, m->half_activations, m->columns, wide, m->columns);
    if (m->kind == PALETTE16) {
        ordered = wide + m->columns;
        for (int64_t c = 0; c < m->columns; c++) ordered[place(m, c)] = wide[c];
    }
    Product p = {m, ordered, y, 1, 1, 1};
    int64_t part = PART / STREAMS / (m->columns * BITS[m->kind] / 8) + 1;
    share(some_rows, &p, m->rows - m->rows / STREAMS * (STREAMS - 1), ROUND_UP(part, CHUNK), threads);
    free(wide);
    return 0;
}

/* --- several tokens: Y = W X ----------------------------------------------------------------- */

static void unpack_palette(const uint8_t *nibbles, const float *table, int64_t n, float *out)
{
#if defined(PALETTE_IN_ORDER)
    for (int64_t i = 0; i < n; i++) out[i] = table[nibbles[i / 2] >> i % 2 * 4 & 15];
#else
    Palette palette;
    read_palette(&palette, table);
    for (int64_t i = 0; i < n; i += 2 * CHUNK)
        look_up(&palette, nibbles + i / 2, (chunk *)(out + i), (chunk *)(out + i + CHUNK));
#endif
}

#define UNPACK(name, load, ...)                                                                  \
    static void name(const int8_t *w, ##__VA_ARGS__, int64_t n, float *out)                      \
    {                                                                                            \
        int64_t i = 0;                                                                           \
        for (; i + CHUNK <= n; i += CHUNK) *(chunk *)(out + i) = load(w + i);                    \
        if (i < n) {                                                                             \
            int8_t rest[CHUNK] = {0};                                                            \
            memcpy(rest, w + i, n - i);                                                          \
            chunk c = load(rest);                                                                \
            memcpy(out + i, &c, (n - i) * sizeof(float));                                        \
        }                                                                                        \
    }

#define SCALED(w) scaled_chunk(w, scale)
UNPACK(unpack_int8, int8_chunk)
UNPACK(unpack_scaled, SCALED, float scale)

/* Columns c .. c + n of row r as float32; of INT8 unscaled, or else half. */
static void unpack(const Matrix *m, int64_t r, int64_t c, int64_t n, float *out)
{
    int64_t at = r * m->columns + c;
    const char *floats = (const char *)m->weight + at * (m->kind == HALF ? 2 : 4);
    const uint8_t *nibbles = (const uint8_t *)m->weight + at / 2;
    const int8_t *w = (const int8_t *)m->weight + at;
    if (m->kind == HALF || m->kind == SINGLE)
        widen(floats, m->kind == HALF, n, out, n);
    else if (m->kind == PALETTE16 && m->block)
        unpack_int4((const char *)m->table + at / m->block * (m->half_weights ? 2 : 4),
                    m->half_weights, nibbles, m->block, m->block - c % m->block, n, out);
    else if (m->kind == PALETTE16)
        unpack_palette(nibbles, m->table + r / m->group * 16, n, out);
    else if (m->half_weights)
        unpack_scaled(w, m->table[r], n, out);
    else
        unpack_int8(w, n, out);
}

/* Columns from c on of ROWS rows from r on. */
static inline Later later_rows(const Matrix *m, int64_t r, int64_t c)
{
    int64_t bits = BITS[m->kind], at = (r * m->columns + c) * bits / 8;
    return (Later){(const char *)m->weight + at, m->columns * bits / 8, bits};
}

/* w (ROWS, depth) = columns c .. c + n of rows r .. r + ROWS of W, with zeros up to a whole vector;
 * and fetches those of the next rows. */
static void unpack_rows(const Matrix *m, int64_t r, int64_t c, int64_t n, float *w, int64_t depth,
                        int fetches)
{
    int64_t rows = MIN(ROWS, m->rows - r);
    Later next = later_rows(m, r + ROWS, c);
    if (rows < ROWS || n % LANES) memset(w, 0, ROWS * depth * sizeof(float));
    for (int64_t k = 0; k < rows; k++) {
        for (int64_t at = 0; fetches && at < n * next.bits / 8; at += LINE)
            __builtin_prefetch(next.row + k * next.apart + at);
        unpack(m, r + k, c, n, w + k * depth);
    }
}

/* Sums of row r, for n tokens, scaled and with the bias. */
static inline void adjust(const Matrix *m, int64_t r, int64_t n, float *sums)
{
    float scale = m->kind == INT8 && !m->half_weights ? m->table[r] : 1;
    float bias = m->bias ? m->bias[r] : 0;
    if (scale != 1 || bias != 0)
        for (int64_t i = 0; i < n; i++) sums[i] = sums[i] * scale + bias;
}

/* Few tokens: vectors go along the columns, and x is (T, stride). */
static void some_dots(void *context, int64_t from, int64_t to)
{
    const Product *p = context;
    const Matrix *m = p->matrix;
    int64_t T = p->tokens, stride = p->stride, size = m->half_activations ? 2 : 4;
    float w[ROWS * LONG], y[ROWS * FEW + 4];
    for (int64_t r = from * ROWS; r < MIN(to * ROWS, m->rows); r += ROWS) {
        lanes sums[(FEW + 4) * ROWS];
        int64_t rows = MIN(ROWS, m->rows - r);
        memset(sums, 0, ROUND_UP(T, 4) * ROWS * sizeof(lanes));
        for (int64_t c = 0; c < m->columns; c += LONG) {
            int64_t n = MIN(LONG, m->columns - c), t = 0;
            unpack_rows(m, r, c, n, w, LONG, 1);
            for (; t + WIDE <= T; t += WIDE)
                wide_dots(w, p->x + t * stride + c, sums + t * ROWS, n, stride);
            for (; t < T; t++) slim_dots(w, p->x + t * stride + c, sums + t * ROWS, n, stride);
        }
        for (int64_t k = 0; k < rows; k++) {
            for (int64_t t = 0; t < T; t += 4) four_sums(sums + t * ROWS + k, ROWS, y + k * T + t);
            adjust(m, r + k, T, y + k * T);
        }
        narrow(y, rows * T, (char *)p->result + r * T * size, m->half_activations);
    }
}

/* x (C, T) as float32, (T, stride), each column where `place` puts it. */
static void turn(const Matrix *m, const void *x, float *out, int64_t tokens, int64_t stride)
{
    float *line = out + tokens * stride;
    widen(x, m->half_activations, m->columns * tokens, line, m->columns * tokens);
    for (int64_t c = 0; c < m->columns; c++)
        for (int64_t t = 0; t < tokens; t++) out[t * stride + place(m, c)] = line[c * tokens + t];
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t c = m->columns; c < stride; c++) out[t * stride + c] = 0;
}

/* Tokens t .. t + SPAN of some rows. Columns come in DEPTH at a time, so that as many rows of x
 * stay in the first cache. Weights are fetched for the tile after the next one: all at once they
 * would wait for each other, and for the next one they would come late. */
static void block(const Product *p, int64_t first, int64_t end, int64_t t)
{
    const Matrix *m = p->matrix;
    _Alignas(LINE) float w[ROWS * DEPTH], y[TILES * ROWS * SPAN];
    int64_t tokens = MIN(SPAN, p->tokens - t), width = ROUND_UP(tokens, LANES);
    int64_t size = m->half_activations ? 2 : 4;
    memset(y, 0, ROUND_UP(end - first, ROWS) * width * sizeof(float));
    for (int64_t c = 0; c < m->columns; c += DEPTH) {
        const float *x = p->x + t * m->columns + c * width;
        for (int64_t r = first; r < end; r += ROWS) {
            int64_t n = MIN(DEPTH, m->columns - c);
            unpack_rows(m, r, c, n, w, DEPTH, !FETCHES);
            Later later = later_rows(m, r + 2 * ROWS, c);
            multiply_tiles(w, x, y + (r - first) * width, n, width, later);
        }
    }
    for (int64_t r = first; r < end; r++) {
        float *sums = y + (r - first) * width;
        char *to = (char *)p->result + (r * p->apart + t) * size;
        int64_t stop = t + SPAN < p->tokens ? t + tokens : p->apart;
        adjust(m, r, tokens, sums);
        narrow(sums, tokens, to, m->half_activations);
        memset(to + tokens * size, 0, (stop - t - tokens) * size);
    }
}

static void some_tiles(void *context, int64_t from, int64_t to)
{
    const Product *p = context;
    for (int64_t tile = from; tile < to; tile += TILES) {
        int64_t end = MIN(MIN(tile + TILES, to) * ROWS, p->matrix->rows);
        for (int64_t t = 0; t < p->tokens; t += SPAN) block(p, tile * ROWS, end, t);
    }
}

/* Tokens t .. t + n of x (C, T) as float32, (C, stride), each row where `place` puts it. */
static void lay_out(const Matrix *m, const void *x, int64_t tokens, int64_t t, int64_t n,
                    float *out, int64_t stride)
{
    int64_t size = m->half_activations ? 2 : 4;
    for (int64_t c = 0; c < m->columns; c++)
        widen((const char *)x + (c * tokens + t) * size, m->half_activations, n,
              out + place(m, c) * stride, stride);
}

/* x (C, T) -> y (R, T). used: the tokens whose results are wanted, or 0 for all; those of others may
 * be zeros. Returns 0, or -1 where there is no memory. */
int matmat(const Matrix *m, const void *x, void *y, int64_t T, int64_t used, int32_t threads)
{
    int64_t few = T <= FEW, tiles = (m->rows + ROWS - 1) / ROWS;
    int64_t tokens = few || !used ? T : used;
    int64_t stride = ROUND_UP(few ? m->columns : tokens, LANES);
    int as_it_is = !few && tokens == T && T <= SPAN && stride == T && m->kind != PALETTE16 &&
                   !m->half_activations;
    int64_t lines = few ? 2 * tokens : m->columns;
    int64_t bytes = ROUND_UP(lines * stride * (int64_t)sizeof(float), LINE);
    float *wide = as_it_is ? NULL : aligned_alloc(LINE, bytes);
    if (!wide && !as_it_is) return -1;
    if (few) turn(m, x, wide, tokens, stride);
    for (int64_t t = 0; wide && !few && t < tokens; t += SPAN) {
        int64_t n = MIN(SPAN, tokens - t);
        lay_out(m, x, T, t, n, wide + t * m->columns, ROUND_UP(n, LANES));
    }
    Product p = {m, as_it_is ? x : wide, y, tokens, stride, T};
    share(few ? some_dots : some_tiles, &p, tiles, TILES, threads);
    free(wide);
    return 0;
}

/* --- several tokens, for another's product of float32 ------------------------------------------ */

/* x (C, T) -> wide (C, T), in the order of columns that `expand` has. */
int expand_activations(const Matrix *m, const void *x, float *wide, int64_t tokens)
{
    lay_out(m, x, tokens, 0, tokens, wide, tokens);
    return 0;
}

/* Rows first .. end -> wide (end - first, C). */
int expand(const Matrix *m, float *wide, int64_t first, int64_t end)
{
    int64_t C = m->columns;
    for (int64_t r = first; r < end; r++, wide += C) {
        unpack(m, r, 0, C, wide);
        for (int64_t c = 0; c < C && m->kind == INT8 && !m->half_weights; c++)
            wide[c] *= m->table[r];
    }
    return 0;
}

/* What the compiler made all of these kernels for. */
const char *instruction_set(void) { return INSTRUCTIONS; }
