/* Attention in one pass: softmax(scale q K^T + mask) V, with keys and values in up to two parts, the
 * cache and the new rows. Slots that the mask closes to every row take no time while they are empty.
 *
 * In half precision each step rounds where the ops that it stands for round: scores, scaled scores,
 * masked scores, weights (and what they are made of, where softmax is spelled out), the sum of each
 * part, and their sum. Attention that is one op rounds its result alone.
 *
 * Letters: B key/value heads, M query rows that share one, D head size, N slots of both parts, A
 * slots that are read.
 */
#include "lanes.h"
#include "pool.h"

#include <stdatomic.h>

#define CLOSED -30000 /* a slot with this or less added to its score is closed */
#define FAINT 100     /* e^-100 counts as 0 */
#define FEW 8         /* query rows for which reading the keys row by row is faster */
#define BLOCKS 4      /* blocks of rows that a thread takes at a time */
#define ALONE 100000  /* products below which another thread is not worth asking */

typedef struct {
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
    char *open; /* (N) */
} Search;

/* Opens the slots in which some heads have a key or a value other than zero. */
static void some_caches(void *context, int64_t from, int64_t to)
{
    const Search *p = context;
    const Attention *a = p->shape;
    int64_t N = a->slots[0] + a->slots[1], bytes = a->depth * (a->is_half ? 2 : 4);
    for (int64_t b = from; b < to; b++)
        for (int64_t j = 0; j < N; j++)
            if (!p->open[j] && !(is_zero(slot(a, p->keys, b, j), bytes) &&
                                 is_zero(slot(a, p->values, b, j), bytes)))
                p->open[j] = 1;
}

static Slots all_slots(const Attention *a, int64_t *found)
{
    int64_t N = a->slots[0] + a->slots[1];
    for (int64_t j = 0; j < N; j++) found[j] = j;
    return (Slots){found, N, a->slots[0]};
}

/* Slots that have a say in the result: those that the mask leaves open to some row, and those that
 * hold something, which may be large enough to show through the mask, or not a number. All of them
 * where some row has none that is open, or without memory. A slot that is left out scores CLOSED at
 * most: it has a say in rows whose open slots score no more than that, which `weigh` looks for. */
static Slots find_slots(const Attention *a, const void *mask, const void *const *keys,
                        const void *const *values, int64_t *found, int threads)
{
    int64_t N = a->slots[0] + a->slots[1], size = a->is_half ? 2 : 4;
    Slots s = {found, 0, 0};
    float *line = malloc(N * (sizeof(float) + 1));
    char *open = (char *)(line + N);
    int every_row = line != NULL && a->mask_rows > 0;
    if (line) memset(open, 0, N);
    for (int64_t i = 0; i < a->mask_rows && every_row; i++) {
        char any = 0;
        widen((const char *)mask + i * N * size, a->is_half, N, line, N);
        for (int64_t j = 0; j < N; j++) {
            char is_open = !(line[j] <= CLOSED);
            open[j] |= is_open;
            any |= is_open;
        }
        every_row = any;
    }
    Search search = {a, keys, values, open};
    if (every_row) share(some_caches, &search, a->heads, 1, threads);
    for (int64_t j = 0; j < N && every_row; j++)
        if (open[j]) {
            s.old += j < a->slots[0];
            found[s.count++] = j;
        }
    free(line);
    return every_row ? s : all_slots(a, found);
}

/* sums (n, width) = x (n, K), whose rows are `across` apart, times y (K, width); n <= ROWS. */
static void tile_rows(const float *x, int64_t across, int64_t n, int64_t K, const float *y,
                      float *sums, int64_t width)
{
    float w[ROWS * DEPTH];
    memset(w, 0, sizeof w);
    memset(sums, 0, ROWS * width * sizeof(float));
    for (int64_t k = 0; k < K; k += DEPTH) {
        int64_t part = MIN(DEPTH, K - k), t = 0;
        for (int64_t i = 0; i < n; i++)
            memcpy(w + i * DEPTH, x + i * across + k, part * sizeof(float));
        for (; t + WIDE * LANES <= width; t += WIDE * LANES)
            wide_tile(w, y + k * width + t, sums + t, part, width, width);
        for (; t < width; t += LANES) slim_tile(w, y + k * width + t, sums + t, part, width, width);
    }
}

/* What a thread works with: q (ROWS, D), scores (ROWS, width), sums of both parts (2, ROWS, padded),
 * a row of the mask (N), and one of values (padded). Rows may be long: none is on the stack. */
typedef struct {
    float *q, *scores, *sums, *added, *line;
} Room;

/* Room for a thread, to be freed by its first part; without memory that is NULL. */
static Room make_room(const Attention *a, int64_t width)
{
    int64_t padded = ROUND_UP(a->depth, LANES), N = a->slots[0] + a->slots[1];
    float *all = malloc((ROWS * (width + 3 * padded) + N + padded) * sizeof(float));
    if (!all) return (Room){0};
    float *scores = all + ROWS * padded, *sums = scores + ROWS * width;
    float *added = sums + 2 * ROWS * padded;
    return (Room){all, scores, sums, added, added + N};
}

static void round_some(const Attention *a, float *line, int64_t width)
{
    if (a->is_half && a->rounding != AS_ONE) round_to_half(line, width);
}

/* n values to e^x / sum e^x, in place, rounded as by five ops. Returns the largest. */
static float spelled_out(const Attention *a, float *line, int64_t n, int64_t width)
{
    float top = largest(line, n);
    lanes parts = {0};
    for (int64_t i = n; i < width; i++) line[i] = -INFINITY; /* whose weight is 0 */
    for (int64_t i = 0; i < width; i += LANES) *(lanes *)(line + i) -= top;
    round_some(a, line, width);
    for (int64_t i = 0; i < width; i += LANES)
        *(lanes *)(line + i) = exponential(load_single(line + i));
    round_some(a, line, width);
    for (int64_t i = 0; i < width; i += LANES) parts += load_single(line + i);
    float total[LANES] = {sum(parts)};
    round_some(a, total, LANES);
    for (int64_t i = 0; i < width; i += LANES) *(lanes *)(line + i) /= total[0];
    return top;
}

/* Scores (n, A) to weights, in place, with the rounding of add and softmax. Returns whether a slot
 * that was left out might have a say in some row. */
static int weigh(const Attention *a, const Slots *s, const void *mask, int64_t row, int64_t n,
                 const Room *room, int64_t width)
{
    int64_t N = a->slots[0] + a->slots[1], size = a->is_half ? 2 : 4;
    int64_t start = ROUND_UP(s->old, LANES), end = place(s, s->count);
    int faint = 0;
    for (int64_t i = 0; i < n; i++) {
        float *line = room->scores + i * width;
        if (i == 0 ? a->mask_rows > 0 : a->mask_rows > 1)
            widen((const char *)mask + (row + i) % a->mask_rows * N * size, a->is_half, N,
                  room->added, N);
        round_some(a, line, width);
        if (a->scale != 1) {
            for (int64_t k = 0; k < width; k += LANES) *(lanes *)(line + k) *= a->scale;
            round_some(a, line, width);
        }
        for (int64_t k = 0; a->mask_rows && k < s->count; k++)
            line[place(s, k)] += room->added[s->open[k]];
        round_some(a, line, width);
        for (int64_t k = s->old; k < start; k++) line[k] = -INFINITY; /* no slot's: weight 0 */
        int open = a->rounding != AS_ONE; /* a row that is not weighs nothing, as in torch */
        for (int64_t k = 0; k < end && !open; k++) open = line[k] != -INFINITY;
        float top = a->rounding == SPELLED_OUT ? spelled_out(a, line, end, width)
                                               : softmax_row(line, end);
        faint |= top < CLOSED + FAINT;
        round_some(a, line, width);
        for (int64_t k = open ? end : 0; k < width; k++) line[k] = 0;
    }
    return faint && s->count < N;
}

/* Few rows: each key and value is read as it lies. q (n, D) -> out (n, D). Returns what `weigh`
 * does. */
static int few_rows(const Attention *a, const Slots *s, const void *const *keys,
                    const void *const *values, const void *mask, int64_t b, int64_t row, int64_t n,
                    const Room *room, int64_t width)
{
    int64_t D = a->depth, padded = ROUND_UP(D, LANES);
    float *q = room->q, *scores = room->scores, *sums = room->sums, *line = room->line;
    for (int64_t k = 0; k < s->count; k++) {
        const char *key = slot(a, keys, b, s->open[k]);
        for (int64_t i = 0; i < n; i++)
            scores[i * width + place(s, k)] =
                a->is_half ? dot_half((const half *)key, q + i * D, D)
                           : dot_single((const float *)key, q + i * D, D);
    }
    int faint = weigh(a, s, mask, row, n, room, width);
    memset(sums, 0, 2 * ROWS * padded * sizeof(float));
    for (int64_t k = 0; k < s->count; k++) {
        widen(slot(a, values, b, s->open[k]), a->is_half, D, line, padded);
        for (int64_t i = 0; i < n; i++) {
            float *to = sums + (i + (k >= s->old ? ROWS : 0)) * padded;
            for (int64_t d = 0; d < padded; d += LANES)
                *(lanes *)(to + d) += scores[i * width + place(s, k)] * load_single(line + d);
        }
    }
    return faint;
}

/* The open keys of head b as columns, (D, width), and values as rows, (width, padded). */
static void gather(const Attention *a, const Slots *s, const void *const *keys,
                   const void *const *values, int64_t b, float *columns, float *rows, int64_t width)
{
    int64_t D = a->depth, padded = ROUND_UP(D, LANES);
    for (int64_t k = 0; k < s->count; k++) {
        int64_t at = place(s, k);
        float *line = rows + at * padded; /* of the key at first */
        widen(slot(a, keys, b, s->open[k]), a->is_half, D, line, padded);
        for (int64_t d = 0; d < D; d++) columns[d * width + at] = line[d];
        widen(slot(a, values, b, s->open[k]), a->is_half, D, line, padded);
    }
}

/* Rows of the result from the sums of both parts: (ROWS, padded) each. */
static void finish(const Attention *a, float *sums, int64_t n, char *out)
{
    int64_t D = a->depth, padded = ROUND_UP(D, LANES), size = a->is_half ? 2 : 4;
    round_some(a, sums, 2 * ROWS * padded);
    for (int64_t i = 0; i < n; i++) {
        float *old = sums + i * padded, *new = old + ROWS * padded;
        for (int64_t d = 0; d < D; d++) old[d] += new[d];
        narrow(old, D, out + i * D * size, a->is_half);
    }
}

typedef struct {
    const Attention *shape;
    const void *q, *mask, *const *keys, *const *values;
    void *out;
    Slots slots;
    float *gathered; /* of each head: keys as columns, then values as rows; NULL for few rows */
    int64_t width;
    atomic_int failed, faint; /* no memory; a slot that was left out has a say */
} Job;

static void some_heads(void *context, int64_t from, int64_t to)
{
    Job *j = context;
    const Attention *a = j->shape;
    int64_t D = a->depth, padded = ROUND_UP(D, LANES), head = j->width * (D + padded);
    for (int64_t b = from; b < to; b++)
        gather(a, &j->slots, j->keys, j->values, b, j->gathered + b * head,
               j->gathered + b * head + D * j->width, j->width);
}

/* Blocks of ROWS rows, of one head after the other. */
static void some_blocks(void *context, int64_t from, int64_t to)
{
    Job *j = context;
    const Attention *a = j->shape;
    const Slots *s = &j->slots;
    int64_t D = a->depth, M = a->rows, padded = ROUND_UP(D, LANES), width = j->width;
    int64_t blocks = (M + ROWS - 1) / ROWS, size = a->is_half ? 2 : 4;
    Room room = make_room(a, width);
    if (!room.q) {
        j->failed = 1;
        return;
    }
    float *q = room.q, *scores = room.scores, *sums = room.sums;
    for (int64_t block = from; block < to && !j->faint; block++) {
        int64_t b = block / blocks, row = block % blocks * ROWS, n = MIN(ROWS, M - row);
        int64_t at = (b * M + row) * D * size;
        widen((const char *)j->q + at, a->is_half, n * D, q, n * D);
        if (j->gathered) {
            const float *columns = j->gathered + b * width * (D + padded);
            const float *lines = columns + D * width;
            tile_rows(q, D, n, D, columns, scores, width);
            if (weigh(a, s, j->mask, row, n, &room, width)) j->faint = 1;
            tile_rows(scores, width, n, s->old, lines, sums, padded);
            int64_t start = ROUND_UP(s->old, LANES);
            tile_rows(scores + start, width, n, s->count - s->old, lines + start * padded,
                      sums + ROWS * padded, padded);
        } else if (few_rows(a, s, j->keys, j->values, j->mask, b, row, n, &room, width)) {
            j->faint = 1;
        }
        finish(a, sums, n, (char *)j->out + at);
    }
    free(room.q);
}

/* Attention over some slots. Returns 0, 1 if others have a say, or -1 where there is no memory. */
static int attend(Job *j, Slots slots, int threads)
{
    const Attention *a = j->shape;
    int64_t D = a->depth, blocks = a->heads * ((a->rows + ROWS - 1) / ROWS);
    j->slots = slots;
    j->width = ROUND_UP(place(&slots, slots.count), LANES);
    j->failed = j->faint = 0;
    int few = a->rows <= FEW;
    j->gathered = NULL;
    if (!few) j->gathered = calloc(a->heads * j->width * (D + ROUND_UP(D, LANES)), sizeof(float));
    if (!few && !j->gathered) return -1;
    if (a->heads * a->rows * slots.count * D < ALONE) threads = 1;
    if (!few) share(some_heads, j, a->heads, 1, threads);
    share(some_blocks, j, blocks, few ? 1 : BLOCKS, threads);
    free(j->gathered);
    return j->failed ? -1 : j->faint;
}

/* q (B, M, D), keys and values (B, N, D) in two parts, mask (mask_rows, N) or NULL -> out (B, M, D).
 * Returns 0, or -1 where there is no memory. */
int attention(const Attention *a, const void *q, const void *const *keys,
              const void *const *values, const void *mask, void *out, int32_t threads)
{
    int64_t *open = malloc((a->slots[0] + a->slots[1]) * sizeof(int64_t));
    if (!open) return -1;
    Job j = {.shape = a, .q = q, .mask = mask, .keys = keys, .values = values, .out = out};
    int failed = attend(&j, find_slots(a, mask, keys, values, open, threads), threads);
    if (failed > 0) failed = attend(&j, all_slots(a, open), threads);
    free(open);
    return failed;
}
