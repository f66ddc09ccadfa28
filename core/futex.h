/* Waiting for a word that another thread of this process changes. */
#ifndef CORE_FUTEX_H
#define CORE_FUTEX_H

#include <stdatomic.h>

/* Returns *word as soon as it differs from `seen`: spins for at most 20 us, then sleeps
 * until futex_wake. Loads with acquire order. */
unsigned futex_wait_change(atomic_uint *word, unsigned seen);

/* Wakes all that sleep on the word; call after changing it. */
void futex_wake(atomic_uint *word);

#endif
