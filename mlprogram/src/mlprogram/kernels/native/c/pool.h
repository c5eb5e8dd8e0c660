#ifndef POOL_H
#define POOL_H

#include <stdint.h>

#define SOME 8192 /* values that a thread takes at a time, of cheap ops */

/* Do work(context, from, to) for all of 0 .. total, `part` at a time, in up to `threads` threads.
 * A second caller at the same time works alone. */
void share(void (*work)(void *, int64_t, int64_t), void *context, int64_t total, int64_t part,
           int threads);

#endif
