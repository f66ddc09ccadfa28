#include "core/futex.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NS    20000
#define SPIN_LOADS 64 /* between looks at the clock */

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

void futex_wake(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

unsigned futex_wait_change(atomic_uint *word, unsigned seen)
{
    int64_t deadline = now_ns() + SPIN_NS;
    unsigned v;
    do {
        for (int i = 0; i < SPIN_LOADS; i++) {
            v = atomic_load_explicit(word, memory_order_acquire);
            if (v != seen)
                return v;
            cpu_relax();
        }
    } while (now_ns() < deadline);
    while ((v = atomic_load_explicit(word, memory_order_acquire)) == seen)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    return v;
}
