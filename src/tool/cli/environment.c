/* Environment variables of the program. */
#include "cli/environment.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/terminal.h"
#include "base/text.h"
#include "help_texts.h"

const struct variable environment[] = {
    {"EPA2A_PLUGIN_PATH", "absolute folders of plugins, separated by colons, instead of the "
                          "installed folder"},
    {"EPA2A_ISA", "instruction set of the kernels on hosts: scalar, avx2, avx512, avx512_vnni "
                  "(INT8 alone), avx512_bf16 or amx; the last three apply to matrix products, and "
                  "quantise with avx512"},
    {"EPA2A_PYTHON",
     "Python 3.10 or later of import, plot, predict, --html; default: python3 on PATH"},
    {"EPA2A_OPTIONS", "options of programs with libepa2a, such as transport=ucx; experiments with "
                      "--api are rejected while it is set"},
    {"EPA2A_JOB_TOKEN",
     "launcher env: a secret of 16 to 64 characters that all ranks of a job share; required for "
     "several hosts: EPA2A_JOB_TOKEN=$(openssl rand -hex 16)"},
    {"NO_COLOR", "set and not empty: no colour, unless --color always is given"},
    {"TERM", "dumb or not set: no colour and no progress line"},
    {0},
};

void environment_add(struct text *out)
{
    for (const struct variable *v = environment; v->name != NULL; v++)
        text_add(out, "  %-18s  %s\n", v->name, v->help);
    text_add(out, "%s", environment_txt);
}

void environment_warn(void)
{
    for (char **at = environ; at != NULL && *at != NULL; at++) {
        char name[65], hint[NEAREST_ROOM];
        struct nearest nearest = {.want = name};
        const struct variable *v = environment;

        if (strncmp(*at, "EPA2A_", 6) != 0)
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(*at, "="), *at);
        while (v->name != NULL && strcmp(v->name, name) != 0)
            v++;
        if (v->name != NULL)
            continue;
        nearest_try_table(&nearest, environment, sizeof(*environment));
        text_warn("unknown environment variable %s; %s", name,
                  nearest_hint(&nearest, hint, "`epa2a help environment` lists the variables"));
    }
}
