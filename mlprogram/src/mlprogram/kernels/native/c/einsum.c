/* out (C, H, U) = x (C, H, W) times y (W, H, U), of many columns U: the two einsums of MIL, whose
 * axis H is of a batch. Summed in float32 tiles, as products with weights are.
 */
#include "kernels.h"
#include "lanes.h"
#include "pool.h"

#define HIGH (8 * ROWS) /* rows C that a thread takes at a time, .. */
#define SPAN 64         /* .. of so many columns */

TILES_OF(add_turned, c * HIGH + r)

typedef struct {
    const char *x, *y;
    char *out;
    int64_t heads, rows, depth, columns;
    int64_t x_steps[3], y_steps[2]; /* of x's axes, and of y's but for U, whose step is 1 */
    int is_half;
} Product;

/* Rows first .. first + HIGH of a head at most, columns u .. u + SPAN. */
static void multiply(const Product *p, int64_t head, int64_t first, int64_t u)
{
    float x[DEPTH * HIGH], y[DEPTH * SPAN], sums[HIGH * SPAN];
    int64_t rows = MIN(HIGH, p->rows - first), columns = MIN(SPAN, p->columns - u);
    int64_t width = ROUND_UP(columns, LANES), size = p->is_half ? 2 : 4;
    const int64_t *of_x = p->x_steps;
    int turned = of_x[2] != 1;
    if (rows % ROWS) memset(x, 0, sizeof x);
    memset(sums, 0, ROUND_UP(rows, ROWS) * width * sizeof(float));
    for (int64_t w = 0; w < p->depth; w += DEPTH) {
        int64_t n = MIN(DEPTH, p->depth - w);
        const char *from_x = p->x + (first * of_x[0] + head * of_x[1] + w * of_x[2]) * size;
        const char *from_y = p->y + (w * p->y_steps[0] + head * p->y_steps[1] + u) * size;
        const float *of_y = (const float *)from_y; /* where it lies, if it has the tiles' form */
        if (p->is_half || columns != width || p->y_steps[0] != width) {
            of_y = y;
            for (int64_t k = 0; k < n; k++)
                widen(from_y + k * p->y_steps[0] * size, p->is_half, columns, y + k * width, width);
        }
        for (int64_t k = 0; k < (turned ? n : rows); k++)
            widen(from_x + k * of_x[turned ? 2 : 0] * size, p->is_half, turned ? rows : n,
                  x + k * (turned ? HIGH : DEPTH), turned ? rows : n);
        for (int64_t r = 0; r < rows; r += ROWS)
            if (turned)
                add_turned(x + r, of_y, sums + r * width, n, width, AT_HAND(x));
            else
                add_tiles(x + r * DEPTH, of_y, sums + r * width, n, width);
    }
    char *to = p->out + ((first * p->heads + head) * p->columns + u) * size;
    for (int64_t r = 0; r < rows; r++)
        narrow(sums + r * width, columns, to + r * p->heads * p->columns * size, p->is_half);
}

static void some_rows(void *context, int64_t from, int64_t to)
{
    const Product *p = context;
    int64_t blocks = (p->rows + HIGH - 1) / HIGH;
    for (int64_t i = from; i < to; i++)
        for (int64_t u = 0; u < p->columns; u += SPAN)
            multiply(p, i / blocks, i % blocks * HIGH, u);
}

/* x's steps are of its axes C, H and W, and that of C or W is 1; y's are of W and H. */
int einsum(const void *x, const void *y, void *out, int64_t heads, int64_t rows, int64_t depth,
           int64_t columns, int64_t x_rows, int64_t x_heads, int64_t x_depth, int64_t y_depth,
           int64_t y_heads, int32_t is_half, int32_t threads)
{
    Product p = {x, y, out, heads, rows, depth, columns,
                 {x_rows, x_heads, x_depth}, {y_depth, y_heads}, is_half};
    share(some_rows, &p, heads * ((rows + HIGH - 1) / HIGH), 1, threads);
    return 0;
}
