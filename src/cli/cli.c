/* The command line. The idea: two tables, of commands and of options, say everything;
 * parsing, the refusal of an option that a command does not take, the nearest name and
 * --help all read them. Options stand anywhere, are never abbreviated, and end at "--". */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <epa2a/plugin.h>

#include "base/text.h"
#include "config/value.h"

enum command_bit {
    RUN = 1u << 0,
    BENCH = 1u << 1,
    VERIFY = 1u << 2,
    LIST = 1u << 3,
    HELP = 1u << 4,
    CONFIG = 1u << 5,
    FILES = RUN | BENCH | VERIFY, /* those that run experiments */
    ANY = FILES | LIST | HELP | CONFIG,
};

static const struct command {
    const char *name, *args, *help;
    enum command_bit bit;
    int (*run)(const struct cli *);
} commands[] = {
    {"run", "FILE...", "run experiments: stage times, traffic, routing", RUN, cmd_run},
    {"bench", "FILE...", "measure them: percentiles and bandwidths of every stage", BENCH,
     cmd_bench},
    {"verify", "FILE...", "check every element of every iteration", VERIFY, cmd_verify},
    {"list", "[KIND]", "plugins, what they need, and why one cannot be loaded", LIST,
     cmd_list},
    {"help", "[TOPIC]", "explain a key, a plugin, its options, bandwidth or exit-codes",
     HELP, cmd_help},
    {"config", "show|check FILE...",
     "print experiments as they are resolved, or only check them", CONFIG, cmd_config},
};
enum { COMMANDS = sizeof(commands) / sizeof(commands[0]) };

enum option_id {
    SET,
    JSON,
    TIMEOUT,
    PLUGIN_PATH,
    FORCE,
    QUIET,
    ORIGIN,
    HELP_OPTION,
    VERSION_OPTION,
    OPTIONS,
};

static const struct option {
    const char *name, *value; /* value NULL: a flag */
    const char *help;
    unsigned commands; /* enum command_bit */
} options[OPTIONS] = {
    [SET] = {"--set", "KEY=VALUE", "set a key of the experiment; may be repeated",
             FILES | CONFIG},
    [JSON] = {"--json", "FILE", "write the results as JSON too; - is standard output",
              FILES},
    [TIMEOUT] = {"--timeout", "DURATION", "longest wait, such as 500ms or 5s", FILES},
    [PLUGIN_PATH] = {"--plugin-path", "DIR", "look for plugins in this folder first", ANY},
    [FORCE] = {"--force", NULL, "write over an existing FILE", FILES},
    [QUIET] = {"--quiet", NULL, "no table, no warnings, only errors", FILES | CONFIG},
    [ORIGIN] = {"--origin", NULL, "say where each value of 'config show' came from",
                CONFIG},
    [HELP_OPTION] = {"--help", NULL, "print this", ANY},
    [VERSION_OPTION] = {"--version", NULL, "print the version and the plugin ABI", ANY},
};

/* A command line being read. */
struct line {
    const struct command *command; /* NULL: none was named */
    struct cli cli;
    const char **arg, **set; /* what cli points to; each has room for all of argv */
    char *plugin_path;       /* made absolute */
    bool given[OPTIONS];
};

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

static void print_commands(FILE *to)
{
    for (const struct command *command = commands; command < commands + COMMANDS;
         command++) {
        char left[40];

        snprintf(left, sizeof(left), "%s %s", command->name, command->args);
        fprintf(to, "  %-26s %s\n", left, command->help);
    }
}

static void print_help(const struct command *command)
{
    if (command != NULL) {
        printf("usage: epa2a %s %s [OPTION...]\n\n%s\n\nOptions:\n", command->name,
               command->args, command->help);
        print_options(stdout, command->bit);
        return;
    }
    printf("epa2a runs, verifies and measures the communication of mixture-of-experts "
           "layers.\n\nusage: epa2a COMMAND [OPTION...]\n\nCommands:\n");
    print_commands(stdout);
    printf(
        "\nOptions, before or behind the command; 'epa2a COMMAND --help' lists its own:\n");
    print_options(stdout, ANY);
    printf("\nResults go to standard output, everything else to standard error. "
           "'epa2a help exit-codes'\nsays what the exit codes mean.\n");
}

static enum epa_status unknown_option(const char *text, size_t bytes, struct epa_error *err)
{
    const char *names[OPTIONS], *nearest;
    char name[64];

    snprintf(name, sizeof(name), "%.*s", (int)(bytes < 60 ? bytes : 60), text);
    for (uint32_t i = 0; i < OPTIONS; i++) {
        names[i] = options[i].name;
        if (name[1] != '-' && name[2] == '\0' && name[1] == options[i].name[2])
            return epa_fail(err, EPA_ERR_CONFIG, "there is no option %s; is it %s?", name,
                            options[i].name);
    }
    nearest = text_nearest(name, names, OPTIONS);
    if (nearest != NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "there is no option %s; is it %s?", name,
                        nearest);
    return epa_fail(err, EPA_ERR_CONFIG, "there is no option %s; 'epa2a --help' lists them",
                    name);
}

static const struct option *find_option(const char *text, size_t bytes)
{
    for (const struct option *option = options; option < options + OPTIONS; option++) {
        if (strlen(option->name) == bytes && memcmp(option->name, text, bytes) == 0)
            return option;
    }
    return NULL;
}

static enum epa_status set_plugin_path(struct line *line, const char *value,
                                       struct epa_error *err)
{
    char *cwd = value[0] == '/' ? strdup("") : getcwd(NULL, 0);
    size_t bytes;

    if (cwd == NULL)
        return epa_fail(err, EPA_ERR_SYSTEM, "the current folder is not to be found: %s",
                        strerror(errno));
    bytes = strlen(cwd) + strlen(value) + 2;
    line->plugin_path = malloc(bytes);
    if (line->plugin_path != NULL)
        snprintf(line->plugin_path, bytes, "%s%s%s", cwd, value[0] == '/' ? "" : "/",
                 value);
    free(cwd);
    if (line->plugin_path == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a path");
    line->cli.plugin_path = line->plugin_path;
    return EPA_OK;
}

static enum epa_status set_timeout(struct line *line, const char *value,
                                   struct epa_error *err)
{
    struct value_error why;

    if (!value_duration(value, &line->cli.timeout_ns, &why))
        return epa_fail(err, EPA_ERR_CONFIG, "--timeout: '%s' %s%s%s", value, why.what,
                        why.hint[0] == '\0' ? "" : "; ", why.hint);
    if (line->cli.timeout_ns == 0)
        return epa_fail(err, EPA_ERR_CONFIG, "--timeout: it must be longer than 0");
    return EPA_OK;
}

/* `value` is NULL for flags alone. */
static enum epa_status store(struct line *line, const struct option *option,
                             const char *value, struct epa_error *err)
{
    enum option_id id = (enum option_id)(option - options);

    if (line->given[id] && id != SET && value != NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "%s is there twice", option->name);
    line->given[id] = true;
    switch (id) {
    case SET:
        line->set[line->cli.n_sets++] = value;
        return EPA_OK;
    case JSON:
        line->cli.json = value;
        return EPA_OK;
    case TIMEOUT:
        return set_timeout(line, value, err);
    case PLUGIN_PATH:
        return set_plugin_path(line, value, err);
    case FORCE:
        line->cli.force = true;
        return EPA_OK;
    case QUIET:
        line->cli.quiet = true;
        return EPA_OK;
    case ORIGIN:
        line->cli.origin = true;
        return EPA_OK;
    case HELP_OPTION:
    case VERSION_OPTION:
    case OPTIONS:
        break;
    }
    return EPA_OK;
}

/* `next` is the argument behind, or NULL; *used says whether it was this option's value. */
static enum epa_status read_option(struct line *line, const char *text, const char *next,
                                   bool *used, struct epa_error *err)
{
    size_t bytes = strcspn(text, "=");
    const char *value = text[bytes] == '=' ? text + bytes + 1 : NULL;
    const struct option *option = find_option(text, bytes);

    *used = false;
    if (option == NULL)
        return unknown_option(text, bytes, err);
    if (option->value == NULL && value != NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "%s takes no value", option->name);
    if (option->value != NULL && value == NULL && next != NULL &&
        strncmp(next, "--", 2) != 0) {
        value = next;
        *used = true;
    }
    if (option->value != NULL && (value == NULL || *value == '\0'))
        return epa_fail(err, EPA_ERR_CONFIG, "%s needs a value: %s %s", option->name,
                        option->name, option->value);
    return store(line, option, value, err);
}

static enum epa_status find_command(const char *name, const struct command **out,
                                    struct epa_error *err)
{
    const char *names[COMMANDS], *nearest, *dot = strrchr(name, '.');

    for (uint32_t i = 0; i < COMMANDS; i++) {
        names[i] = commands[i].name;
        if (strcmp(name, names[i]) == 0) {
            *out = &commands[i];
            return EPA_OK;
        }
    }
    nearest = text_nearest(name, names, COMMANDS);
    if (nearest != NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "there is no command '%s'; is it '%s'?", name,
                        nearest);
    if (dot != NULL && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0))
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "a command comes before the file: 'epa2a run %s' or 'epa2a bench %s'", name,
            name);
    return epa_fail(err, EPA_ERR_CONFIG,
                    "there is no command '%s'; 'epa2a --help' lists them", name);
}

static enum epa_status read_line(struct line *line, int argc, char **argv,
                                 struct epa_error *err)
{
    bool options_ended = false;
    enum epa_status status = EPA_OK;

    for (int i = 1; i < argc && status == EPA_OK; i++) {
        const char *text = argv[i];
        bool used = false;

        if (!options_ended && strcmp(text, "--") == 0) {
            options_ended = true;
        } else if (!options_ended && text[0] == '-' && text[1] != '\0') {
            status = read_option(line, text, i + 1 < argc ? argv[i + 1] : NULL, &used, err);
            i += used;
        } else if (line->command == NULL) {
            status = find_command(text, &line->command, err);
        } else {
            line->arg[line->cli.n_args++] = text;
        }
    }
    return status;
}

static enum epa_status check_options(const struct line *line, struct epa_error *err)
{
    for (const struct option *option = options; option < options + OPTIONS; option++) {
        struct text takers = {0};

        if (!line->given[option - options] || (option->commands & line->command->bit) != 0)
            continue;
        for (uint32_t i = 0; i < COMMANDS; i++) {
            if ((option->commands & commands[i].bit) != 0)
                text_add(&takers, "%s%s", takers.bytes == 0 ? "" : ", ", commands[i].name);
        }
        epa_fail(err, EPA_ERR_CONFIG, "%s does not take %s, only %s", line->command->name,
                 option->name, takers.data);
        text_free(&takers);
        return EPA_ERR_CONFIG;
    }
    return EPA_OK;
}

static enum epa_status check_config(const struct cli *cli, struct epa_error *err)
{
    static const char *const words[] = {"show", "check"};
    const char *word = cli->n_args == 0 ? "" : cli->arg[0];
    const char *nearest = text_nearest(word, words, 2);

    if (cli->n_args == 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "config needs to know what to do: "
                        "'epa2a config show FILE' or 'config check FILE'");
    if (nearest == NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "there is no config '%s'; there is show, check", word);
    if (strcmp(word, nearest) != 0)
        return epa_fail(err, EPA_ERR_CONFIG, "there is no config '%s'; is it '%s'?", word,
                        nearest);
    if (cli->n_args == 1)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "config %s needs a file: 'epa2a config %s FILE...'", word, word);
    if (cli->origin && strcmp(word, "show") != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "config check does not take --origin, only "
                        "config show");
    return EPA_OK;
}

static enum epa_status check_args(const struct command *command, const struct cli *cli,
                                  struct epa_error *err)
{
    if ((command->bit & FILES) != 0 && cli->n_args == 0)
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "%s needs a file: 'epa2a %s FILE...', such as configs/ll_v2-shm.yaml",
            command->name, command->name);
    if ((command->bit & (LIST | HELP)) != 0 && cli->n_args > 1)
        return epa_fail(err, EPA_ERR_CONFIG, "%s takes one argument at most: 'epa2a %s %s'",
                        command->name, command->name, command->args);
    return command->bit == CONFIG ? check_config(cli, err) : EPA_OK;
}

/* A plugin's file or a socket must not get number 0, 1 or 2. What stands in for a closed
 * standard output refuses to be written, so the user learns of it. */
static void fill_standard_files(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO)
        close(fd);
}

static int finish_stdout(int code)
{
    bool failed = ferror(stdout) != 0;

    errno = 0;
    if (fflush(stdout) == 0 && !failed)
        return code;
    fprintf(stderr, "epa2a: standard output cannot be written%s%s\n",
            errno == 0 ? "" : ": ", errno == 0 ? "" : strerror(errno));
    return code == EXIT_OK ? EXIT_RESOURCE : code;
}

static void warn_of_relative_path(const struct cli *cli)
{
    const char *path = secure_getenv("EPA2A_PLUGIN_PATH");

    if (path != NULL && path[0] != '\0' && path[0] != '/' && !cli->quiet)
        fprintf(stderr,
                "epa2a: warning: EPA2A_PLUGIN_PATH is not absolute and not used: %s\n",
                path);
}

static int run_line(struct line *line)
{
    struct epa_error err = {EPA_OK, ""};

    line->cli.arg = line->arg;
    line->cli.set = line->set;
    if (line->given[HELP_OPTION]) {
        print_help(line->command);
        return EXIT_OK;
    }
    if (line->given[VERSION_OPTION]) {
        printf("epa2a %s (plugin ABI %u)\n", EPA2A_VERSION, EPA_ABI);
        return EXIT_OK;
    }
    if (line->command == NULL) {
        fprintf(stderr, "usage: epa2a COMMAND [OPTION...]\n");
        print_commands(stderr);
        fprintf(stderr, "'epa2a --help' says more.\n");
        return EXIT_USAGE;
    }
    if (check_options(line, &err) != EPA_OK ||
        check_args(line->command, &line->cli, &err) != EPA_OK) {
        fprintf(stderr, "epa2a: %s\n", err.text);
        return EXIT_USAGE;
    }
    warn_of_relative_path(&line->cli);
    return line->command->run(&line->cli);
}

int cli_main(int argc, char **argv)
{
    size_t room = (size_t)(argc > 0 ? argc : 1);
    struct line line = {.arg = calloc(room, sizeof(char *)),
                        .set = calloc(room, sizeof(char *))};
    struct epa_error err = {EPA_OK, ""};
    int code;

    fill_standard_files();
    signal(SIGPIPE, SIG_IGN); /* a write that fails is told in words instead */
    if (line.arg == NULL || line.set == NULL)
        epa_fail(&err, EPA_ERR_NOMEM, "no memory for %d arguments", argc);
    else
        read_line(&line, argc, argv, &err);
    if (err.status == EPA_OK) {
        code = run_line(&line);
    } else {
        fprintf(stderr, "epa2a: %s\n", err.text);
        code = exit_code(err.status, SIGINT);
    }
    free(line.plugin_path);
    free(line.arg);
    free(line.set);
    return finish_stdout(code);
}
