/* Ops on whole numbers and truth values, which are few in a program and small: comparisons, choices,
 * arithmetic, conversions, and rows that indices choose. */
#include "kernels.h"
#include "pool.h"
#include "walk.h"

#define READ(kind)                                                                               \
    for (int64_t i = 0; i < n; i++) out[i] = *(const kind *)(p + i * step);                      \
    return

/* n whole numbers, `step` bytes apart. */
static void fetch_whole(const char *p, int64_t step, int64_t n, int64_t type, int64_t *out)
{
    switch (type) {
    case INT8: READ(int8_t);
    case INT16: READ(int16_t);
    case UINT16: READ(uint16_t);
    case INT32: READ(int32_t);
    case INT64: READ(int64_t);
    default: READ(uint8_t);
    }
}

#define WRITE(kind)                                                                              \
    for (int64_t i = 0; i < n; i++) *(kind *)(p + i * step) = (kind)x[i];                        \
    return

/* The same, to what they are stored as: the lowest bits, or the nearest float; but of what is made
 * true it is only said that it is. */
static void store_whole(char *p, int64_t step, int64_t n, int64_t type, const int64_t *x)
{
    float real[BLOCK];
    uint16_t halves[BLOCK];
    switch (type) {
    case BOOL:
        for (int64_t i = 0; i < n; i++) p[i * step] = x[i] != 0;
        return;
    case INT16:
    case UINT16: WRITE(uint16_t);
    case INT32: WRITE(uint32_t);
    case INT64: WRITE(int64_t);
    case SINGLE: WRITE(float);
    case HALF:
        for (int64_t i = 0; i < n; i++) real[i] = (float)x[i];
        narrow(real, n, halves, 1);
        copy_row(p, (const char *)halves, n, step, 2, 2);
        return;
    default: WRITE(uint8_t);
    }
}

/* n floats, `step` bytes apart. */
static void fetch_real(const char *p, int64_t step, int64_t n, int64_t type, float *out)
{
    uint32_t side[BLOCK];
    int64_t size = type == HALF ? 2 : 4;
    copy_row((char *)side, p, n, size, step, size);
    widen(side, type == HALF, n, out, n);
}

#define EACH(value)                                                                              \
    for (int64_t i = 0; i < n; i++) out[i] = (value);                                            \
    return

static void compare(int64_t how, int64_t n, const float *x, const float *y, int64_t *out)
{
    switch (how) {
    case EQUAL: EACH(x[i] == y[i]);
    case UNEQUAL: EACH(x[i] != y[i]);
    case LESS: EACH(x[i] < y[i]);
    case LESS_EQUAL: EACH(x[i] <= y[i]);
    default: EACH(x[i] != 0);
    }
}

static void combine(int64_t how, int64_t n, const int64_t *x, const int64_t *y, int64_t *out)
{
    switch (how) {
    case ADD: EACH((int64_t)((uint64_t)x[i] + (uint64_t)y[i]));
    case SUB: EACH((int64_t)((uint64_t)x[i] - (uint64_t)y[i]));
    case MUL: EACH((int64_t)((uint64_t)x[i] * (uint64_t)y[i]));
    case EQUAL: EACH(x[i] == y[i]);
    case UNEQUAL: EACH(x[i] != y[i]);
    case LESS: EACH(x[i] < y[i]);
    case LESS_EQUAL: EACH(x[i] <= y[i]);
    case LEAST: EACH(MIN(x[i], y[i]));
    case MOST: EACH(MAX(x[i], y[i]));
    default: EACH(x[i]);
    }
}

static void apply_axis(const Walk *w, int64_t axis, int64_t n, char *to, const char *x, const char *y)
{
    int64_t step = w->steps[axis], of_x = w->from[0][axis], of_y = w->from[1][axis];
    if (axis < w->axes - 1) {
        for (int64_t i = 0; i < n; i++)
            apply_axis(w, axis + 1, w->sizes[axis + 1], to + i * step, x + i * of_x, y + i * of_y);
        return;
    }
    for (int64_t i = 0; i < n; i += BLOCK, to += BLOCK * step, x += BLOCK * of_x, y += BLOCK * of_y) {
        int64_t left[BLOCK], right[BLOCK], out[BLOCK], some = MIN(BLOCK, n - i);
        float u[BLOCK], v[BLOCK];
        if (w->type <= HALF) {
            fetch_real(x, of_x, some, w->type, u);
            fetch_real(y, of_y, some, w->type, v);
            compare(w->how, some, u, v, out);
        } else {
            fetch_whole(x, of_x, some, w->type, left);
            fetch_whole(y, of_y, some, w->type, right);
            combine(w->how, some, left, right, out);
        }
        store_whole(to, step, some, w->made, out);
    }
}

/* to, x, y and the axes of `walk`: comparisons of floats, and arithmetic on whole numbers, of which
 * the lowest bits stay. */
int run_apply(const int64_t *a, int32_t threads)
{
    Walk w = walk((const int64_t *)a[3]);
    (void)threads;
    apply_axis(&w, 0, w.sizes[0], (char *)a[0], (const char *)a[1], (const char *)a[2]);
    return 0;
}

static void select_axis(const Walk *w, int64_t axis, int64_t n, char *to, const char *c,
                        const char *x, const char *y)
{
    int64_t step = w->steps[axis], of_c = w->from[0][axis], of_x = w->from[1][axis];
    int64_t of_y = w->from[2][axis];
    for (int64_t i = 0; i < n; i++, to += step, c += of_c, x += of_x, y += of_y)
        if (axis < w->axes - 1)
            select_axis(w, axis + 1, w->sizes[axis + 1], to, c, x, y);
        else
            copy_row(to, *c ? x : y, 1, 0, 0, w->size);
}

/* to, condition, x, y and the axes of `walk`: x where the condition is true, and y elsewhere. */
int run_select(const int64_t *a, int32_t threads)
{
    Walk w = walk((const int64_t *)a[4]);
    (void)threads;
    select_axis(&w, 0, w.sizes[0], (char *)a[0], (const char *)a[1], (const char *)a[2],
                (const char *)a[3]);
    return 0;
}

/* x (outer, size, inner bytes) at `count` indices -> y (outer, count, inner bytes). Negative ones
 * count from the end if so said. Returns 1 for one that lies outside. */
int gather(const void *x, const void *indices, void *y, int64_t outer, int64_t size, int64_t inner,
           int64_t count, int32_t type, int32_t wraps)
{
    static const int64_t sizes[] = {4, 2, 1, 1, 1, 2, 2, 4, 8};
    for (int64_t k = 0; k < count; k++) {
        int64_t at;
        fetch_whole((const char *)indices + k * sizes[type], 0, 1, type, &at);
        at += wraps && at < 0 ? size : 0;
        if (at < 0 || at >= size) return 1;
        for (int64_t i = 0; i < outer; i++)
            memcpy((char *)y + (i * count + k) * inner, (const char *)x + (i * size + at) * inner,
                   inner);
    }
    return 0;
}
