/* The world of one rank: calls copy or do nothing, and never wait. */
#ifndef PARALLEL_COMM_SELF_H
#define PARALLEL_COMM_SELF_H

#include "core/comm.h"

struct comm_world *comm_self_create(void);

#endif
