/* The tables, and --help. */
#include "cli/commands.h"

#include <string.h>

enum { LEFT = 26 }; /* columns of what is explained */

const struct command commands[] = {
    {"run", "FILE...", "run experiments: stage times, traffic, routing", RUN, cmd_run},
    {"bench", "FILE...", "measure them: percentiles and bandwidths of every stage", BENCH,
     cmd_bench},
    {"verify", "FILE...", "check every element of every iteration", VERIFY, cmd_verify},
    {"list", "[KIND]", "plugins, what they need, and why one cannot be loaded", LIST,
     cmd_list},
    {"help", "[TOPIC]", "explain a key, a plugin, its options, bandwidth or exit-codes",
     HELP, cmd_help},
    {"config", "show|check|schema FILE...",
     "print experiments as they are resolved, check them, or print their JSON Schema",
     CONFIG, cmd_config},
    {"compare", "A.json B.json", "what became slower or faster from A to B", COMPARE,
     cmd_compare},
    {"doctor", "", "what this machine has, what can run here, and how fast it is", DOCTOR,
     cmd_doctor},
    {"trace", "check|summary|merge|pack|view FILE...",
     "what profile: wrote: check it, say where time went, make it one, pack or draw it",
     TRACE, cmd_trace},
    {"completion", "bash|zsh|fish", "print the script that makes a shell complete epa2a",
     COMPLETION, cmd_completion},
    {0},
};

const struct option options[OPTIONS] = {
    [SET] = {"--set", "KEY=VALUE", "set a key of the experiment; may be repeated",
             FILES | CONFIG},
    [JSON] = {"--json", "FILE", "write the results as JSON too; - is standard output",
              FILES | DOCTOR},
    [TIMEOUT] = {"--timeout", "DURATION", "longest wait, such as 500ms or 5s", FILES},
    [PLUGIN_PATH] = {"--plugin-path", "DIR", "look for plugins in this folder first", ANY},
    [FORCE] = {"--force", NULL, "write over an existing FILE; compare what differs",
               FILES | COMPARE | TRACE | DOCTOR},
    [QUIET] = {"--quiet", NULL, "no table, no warnings, only errors",
               FILES | CONFIG | TRACE},
    [DRY_RUN] = {"--dry-run", NULL, "check all and list the runs, and run none", FILES},
    [ONLY] = {"--only", "GLOB", "only runs of that label or id; may be repeated", FILES},
    [SHUFFLE] = {"--shuffle", "SEED", "runs in another order, the same for one seed",
                 FILES},
    [FAIL_FAST] = {"--fail-fast", NULL, "end with the first run that fails", FILES},
    [MAX_RUNS] = {"--max-runs", "N", "runs that a file may ask for; else 4096",
                  FILES | CONFIG},
    [MARKDOWN] = {"--markdown", "FILE", "write a line for each run as Markdown", FILES},
    [CSV] = {"--csv", "FILE", "write a line for each run as CSV", FILES},
    [RUN_LABEL] = {"--run", "LABEL", "of 'config show': this run, by label or id", CONFIG},
    [ORIGIN] = {"--origin", NULL, "say where each value of 'config show' came from",
                CONFIG},
    [THRESHOLD] = {"--threshold", "PERCENT",
                   "compare: by how much a median may move, such as 3%", COMPARE},
    [ALPHA] = {"--alpha", "P", "compare: how likely chance may be, such as 0.01", COMPARE},
    [QUICK] = {"--quick", NULL, "doctor: measure for a tenth of a second, on less memory",
               DOCTOR},
    [OUT] = {"--out", "FILE",
             "trace: where merge, pack and view write; - is standard output", TRACE},
    [HELP_OPTION] = {"--help", NULL, "print this", ANY},
    [VERSION_OPTION] = {"--version", NULL, "print the version and the plugin ABI", ANY},
};

uint32_t commands_count(void)
{
    uint32_t n = 0;

    while (commands[n].name != NULL)
        n++;
    return n;
}

static void print_options(FILE *to, unsigned of)
{
    for (const struct option *option = options; option < options + OPTIONS; option++) {
        char left[40];

        if ((option->commands & of) == 0)
            continue;
        snprintf(left, sizeof(left), "%s%s%s", option->name,
                 option->value == NULL ? "" : " ",
                 option->value == NULL ? "" : option->value);
        fprintf(to, "  %-26s %s\n", left, option->help);
    }
}

void commands_print(FILE *to)
{
    for (const struct command *command = commands; command->name != NULL; command++) {
        char left[80];

        snprintf(left, sizeof(left), "%s %s", command->name, command->args);
        if (strlen(left) > LEFT) {
            fprintf(to, "  %s\n", left);
            left[0] = '\0';
        }
        fprintf(to, "  %-*s %s\n", LEFT, left, command->help);
    }
}

void commands_print_help(const struct command *command)
{
    if (command != NULL) {
        printf("usage: epa2a %s %s [OPTION...]\n\n%s\n\nOptions:\n", command->name,
               command->args, command->help);
        print_options(stdout, command->bit);
        return;
    }
    printf("epa2a runs, verifies and measures the communication of mixture-of-experts "
           "layers.\n\nusage: epa2a COMMAND [OPTION...]\n\nCommands:\n");
    commands_print(stdout);
    printf(
        "\nOptions, before or behind the command; 'epa2a COMMAND --help' lists its own:\n");
    print_options(stdout, ANY);
    printf("\nResults go to standard output, everything else to standard error. "
           "'epa2a help exit-codes'\nsays what the exit codes mean.\n");
}
