/* Prints rows under columns: as text, Markdown or CSV. */
#include "report/table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/terminal.h"
#include "base/text.h"
#include "report/lines.h"

/* The text of a cell is the same in each format. */

enum {
    WIDTH = 100,
    TEXT_WIDTH = 12 /* TEXT_WIDTH: width of a text between the first and the last */
};

static bool is_text(const struct table_column *c)
{
    return c->width == 0;
}

/* Returns the number of characters, not bytes. */
static int width_of(const char *text)
{
    int n = 0;

    for (; *text != 0; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

/* Adds a cell. `none` replaces an unknown number. */
static void add_table_cell(struct text *out, const struct table_column *c,
                           const struct table_cell *cell, const char *none, bool fits)
{
    double x = cell->number / (c->scale > 0 ? c->scale : 1);
    int digits = c->digits != -2 ? c->digits : x != 0 && x < 0.1 ? 4 : 2;
    char number[400];

    if (cell->text != NULL) {
        text_add(out, "%s", cell->text);
    } else if (!isfinite(x)) {
        text_add(out, "%s", is_text(c) ? "" : none);
    } else {
        int n = digits < 0 ? snprintf(number, sizeof(number), "%.2g", x)
                           : snprintf(number, sizeof(number), "%.*f", digits, x);

        if (fits && n > c->width && snprintf(number, sizeof(number), "%.0f", x) > c->width)
            snprintf(number, sizeof(number), "%.2e", x);
        text_add(out, "%s", number);
    }
}

/* ---- text ---- */

/* Returns the width of the first text: its longest cell, within the room that other columns
 * leave. */
static int label_width(const struct table_column *columns, const struct table_row *row, size_t n)
{
    const struct table_column *label = NULL;
    int longest = 0, room = WIDTH - 1;

    for (const struct table_column *c = columns; c->key != NULL; c++) {
        room -= c->width + 1;
        if (is_text(c) && label == NULL)
            label = c;
        else if (is_text(c))
            room -= c[1].key != NULL ? TEXT_WIDTH + 2 : 8;
    }
    longest = label->digits > 0 ? label->digits : TABLE_LABEL;
    for (size_t i = 0; i < n; i++) {
        text_auto cell = {0};

        add_table_cell(&cell, label, &row[i].cell[label - columns], "", true);
        if (cell.data != NULL && width_of(cell.data) > longest)
            longest = width_of(cell.data);
    }
    return longest > room ? room : longest;
}

/* Prints the cells of a line; row NULL: headings, `unit`: units. */
static void print_cells(FILE *file, const struct table_column *columns, const struct table_row *row,
                        bool unit, int label)
{
    bool coloured = row != NULL && row->colour != TABLE_PLAIN;
    bool first = true;
    text_auto line = {0};

    for (const struct table_column *c = columns; c->key != NULL; c++) {
        text_auto cell = {0};
        int width = !is_text(c) ? c->width : first ? label : c[1].key == NULL ? 0 : TEXT_WIDTH;
        bool last = c[1].key == NULL && coloured;
        enum colour colour = last && row->colour == TABLE_BAD ? COLOUR_BAD : COLOUR_GOOD;

        if (row != NULL)
            add_table_cell(&cell, c, &row->cell[c - columns], "-", true);
        else if (!unit && c->name != NULL)
            text_add(&cell, "%s", c->name);
        else if (unit && c->unit != NULL)
            text_add(&cell, "[%s]", c->unit);
        text_add(&cell, "%s", "");
        text_clean(cell.data);
        text_add(&line, "%s", line.bytes == 0 ? "" : is_text(c) ? "  " : " ");
        if (is_text(c) && first && width_of(cell.data) > width) /* on a separate line */
            text_add(&line, "%s\n  %*s", cell.data,
                     (int)(c == columns ? 0 : c[-1].width + 1) + width, "");
        else if (is_text(c))
            text_add(&line, "%s%s%*s%s", last ? colour_on(file, colour) : "", cell.data,
                     width > width_of(cell.data) ? width - width_of(cell.data) : 0, "",
                     last ? colour_off(file) : "");
        else
            text_add(&line, "%*s%s", width > width_of(cell.data) ? width - width_of(cell.data) : 0,
                     "", cell.data);
        first = first && !is_text(c);
    }
    while (line.bytes > 0 && line.data[line.bytes - 1] == ' ')
        line.data[--line.bytes] = '\0';
    fprintf(file, "%s%s\n", row != NULL ? "  " : "# ", line.data);
}

void table_text(FILE *file, const struct table_column *columns, const struct table_row *row,
                size_t n)
{
    int label = label_width(columns, row, n);
    bool units = false;

    for (const struct table_column *c = columns; c->key != NULL; c++)
        units = units || c->unit != NULL;
    print_cells(file, columns, NULL, false, label);
    if (units)
        print_cells(file, columns, NULL, true, label);
    for (size_t i = 0; i < n; i++)
        print_cells(file, columns, &row[i], false, label);
}

/* ---- Markdown and CSV ---- */

static void add_csv(struct text *out, const char *text)
{
    bool quoted = strpbrk(text, ",\"\r\n") != NULL;

    text_add(out, quoted ? "\"" : "");
    for (; *text != 0; text++)
        text_add(out, *text == '"' ? "\"\"" : "%c", *text);
    text_add(out, quoted ? "\"" : "");
}

/* Text around rows and cells. */
static const struct table_words {
    const char *row, *cell, *end_cell;
    const char *none; /* text of an unknown number */
    void (*escape)(struct text *, const char *);
} forms[] = {
    [TABLE_MARKDOWN] = {"|", " ", " |", "-", text_add_markdown},
    [TABLE_CSV] = {"", ",", "", "", add_csv},
};

void table_add(struct text *out, enum table_form how, const struct table_column *columns,
               const struct table_row *row, size_t n)
{
    const struct table_words *form = &forms[how];
    bool commas = how == TABLE_CSV, markdown = how == TABLE_MARKDOWN;

    text_add(out, "%s", form->row);
    for (const struct table_column *c = columns; c->key != NULL; c++) {
        bool unit = c->unit != NULL && !commas;

        text_add(out, "%s%s", commas && c == columns ? "" : form->cell,
                 c->name != NULL ? c->name : "");
        text_add(out, "%s%s%s%s", unit ? " [" : "", unit ? c->unit : "", unit ? "]" : "",
                 form->end_cell);
    }
    text_add(out, "\n%s", markdown ? "|" : "");
    for (const struct table_column *c = columns; markdown && c->key != NULL; c++)
        text_add(out, is_text(c) ? "---|" : "---:|");
    text_add(out, "%s", markdown ? "\n" : "");
    for (size_t i = 0; i < n; i++) {
        text_add(out, "%s", form->row);
        for (const struct table_column *c = columns; c->key != NULL; c++) {
            text_auto cell = {0};

            add_table_cell(&cell, c, &row[i].cell[c - columns], form->none, false);
            text_add(out, "%s", commas && c == columns ? "" : form->cell);
            form->escape(out, cell.data != NULL ? cell.data : "");
            text_add(out, "%s", form->end_cell);
        }
        text_add(out, "\n");
    }
}
