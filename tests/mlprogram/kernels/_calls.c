/* Runs calls of the compiled kernels out of one piece of memory, read from stdin and written back to
 * stdout: for kernels made for a processor that only an emulator has, or with a sanitizer. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Kernel(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                   int64_t, float, float);

typedef struct {
    char name[24];
    float reals[2]; /* whole numbers and addresses come in registers of their own */
    int64_t words[10];
} Call;

#define KERNELS(X)                                                                                \
    X(matvec) X(matmat) X(softmax) X(layer_norm) X(rms_norm) X(gated) X(batch_matmul) X(attention) \
    X(rotary) X(activation) X(gather) X(table)

/* One step as `run_steps` calls it: its entry, and its words. */
static int table(int64_t entry, const int64_t *words)
{
    extern int run_apply(const int64_t *, int32_t), run_select(const int64_t *, int32_t);
    extern int run_slice(const int64_t *, int32_t), run_copy(const int64_t *, int32_t);
    extern int run_einsum(const int64_t *, int32_t);
    int (*entries[])(const int64_t *, int32_t) = {run_apply, run_select, run_slice, run_copy,
                                                  run_einsum};
    return entries[entry](words, 1);
}

#define DECLARE(name) int name();
KERNELS(DECLARE)

static Kernel *find(const char *name)
{
#define MATCH(kernel) \
    if (!strcmp(name, #kernel)) return (Kernel *)kernel;
    KERNELS(MATCH)
    return NULL;
}

int main(void)
{
    int64_t sizes[3]; /* calls, addresses, bytes in all */
    if (fread(sizes, sizeof sizes, 1, stdin) != 1) return 2;
    int64_t *addresses = calloc(sizes[1] + 1, sizeof(int64_t));
    char *memory = aligned_alloc(64, sizes[2]);
    if (!addresses || !memory) return 3;
    if (fread(addresses, sizeof(int64_t), sizes[1], stdin) != (size_t)sizes[1]) return 2;
    if (fread(memory, 1, sizes[2], stdin) != (size_t)sizes[2]) return 2;
    for (int64_t i = 0; i < sizes[1]; i++) *(int64_t *)(memory + addresses[i]) += (int64_t)memory;
    const Call *call = (const Call *)memory;
    for (const Call *end = call + sizes[0]; call < end; call++) {
        const int64_t *w = call->words;
        Kernel *kernel = find(call->name);
        if (!kernel) return 4;
        if (kernel(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], call->reals[0],
                   call->reals[1]))
            return 5;
    }
    if (fwrite(memory, 1, sizes[2], stdout) != (size_t)sizes[2]) return 6;
    free(memory);
    free(addresses);
    return 0;
}
