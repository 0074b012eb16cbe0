/* Round numbers for axes. On linear ones a step is 1, 2 or 5 times a power of ten. */
#include "report/plot_axis.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 10 }; /* a range is some 5 to 10 of them */

/* The smallest of 1, 2, 5 times a power of ten that is no less than x > 0. */
static double round_up(double x)
{
    double unit = pow(10, floor(log10(x)));
    static const double times[] = {1, 2, 5, 10};

    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        if (x <= times[i] * unit * (1 + 1e-9))
            return times[i] * unit;
    }
    return 10 * unit;
}

static double round_down(double x)
{
    double up = round_up(x), unit = pow(10, floor(log10(x)));

    if (up <= x * (1 + 1e-9))
        return up;
    return x >= 5 * unit ? 5 * unit : x >= 2 * unit ? 2 * unit : unit;
}

static double to_power(double x, double base, double (*to)(double))
{
    double e = log(x) / log(base), near = round(e);

    return pow(base, fabs(e - near) < 1e-9 ? near : to(e));
}

void plot_axis_fit(struct plot_axis *axis, double low, double high)
{
    double step;

    if (axis->base != 0) {
        bool two = axis->base == 2;

        axis->low = two ? to_power(low, 2, floor) : round_down(low);
        axis->high = two ? to_power(high, 2, ceil) : round_up(high);
        if (axis->high <= axis->low * (1 + 1e-9)) {
            axis->low /= axis->base;
            axis->high *= axis->base;
        }
        return;
    }
    if (!(high > low)) {
        double room = low > 0 || low < 0 ? fabs(low) / 10 : 1;

        low -= room;
        high += room;
    }
    step = round_up((high - low) / STEPS);
    axis->low = floor(low / step + 1e-9) * step;
    axis->high = ceil(high / step - 1e-9) * step;
}

double plot_axis_place(const struct plot_axis *axis, double value)
{
    if (axis->base != 0)
        return log(value / axis->low) / log(axis->high / axis->low);
    return (value - axis->low) / (axis->high - axis->low);
}

static void linear_ticks(const struct plot_axis *axis, uint32_t most, struct plot_ticks *out)
{
    double step = round_up((axis->high - axis->low) / (most - 1));
    double first = ceil(axis->low / step - 1e-9);

    for (uint32_t i = 0; i < most && (first + i) * step <= axis->high + step * 1e-9; i++)
        out->at[out->n++] = (first + i) * step;
}

/* Powers of the base, every k-th of them. */
static void power_ticks(const struct plot_axis *axis, uint32_t most, struct plot_ticks *out)
{
    int first = (int)ceil(log(axis->low) / log(axis->base) - 1e-9);
    int last = (int)floor(log(axis->high) / log(axis->base) + 1e-9);
    int every = 1;

    while ((last - first) / every + 1 > (int)most)
        every++;
    for (int e = first; e <= last; e += every)
        out->at[out->n++] = pow(axis->base, e);
}

/* 1, 2 and 5 times powers of ten. */
static void fine_ticks(const struct plot_axis *axis, uint32_t most, struct plot_ticks *out)
{
    for (double at = round_up(axis->low); at <= axis->high * (1 + 1e-9) && out->n < most;
         at = round_up(at * 1.5))
        out->at[out->n++] = at;
}

void plot_ticks(const struct plot_axis *axis, uint32_t most, struct plot_ticks *out)
{
    *out = (struct plot_ticks){0};
    if (axis->base == 0) {
        linear_ticks(axis, most, out);
    } else if (axis->base == 10 && 3 * log10(axis->high / axis->low) + 1.5 < most) {
        fine_ticks(axis, most, out);
    } else {
        power_ticks(axis, most, out);
    }
}

char *plot_number(char *buf, size_t room, double value)
{
    double size = fabs(value);
    int digits = size >= 99.95 || size <= 0 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : 3;

    if (size >= 1e7 || (size > 0 && size < 0.001)) {
        snprintf(buf, room, "%.3g", value);
        return buf;
    }
    snprintf(buf, room, "%.*f", digits, value);
    if (strchr(buf, '.') != NULL) { /* 2.50 is 2.5, and 2.00 is 2 */
        size_t end = strlen(buf);

        while (buf[end - 1] == '0')
            end--;
        buf[buf[end - 1] == '.' ? end - 1 : end] = '\0';
    }
    return buf;
}

double plot_percentile(const double *sorted, uint64_t n, uint32_t percent)
{
    uint64_t rank = n / 100 * percent + (n % 100 * percent + 99) / 100;

    return sorted[rank > 0 ? rank - 1 : 0];
}

void plot_bins(const double *sorted, uint64_t n, struct plot_bins *out)
{
    double low = sorted[0], high = sorted[n - 1];
    double quarter = plot_percentile(sorted, n, 75) - plot_percentile(sorted, n, 25);
    double fence = plot_percentile(sorted, n, 75) + 4 * quarter;
    double width = 2 * quarter / cbrt((double)n);

    *out = (struct plot_bins){.open = quarter > 0 && high > fence};
    if (out->open)
        high = fence;
    if (!(width > 0))
        width = (high - low) / 10;
    if (!(width > 0)) /* all are one value */
        width = low > 0 ? low / 100 : 1;
    if (width < (high - low) / (PLOT_BINS - 4))
        width = (high - low) / (PLOT_BINS - 4);
    out->width = round_up(width);
    out->low = floor(low / out->width) * out->width;
    out->n = (uint32_t)floor((high - out->low) / out->width) + 1 + out->open;
    for (uint64_t i = 0; i < n; i++) {
        double at = floor((sorted[i] - out->low) / out->width);

        out->count[at < out->n ? at > 0 ? (uint32_t)at : 0 : out->n - 1]++;
    }
}
