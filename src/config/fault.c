/* The table of `fault`, and one in words. */
#include "config/fault.h"

#include "base/text.h"
#include "config/value.h"

static const struct epa_choice kinds[] = {
    {"none", FAULT_NONE, "no fault"},
    {"kill", FAULT_KILL, "the rank kills itself with SIGKILL"},
    {"stop", FAULT_STOP, "the rank's process is stopped with SIGSTOP and continued after `for`"},
    {"straggle", FAULT_STRAGGLE, "the rank sleeps"},
    {0},
};

const struct epa_option fault_table[] = {
    {.name = "kind",
     EPA_CHOICE(struct fault_options, kind),
     .choices = kinds,
     .help = "kind of the injected fault; `epa2a help faults`"},
    {.name = "rank", EPA_U32(struct fault_options, rank), .max = 63, .help = "rank of the fault"},
    {.name = "stage",
     EPA_STRING(struct fault_options, stage),
     .help = "stage before which the fault occurs, such as combine; the default is the "
             "first"},
    {.name = "iteration",
     EPA_U32(struct fault_options, iteration),
     .max = 100000000,
     .help = "iteration of the fault, counted from 0 and including warm-up"},
    {.name = "for",
     EPA_DURATION(struct fault_options, for_ns),
     .min = 1000,
     .max = 3600000000000,
     .help = "stop, straggle: duration"},
    {.name = "every",
     EPA_U32(struct fault_options, every),
     .max = 1000000,
     .help = "stop, straggle: interval of repetition in iterations; 0: a single fault"},
    {0},
};

bool fault_is_planted(const struct experiment *x)
{
    return x->fault.kind != FAULT_NONE;
}

const char *fault_name(const struct fault_options *f)
{
    return kinds[f->kind].name;
}

void fault_describe(const struct fault_options *f, struct text *out)
{
    char time[64];

    value_duration_text(time, sizeof(time), f->for_ns);
    text_add(out, "rank %u ", f->rank);
    if (f->kind == FAULT_KILL)
        text_add(out, "is killed");
    else
        text_add(out, "%s for %s", f->kind == FAULT_STOP ? "is stopped" : "sleeps", time);
    text_add(out, " before %s of iteration %u", f->stage != NULL ? f->stage : "the first stage",
             f->iteration);
    if (f->kind != FAULT_KILL && f->every == 1)
        text_add(out, " and each after it");
    else if (f->kind != FAULT_KILL && f->every > 1)
        text_add(out, " and each %u after it", f->every);
}
