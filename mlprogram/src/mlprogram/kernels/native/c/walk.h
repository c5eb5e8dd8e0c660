/* Arrays that are gone through axis by axis, for ops that are as cheap as their loops. */
#ifndef WALK_H
#define WALK_H

#include "lanes.h"

#define BLOCK 64 /* values that are computed at a time */

/* What an element is; `whole.c` reads those from BOOL on as whole numbers. */
enum { SINGLE, HALF, BOOL, INT8, UINT8, INT16, UINT16, INT32, INT64 };

/* What is done with elements, as `asked.py` numbers it: `elementwise` does the first five. */
enum { ADD, SUB, MUL, DIV, CONVERT, EQUAL, UNEQUAL, LESS, LESS_EQUAL, LEAST, MOST };

/* An array to be filled: its axes, of which the last is the innermost. */
typedef struct {
    int64_t axes, size; /* bytes of an element: 1, 2, 4 or 8 */
    int64_t how, type;  /* what is done, and what the elements of the operands are */
    int64_t made;       /* what those of the result are */
    const int64_t *sizes, *steps, *from[3]; /* for each axis; steps of the result, and of operands */
} Walk;

static inline Walk walk(const int64_t *p)
{
    int64_t n = p[0];
    return (Walk){n,         p[1],      p[2], p[3], p[4],
                  p + 5, p + 5 + n, {p + 5 + 2 * n, p + 5 + 3 * n, p + 5 + 4 * n}};
}

static inline int64_t inner_values(const Walk *w)
{
    int64_t n = 1;
    for (int64_t i = 1; i < w->axes; i++) n *= w->sizes[i];
    return n;
}

typedef struct {
    Walk walk;
    char *to;
    const char *x, *y, *z;
} Filling;

typedef uint16_t bits16 __attribute__((may_alias));
typedef uint32_t bits32 __attribute__((may_alias));
typedef uint64_t bits64 __attribute__((may_alias));

#define COPY(type)                                                                               \
    for (int64_t i = 0; i < n; i++) *(type *)(to + i * step) = *(const type *)(from + i * other)

static inline void copy_row(char *to, const char *from, int64_t n, int64_t step, int64_t other,
                            int64_t size)
{
    if (step == size && other == size)
        memcpy(to, from, n * size);
    else if (size == 1)
        COPY(char);
    else if (size == 2)
        COPY(bits16);
    else if (size == 4)
        COPY(bits32);
    else
        COPY(bits64);
}

#endif
