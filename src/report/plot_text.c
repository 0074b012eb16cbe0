/* Charts of characters. Lines are drawn into a grid of cells, each of which holds what is to be
 * printed there; bars and rows are printed as they come. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report/plot.h"

enum { WIDTH = 64, HEIGHT = 20, LEFT = 9, NAME = 34 };

/* What charts are drawn with. */
struct glyphs {
    const char *mark[8], *fill[8], *shade[5]; /* shade: from fast to slow */
    const char *line, *whisker, *up, *across, *corner, *bar, *peak;
};

static const struct glyphs plain = {{"*", "o", "x", "#", "@", "%", "&", "="},
                                    {"#", "=", "+", ":", "%", "o", "x", "-"},
                                    {".", "-", "=", "*", "#"},
                                    ".",
                                    "|",
                                    "|",
                                    "-",
                                    "+",
                                    "#",
                                    "|"};
static const struct glyphs fancy = {{"●", "○", "■", "□", "▲", "△", "◆", "◇"},
                                    {"█", "▒", "░", "▓", "▞", "▚", "▤", "▥"},
                                    {"·", "░", "▒", "▓", "█"},
                                    "·",
                                    "│",
                                    "│",
                                    "─",
                                    "└",
                                    "█",
                                    "┃"};

struct drawing {
    const struct plot *plot;
    const struct glyphs *glyphs;
    struct text *out;
    const char *cell[HEIGHT][WIDTH]; /* NULL: nothing */
};

/* Columns that a text takes: characters, not bytes. */
static int columns_of(const char *text)
{
    int n = 0;

    for (; *text != '\0'; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static void add_padded(struct text *out, const char *text, int columns)
{
    text_add(out, "%s%*s", text, columns > columns_of(text) ? columns - columns_of(text) : 0, "");
}

static void add_times(struct text *out, const char *glyph, int n)
{
    for (int i = 0; i < n; i++)
        text_add(out, "%s", glyph);
}

static int widest_name(const struct plot_row *row, uint32_t n)
{
    int most = 8;

    for (uint32_t i = 0; i < n; i++)
        most = columns_of(row[i].name) > most ? columns_of(row[i].name) : most;
    return most;
}

/* ---- lines ---- */

static int cell_of(const struct plot_axis *axis, double value, int cells)
{
    int at = (int)lround(plot_axis_place(axis, value) * (cells - 1));

    return at < 0 ? 0 : at >= cells ? cells - 1 : at;
}

static void put(struct drawing *d, int x, int y, const char *glyph, bool over)
{
    const char **cell = &d->cell[HEIGHT - 1 - y][x];

    if (over || *cell == NULL)
        *cell = glyph;
}

/* From point to point, in cells. */
static void draw_line(struct drawing *d, const struct plot_series *s)
{
    const struct plot *p = d->plot;

    for (uint32_t i = 0; i + 1 < s->n; i++) {
        int x0 = cell_of(&p->x, s->point[i].x, WIDTH);
        int y0 = cell_of(&p->y, s->point[i].y, HEIGHT);
        int x1 = cell_of(&p->x, s->point[i + 1].x, WIDTH);
        int y1 = cell_of(&p->y, s->point[i + 1].y, HEIGHT);
        int steps = abs(x1 - x0) > abs(y1 - y0) ? abs(x1 - x0) : abs(y1 - y0);

        for (int k = 1; k < steps; k++)
            put(d, x0 + (int)lround((double)(x1 - x0) * k / steps),
                y0 + (int)lround((double)(y1 - y0) * k / steps), d->glyphs->line, false);
    }
}

static void draw_points(struct drawing *d, uint32_t series, bool whiskers)
{
    const struct plot *p = d->plot;
    const struct plot_series *s = &p->series[series];

    for (uint32_t i = 0; i < s->n; i++) {
        const struct plot_point *at = &s->point[i];
        int x = cell_of(&p->x, at->x, WIDTH);

        if (!whiskers) {
            put(d, x, cell_of(&p->y, at->y, HEIGHT), d->glyphs->mark[series % 8], true);
            continue;
        }
        if (isnan(at->low))
            continue;
        for (int y = cell_of(&p->y, at->low, HEIGHT); y <= cell_of(&p->y, at->high, HEIGHT); y++)
            put(d, x, y, d->glyphs->whisker, true);
    }
}

static void add_x_axis(struct drawing *d)
{
    char line[LEFT + WIDTH + PLOT_NUMBER];
    struct plot_ticks ticks;
    int last = -1;

    text_add(d->out, "%*s %s", LEFT - 2, "", d->glyphs->corner);
    add_times(d->out, d->glyphs->across, WIDTH);
    memset(line, ' ', sizeof(line));
    plot_ticks(&d->plot->x, 9, &ticks);
    for (uint32_t i = 0; i < ticks.n; i++) {
        char number[PLOT_NUMBER];
        int bytes, from;

        plot_number(number, sizeof(number), ticks.at[i]);
        bytes = (int)strlen(number);
        from = LEFT + cell_of(&d->plot->x, ticks.at[i], WIDTH) - bytes / 2;
        if (from <= last)
            continue;
        memcpy(line + from, number, (size_t)bytes);
        last = from + bytes;
    }
    line[last > 0 ? last : 0] = '\0';
    text_add(d->out, "\n%s\n%*s%s\n", line, LEFT, "", d->plot->x.label);
}

static void add_grid(struct drawing *d)
{
    struct plot_ticks ticks;

    plot_ticks(&d->plot->y, 6, &ticks);
    text_add(d->out, "%s\n", d->plot->y.label);
    for (int y = HEIGHT - 1; y >= 0; y--) {
        char number[PLOT_NUMBER] = "";
        int end = WIDTH;

        for (uint32_t i = 0; i < ticks.n; i++) {
            if (cell_of(&d->plot->y, ticks.at[i], HEIGHT) == y)
                plot_number(number, sizeof(number), ticks.at[i]);
        }
        text_add(d->out, "%*s %s", LEFT - 2, number, d->glyphs->up);
        while (end > 0 && d->cell[HEIGHT - 1 - y][end - 1] == NULL)
            end--;
        for (int x = 0; x < end; x++)
            text_add(d->out, "%s",
                     d->cell[HEIGHT - 1 - y][x] == NULL ? " " : d->cell[HEIGHT - 1 - y][x]);
        text_add(d->out, "\n");
    }
    add_x_axis(d);
}

static void add_lines(struct drawing *d)
{
    const struct plot *p = d->plot;

    for (uint32_t s = 0; s < p->n_series; s++)
        draw_line(d, &p->series[s]);
    for (uint32_t s = 0; s < p->n_series; s++)
        draw_points(d, s, true);
    for (uint32_t s = 0; s < p->n_series; s++)
        draw_points(d, s, false);
    add_grid(d);
    text_add(d->out, "\n");
    for (uint32_t s = 0; s < p->n_series; s++)
        text_add(d->out, "  %s  %s\n", d->glyphs->mark[s % 8], p->series[s].name);
}

/* The numbers that lines stand for: what a chart of characters cannot show. */
static void add_numbers(struct drawing *d)
{
    const struct plot *p = d->plot;

    text_add(d->out, "\n  %10s %10s %10s %10s\n", p->unit, "median", "low", "high");
    for (uint32_t s = 0; s < p->n_series; s++) {
        text_add(d->out, "  %s\n", p->series[s].name);
        for (uint32_t i = 0; i < p->series[s].n; i++) {
            const struct plot_point *at = &p->series[s].point[i];

            text_add(d->out, "  %10.0f %10.1f %10.1f %10.1f\n", at->x, at->y, at->low, at->high);
        }
    }
}

/* ---- bars ---- */

static void add_bars(struct drawing *d)
{
    const struct plot_series *s = &d->plot->series[0];
    double most = 1;

    for (uint32_t i = 0; i < s->n; i++)
        most = fmax(most, s->point[i].y);
    text_add(d->out, "%21s  %s\n", d->plot->x.label, d->plot->y.label);
    for (uint32_t i = 0; i < s->n; i++) {
        const struct plot_point *at = &s->point[i];
        char low[PLOT_NUMBER], high[PLOT_NUMBER];
        bool open = d->plot->open && i + 1 == s->n;
        int cells = (int)lround(at->y / most * (WIDTH - 16));

        plot_number(low, sizeof(low), at->low);
        plot_number(high, sizeof(high), at->high);
        text_add(d->out, "%9s %s %9s %s", low, open ? "and" : " to", open ? "above" : high,
                 d->glyphs->up);
        add_times(d->out, d->glyphs->bar, at->y > 0 && cells == 0 ? 1 : cells);
        text_add(d->out, " %.0f\n", at->y);
    }
}

/* ---- rows ---- */

/* One bar: parts end where their sum does, so that none is lost by rounding. */
static void add_stack(struct drawing *d, const struct plot_row *row, int name)
{
    const char *cell[WIDTH] = {NULL};
    const struct plot *p = d->plot;
    double sum = 0;
    int from = 0;

    for (uint32_t c = 0; c < p->n_columns; c++) {
        int end;

        if (isnan(row->value[c]))
            continue;
        sum += row->value[c];
        end = (int)lround(plot_axis_place(&p->x, sum) * WIDTH);
        for (; from < end && from < WIDTH; from++)
            cell[from] = d->glyphs->fill[c % 8];
    }
    if (!isnan(row->mark))
        cell[cell_of(&p->x, row->mark, WIDTH)] = d->glyphs->peak;
    text_add(d->out, "  ");
    add_padded(d->out, row->name, name);
    text_add(d->out, " %s", d->glyphs->up);
    for (int x = 0; x < WIDTH; x++)
        text_add(d->out, "%s", cell[x] == NULL ? " " : cell[x]);
    text_add(d->out, " %10.1f us", sum);
    if (!isnan(row->mark) && sum > 0)
        text_add(d->out, ", limit %.0f %%", 100 * row->mark / sum);
    text_add(d->out, "\n");
}

static void add_stages(struct drawing *d)
{
    const struct plot *p = d->plot;
    int name = widest_name(p->row, p->n_rows);
    char end[PLOT_NUMBER];
    bool limits = false;

    for (uint32_t i = 0; i < p->n_rows; i++) {
        limits = limits || !isnan(p->row[i].mark);
        add_stack(d, &p->row[i], name);
    }
    text_add(d->out, "  %*s %s", name, "", d->glyphs->corner);
    add_times(d->out, d->glyphs->across, WIDTH);
    text_add(d->out, "\n  %*s  0%*s\n  %*s  %s\n\n", name, "", WIDTH - 1,
             plot_number(end, sizeof(end), p->x.high), name, "", p->x.label);
    for (uint32_t c = 0; c < p->n_columns; c++)
        text_add(d->out, "  %s  %s\n", d->glyphs->fill[c % 8], p->column[c]);
    if (limits)
        text_add(d->out, "  %s  limit\n", d->glyphs->peak);
}

/* How far a rank is off, in percent. */
static double off(const struct plot_row *row, uint32_t c)
{
    return 100 * (row->value[c] / row->mark - 1);
}

/* Up to these many ranks are told by numbers, more by shades. */
enum { NUMBERS = 12 };

static const char *shade(const struct drawing *d, double off)
{
    static const double edge[] = {-2, 2, 5, 10};
    int i = 0;

    while (i < 4 && off > edge[i])
        i++;
    return d->glyphs->shade[i];
}

static void add_skew_row(struct drawing *d, const struct plot_row *row, int name)
{
    uint32_t slowest = 0, n = d->plot->n_columns;

    text_add(d->out, "  ");
    add_padded(d->out, row->name, name);
    text_add(d->out, " %10.1f ", row->mark);
    for (uint32_t c = 0; c < n; c++) {
        if (!isnan(row->value[c]) &&
            (isnan(row->value[slowest]) || row->value[c] > row->value[slowest]))
            slowest = c;
        if (isnan(row->value[c]))
            text_add(d->out, "%*s", n > NUMBERS ? 1 : 7, "");
        else if (n > NUMBERS)
            text_add(d->out, "%s", shade(d, off(row, c)));
        else
            text_add(d->out, " %+6.1f", off(row, c));
    }
    text_add(d->out, "  slowest: %s (%+.1f %%)\n", d->plot->column[slowest], off(row, slowest));
}

static void add_skew(struct drawing *d)
{
    const struct plot *p = d->plot;
    int name = widest_name(p->row, p->n_rows);

    text_add(d->out, "  %*s %10s", name, "", "median us");
    for (uint32_t c = 0; c < p->n_columns && p->n_columns <= NUMBERS; c++)
        text_add(d->out, "%s%6s", c == 0 ? "  " : " ", p->column[c]);
    if (p->n_columns > NUMBERS)
        text_add(d->out, " ranks 0 to %u", p->n_columns - 1);
    text_add(d->out, "\n");
    for (uint32_t i = 0; i < p->n_rows; i++)
        add_skew_row(d, &p->row[i], name);
    if (p->n_columns > NUMBERS)
        text_add(d->out, "\n  %s under -2 %%, %s up to 2 %%, %s to 5 %%, %s to 10 %%, %s above\n",
                 d->glyphs->shade[0], d->glyphs->shade[1], d->glyphs->shade[2], d->glyphs->shade[3],
                 d->glyphs->shade[4]);
}

void plot_text(const struct plot *plot, bool unicode, struct text *out)
{
    struct drawing d = {
        .plot = plot, .glyphs = unicode ? &fancy : &plain, .out = out, .cell = {{NULL}}};

    text_add(out, "%s\n\n", plot->title);
    switch (plot->kind) {
    case PLOT_SKEW:
        add_skew(&d);
        break;
    case PLOT_STAGES:
        add_stages(&d);
        break;
    default:
        if (plot->bars)
            add_bars(&d);
        else
            add_lines(&d);
        if (plot->kind == PLOT_TOKENS)
            add_numbers(&d);
    }
    text_add(out, "\n%s\n%s\n", plot->note, plot->caption);
}
