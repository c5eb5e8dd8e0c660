/* The slots of a cache that attention reads, in up to two parts: the cache and the new rows. Those
 * that the mask closes to every row take no time while they are empty.
 *
 * Letters: as in attention.c.
 */
#ifndef SLOTS_H
#define SLOTS_H

#include "lanes.h"
#include "pool.h"

#define CLOSED -30000 /* a slot with this or less added to its score is closed */

typedef struct Attention {
    int64_t heads, rows, depth, slots[2]; /* B, M, D, and N of each part, 0 for none */
    int64_t mask_rows;                    /* which take turns over the rows; 0 without a mask */
    int32_t is_half, rounding;
    float scale;
} Attention;

typedef struct {
    int64_t *open;      /* (A) */
    int64_t count, old; /* A, and how many of them are in the first part */
} Slots;

/* Where in a row of scores the k-th slot read has its place: the second part begins with a lane of
 * its own, so that slots of the first that are closed change no sum, whatever they hold. */
static inline int64_t place(const Slots *s, int64_t k)
{
    return k < s->old ? k : k - s->old + ROUND_UP(s->old, LANES);
}

/* The row of slot j of head b, of keys or values in two parts. */
static inline const char *slot(const Attention *a, const void *const *parts, int64_t b, int64_t j)
{
    int64_t size = a->is_half ? 2 : 4, second = j >= a->slots[0];
    if (second) j -= a->slots[0];
    return (const char *)parts[second] + (b * a->slots[second] + j) * a->depth * size;
}

typedef struct {
    const Attention *shape;
    const void *const *keys, *const *values;
    int64_t written; /* slots of the first part beyond which keys and values are zeros */
    char *open;      /* (N) */
} Search;

/* j, or the end of those slots from j on, all of one part, that are closed and may hold something. */
static inline int64_t closed_until(const Search *p, int64_t j)
{
    const Attention *a = p->shape;
    int64_t end = j < a->slots[0] ? p->written : a->slots[0] + a->slots[1];
    while (j < end && !p->open[j]) j++;
    return j;
}

/* Opens the slots in which some heads have a key or a value other than zero. */
static inline void some_caches(void *context, int64_t from, int64_t to)
{
    const Search *p = context;
    const Attention *a = p->shape;
    int64_t N = a->slots[0] + a->slots[1], bytes = a->depth * (a->is_half ? 2 : 4);
    for (int64_t b = from; b < to; b++)
        for (int64_t j = 0, end; j < N; j = MAX(j + 1, end)) {
            const char *key = slot(a, p->keys, b, j), *value = slot(a, p->values, b, j);
            end = closed_until(p, j);
            if (is_zero(key, (end - j) * bytes) && is_zero(value, (end - j) * bytes)) continue;
            for (int64_t k = j; k < end; k++, key += bytes, value += bytes)
                if (!is_zero(key, bytes) || !is_zero(value, bytes)) p->open[k] = 1;
        }
}

static inline Slots all_slots(const Attention *a, int64_t *found)
{
    int64_t N = a->slots[0] + a->slots[1];
    for (int64_t j = 0; j < N; j++) found[j] = j;
    return (Slots){found, N, a->slots[0]};
}

/* Opens the slots that a row of the mask leaves open. Returns whether there are any. Halves are
 * compared as whole numbers, which are as many to a vector. */
static inline int open_some(const void *row, int is_half, int64_t N, char *open)
{
    const half *bits = row, closed = 0xf753, infinite = 0xfc00; /* -30000 and -infinity */
    const float *line = row;
    char any = 0;
    if (is_half)
        for (int64_t j = 0; j < N; j++) {
            char is_open = (half)(bits[j] - closed) > infinite - closed;
            open[j] |= is_open, any |= is_open;
        }
    else
        for (int64_t j = 0; j < N; j++) {
            char is_open = !(line[j] <= CLOSED);
            open[j] |= is_open, any |= is_open;
        }
    return any;
}

/* open (N): which slots a mask leaves open to some row. Returns whether each row has one; if not,
 * not all rows were looked at. */
static inline char open_slots(const Attention *a, const void *mask, char *open)
{
    int64_t N = a->slots[0] + a->slots[1], size = a->is_half ? 2 : 4;
    char every_row = a->mask_rows > 0;
    memset(open, 0, N);
    for (int64_t i = 0; i < a->mask_rows && every_row; i++)
        every_row = open_some((const char *)mask + i * N * size, a->is_half, N, open);
    return every_row;
}

/* Slots that have a say in the result: those that the mask leaves open to some row, and those that
 * hold something, which may be large enough to show through the mask, or not a number. All of them
 * where some row has none that is open, or without memory. A slot that is left out scores CLOSED at
 * most: it has a say in rows whose open slots score no more than that, which `weigh` looks for.
 * opened (N + 1): what `open_slots` found, and returned; or NULL. */
static inline Slots find_slots(const Attention *a, const void *mask, const char *opened,
                               const void *const *keys, const void *const *values,
                               int64_t written, int64_t *found, int threads)
{
    int64_t N = a->slots[0] + a->slots[1];
    Slots s = {found, 0, 0};
    char *open = malloc(N), every_row = 0;
    if (open && opened)
        memcpy(open, opened, N), every_row = opened[N];
    else if (open)
        every_row = open_slots(a, mask, open);
    Search search = {a, keys, values, written, open};
    int closed = every_row && (memchr(open, 0, written) || memchr(open + a->slots[0], 0, a->slots[1]));
    if (closed) share(some_caches, &search, a->heads, 1, threads);
    for (int64_t j = 0; j < N && every_row; j++)
        if (open[j]) {
            s.old += j < a->slots[0];
            found[s.count++] = j;
        }
    free(open);
    return every_row ? s : all_slots(a, found);
}

#endif
