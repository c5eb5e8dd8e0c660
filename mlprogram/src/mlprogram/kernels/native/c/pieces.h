/* What one thread takes of attention at a time: some query rows of a head, and pieces of the slots.
 *
 * Letters: as in attention.c.
 */
#ifndef PIECES_H
#define PIECES_H

#include "slots.h"

#include <stdatomic.h>

#define MANY (10 * ROWS)        /* query rows that a thread takes at a time */
#define FEW (LANES > 4 ? 8 : 4) /* query rows up to which vectors go along a key */
#define PIECE 512               /* slots that are summed alone; threads share them where heads are few */
#define NEAR 2048               /* bytes that keys and values are fetched ahead */

/* Slots from .. *to of the p-th piece: none is of both parts. */
static inline int64_t piece(const Slots *s, int64_t p, int64_t *to)
{
    int64_t first = (s->old + PIECE - 1) / PIECE;
    int64_t from = p < first ? p * PIECE : s->old + (p - first) * PIECE;
    *to = MIN(from + PIECE, p < first ? s->old : s->count);
    return from;
}

static inline int64_t count_pieces(const Slots *s)
{
    return (s->old + PIECE - 1) / PIECE + (s->count - s->old + PIECE - 1) / PIECE;
}

typedef struct {
    const Attention *shape;
    const void *q, *mask, *const *keys, *const *values;
    void *out;
    Slots slots;
    int64_t width;
    struct Block *blocks;     /* all of them, where threads share their pieces */
    atomic_int failed, faint; /* no memory; a slot that was left out has a say */
} Job;

/* Up to MANY query rows of a head, n from `row` on, and room for them: q as columns (D, span) or,
 * of few rows, as rows (n, D); scores (n, width); the sums of both parts (2, height, padded).
 * Of one piece, or of each: its sums (height, padded), and values (DEPTH, padded). */
typedef struct Block {
    const Job *job;
    int64_t b, row, n;
    float *q, *scores, *sums, *parts, *values;
} Block;

/* Makes a block's room, which is freed by `q`. Returns whether there is memory. */
static inline int make_room(Block *block, const Job *j, int64_t pieces)
{
    const Attention *a = j->shape;
    int64_t rows = MIN(MANY, a->rows), padded = ROUND_UP(a->depth, LANES), total = 0;
    int64_t height = ROUND_UP(rows, ROWS) * padded;
    int64_t sizes[] = {padded * ROUND_UP(rows, LANES), rows * j->width, 2 * height,
                       pieces * height, pieces * DEPTH * padded};
    float **room[] = {&block->q, &block->scores, &block->sums, &block->parts, &block->values};
    for (int k = 0; k < 5; k++) total += sizes[k];
    float *next = malloc(total * sizeof(float));
    for (int k = 0; k < 5 && next; k++) *room[k] = next, next += sizes[k];
    block->job = j;
    return next != NULL;
}

/* Where the slot before all others of the part would lie that a piece, from `from` on, is of. */
static inline const char *piece_start(const Job *j, const void *const *parts, int64_t b,
                                      int64_t from)
{
    const Attention *a = j->shape;
    int64_t second = from < j->slots.old ? 0 : a->slots[0];
    return slot(a, parts, b, second) - second * a->depth * (a->is_half ? 2 : 4);
}

static inline void fetch(const char *row, int64_t bytes)
{
    for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(row + line + NEAR);
}

/* Whether vectors go along a key, which they fill. */
static inline int has_few(const Block *block)
{
    return block->job->shape->rows <= FEW && block->job->shape->depth % LANES == 0;
}

#endif
