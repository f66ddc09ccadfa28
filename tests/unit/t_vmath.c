/* Vector exp, tanh, sigmoid and normal distribution against the C library in double, over
 * every range of floats. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "core/base.h"
#include "kernels/cpu/cpu_table.h"
#include "tests/lib/vmath_probe.h"

#define LANES      16
#define STRIDE     1021 /* of bit patterns: about four million floats each */
#define SQRT_2PI   2.50662827463100050242
#define MIN_NORMAL 0x1p-126

static const struct vmath_probe *const probes[] = {&vmath_probe_avx512,
                                                   &vmath_probe_avx2};

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double normal(double x)
{
    return 0.5 * erfc(-x / sqrt(2));
}

static double density(double x)
{
    return exp(-0.5 * x * x);
}

static float from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

/* Error in units of the last place of the true result; below the normal range, in units
 * of the smallest normal number's last place. */
static double error_ulp(float got, double want)
{
    double size = fmax(fabs(want), MIN_NORMAL);
    int e;
    frexp(size, &e);
    return fabs((double)got - want) / ldexp(1, e - 24);
}

struct range {
    const char *name;
    size_t fn; /* offset in struct vmath_probe */
    double (*want)(double x);
    float low, high;
    double limit_ulp;
};

static const struct range ranges[] = {
        {"exp", offsetof(struct vmath_probe, exp), exp, -104, 88.72f, 1.5},
        {"tanh", offsetof(struct vmath_probe, tanh), tanh, -30, 30, 2},
        {"sigmoid", offsetof(struct vmath_probe, sigmoid), sigmoid, -87, 88, 2.5},
        {"normal", offsetof(struct vmath_probe, normal), normal, -13, 13, 4.5},
        {"density", offsetof(struct vmath_probe, density), density, -13, 13, 2.5},
};

static vmath_fn function_of(const struct vmath_probe *p, const struct range *r)
{
    vmath_fn fn;
    memcpy(&fn, (const char *)p + r->fn, sizeof(fn));
    return fn;
}

static double worst_of(vmath_fn fn, const struct range *r, float *where)
{
    double worst = 0;
    for (uint64_t u = 0; u < UINT32_MAX; u += STRIDE * LANES) {
        float x[LANES], y[LANES];
        for (int j = 0; j < LANES; j++) {
            x[j] = from_bits((uint32_t)(u + (uint64_t)j * STRIDE));
            if (!(x[j] >= r->low && x[j] <= r->high))
                x[j] = 0;
        }
        fn(x, y);
        for (int j = 0; j < LANES; j++) {
            double e = error_ulp(y[j], r->want((double)x[j]));
            if (!(e <= worst)) {
                worst = e;
                *where = x[j];
            }
        }
    }
    return worst;
}

static void errors_are_within_limits(void **state)
{
    (void)state;
    uint32_t isa = cpu_isa_detect();
    for (size_t p = 0; p < ARRAY_LEN(probes); p++) {
        if (probes[p]->isa & ~isa)
            continue;
        for (size_t i = 0; i < ARRAY_LEN(ranges); i++) {
            const struct range *r = &ranges[i];
            float where = 0;
            double worst = worst_of(function_of(probes[p], r), r, &where);
            print_message("%-8s %-8s %.2f units in the last place, at %.9g\n",
                          probes[p]->isa_name, r->name, worst, (double)where);
            if (!(worst <= r->limit_ulp))
                fail_msg("over the limit of %.2f", r->limit_ulp);
        }
    }
}

static float first_of(vmath_fn fn, float x)
{
    float in[LANES], out[LANES];
    for (int j = 0; j < LANES; j++)
        in[j] = x;
    fn(in, out);
    return out[0];
}

static void ends_of_the_range(void **state)
{
    (void)state;
    uint32_t isa = cpu_isa_detect();
    for (size_t i = 0; i < ARRAY_LEN(probes); i++) {
        const struct vmath_probe *p = probes[i];
        if (p->isa & ~isa)
            continue;
        assert_true(first_of(p->exp, INFINITY) == INFINITY);
        assert_true(first_of(p->exp, 89) == INFINITY);
        assert_true(first_of(p->exp, -INFINITY) == 0);
        assert_true(first_of(p->exp, -1000) == 0);
        assert_true(first_of(p->exp, 0) == 1);
        assert_true(isnan(first_of(p->exp, NAN)));
        assert_true(first_of(p->tanh, INFINITY) == 1);
        assert_true(first_of(p->tanh, -INFINITY) == -1);
        assert_true(first_of(p->tanh, 1e-30f) == 1e-30f);
        assert_true(isnan(first_of(p->tanh, NAN)));
        assert_true(first_of(p->sigmoid, -INFINITY) == 0);
        assert_true(first_of(p->sigmoid, INFINITY) == 1);
        assert_true(isnan(first_of(p->sigmoid, NAN)));
        assert_true(first_of(p->normal, INFINITY) == 1);
        assert_true(first_of(p->normal, -INFINITY) == 0);
        assert_true(isnan(first_of(p->normal, NAN)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(errors_are_within_limits),
            cmocka_unit_test(ends_of_the_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
