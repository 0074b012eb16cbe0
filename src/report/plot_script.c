/* The script for gnuplot. Numbers go into data blocks; names into single quotes, in which
 * gnuplot replaces nothing, and without the characters that could end them or a line. */
#include <math.h>
#include <string.h>

#include "report/plot.h"

static void add_name(struct text *out, const char *name)
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

static void add_setting(struct text *out, const char *setting, const char *name)
{
    text_add(out, "set %s ", setting);
    add_name(out, name);
    text_add(out, "\n");
}

static void add_number(struct text *out, double value)
{
    if (isnan(value))
        text_add(out, " NaN");
    else
        text_add(out, " %.9g", value);
}

static void add_axis(struct text *out, char name, const struct plot_axis *axis)
{
    double room = axis->base == 2 ? 1.15 : 1; /* for whiskers at the ends */
    struct plot_ticks ticks;

    if (axis->base != 0)
        text_add(out, "set logscale %c %u\n", name, axis->base);
    text_add(out, "set %crange [%.9g:%.9g]\n", name, axis->low / room, axis->high * room);
    plot_ticks(axis, 12, &ticks);
    text_add(out, "set %ctics (", name);
    for (uint32_t i = 0; i < ticks.n; i++) {
        char number[PLOT_NUMBER];

        text_add(out, "%s'%s' %.9g", i == 0 ? "" : ", ",
                 plot_number(number, sizeof(number), ticks.at[i]), ticks.at[i]);
    }
    text_add(out, ")\n");
}

static void add_head(struct text *out, const struct plot *plot, enum plot_form form)
{
    int high = plot->n_rows > 12 ? 300 + 24 * (int)plot->n_rows : 600;

    if (form == PLOT_SVG)
        text_add(out,
                 "set terminal svg noenhanced size 960,%d font 'sans,13' "
                 "background rgb 'white'\n",
                 high);
    else
        text_add(out, "set terminal pngcairo noenhanced size 1280,%d font 'sans,13'\n",
                 high * 4 / 3);
    text_add(out, "set encoding utf8\nset bmargin 7\nset grid\n");
    add_setting(out, "title", plot->title);
    add_setting(out, "label 1 at screen 0.02, screen 0.06 font ',10' ", plot->note);
    add_setting(out, "label 2 at screen 0.02, screen 0.025 font ',10' ", plot->caption);
}

/* ---- lines and bars ---- */

static void add_points(struct text *out, const struct plot_series *s, uint32_t i)
{
    text_add(out, "$s%u << EOD\n", i);
    for (uint32_t k = 0; k < s->n; k++) {
        const struct plot_point *at = &s->point[k];

        add_number(out, at->x);
        add_number(out, at->y);
        add_number(out, at->low);
        add_number(out, at->high);
        text_add(out, "\n");
    }
    text_add(out, "EOD\n");
}

static void add_lines(struct text *out, const struct plot *plot)
{
    add_axis(out, 'x', &plot->x);
    add_axis(out, 'y', &plot->y);
    add_setting(out, "xlabel", plot->x.label);
    add_setting(out, "ylabel", plot->y.label);
    text_add(out, plot->kind == PLOT_TOKENS ? "set key left top\n" : "set key right bottom\n");
    for (uint32_t i = 0; i < plot->n_series; i++)
        add_points(out, &plot->series[i], i);
    text_add(out, "plot ");
    for (uint32_t i = 0; i < plot->n_series; i++) {
        const struct plot_series *s = &plot->series[i];
        bool tokens = plot->kind == PLOT_TOKENS;

        if (tokens)
            text_add(out, "%s$s%u using 1:2:3:4 with yerrorbars linetype %u pointtype 0 notitle",
                     i == 0 ? "" : ", \\\n     ", i, i + 1);
        text_add(out, "%s$s%u using 1:2 with %s linetype %u linewidth 2 title ",
                 i == 0 && !tokens ? "" : ", \\\n     ", i,
                 tokens ? "linespoints pointtype 7" : "steps", i + 1);
        add_name(out, s->name);
    }
    text_add(out, "\n");
}

static void add_bars(struct text *out, const struct plot *plot)
{
    double most = 1;
    struct plot_axis y = plot->y;

    for (uint32_t i = 0; i < plot->series[0].n; i++)
        most = fmax(most, plot->series[0].point[i].y);
    plot_axis_fit(&y, 0, most);
    add_axis(out, 'x', &plot->x);
    add_axis(out, 'y', &y);
    add_setting(out, "xlabel", plot->x.label);
    add_setting(out, "ylabel", plot->y.label);
    add_points(out, &plot->series[0], 0);
    text_add(out, "set style fill solid 0.6\n"
                  "plot $s0 using 1:2:($4-$3) with boxes linetype 1 notitle\n");
}

/* ---- rows: the first one is on top ---- */

static void add_row_names(struct text *out, const struct plot *plot)
{
    text_add(out, "set ytics (");
    for (uint32_t i = 0; i < plot->n_rows; i++) {
        text_add(out, i == 0 ? "" : ", ");
        add_name(out, plot->row[i].name);
        text_add(out, " %u", plot->n_rows - 1 - i);
    }
    text_add(out, ")\nset yrange [-0.6:%u.6]\n", plot->n_rows - 1);
}

static void add_stages(struct text *out, const struct plot *plot)
{
    add_axis(out, 'x', &plot->x);
    add_row_names(out, plot);
    add_setting(out, "xlabel", plot->x.label);
    text_add(out, "set key outside right top\nset style fill solid 0.7\n");
    for (uint32_t c = 0; c < plot->n_columns; c++) {
        text_add(out, "$s%u << EOD\n", c);
        for (uint32_t i = 0; i < plot->n_rows; i++) {
            const struct plot_row *row = &plot->row[i];
            double before = 0;

            for (uint32_t k = 0; k < c; k++)
                before += isnan(row->value[k]) ? 0 : row->value[k];
            text_add(out, "%u", plot->n_rows - 1 - i);
            add_number(out, before);
            add_number(out, before + (isnan(row->value[c]) ? 0 : row->value[c]));
            add_number(out, row->mark);
            text_add(out, "\n");
        }
        text_add(out, "EOD\n");
    }
    text_add(out, "plot ");
    for (uint32_t c = 0; c < plot->n_columns; c++) {
        text_add(out, "%s$s%u using 2:1:2:3:($1-0.35):($1+0.35) with boxxyerror linetype %u title ",
                 c == 0 ? "" : ", \\\n     ", c, c + 1);
        add_name(out, plot->column[c]);
    }
    text_add(out, ", \\\n     $s0 using 4:1:(0):(0.42) with vectors nohead linewidth 3 "
                  "linecolor 'black' title 'limit', \\\n"
                  "     $s0 using 4:1:(0):(-0.42) with vectors nohead linewidth 3 linecolor "
                  "'black' notitle\n");
}

static void add_skew(struct text *out, const struct plot *plot)
{
    double most = 5; /* noise is not to look like a finding */

    add_row_names(out, plot);
    add_setting(out, "xlabel", plot->x.label);
    add_setting(out, "cblabel", plot->y.label);
    text_add(out, "unset grid\nset xrange [-0.5:%u.5]\nset xtics 0,%u\n", plot->n_columns - 1,
             plot->n_columns / 16 + 1);
    text_add(out, "$s0 << EOD\n");
    for (uint32_t i = 0; i < plot->n_rows; i++) {
        for (uint32_t c = 0; c < plot->n_columns; c++) {
            double off = 100 * (plot->row[i].value[c] / plot->row[i].mark - 1);

            if (isnan(off))
                continue;
            most = fmax(most, fabs(off));
            text_add(out, "%u %u", c, plot->n_rows - 1 - i);
            add_number(out, off);
            text_add(out, "\n");
        }
    }
    text_add(out, "EOD\nset cbrange [%.9g:%.9g]\n", -most, most);
    text_add(out, "set palette defined (-1 '#2166ac', 0 '#f7f7f7', 1 '#b2182b')\n"
                  "set style fill solid 1 noborder\n"
                  "plot $s0 using 1:2:($1-0.5):($1+0.5):($2-0.45):($2+0.45):3 with boxxyerror "
                  "linecolor palette notitle\n");
}

void plot_script(const struct plot *plot, enum plot_form form, struct text *out)
{
    add_head(out, plot, form);
    if (plot->kind == PLOT_STAGES)
        add_stages(out, plot);
    else if (plot->kind == PLOT_SKEW)
        add_skew(out, plot);
    else if (plot->bars)
        add_bars(out, plot);
    else
        add_lines(out, plot);
}
