#include "cmd/svg_chart.h"

#include <math.h>
#include <stdio.h>

#define WIDTH  560.0
#define HEIGHT 230.0
#define LEFT   64.0
#define RIGHT  12.0
#define TOP    12.0
#define BOTTOM 28.0
#define TICKS  5
#define Y_MAX  1e300

/* Values to places: y0 is the lower end. */
struct axes {
    const struct svg_chart *c;
    double x1;
    double y0, y1; /* of log10 y where log */
    bool log;
};

void svg_text(struct str *out, const char *text)
{
    static const char special[] = "<>&\"'";
    static const char *const names[] = {"&lt;", "&gt;", "&amp;", "&quot;", "&#39;"};
    for (; *text; text++) {
        int i = 0;
        while (special[i] && special[i] != *text)
            i++;
        if (special[i])
            str_add(out, names[i]);
        else
            str_addc(out, *text);
    }
}

/* ----------------------------------------------------------------------------- scales */

/* Numbers that the axes can span without leaving the range of a double. */
static bool is_drawn(double y)
{
    return fabs(y) < Y_MAX;
}

static bool range_of(const struct svg_chart *c, double *low, double *high)
{
    *low = INFINITY;
    *high = -INFINITY;
    for (size_t s = 0; s < c->n_series; s++)
        for (size_t i = 0; i < c->series[s].n; i++) {
            double y = c->series[s].points[i].y;
            if (!is_drawn(y))
                continue;
            *low = fmin(*low, y);
            *high = fmax(*high, y);
        }
    return *low <= *high;
}

/* 1, 2 or 5 times a power of ten, at least x. */
static double round_step(double x)
{
    double power = pow(10, floor(log10(x)));
    for (double k = 1; k < 10; k = k == 1 ? 2 : k == 2 ? 5 : 10)
        if (k * power >= x * 0.999)
            return k * power;
    return 10 * power;
}

static bool axes_of(const struct svg_chart *c, struct axes *a)
{
    double low, high;
    if (!range_of(c, &low, &high))
        return false;
    *a = (struct axes){.c = c, .x1 = fmax(c->x_max, 1)};
    a->log = c->may_log && low > 0 && high > 50 * low;
    if (a->log) {
        a->y0 = log10(low) - 0.05;
        a->y1 = log10(high) + 0.05;
        return true;
    }
    /* Values that differ in their last digits only are as good as equal: a tick must not
     * drown in the rounding of its place. */
    double size = fmax(fmax(fabs(low), fabs(high)), 1e-12);
    double pad = high - low > 1e-9 * size ? 0.05 * (high - low) : size * 0.1;
    a->y0 = low >= 0 ? fmax(low - pad, 0) : low - pad;
    a->y1 = high + pad;
    return true;
}

static double place_x(const struct axes *a, double x)
{
    return LEFT + x / a->x1 * (WIDTH - LEFT - RIGHT);
}

static double place_y(const struct axes *a, double y)
{
    double at = a->log ? log10(fmax(y, 1e-300)) : y;
    return TOP + (a->y1 - at) / (a->y1 - a->y0) * (HEIGHT - TOP - BOTTOM);
}

static const char *number_text(double v, bool percent, char *buf, size_t n)
{
    double size = fabs(v);
    if (percent)
        snprintf(buf, n, "%.3g %%", 100 * v);
    else if (size >= 1e4)
        text_count(v, buf, n);
    else if (size > 0 && size < 5e-3)
        snprintf(buf, n, "%.1e", v);
    else
        snprintf(buf, n, "%.4g", v);
    return buf;
}

/* ------------------------------------------------------------------------------- axes */

static void add_y_tick(struct str *out, const struct axes *a, double y)
{
    char text[32];
    double at = place_y(a, y);
    str_printf(out,
               "<line class=\"grid\" x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\"/>"
               "<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">",
               LEFT, WIDTH - RIGHT, at, at, LEFT - 6, at + 4);
    svg_text(out, number_text(y, a->c->percent, text, sizeof(text)));
    str_add(out, "</text>\n");
}

static void add_y_ticks(struct str *out, const struct axes *a)
{
    if (!a->log) {
        double step = round_step((a->y1 - a->y0) / TICKS);
        for (double k = ceil(a->y0 / step); k * step <= a->y1; k++)
            add_y_tick(out, a, k * step);
        return;
    }
    /* Decades; with few of them, also twice and five times. */
    bool fine = a->y1 - a->y0 < 2.5;
    double every = ceil((a->y1 - a->y0) / 6);
    for (double k = floor(a->y0); k <= a->y1; k += fine ? 1 : every)
        for (int m = 1; m <= (fine ? 5 : 1); m += m == 1 ? 1 : 3) {
            double y = m * pow(10, k);
            if (log10(y) >= a->y0 && log10(y) <= a->y1)
                add_y_tick(out, a, y);
        }
}

static void add_x_ticks(struct str *out, const struct axes *a)
{
    char text[32];
    double step = fmax(round_step(a->x1 / TICKS), 1);
    for (double x = 0; x <= a->x1; x += step) {
        str_printf(out, "<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">",
                   place_x(a, x), HEIGHT - 10);
        svg_text(out, x >= 1e5 ? text_count(x, text, sizeof(text))
                               : number_text(x, false, text, sizeof(text)));
        str_add(out, "</text>\n");
    }
    str_printf(out, "<line class=\"axis\" x1=\"%g\" x2=\"%g\" y1=\"%g\" y2=\"%g\"/>\n",
               LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM, HEIGHT - BOTTOM);
}

static void add_marks(struct str *out, const struct axes *a)
{
    for (size_t i = 0; i < a->c->n_marks; i++) {
        double x = place_x(a, a->c->marks[i]);
        str_printf(out,
                   "<line class=\"mark\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%g\" "
                   "y2=\"%g\"><title>attempt %zu begins at step %.0f</title></line>\n",
                   x, x, TOP, HEIGHT - BOTTOM, i + 2, a->c->marks[i]);
    }
}

/* ----------------------------------------------------------------------------- series */

/* Picks what is drawn of the points of one pixel column, [begin, end): the first, the
 * lowest, the highest and the last, in order. out: keep[4]; returns how many. */
static int pick(const struct svg_point *p, size_t begin, size_t end, size_t keep[4])
{
    size_t low = begin, high = begin;
    for (size_t i = begin; i < end; i++) {
        if (p[i].y < p[low].y || isnan(p[low].y))
            low = i;
        if (p[i].y > p[high].y || isnan(p[high].y))
            high = i;
    }
    const size_t order[4] = {begin, MIN(low, high), MAX(low, high), end - 1};
    int n = 0;
    for (int i = 0; i < 4; i++)
        if (n == 0 || order[i] != keep[n - 1])
            keep[n++] = order[i];
    return n;
}

/* What is written of a series. */
struct trace {
    struct str path, values, dots;
    bool pen_down;
};

static void add_point(struct trace *t, const struct axes *a, const struct svg_point *p,
                      size_t series)
{
    if (!is_drawn(p->y)) {
        t->pen_down = false;
        return;
    }
    double x = place_x(a, p->x), y = place_y(a, p->y);
    str_printf(&t->path, "%c%.1f %.1f", t->pen_down ? 'L' : 'M', x, y);
    str_printf(&t->values, "%s%.10g:%.5g", t->values.n ? "," : "", p->x, p->y);
    if (a->c->series[series].dots)
        str_printf(&t->dots, "<circle class=\"s%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>",
                   series, x, y);
    t->pen_down = true;
}

static void add_series(struct str *out, const struct axes *a, size_t series)
{
    const struct svg_series *s = &a->c->series[series];
    struct trace t = {0};
    for (size_t i = 0; i < s->n;) {
        size_t end = i + 1, keep[4];
        double column = floor(place_x(a, s->points[i].x));
        while (end < s->n && floor(place_x(a, s->points[end].x)) == column)
            end++;
        int n = pick(s->points, i, end, keep);
        for (int k = 0; k < n; k++)
            add_point(&t, a, &s->points[keep[k]], series);
        i = end;
    }
    str_printf(out, "<path class=\"s%zu\" d=\"%s\" data-name=\"", series,
               str_get(&t.path));
    svg_text(out, s->name);
    str_printf(out, "\" data-v=\"%s\"/>%s\n", str_get(&t.values), str_get(&t.dots));
    str_free(&t.path);
    str_free(&t.values);
    str_free(&t.dots);
}

static void add_caption(struct str *out, const struct svg_chart *c, bool log)
{
    str_add(out, "<figcaption><b>");
    svg_text(out, c->title);
    str_add(out, "</b>");
    if (c->unit[0]) {
        str_add(out, ", ");
        svg_text(out, c->unit);
    }
    if (log)
        str_add(out, " (log scale)");
    for (size_t i = 0; c->n_series > 1 && i < c->n_series; i++) {
        str_printf(out, " <span class=\"key k%zu\">", i);
        svg_text(out, c->series[i].name);
        str_add(out, "</span>");
    }
    str_add(out, "<span class=\"at\"></span></figcaption>\n");
}

bool svg_chart_add(struct str *out, const struct svg_chart *c)
{
    struct axes a;
    if (!axes_of(c, &a))
        return false;
    str_add(out, "<figure>\n");
    add_caption(out, c, a.log);
    str_printf(out,
               "<svg viewBox=\"0 0 %g %g\" role=\"img\" data-x=\"%g %g %.10g\" "
               "aria-label=\"",
               WIDTH, HEIGHT, LEFT, WIDTH - RIGHT, a.x1);
    svg_text(out, c->title);
    str_add(out, " by step\">\n");
    add_y_ticks(out, &a);
    add_x_ticks(out, &a);
    add_marks(out, &a);
    for (size_t i = 0; i < c->n_series; i++)
        add_series(out, &a, i);
    str_add(out, "<line class=\"cursor\" y1=\"12\" y2=\"202\"/></svg>\n</figure>\n");
    return true;
}
