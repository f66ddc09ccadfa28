#include "parallel/comm_sum.h"

#define SUM_LOOPS sum_loops_avx2
#include "parallel/comm_sum_body.inc"
