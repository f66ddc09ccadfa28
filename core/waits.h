/* Waits between streams, derived from what ops read and write. */
#ifndef CORE_WAITS_H
#define CORE_WAITS_H

#include "core/program.h"

/* Adds to a sealed program of several streams the events that its data needs: an op that
 * reads bytes waits for the op that wrote them, one that writes bytes waits for those
 * that wrote or read them before, wherever they ran on another stream and are not done
 * already by the waits before. Ops keep their order, so a rank alone never waits for
 * itself. Comes after everything that changes ops, before packing. */
void program_add_waits(struct program *p);

#endif
