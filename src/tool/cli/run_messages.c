/* Messages about the end of a run, on standard error. Of several processes of one job each
 * prints errors of its own rank, after "[rank N]". */
#include "cli/run_messages.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/terminal.h"
#include "config/origin.h"
#include "report/lines.h"

static void print_message(const char *word, enum colour colour, const struct epa_process_id *place,
                          const char *who, const char *what)
{
    const char *part[] = {who, ": ", word, ": ", what};

    if (place->rank > 0)
        fprintf(stderr, "[rank %u] ", place->rank);
    for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++) {
        fputs(part[i] == word ? colour_on(stderr, colour) : "", stderr);
        text_print_clean(stderr, part[i]);
        fputs(part[i] == word ? colour_off(stderr) : "", stderr);
    }
    fputc('\n', stderr);
}

void run_print_error(const struct epa_process_id *place, const char *who, const char *what)
{
    print_message("error", COLOUR_ERROR, place, who, what);
}

bool run_is_skipped(const struct run *run, enum epa_status status)
{
    return status == EPA_ERR_UNSUPPORTED && run->skips;
}

static void print_end_at(const struct run *run, const struct epa_process_id *place,
                         const struct epa_error *err, const struct source_location *at)
{
    bool skipped = run_is_skipped(run, err->status);
    text_auto who = {0};

    if (at != NULL && at->line != 0)
        text_add(&who, "%s:%u:%u", at->file, at->line, at->column);
    text_add(&who, "%s", run->who + (who.bytes > 0 ? strlen(run->batch->file) : 0));
    print_message(skipped ? "skipped" : "error", skipped ? COLOUR_WARNING : COLOUR_ERROR, place,
                  who.data, err->text);
}

void run_print_end(const struct run *run, const struct epa_process_id *place,
                   const struct epa_error *err)
{
    const struct node *origin = run->x != NULL ? origin_in_file(run->x, err) : NULL;

    print_end_at(run, place, err, origin != NULL ? &origin->location : NULL);
}

void run_print_refusal(const struct run *run, const struct epa_process_id *place,
                       const struct epa_error *why)
{
    struct source_location at = origin_of_error(run->x, why);

    print_end_at(run, place, why, &at);
}

void run_print_result(const struct run *run, const struct epa_process_id *place,
                      const struct result *result)
{
    const struct run_figures *f = result->figures;
    struct epa_error failed = {EPA_OK, ""}; /* verdict of a complete run */

    if (result->status != EPA_OK) {
        run_print_end(run, place, &result->error);
    } else if (f->error != NULL) {
        snprintf(failed.text, sizeof(failed.text), "%s", f->error_text);
        run_print_end(run, place, &failed);
    }
}
