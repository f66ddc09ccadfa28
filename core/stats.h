/* The numbers that the `stats` ops leave: f64[STATS_COUNT]. */
#ifndef CORE_STATS_H
#define CORE_STATS_H

enum stats {
    STATS_ABSMAX, /* largest magnitude; a NaN is passed over here and shows in the sums */
    STATS_SQUARES, /* sum of squares */
    STATS_SUM,
    STATS_ZEROS, /* elements equal to zero */
    STATS_COUNT
};

/* Elements of a block: its sums are made apart, and blocks are added in order. */
#define STATS_BLOCK_ELEMS 16384

/* Running sums of a block: element i goes to sum i % STATS_LANES, all added in order. */
#define STATS_LANES 16

#endif
