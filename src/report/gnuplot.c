/* Parts of a script for gnuplot. */
#include "report/gnuplot.h"

#include <math.h>

void gnuplot_name(struct text *out, const char *name)
{
    text_add(out, "'");
    for (; *name != '\0'; name++) {
        if (*name == '\'')
            text_add(out, "''");
        else if ((unsigned char)*name < ' ' || *name == 0x7f || *name == '`')
            text_add(out, "?");
        else
            text_add_bytes(out, name, 1);
    }
    text_add(out, "'");
}

void gnuplot_setting(struct text *out, const char *setting, const char *name)
{
    text_add(out, "%s ", setting);
    gnuplot_name(out, name);
    text_add(out, "\n");
}

void gnuplot_numbers(struct text *out, uint32_t n, const double *value)
{
    for (uint32_t i = 0; i < n; i++) {
        if (isnan(value[i]))
            text_add(out, " %10s", "NaN");
        else
            text_add(out, " %10.6g", value[i]);
    }
    text_add(out, "\n");
}

double gnuplot_us(double ns)
{
    return fmin(fmax(ns / 1e3, 1e-9), 1e15);
}

void gnuplot_log_axis(struct text *out, double low, double high)
{
    int first = (int)floor(log10(low)) - 1, last = (int)ceil(log10(high)) + 1;
    int every = (last - first) / 10 + 1;

    text_add(out, "set logscale y 10\nset yrange [%.9g:%.9g]\nset ytics (", low / 2, high * 2);
    for (int e = first; e <= last; e += every)
        for (int times = 1; times <= (last - first > 6 ? 1 : 5); times += times == 1 ? 1 : 3)
            text_add(out, "%s%de%d", e == first && times == 1 ? "" : ", ", times, e);
    text_add(out, ")\n");
}

void gnuplot_terminal(struct text *out, enum plot_form form, uint32_t rows)
{
    int high = rows > 12 ? 300 + 24 * (int)rows : 600;

    if (form == PLOT_TEXT)
        text_add(out, "set terminal dumb nofeed noenhanced size 100,%u\n", 30 + rows);
    else if (form == PLOT_SVG)
        text_add(out,
                 "set terminal svg noenhanced size 960,%d font 'sans,13' background rgb 'white'\n"
                 "set grid\n",
                 high);
    else
        text_add(out, "set terminal pngcairo noenhanced size 1280,%d font 'sans,13'\nset grid\n",
                 high * 4 / 3);
    text_add(out, "set encoding utf8\n");
}
