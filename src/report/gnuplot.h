#ifndef GNUPLOT_H
#define GNUPLOT_H

#include <stdint.h>

#include "base/text.h"
#include "report/plot.h"

/* A string, without the characters that could end it or the line. */
void gnuplot_name(struct text *, const char *name);
/* "set title 'NAME'" and its like. */
void gnuplot_setting(struct text *, const char *setting, const char *name);
/* A line of a data block. */
void gnuplot_numbers(struct text *, uint32_t n, const double *value);
/* Microseconds that can be drawn, whatever a file holds. */
double gnuplot_us(double ns);
/* What it draws on, as high as so many rows need. */
void gnuplot_terminal(struct text *, enum plot_form, uint32_t rows);
/* A logarithmic axis that holds both, with ticks at 1, 2 and 5 times powers of ten, or at some powers
 * alone where there are many. */
void gnuplot_log_axis(struct text *, double low, double high);

#endif
