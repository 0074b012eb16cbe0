/* Commands of the Python package. The folder of the package is the first folder of sys.path, and the
 * current folder is not searched: a file json.py of the user has no effect. */
#include "cli/python_command.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/exit_code.h"
#include "base/memory.h"
#include "base/object_path.h"
#include "base/program_data.h"
#include "base/terminal.h"
#include "cli/child_output.h"

enum { CALL_S = 600 }; /* longest time of a command that this process waits for */

#define PYTHON_USUAL "python3"

/* Begins with the folder of the package. Python 2 parses the first two lines, too. */
static const char starter[] =
    "import sys\n"
    "if sys.version_info < (3, 10): sys.stderr.write('epa2a: %s needs Python 3.10 or later, and %s "
    "is Python %d.%d; EPA2A_PYTHON names another\\n' % (sys.argv[2], sys.executable, "
    "sys.version_info[0], sys.version_info[1])); sys.exit(3)\n"
    "sys.path[:] = [sys.argv.pop(1)] + [folder for folder in sys.path if folder]\n"
    "from epa2a.__main__ import main\n"
    "sys.exit(main(program='epa2a'))\n";

/* Finds the folder that contains the package epa2a: python/ of the source tree or of share/epa2a, or, of
 * the program in a wheel, the folder that contains epa2a/bin. Without a package, `out` is the folder of an
 * installation that lacks it. */
static bool find_package_folder(char *out, size_t room)
{
    static const char file[] = "/epa2a/__main__.py";
    char found[PATH_MAX], wheel[PATH_MAX + 32];

    if (program_data_find("python/epa2a/__main__.py", found, sizeof(found))) {
        snprintf(out, room, "%.*s", (int)(strlen(found) - strlen(file)), found);
        return true;
    }
    object_folder("..", found, sizeof(found));
    snprintf(wheel, sizeof(wheel), "%s/__main__.py", found);
    if (access(wheel, R_OK) == 0) {
        object_folder("../..", out, room);
        return true;
    }
    object_folder(EPA2A_DATA_DIR, found, sizeof(found));
    snprintf(out, room, "%s/python", found);
    return false;
}

static void add_word(struct python_words *words, char *word)
{
    words->word = memory_grow(words->word, (words->n + 2) * sizeof(*words->word));
    words->word[words->n++] = word;
    words->word[words->n] = NULL;
}

void python_add(struct python_words *words, const char *word)
{
    add_word(words, memory_printf("%s", word));
}

void python_add_value(struct python_words *words, const char *option, const char *value)
{
    if (value != NULL)
        add_word(words, memory_printf("%s=%s", option, value));
}

void python_add_common(struct python_words *words, const struct cli *cli)
{
    static const char *const colours[] = {
        [COLOUR_AUTO] = "auto", [COLOUR_ALWAYS] = "always", [COLOUR_NEVER] = "never"};

    python_add_value(words, "--color", colours[cli->color]);
    if (cli->force)
        python_add(words, "--force");
}

void python_add_number(struct python_words *words, const char *option, uint32_t number)
{
    if (number != 0)
        add_word(words, memory_printf("%s=%u", option, number));
}

static void free_list(char **list)
{
    for (uint32_t i = 0; list[i] != NULL; i++)
        free(list[i]);
    free(list);
}

/* Makes the command line of Python. Frees the words. */
static enum epa_status make_line(struct python_words *words, char ***out, struct epa_error *err)
{
    const char *python = secure_getenv("EPA2A_PYTHON");
    enum epa_status status = EPA_OK;
    char folder[PATH_MAX + 32];
    char **line;

    if (find_package_folder(folder, sizeof(folder))) {
        line = memory_grow(NULL, (words->n + 6) * sizeof(*line));
        line[0] = memory_printf("%s", python != NULL && python[0] != '\0' ? python : PYTHON_USUAL);
        line[1] = memory_printf("-B"); /* leaves no compiled files in the folder of the package */
        line[2] = memory_printf("-c");
        line[3] = memory_printf("%s", starter);
        line[4] = memory_printf("%s", folder);
        memcpy(line + 5, words->word, (words->n + 1) * sizeof(*line));
        free(words->word);
        *out = line;
    } else {
        status =
            epa_fail(err, EPA_ERR_UNSUPPORTED,
                     "%s is a command of the Python package epa2a, which is not in %s; install "
                     "the program again (meson install), or the wheel that `pip wheel` builds",
                     words->word[0], folder);
        free_list(words->word);
    }
    *words = (struct python_words){0};
    return status;
}

static enum epa_status fail_start(char *const *line, int failed, struct epa_error *err)
{
    return epa_fail_errno(err, EPA_ERR_UNSUPPORTED, failed,
                          "%s runs in Python, and %s cannot be started: %s; install Python 3.10 "
                          "or later (apt-get install python3), or set EPA2A_PYTHON to its path",
                          line[5], line[0], strerror(failed));
}

/* Descriptor 1 is standard error of this process, see terminal.h. */
static void restore_stdout(void)
{
    fflush(stdout);
    fflush(stderr);
    if (stdout_descriptor() != STDOUT_FILENO)
        (void)dup2(stdout_descriptor(), STDOUT_FILENO);
}

enum epa_status python_run(struct python_words *words, struct epa_error *err)
{
    char **line;
    enum epa_status status = make_line(words, &line, err);

    if (status != EPA_OK)
        return status;
    restore_stdout();
    execvp(line[0], line);
    status = fail_start(line, errno, err);
    free_list(line);
    return status;
}

/* Returns the last line of messages without the name of the program. */
static const char *last_message(struct text *messages)
{
    static const char name[] = "epa2a: ";
    char *line;

    while (messages->bytes > 0 && messages->data[messages->bytes - 1] == '\n')
        messages->data[--messages->bytes] = '\0';
    if (messages->bytes == 0)
        return "no message";
    line = strrchr(text_clean(messages->data), '\n');
    line = line != NULL ? line + 1 : messages->data;
    return strncmp(line, name, strlen(name)) == 0 ? line + strlen(name) : line;
}

enum epa_status python_call(struct python_words *words, const struct text *input, struct text *out,
                            struct epa_error *err)
{
    struct child child = {.limit_ns = CALL_S * UINT64_C(1000000000)};
    enum epa_status status = make_line(words, &child.word, err);
    text_auto messages = {0};
    int code = 0, failed;

    if (status != EPA_OK)
        return status;
    failed = child_run(&child, input, out, &messages, &code);
    if (failed == ETIMEDOUT)
        status =
            epa_fail(err, EPA_ERR_SYSTEM, "%s was killed after %d s, or after a signal to epa2a",
                     child.word[0], CALL_S);
    else if (failed != 0)
        status = fail_start(child.word, failed, err);
    else if (WIFSIGNALED(code))
        status = epa_fail(err, EPA_ERR_SYSTEM, "%s was ended by signal %d", child.word[0],
                          WTERMSIG(code));
    else if (WEXITSTATUS(code) != 0)
        status =
            epa_fail(err, WEXITSTATUS(code) == EXIT_USAGE ? EPA_ERR_CONFIG : EPA_ERR_UNSUPPORTED,
                     "%.400s", last_message(&messages));
    free_list(child.word);
    return status;
}
