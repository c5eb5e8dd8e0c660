/* Attention of few query rows, as of one token: vectors go along keys and values, which are read
 * once, where they lie, and converted once for four rows. One thread reads memory faster where it
 * reads in several places: a piece is read in STREAMS of them side by side.
 *
 * Letters: as in attention.c.
 */
#ifndef FEW_H
#define FEW_H

#include "pieces.h"

#define STREAM (PIECE / STREAMS)     /* slots that are read one after the other */
#define GROUP 4                      /* keys whose scores are stored together, .. */
#define TOGETHER (WIDE == 4 ? 4 : 2) /* .. and whose sums stay in registers */
#define INLINED static inline __attribute__((always_inline)) /* for its constant arguments */

/* Nearer than where one place alone is read: so the first cache has room for it. */
INLINED void fetch_near(const char *row, int64_t bytes)
{
    for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(row + line + 512);
}

INLINED lanes load(const char *p, int is_half)
{
    return is_half ? load_half((const half *)p) : load_single((const float *)p);
}

/* Scores (rows, width) of query rows with GROUP keys. */
INLINED void multiply_keys(const char *const *keys, int is_half, int64_t D, const float *q,
                           int rows, float *scores, int64_t width)
{
    lanes sums[4][GROUP];
    UNROLLED for (int e = 0; e < GROUP; e += TOGETHER) {
        lanes total[4][TOGETHER] = {{{0}}};
        for (int64_t d = 0; d < D; d += LANES) {
            lanes key[TOGETHER];
            UNROLLED for (int t = 0; t < TOGETHER; t++)
                key[t] = load(keys[e + t] + d * (is_half ? 2 : 4), is_half);
            UNROLLED for (int r = 0; r < rows; r++) {
                lanes line = load_single(q + r * D + d);
                UNROLLED for (int t = 0; t < TOGETHER; t++) total[r][t] += key[t] * line;
            }
        }
        UNROLLED for (int r = 0; r < rows; r++)
            UNROLLED for (int t = 0; t < TOGETHER; t++) sums[r][e + t] = total[r][t];
    }
    UNROLLED for (int r = 0; r < rows; r++) four_sums(sums[r], 1, scores + r * width);
}

/* Scores of query rows with GROUP keys, (n, width); there is room for all of them. */
INLINED void score_group(const Block *block, const char *const *keys, int is_half, float *scores)
{
    int64_t D = block->job->shape->depth, width = block->job->width, i = 0;
    for (; i + 4 <= block->n; i += 4, scores += 4 * width)
        multiply_keys(keys, is_half, D, block->q + i * D, 4, scores, width);
    switch (block->n - i) {
    case 1: multiply_keys(keys, is_half, D, block->q + i * D, 1, scores, width); break;
    case 2: multiply_keys(keys, is_half, D, block->q + i * D, 2, scores, width); break;
    case 3: multiply_keys(keys, is_half, D, block->q + i * D, 3, scores, width);
    }
}

/* Scores of query rows with the keys of a piece. */
INLINED void score_few(const Block *block, int64_t p, int is_half)
{
    const Job *j = block->job;
    int64_t to, from = piece(&j->slots, p, &to), bytes = j->shape->depth * (is_half ? 2 : 4);
    const int64_t *open = j->slots.open;
    const char *first = piece_start(j, j->keys, block->b, from);
    float *out = block->scores + place(&j->slots, from);
    for (int64_t k = 0; k < STREAM; k += GROUP)
        for (int64_t at = k; at < MIN(PIECE, to - from); at += STREAM) {
            const char *keys[GROUP];
            UNROLLED for (int e = 0; e < GROUP; e++) {
                keys[e] = first + open[MIN(from + at + e, to - 1)] * bytes;
                fetch_near(keys[e], bytes);
            }
            score_group(block, keys, is_half, out + at);
        }
}

/* sums = the weights of slots from .. to times their values, at LANES * vectors columns from d on,
 * for `rows` query rows from i on. */
INLINED void weigh_rows(const Block *block, int is_half, int64_t from, int64_t to, int64_t i,
                        int rows, int64_t d, int vectors, float *sums)
{
    const Job *j = block->job;
    int64_t D = j->shape->depth, size = is_half ? 2 : 4;
    const int64_t *open = j->slots.open + from;
    const char *first = piece_start(j, j->values, block->b, from) + d * size;
    const float *weights = block->scores + i * j->width + place(&j->slots, from);
    lanes total[4][WIDE] = {{{0}}};
    for (int64_t k = 0; k < STREAM; k++)
        for (int64_t at = k; at < to - from; at += STREAM) {
            const char *value = first + open[at] * D * size;
            UNROLLED for (int v = 0; v < vectors; v++) {
                lanes some = load(value + v * LANES * size, is_half);
                if (v * LANES * size % 64 == 0) fetch_near(value + v * LANES * size, 1);
                UNROLLED for (int r = 0; r < rows; r++)
                    total[r][v] += weights[r * j->width + at] * some;
            }
        }
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int v = 0; v < vectors; v++)
            *(lanes *)(sums + (i + r) * D + d + v * LANES) = total[r][v];
}

INLINED void weigh_columns(const Block *block, int is_half, int64_t from, int64_t to, int64_t d,
                           int vectors, float *sums)
{
    int64_t i = 0;
    for (; i + 4 <= block->n; i += 4)
        weigh_rows(block, is_half, from, to, i, 4, d, vectors, sums);
    switch (block->n - i) {
    case 1: weigh_rows(block, is_half, from, to, i, 1, d, vectors, sums); break;
    case 2: weigh_rows(block, is_half, from, to, i, 2, d, vectors, sums); break;
    case 3: weigh_rows(block, is_half, from, to, i, 3, d, vectors, sums);
    }
}

INLINED void add_few(const Block *block, int is_half, int64_t from, int64_t to, float *sums)
{
    int64_t D = block->job->shape->depth, d = 0;
    for (; d + WIDE * LANES <= D; d += WIDE * LANES)
        weigh_columns(block, is_half, from, to, d, WIDE, sums);
    for (; d < D; d += LANES) weigh_columns(block, is_half, from, to, d, 1, sums);
}

#endif
