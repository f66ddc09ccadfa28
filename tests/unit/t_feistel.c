/* The bijection of an epoch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "core/arena.h"
#include "io/feistel.h"

static void is_bijection(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1,    2,    3,    4,     5,     7,
                                    8,    16,   17,   63,    255,   256,
                                    1000, 4096, 4097, 65536, 65537, 300007};
    for (size_t s = 0; s < ARRAY_LEN(sizes); s++) {
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            int64_t n = sizes[s];
            struct feistel f = feistel_make(n, 42, 5, epoch);
            unsigned char *seen = mem_alloc((size_t)n);
            for (int64_t i = 0; i < n; i++) {
                int64_t x = feistel_map(&f, i);
                assert_true(x >= 0 && x < n);
                assert_int_equal(seen[x], 0);
                seen[x] = 1;
            }
            mem_free(seen);
        }
    }
}

static int64_t n_equal(const struct feistel *a, const struct feistel *b)
{
    int64_t same = 0;
    for (int64_t i = 0; i < a->n; i++)
        same += feistel_map(a, i) == feistel_map(b, i);
    return same;
}

/* Two random permutations agree in about one place, whatever n is. */
static void differs_by_key(void **state)
{
    (void)state;
    struct feistel base = feistel_make(10000, 1, 2, 3);
    struct feistel seed = feistel_make(10000, 2, 2, 3);
    struct feistel stream = feistel_make(10000, 1, 3, 3);
    struct feistel epoch = feistel_make(10000, 1, 2, 4);
    struct feistel again = feistel_make(10000, 1, 2, 3);
    assert_int_equal(n_equal(&base, &again), 10000);
    assert_true(n_equal(&base, &seed) < 10);
    assert_true(n_equal(&base, &stream) < 10);
    assert_true(n_equal(&base, &epoch) < 10);
}

/* Positions are spread evenly: chi-square of (bin of i, bin of image) over 16 x 16 bins
 * has 225 degrees of freedom, so a mean of 225 and a deviation of 21. */
static void spreads(void **state)
{
    (void)state;
    enum {
        BINS = 16
    };
    int64_t n = 160000, count[BINS][BINS] = {{0}};
    struct feistel f = feistel_make(n, 9, 9, 0);
    int64_t neighbours = 0, before = -2;
    for (int64_t i = 0; i < n; i++) {
        int64_t x = feistel_map(&f, i);
        count[i * BINS / n][x * BINS / n]++;
        neighbours += x == before + 1;
        before = x;
    }
    double want = (double)n / (BINS * BINS), chi2 = 0;
    for (int i = 0; i < BINS; i++) {
        for (int j = 0; j < BINS; j++) {
            double d = (double)count[i][j] - want;
            chi2 += d * d / want;
        }
    }
    print_message("chi-square %.1f of 225 degrees, %lld neighbours kept\n", chi2,
                  (long long)neighbours);
    assert_true(chi2 > 120 && chi2 < 330);
    assert_true(neighbours < 12);
}

static void huge(void **state)
{
    (void)state;
    static const int64_t sizes[] = {INT64_MAX, ((int64_t)1 << 62) + 1, (int64_t)1 << 62,
                                    ((int64_t)1 << 40) + 12345};
    for (size_t s = 0; s < ARRAY_LEN(sizes); s++) {
        struct feistel f = feistel_make(sizes[s], 3, 1, 0);
        for (int64_t i = 0; i < 100; i++) {
            int64_t x = feistel_map(&f, sizes[s] - 1 - i);
            assert_true(x >= 0 && x < sizes[s]);
        }
    }
}

/* The order is part of what a checkpoint relies on: it must never change. */
static void known_values(void **state)
{
    (void)state;
    struct feistel f = feistel_make(1000, 1234, 1, 0);
    int64_t got[8];
    for (int64_t i = 0; i < 8; i++)
        got[i] = feistel_map(&f, i);
    static const int64_t want[8] = {11, 768, 464, 551, 560, 843, 177, 592};
    print_message("%lld %lld %lld %lld %lld %lld %lld %lld\n", (long long)got[0],
                  (long long)got[1], (long long)got[2], (long long)got[3],
                  (long long)got[4], (long long)got[5], (long long)got[6],
                  (long long)got[7]);
    assert_memory_equal(got, want, sizeof(want));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(is_bijection), cmocka_unit_test(differs_by_key),
            cmocka_unit_test(spreads),      cmocka_unit_test(huge),
            cmocka_unit_test(known_values),
    };
    return cmocka_run_group_tests_name("feistel", tests, NULL, NULL);
}
