/* The kernels that a table of steps can call: run.c calls them, and the files that have them include
 * this too, so that the compiler compares both. */
#ifndef KERNELS_H
#define KERNELS_H

#include <stdint.h>

struct Matrix;
struct Attention;

int matvec(const struct Matrix *matrix, const void *x, void *y, int32_t threads);
int matmat(const struct Matrix *matrix, const void *x, void *y, int64_t tokens, int64_t used,
           int32_t threads);
int batch_matmul(const void *x, const void *y, void *out, int64_t batch, int64_t M, int64_t N,
                 int64_t K, int32_t transposed, int32_t is_half);
int einsum(const void *x, const void *y, void *out, int64_t heads, int64_t rows, int64_t depth,
           int64_t columns, int64_t x_rows, int64_t x_heads, int64_t x_depth, int64_t y_depth,
           int64_t y_heads, int32_t is_half, int32_t threads);
int softmax(const void *x, void *y, int64_t outer, int64_t n, int64_t inner, int32_t is_half);
int layer_norm(const void *x, void *y, const float *gamma, const float *beta, int64_t outer,
               int64_t n, int64_t inner, float epsilon, int32_t is_half);
int rms_norm(const void *x, void *y, const float *weight, int64_t outer, int64_t n, int64_t inner,
             float added, float epsilon, int32_t is_half, int32_t rounding, int32_t threads);
int rotary(const void *x, const void *cos, const void *sin, void *y, int64_t n, int64_t block,
           int64_t run, int32_t turn, int32_t is_half, int32_t threads);
int activation(const void *x, void *y, int64_t n, int32_t how, int32_t is_half, int32_t threads);
int gather(const void *x, const void *indices, void *y, int64_t outer, int64_t size, int64_t inner,
           int64_t count, int32_t type, int32_t wraps);
int gated(const void *gate, const void *x, void *y, int64_t n, int32_t is_half, int32_t threads);
int attention(const struct Attention *shape, const void *q, const void *const *keys,
              const void *const *values, const void *mask, void *out, int32_t threads);
int attention_of(const struct Attention *shape, const void *q, const void *const *keys,
                 const void *const *values, const void *mask, const char *opened, void *out,
                 int64_t written, int64_t used, int32_t threads);
void mask_slots(const struct Attention *shape, const void *mask, char *opened);

#endif
