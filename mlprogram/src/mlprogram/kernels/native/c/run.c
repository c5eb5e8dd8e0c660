/* Runs a stretch of steps from a table, without Python between them.
 *
 * A step is the address of its entry below, the number of its arguments, and two words for each
 * argument: the number of a base, and what is added to that base. Bases are given anew in each call:
 * the arena, inputs, states and results. Base 0 is 0, so that sizes, constant parameters and weights
 * are arguments like any others.
 *
 * Beside the kernels of the other files there are three that ops need which only move data, or join
 * two values: `copy`, `slice` and `elementwise`, over axes whose steps are bytes.
 */
#include "kernels.h"
#include "pool.h"
#include "walk.h"

#define ARGUMENTS 16 /* of a step, at most */
#define SLICED 16    /* axes of what a slice is taken of, at most */

typedef int (*Entry)(const int64_t *a, int32_t threads);

/* Returns -1, or the place in the table of the step that failed: it found no memory, or is given
 * what it leaves to Python. What follows is not run. */
int64_t run_steps(const int64_t *table, int64_t words, const int64_t *bases, int32_t threads)
{
    int64_t a[ARGUMENTS];
    for (int64_t i = 0; i < words; i += 2 + 2 * table[i + 1]) {
        const int64_t *argument = table + i + 2;
        if (table[i + 1] > ARGUMENTS) return i;
        for (int64_t k = 0; k < table[i + 1]; k++, argument += 2)
            a[k] = bases[argument[0]] + argument[1];
        if (((Entry)table[i])(a, threads)) return i;
    }
    return -1;
}

#define P(k) ((void *)a[k])

static inline double real(int64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* --- the kernels of other files ---------------------------------------------------------------- */

int run_matvec(const int64_t *a, int32_t threads) { return matvec(P(0), P(1), P(2), threads); }

int run_matmat(const int64_t *a, int32_t threads)
{
    return matmat(P(0), P(1), P(2), a[3], a[4], threads);
}

int run_batch_matmul(const int64_t *a, int32_t threads)
{
    (void)threads;
    return batch_matmul(P(0), P(1), P(2), a[3], a[4], a[5], a[6], a[7], a[8]);
}

int run_einsum(const int64_t *a, int32_t threads)
{
    return einsum(P(0), P(1), P(2), a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12],
                  threads);
}

int run_softmax(const int64_t *a, int32_t threads)
{
    (void)threads;
    return softmax(P(0), P(1), a[2], a[3], a[4], a[5]);
}

int run_layer_norm(const int64_t *a, int32_t threads)
{
    (void)threads;
    return layer_norm(P(0), P(1), P(2), P(3), a[4], a[5], a[6], real(a[7]), a[8]);
}

int run_rms_norm(const int64_t *a, int32_t threads)
{
    return rms_norm(P(0), P(1), P(2), a[3], a[4], a[5], real(a[6]), real(a[7]), a[8], a[9],
                    threads);
}

int run_rotary(const int64_t *a, int32_t threads)
{
    return rotary(P(0), P(1), P(2), P(3), a[4], a[5], a[6], a[7], a[8], threads);
}

int run_gather(const int64_t *a, int32_t threads)
{
    (void)threads;
    return gather(P(0), P(1), P(2), a[3], a[4], a[5], a[6], a[7], a[8]);
}

int run_activation(const int64_t *a, int32_t threads)
{
    return activation(P(0), P(1), a[2], a[3], a[4], threads);
}

int run_gated(const int64_t *a, int32_t threads)
{
    return gated(P(0), P(1), P(2), a[3], a[4], threads);
}

/* Keys and values are two addresses each. Last come those of how many slots of the first keys and
 * values were written, and of what `run_mask_slots` found of the mask, or NULL; and how many tokens
 * are in use, or 0. */
int run_attention(const int64_t *a, int32_t threads)
{
    const void *keys[] = {P(2), P(3)}, *values[] = {P(4), P(5)};
    const int64_t *written[] = {P(9), P(10)};
    int64_t slots = written[0] ? MAX(*written[0], *written[1]) : INT64_MAX;
    return attention_of(P(0), P(1), keys, values, P(6), P(11), P(7), slots, a[12], threads);
}

/* Once for all attentions of a stretch that read a mask, which no step changes. */
int run_mask_slots(const int64_t *a, int32_t threads)
{
    (void)threads;
    mask_slots(P(0), P(1), P(2));
    return 0;
}

/* --- copy -------------------------------------------------------------------------------------- */

static void copy_axis(const Walk *w, int64_t axis, int64_t n, char *to, const char *from)
{
    int64_t step = w->steps[axis], other = w->from[0][axis];
    if (axis == w->axes - 1) {
        copy_row(to, from, n, step, other, w->size);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        copy_axis(w, axis + 1, w->sizes[axis + 1], to + i * step, from + i * other);
}

static void some_copied(void *context, int64_t from, int64_t to)
{
    const Filling *f = context;
    const Walk *w = &f->walk;
    copy_axis(w, 0, to - from, f->to + from * w->steps[0], f->x + from * w->from[0][0]);
}

/* to, x, and the axes of `walk`. */
int run_copy(const int64_t *a, int32_t threads)
{
    Filling f = {walk(P(2)), P(0), P(1), NULL, NULL};
    share(some_copied, &f, f.walk.sizes[0], SOME / inner_values(&f.walk) + 1, threads);
    return 0;
}

/* --- slices at positions that are known at run time -------------------------------------------- */

/* Where a slice begins in an axis of `size` values, as Python has it: begin:end:step. */
static int64_t bounded(int64_t place, int64_t size)
{
    place += place < 0 ? size : 0;
    return place < 0 ? 0 : MIN(place, size);
}

enum { FROM_START = 1, TO_END = 2, ONE = 4 }; /* of an axis: MIL's three masks */

/* whole, part, begin, end (int32, one for each axis of `whole`), and: axes; bytes of an element;
 * whether the part is read, or written; then for each axis its size and step in bytes in `whole`, the
 * slice's step, its masks, and its size and step in bytes in `part`; and NULL, or where to raise the
 * number of slots, the last axis but one, that were written. Fails where the slice has another shape
 * than that. */
int run_slice(const int64_t *a, int32_t threads)
{
    const int64_t *p = P(4), axes = p[0];
    const int32_t *begin = P(2), *end = P(3);
    char *whole = P(0), *part = P(1);
    int64_t numbers[5 + 3 * SLICED] = {MAX(axes, 1), p[1]}, *size = numbers + 5, *written = P(5);
    int64_t reach = 0, at = axes - 1; /* axes of one are the outermost: they take no loops */
    (void)threads;
    if (axes > SLICED) return 1;
    for (int64_t i = 0; i < MAX(axes, 1); i++) size[i] = 1;
    for (int64_t i = axes - 1; i >= 0; i--) {
        const int64_t *axis = p + 3 + 6 * i;
        int64_t first = axis[3] & FROM_START ? 0 : begin[i], step = axis[2], count = 1;
        if (axis[3] & ONE) {
            first += first < 0 ? axis[0] : 0;
            if (first < 0 || first >= axis[0]) return 1;
        } else {
            int64_t last = axis[3] & TO_END ? axis[0] : bounded(end[i], axis[0]);
            first = bounded(first, axis[0]);
            count = last > first ? (last - first + step - 1) / step : 0;
        }
        if (count != axis[4]) return 1;
        if (i == axes - 2) reach = first + (count - 1) * step + 1;
        whole += first * axis[1];
        if (count == 1) continue;
        size[at] = count;
        size[(p[2] ? 2 : 1) * axes + at] = axis[1] * step;
        size[(p[2] ? 1 : 2) * axes + at--] = axis[5];
    }
    Walk w = walk(numbers);
    copy_axis(&w, 0, size[0], p[2] ? part : whole, p[2] ? whole : part);
    if (written) *written = MAX(*written, reach);
    return 0;
}

/* --- elementwise ------------------------------------------------------------------------------- */

/* n values, `step` bytes apart, as float32; the rest of a BLOCK is 0. */
static void fetch(const char *p, int64_t step, int64_t n, int is_half, float *out)
{
    uint32_t side[BLOCK];
    int64_t size = is_half ? 2 : 4;
    if (step != size) {
        copy_row((char *)side, p, n, size, step, size);
        p = (const char *)side;
    }
    widen(p, is_half, n, out, BLOCK);
}

/* Joins as many of n values, side by side, as fill vectors. Returns how many. */
static int64_t join(const Walk *w, int64_t n, char *to, const char *x, const char *y, int is_half,
                    int makes_half)
{
    int64_t how = w->how, i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes u = load_lanes(x, is_half, i), v = load_lanes(y, is_half, i);
        if (how != CONVERT) u = how == ADD ? u + v : how == SUB ? u - v : how == MUL ? u * v : u / v;
        narrow((const float *)&u, LANES, to + i * (makes_half ? 2 : 4), makes_half);
    }
    return i;
}

static void join_axis(const Walk *w, int64_t axis, int64_t n, char *to, const char *x,
                      const char *y)
{
    int64_t step = w->steps[axis], of_x = w->from[0][axis], of_y = w->from[1][axis];
    if (axis < w->axes - 1) {
        for (int64_t i = 0; i < n; i++)
            join_axis(w, axis + 1, w->sizes[axis + 1], to + i * step, x + i * of_x, y + i * of_y);
        return;
    }
    float left[BLOCK], right[BLOCK];
    int64_t size = w->type == HALF ? 2 : 4;
    int64_t i = of_x == size && of_y == size ? join(w, n, to, x, y, size == 2, w->size == 2) : 0;
    for (; i < n; i += BLOCK) {
        int64_t some = MIN(BLOCK, n - i);
        fetch(x + i * of_x, of_x, some, size == 2, left);
        fetch(y + i * of_y, of_y, some, size == 2, right);
        join(w, BLOCK, (char *)left, (const char *)left, (const char *)right, 0, 0);
        narrow(left, some, to + i * step, w->size == 2);
    }
}

static void some_joined(void *context, int64_t from, int64_t to)
{
    const Filling *f = context;
    const Walk *w = &f->walk;
    join_axis(w, 0, to - from, f->to + from * w->steps[0], f->x + from * w->from[0][0],
              f->y + from * w->from[1][0]);
}

/* to, whose innermost axis has no gaps, x, y and the axes of `walk`. Floats are joined in single
 * precision and rounded once, which for these operations is what half precision asks for. */
int run_elementwise(const int64_t *a, int32_t threads)
{
    Filling f = {walk(P(3)), P(0), P(1), P(2), NULL};
    share(some_joined, &f, f.walk.sizes[0], SOME / inner_values(&f.walk) + 1, threads);
    return 0;
}
