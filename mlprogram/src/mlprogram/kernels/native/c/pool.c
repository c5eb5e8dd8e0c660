/* Threads that help when they can.
 *
 * OpenMP waits for every thread at the end of every loop. Where others use the machine too, one
 * thread then waits for another that has no core, and a decode step takes ten times as long. Here
 * the caller works through the parts itself, and helpers that happen to be awake take some off it:
 * who comes late finds nothing left, and the caller waits only for parts already begun. Each thread
 * begins with a stretch of its own, so that it reads weights in the order in which they lie, and then
 * takes parts off the others'.
 */
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>

#define MOST 63      /* helpers */
#define PATIENCE 6000 /* pauses, some 0.3 ms, that a helper waits for the next job before it sleeps */
#define STACK (1 << 20) /* bytes of a helper's, whatever the limit for the process */

static struct {
    void (*work)(void *, int64_t, int64_t);
    void *context;
    int64_t total, part;
    int threads; /* that may take part, the caller among them */
} job;

static struct {
    _Alignas(64) atomic_llong next; /* the next part's number, and .. */
    long long end;                  /* .. the last one's, in each thread's stretch */
} stretches[MOST + 1];

static atomic_int open, inside; /* whether there is a job; helpers that look at it */
static atomic_llong jobs;       /* so far */
static atomic_flag taken = ATOMIC_FLAG_INIT;
static atomic_int asleep;
static int started;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t bell = PTHREAD_COND_INITIALIZER;

static inline void rest(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static void take_parts(int own)
{
    for (int k = 0; k < job.threads; k++) {
        int at = own + k < job.threads ? own + k : own + k - job.threads;
        int64_t number;
        while ((number = atomic_fetch_add(&stretches[at].next, 1)) < stretches[at].end) {
            int64_t from = number * job.part, to = from + job.part;
            job.work(job.context, from, to < job.total ? to : job.total);
        }
    }
}

static void wait_for_a_job(long long seen)
{
    for (int i = 0; i < PATIENCE; i++, rest())
        if (atomic_load(&jobs) != seen) return;
    pthread_mutex_lock(&mutex);
    atomic_fetch_add(&asleep, 1);
    while (atomic_load(&jobs) == seen) pthread_cond_wait(&bell, &mutex);
    atomic_fetch_sub(&asleep, 1);
    pthread_mutex_unlock(&mutex);
}

static void *help(void *number)
{
    long long seen = 0;
    for (;;) {
        wait_for_a_job(seen);
        seen = atomic_load(&jobs);
        atomic_fetch_add(&inside, 1); /* first say so, then look: `share` does it the other way */
        if (atomic_load(&open) && (intptr_t)number < job.threads) take_parts((intptr_t)number);
        atomic_fetch_sub(&inside, 1);
    }
    return NULL;
}

static void start(int helpers)
{
    pthread_t thread;
    pthread_attr_t detached;
    if (helpers > MOST) helpers = MOST;
    if (started >= helpers || pthread_attr_init(&detached)) return;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&detached, STACK);
    while (started < helpers
           && !pthread_create(&thread, &detached, help, (void *)(intptr_t)(started + 1)))
        started++;
    pthread_attr_destroy(&detached);
}

/* A forked child has the thread that forked and no other: no helpers, no job, nobody asleep. What
 * the parent's threads were at is theirs. */
static void forget(void)
{
    pthread_mutex_unlock(&mutex);
    bell = (pthread_cond_t)PTHREAD_COND_INITIALIZER; /* the old one counts the parent's sleepers */
    started = 0;
    atomic_store(&open, 0), atomic_store(&inside, 0), atomic_store(&asleep, 0);
    atomic_flag_clear(&taken);
}

static void hold(void) { pthread_mutex_lock(&mutex); }

static void let_go(void) { pthread_mutex_unlock(&mutex); }

/* When the library is loaded, so that no thread can be at it yet. */
__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(hold, let_go, forget);
}

static void wait_until_left(void)
{
    for (int i = 0; atomic_load(&inside); i++) {
        rest();
        if (i > 200) sched_yield(); /* a helper may be waiting for this very core */
    }
}

void share(void (*work)(void *, int64_t, int64_t), void *context, int64_t total, int64_t part,
           int threads)
{
    if (threads < 2 || total <= part || atomic_flag_test_and_set(&taken)) {
        work(context, 0, total);
        return;
    }
    start(threads - 1);
    wait_until_left(); /* a late helper of the last job may still look at it */
    int64_t parts = (total + part - 1) / part;
    job.work = work, job.context = context, job.total = total, job.part = part;
    job.threads = threads < started + 1 ? threads : started + 1;
    for (int k = 0; k < job.threads; k++) {
        stretches[k].end = parts * (k + 1) / job.threads;
        atomic_store(&stretches[k].next, parts * k / job.threads);
    }
    atomic_store(&open, 1);
    atomic_fetch_add(&jobs, 1);
    if (atomic_load(&asleep)) {
        pthread_mutex_lock(&mutex);
        pthread_cond_broadcast(&bell);
        pthread_mutex_unlock(&mutex);
    }
    take_parts(0);
    atomic_store(&open, 0);
    wait_until_left();
    atomic_flag_clear(&taken);
}
