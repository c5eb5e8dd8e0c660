/* Attention in one pass: softmax(scale q K^T + mask) V, over the slots that slots.h finds.
 *
 * In half precision each step rounds where the ops that it stands for round: scores, scaled scores,
 * masked scores, weights (and what they are made of, where softmax is spelled out), the sum of each
 * part, and their sum. Attention that is one op rounds its result alone.
 *
 * Letters: B key/value heads, M query rows that share one, D head size, N slots of both parts, A
 * slots that are read.
 */
#include "few.h"
#include "kernels.h"

#define FAINT 100        /* e^-100 counts as 0 */
#define KEYS (4 * ROWS)  /* keys whose scores are put in their places together */
#define ALONE 100000     /* products below which another thread is not worth asking */

static inline lanes rounded(const Attention *a, lanes v)
{
    return a->is_half && a->rounding != AS_ONE ? nearest_half(v) : v;
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

/* What the mask adds to the slots from .. to, for one of its rows. */
static void read_mask(const Job *j, int64_t row, int64_t from, int64_t to, float *added)
{
    const Attention *a = j->shape;
    const int64_t *open = j->slots.open;
    int64_t N = a->slots[0] + a->slots[1], size = a->is_half ? 2 : 4, count = to - from;
    const char *line = (const char *)j->mask + row * N * size;
    uint32_t side[PIECE];
    if (open[to - 1] - open[from] == count - 1) {
        line += open[from] * size;
    } else {
        for (int64_t k = 0; k < count; k++)
            memcpy((char *)side + k * size, line + open[from + k] * size, size);
        line = (const char *)side;
    }
    widen(line, a->is_half, count, added, ROUND_UP(count, LANES));
}

/* Scores of the i-th row with the keys of a piece, scaled and masked, with the rounding of these
 * ops. */
static void adjust(const Block *block, int64_t p, int64_t i)
{
    const Job *j = block->job;
    const Attention *a = j->shape;
    int64_t to, from = piece(&j->slots, p, &to);
    float *line = block->scores + i * j->width + place(&j->slots, from), added[PIECE];
    if (a->mask_rows) read_mask(j, (block->row + i) % a->mask_rows, from, to, added);
    for (int64_t k = 0; k < to - from; k += LANES) {
        lanes v = rounded(a, load_single(line + k));
        if (a->scale != 1) v = rounded(a, v * a->scale);
        if (a->mask_rows) v = rounded(a, v + load_single(added + k));
        *(lanes *)(line + k) = v;
    }
}

/* Scores (A) of a row to weights, in place, with the rounding of softmax. Returns whether a slot
 * that was left out might have a say in it. */
static int weigh(const Job *j, float *line)
{
    const Attention *a = j->shape;
    const Slots *s = &j->slots;
    int64_t end = place(s, s->count);
    for (int64_t k = s->old; k < ROUND_UP(s->old, LANES); k++) line[k] = -INFINITY; /* no slot's */
    int open = a->rounding != AS_ONE; /* a row that is not weighs nothing, as in torch */
    for (int64_t k = 0; k < end && !open; k++) open = line[k] != -INFINITY;
    float top = a->rounding == SPELLED_OUT ? spelled_out(a, line, end, j->width)
                                           : softmax_row(line, end);
    round_some(a, line, j->width);
    for (int64_t k = open ? end : 0; k < j->width; k++) line[k] = 0;
    return top < CLOSED + FAINT && s->count < a->slots[0] + a->slots[1];
}

/* The number-th block of rows, of one head after the other. */
static void take_queries(Block *block, int64_t number)
{
    const Attention *a = block->job->shape;
    int64_t D = a->depth, padded = ROUND_UP(D, LANES), blocks = (a->rows + MANY - 1) / MANY;
    block->b = number / blocks, block->row = number % blocks * MANY;
    block->n = MIN(MANY, a->rows - block->row);
    int64_t n = block->n, span = ROUND_UP(n, LANES), size = a->is_half ? 2 : 4;
    int few = has_few(block);
    const char *q = (const char *)block->job->q + (block->b * a->rows + block->row) * D * size;
    memset(block->q, 0, padded * span * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        float *line = few ? block->q + i * padded : block->values;
        widen(q + i * D * size, a->is_half, D, line, padded);
        for (int64_t d = 0; d < D && !few; d++) block->q[d * span + i] = line[d];
    }
}

/* y (ROWS, span) = the dot products of ROWS keys at most with query rows. Alone, or else AVX2 has
 * too few registers for its tiles. */
static __attribute__((noinline)) void score_some(const Attention *a, const char *const *keys,
                                                 int64_t some, const float *q, float *y,
                                                 int64_t span)
{
    int64_t D = a->depth, size = a->is_half ? 2 : 4;
    float w[ROWS * DEPTH];
    memset(y, 0, ROWS * span * sizeof(float));
    for (int64_t d = 0; d < D; d += DEPTH) {
        int64_t part = MIN(DEPTH, D - d);
        for (int64_t e = 0; e < ROWS; e++)
            widen(keys[MIN(e, some - 1)] + d * size, a->is_half, part, w + e * DEPTH,
                  ROUND_UP(part, LANES));
        add_tiles(w, q + d * span, y, part, span);
    }
}

/* Scores of query rows with the keys of a piece. */
static void score_many(const Block *block, int64_t p)
{
    const Job *j = block->job;
    const Attention *a = j->shape;
    int64_t to, n = block->n, span = ROUND_UP(n, LANES), bytes = a->depth * (a->is_half ? 2 : 4);
    float y[KEYS * ROUND_UP(MANY, LANES)];
    for (int64_t k = piece(&j->slots, p, &to); k < to; k += KEYS) {
        int64_t some = MIN(KEYS, to - k);
        const char *key[KEYS];
        float *out = block->scores + place(&j->slots, k);
        for (int64_t e = 0; e < some; e++) {
            key[e] = slot(a, j->keys, block->b, j->slots.open[k + e]);
            fetch(key[e], bytes);
        }
        for (int64_t e = 0; e < some; e += ROWS)
            score_some(a, key + e, MIN(ROWS, some - e), block->q, y + e * span, span);
        for (int64_t i = 0; i < n; i++, out += j->width)
            for (int64_t e = 0; e < some; e++) out[e] = y[e * span + i];
    }
}

static void score(const Block *block, int64_t p)
{
    if (!has_few(block))
        score_many(block, p);
    else if (block->job->shape->is_half)
        score_few(block, p, 1);
    else
        score_few(block, p, 0);
}

/* sums (n, padded) = the weights of slots from .. to times their values. */
static void add_many(const Block *block, int64_t from, int64_t to, float *sums, float *values)
{
    const Job *j = block->job;
    const Attention *a = j->shape;
    int64_t D = a->depth, padded = ROUND_UP(D, LANES), size = a->is_half ? 2 : 4, n = block->n;
    float w[ROWS * DEPTH];
    for (int64_t k = from; k < to; k += DEPTH) {
        int64_t part = MIN(DEPTH, to - k);
        for (int64_t e = 0; e < part; e++) {
            const char *value = slot(a, j->values, block->b, j->slots.open[k + e]);
            fetch(value, D * size);
            widen(value, a->is_half, D, values + e * padded, padded);
        }
        for (int64_t i = 0; i < n; i += ROWS) {
            if (i + ROWS > n) memset(w, 0, sizeof w);
            for (int64_t r = 0; r < MIN(ROWS, n - i); r++)
                memcpy(w + r * DEPTH, block->scores + (i + r) * j->width + place(&j->slots, k),
                       part * sizeof(float));
            add_tiles(w, values, sums + i * padded, part, padded);
        }
    }
}

/* parts (n, padded), the at-th, = the weights of a piece times its values. */
static void add_values(const Block *block, int64_t p, int64_t at)
{
    const Attention *a = block->job->shape;
    int64_t padded = ROUND_UP(a->depth, LANES), height = ROUND_UP(block->n, ROWS) * padded, to;
    int64_t from = piece(&block->job->slots, p, &to);
    float *sums = block->parts + at * height;
    memset(sums, 0, height * sizeof(float));
    if (!has_few(block))
        add_many(block, from, to, sums, block->values + at * DEPTH * padded);
    else if (a->is_half)
        add_few(block, 1, from, to, sums);
    else
        add_few(block, 0, from, to, sums);
}

/* The sums of a piece to those of its part. */
static void add_up(const Block *block, int64_t p, int64_t at)
{
    const Slots *s = &block->job->slots;
    int64_t height = ROUND_UP(block->n, ROWS) * ROUND_UP(block->job->shape->depth, LANES), to;
    float *sums = block->sums + (piece(s, p, &to) < s->old ? 0 : height);
    if (p == 0) memset(block->sums, 0, 2 * height * sizeof(float));
    for (int64_t i = 0; i < height; i += LANES)
        *(lanes *)(sums + i) += load_single(block->parts + at * height + i);
}

/* Rows of the result from the sums of both parts, whole blocks of ROWS rows each. */
static void finish(const Block *block)
{
    const Attention *a = block->job->shape;
    int64_t D = a->depth, padded = ROUND_UP(D, LANES), size = a->is_half ? 2 : 4;
    int64_t second = ROUND_UP(block->n, ROWS) * padded;
    char *out = (char *)block->job->out + (block->b * a->rows + block->row) * D * size;
    round_some(a, block->sums, 2 * second);
    for (int64_t i = 0; i < block->n; i++) {
        float *old = block->sums + i * padded, *new = old + second;
        for (int64_t d = 0; d < D; d++) old[d] += new[d];
        narrow(old, D, out + i * D * size, a->is_half);
    }
}

/* Blocks whose pieces one thread takes, one after the other. */
static void some_blocks(void *context, int64_t from, int64_t to)
{
    Job *j = context;
    Block block = {0};
    if (!make_room(&block, j, 1)) j->failed = 1;
    for (int64_t number = from; number < to && !j->failed && !j->faint; number++) {
        int64_t pieces = count_pieces(&j->slots);
        take_queries(&block, number);
        for (int64_t p = 0; p < pieces; p++) score(&block, p);
        for (int64_t i = 0; i < block.n; i++) {
            for (int64_t p = 0; p < pieces; p++) adjust(&block, p, i);
            if (weigh(j, block.scores + i * j->width)) j->faint = 1;
        }
        for (int64_t p = 0; p < pieces; p++) add_values(&block, p, 0), add_up(&block, p, 0);
        finish(&block);
    }
    free(block.q);
}

/* Pieces of all blocks. */
static void some_scores(void *context, int64_t from, int64_t to)
{
    Job *j = context;
    int64_t pieces = count_pieces(&j->slots);
    for (int64_t i = from; i < to; i++) {
        const Block *block = j->blocks + i / pieces;
        score(block, i % pieces);
        for (int64_t row = 0; row < block->n; row++) adjust(block, i % pieces, row);
    }
}

/* Rows of all blocks. */
static void some_weights(void *context, int64_t from, int64_t to)
{
    Job *j = context;
    int64_t rows = MIN(MANY, j->shape->rows);
    for (int64_t i = from; i < to; i++) {
        const Block *block = j->blocks + i / rows;
        if (i % rows < block->n && weigh(j, block->scores + i % rows * j->width)) j->faint = 1;
    }
}

static void some_values(void *context, int64_t from, int64_t to)
{
    Job *j = context;
    int64_t pieces = count_pieces(&j->slots);
    for (int64_t i = from; i < to; i++) add_values(j->blocks + i / pieces, i % pieces, i % pieces);
}

/* Fewer blocks than keep the threads busy: each step's pieces are shared. */
static void share_pieces(Job *j, int64_t blocks, int64_t pieces, int threads)
{
    j->blocks = calloc(blocks, sizeof(Block));
    if (!j->blocks) j->failed = 1;
    for (int64_t i = 0; i < blocks && !j->failed; i++)
        if (make_room(j->blocks + i, j, pieces))
            take_queries(j->blocks + i, i);
        else
            j->failed = 1;
    if (!j->failed) {
        share(some_scores, j, blocks * pieces, 1, threads);
        share(some_weights, j, blocks * MIN(MANY, j->shape->rows), 1, threads);
        share(some_values, j, blocks * pieces, 1, threads);
    }
    for (int64_t i = 0; i < blocks && j->blocks; i++) {
        for (int64_t p = 0; p < pieces && !j->failed; p++) add_up(j->blocks + i, p, p);
        if (!j->failed) finish(j->blocks + i);
        free(j->blocks[i].q);
    }
    free(j->blocks);
}

/* Attention over some slots. Returns 0, 1 if others have a say, or -1 where there is no memory. */
static int attend(Job *j, Slots slots, int threads)
{
    const Attention *a = j->shape;
    j->slots = slots;
    j->width = ROUND_UP(place(&slots, slots.count), LANES);
    j->failed = j->faint = 0;
    if (a->heads * a->rows * slots.count * a->depth < ALONE) threads = 1;
    int64_t blocks = a->heads * ((a->rows + MANY - 1) / MANY), pieces = count_pieces(&j->slots);
    if (blocks < 4 * threads && blocks % threads && pieces > 2)
        share_pieces(j, blocks, pieces, threads);
    else
        share(some_blocks, j, blocks, 1, threads);
    return j->failed ? -1 : j->faint;
}

/* opened (N + 1): the slots that the mask leaves open, for `attention_of`. */
void mask_slots(const Attention *a, const void *mask, char *opened)
{
    opened[a->slots[0] + a->slots[1]] = open_slots(a, mask, opened);
}

/* Copies n rows of `bytes`, `apart` in `from`, to where they lie side by side. */
static char *gather_rows(char *to, const void *from, int64_t n, int64_t bytes, int64_t apart)
{
    for (int64_t i = 0; i < n; i++, to += bytes) memcpy(to, (const char *)from + i * apart, bytes);
    return to;
}

/* Attention of the first `used` of T tokens, which are the slots of the second part, and take turns
 * as rows, of which all have the same mask: as if there were no other slots. The rows of others may
 * be zeros. */
static int attend_used(const Attention *a, const void *q, const void *const *keys,
                       const void *const *values, const void *mask, void *out, int64_t written,
                       int64_t used, int32_t threads)
{
    Attention few = *a;
    int64_t size = a->is_half ? 2 : 4, row = a->depth * size, T = a->slots[1];
    int64_t rows = MAX(used, 2 * FEW); /* of fewer, vectors would go along keys */
    int64_t groups = a->heads * (a->rows / T), N = a->slots[0] + T, seen = a->slots[0] + used;
    few.rows = a->rows / T * rows, few.slots[1] = used, few.mask_rows = rows;
    char *q_used = malloc((2 * groups * rows + 2 * a->heads * used) * row + rows * seen * size);
    if (!q_used) return -1;
    char *key = gather_rows(q_used, q, groups, rows * row, T * row), *to = out;
    char *value = gather_rows(key, keys[1], a->heads, used * row, T * row);
    char *mask_used = gather_rows(value, values[1], a->heads, used * row, T * row);
    char *made = gather_rows(mask_used, mask, rows, seen * size, N * size);
    const void *parts[] = {keys[0], key, values[0], value};
    int failed = attention_of(&few, q_used, parts, parts + 2, mask_used, NULL, made, written, 0,
                              threads);
    for (int64_t i = 0; i < groups; i++, to += T * row) {
        memcpy(to, made + i * rows * row, rows * row);
        memset(to + rows * row, 0, (T - rows) * row);
    }
    free(q_used);
    return failed;
}

/* q (B, M, D), keys and values (B, N, D) in two parts, mask (mask_rows, N) or NULL -> out (B, M, D).
 * opened: what `mask_slots` found of the mask, or NULL. From slot `written` on keys and values of
 * the first part are zeros. used: the tokens whose rows are wanted, of more than 2 * FEW, or 0 for
 * all (`attend_used`). Returns 0, or -1 where there is no memory. */
int attention_of(const Attention *a, const void *q, const void *const *keys,
                 const void *const *values, const void *mask, const char *opened, void *out,
                 int64_t written, int64_t used, int32_t threads)
{
    if (used) return attend_used(a, q, keys, values, mask, out, written, used, threads);
    int64_t *open = malloc((a->slots[0] + a->slots[1]) * sizeof(int64_t));
    if (!open) return -1;
    Job j = {.shape = a, .q = q, .mask = mask, .keys = keys, .values = values, .out = out};
    written = MIN(written, a->slots[0]);
    Slots some = find_slots(a, mask, opened, keys, values, written, open, threads);
    int failed = attend(&j, some, threads);
    if (failed > 0) failed = attend(&j, all_slots(a, open), threads);
    free(open);
    return failed;
}

int attention(const Attention *a, const void *q, const void *const *keys,
              const void *const *values, const void *mask, void *out, int32_t threads)
{
    return attention_of(a, q, keys, values, mask, NULL, out, a->slots[0], 0, threads);
}
