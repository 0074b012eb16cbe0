/* Prints the warnings of one run, or of several runs by their kinds. */
#include "report/warning_lines.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/terminal.h"
#include "report/lines.h"

void report_warnings(FILE *file, const struct run_figures *f)
{
    for (uint32_t i = 0; i < f->n_warnings; i++)
        fprintf(file, "%swarning:%s %s\n", colour_on(file, COLOUR_WARNING), colour_off(file),
                f->warning[i]);
}

/* ---- warnings of several runs ---- */

static const char *skip_number(const char *text)
{
    return text + strspn(text, "0123456789.,");
}

/* Returns true if two warnings differ only in their numbers. */
static bool is_same_kind(const char *a, const char *b)
{
    while (*a != '\0' || *b != '\0') {
        const char *after_a = skip_number(a), *after_b = skip_number(b);

        if (after_a > a && after_b > b) {
            a = after_a;
            b = after_b;
        } else if (*a++ != *b++) {
            return false;
        }
    }
    return true;
}

/* A kind of warning: its first text, the run that has it, and the number of further runs. */
struct warning_kind {
    char *text, *who;
    uint32_t more;
};

void warnings_add(struct warnings *w, const char *who, const struct run_figures *f)
{
    w->runs++;
    for (uint32_t i = 0; i < f->n_warnings; i++) {
        uint32_t k = 0;

        while (k < w->n && !is_same_kind(w->kind[k].text, f->warning[i]))
            k++;
        if (k < w->n) {
            w->kind[k].more++;
            continue;
        }
        w->kind = memory_grow(w->kind, (w->n + 1) * sizeof(*w->kind));
        w->kind[w->n++] = (struct warning_kind){.text = memory_printf("%s", f->warning[i]),
                                                .who = memory_printf("%s", who)};
    }
}

/* Prints each kind of warning once, with the first run that has it. */
void warnings_print(FILE *file, const struct warnings *w)
{
    for (uint32_t k = 0; k < w->n; k++) {
        fprintf(file, "%swarning:%s ", colour_on(file, COLOUR_WARNING), colour_off(file));
        text_print_clean(file, w->kind[k].who);
        if (w->kind[k].more > 0)
            fprintf(file, " and %u more of %u runs", w->kind[k].more, w->runs);
        fprintf(file, ": %s\n", w->kind[k].text);
    }
}

void warnings_free(struct warnings *w)
{
    for (uint32_t k = 0; k < w->n; k++) {
        free(w->kind[k].text);
        free(w->kind[k].who);
    }
    free(w->kind);
    *w = (struct warnings){0};
}
