/* The cases of tests/cli/bad-inputs.txt ($EPA2A_TEST_BAD_INPUTS), which says how they are
 * written. */
#include <unistd.h>

#include "test.h"

#include "experiment/batch.h"
#include "config/tree.h"
#include "base/text.h"

enum { SETS = 8 };

/* Adds what `from` stands for: \n, \t and <<ff>>. */
static void add_yaml(struct text *yaml, const char *from)
{
    while (*from != 0) {
        char byte = *from;
        unsigned code;
        int used = 0;

        if (sscanf(from, "<<%2x>>%n", &code, &used) == 1 && used == 6) {
            byte = (char)code;
        } else if (byte == '\\' && (from[1] == 'n' || from[1] == 't')) {
            byte = from[1] == 'n' ? '\n' : '\t';
            used = 2;
        }
        text_add_bytes(yaml, &byte, 1);
        from += used > 0 ? used : 1;
    }
    text_add_bytes(yaml, "\n", 1);
}

/* What is printed about the experiment of "NAME | --set KEY=VALUE | YAML"; the caller frees. */
static char *print_errors(char *line)
{
    FILE *file = fopen("bad.yaml", "w");
    struct diag *diag = diag_create();
    struct batch *batch = NULL;
    const char *set[SETS];
    struct text yaml = {0};
    char *out = NULL, *at = strchr(line, '|');
    bool whole = at[1] == '|';
    uint32_t n_sets = 0;
    size_t bytes = 0;

    at += whole ? 2 : 1;
    at += *at == ' ';
    for (char *end; strncmp(at, "--set ", 6) == 0 && (end = strstr(at, " |")) != NULL;) {
        assert_true(n_sets < SETS);
        set[n_sets++] = at + 6;
        *end = 0;
        at = end + 2;
        at += *at == ' ';
    }
    text_add_bytes(&yaml, "version: 1\n", whole ? 0 : 11);
    if (*at != 0)
        add_yaml(&yaml, at);
    fwrite(yaml.data, 1, yaml.bytes, file);
    fclose(file);
    text_free(&yaml);
    if (batch_read("bad.yaml", set, n_sets, BATCH_RUNS_MOST, NULL, diag, &batch) == EPA_OK)
        batch_destroy(batch);
    file = open_memstream(&out, &bytes);
    diag_print(diag, file);
    fclose(file);
    diag_destroy(diag);
    unlink("bad.yaml");
    return out;
}

/* An error or a note: "[note ]PLACE+WIDTH", as in the file of cases, and its words with the
 * hint. */
struct said {
    char place[128], words[1024];
};
enum { SAID = 32 };

static uint32_t read_said(char *printed, struct said *out)
{
    uint32_t n = 0;

    for (char *line = strtok(printed, "\n"), *kind; line != NULL; line = strtok(NULL, "\n")) {
        struct said *last = &out[n > 0 ? n - 1 : 0];
        int used = 0;
        unsigned number;

        if (strncmp(line, "      | ", 8) == 0) {
            line = strchr(line, '^');
            assert_non_null(line);
            used = (int)strspn(line + 1, "~") + 1;
            snprintf(last->place + strlen(last->place), 16, "+%d", used);
            strcat(last->words, line + used);
        } else if (sscanf(line, "%u | %n", &number, &used) != 1 || used == 0) { /* no source */
            assert_true(n < SAID);
            kind = strstr(line, ": error: ");
            kind = kind == NULL ? strstr(line, ": note: ") : kind;
            assert_non_null(kind);
            *kind = 0;
            line += strncmp(line, "bad.yaml", 8) == 0 ? 8 + (line[8] == ':') : 0;
            snprintf(out[n].place, sizeof(out[n].place), "%s%s", kind[2] == 'n' ? "note " : "",
                     *line == 0 ? "-" : line);
            snprintf(out[n++].words, sizeof(out[0].words), "%s", strchr(kind + 2, ':') + 1);
        }
    }
    return n;
}

/* `want`: a place, and words with " .. " between. */
static bool says(const struct said *said, char *want)
{
    size_t place = strlen(said->place);
    const char *got = said->words;

    if (strncmp(said->place, want, place) != 0 || want[place] != ' ')
        return false;
    for (char *word = want + place + 1, *end; word != NULL && got != NULL; word = end) {
        end = strstr(word, " .. ");
        if (end != NULL) {
            *end = 0;
            end += 4;
        }
        got = strstr(got, word);
        got = got == NULL ? NULL : got + strlen(word);
    }
    return got != NULL;
}

static char *next_line(FILE *file, char *line, int room)
{
    do {
        if (fgets(line, room, file) == NULL)
            return NULL;
        line[strcspn(line, "\n")] = 0;
    } while (line[0] == '#');
    return line;
}

/* What is said as number `at` of n is as wanted. */
static uint32_t differs(const char *name, const struct said *said, uint32_t n, uint32_t at,
                        char *want)
{
    if (at < n && says(&said[at], want))
        return 0;
    print_error("%s\n  %s %s\n", name, at < n ? said[at].place : "nothing", said[at].words);
    return 1;
}

TEST(each_bad_input_is_refused_at_its_place)
{
    const char *path = getenv("EPA2A_TEST_BAD_INPUTS");
    FILE *file = fopen(path != NULL ? path : "", "r");
    char folder[] = "/tmp/epa2a-bad-XXXXXX", line[1024], name[1024], wants[1024];
    static struct said said[SAID];
    uint32_t cases = 0, failed = 0;
    char *more;

    assert_non_null(file);
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    more = next_line(file, line, sizeof(line));
    while (more != NULL) {
        uint32_t n, at = 0;
        char *printed, *want = strstr(line, " => ");

        strcpy(wants, want != NULL ? want : "");
        if (want != NULL)
            *want = 0;
        strcpy(name, line);
        printed = print_errors(line);
        n = read_said(printed, said);
        for (char *end = wants; *end != 0;) {
            want = end + 4;
            end = strstr(want, " => ");
            end = end == NULL ? want + strlen(want) : end;
            snprintf(line, sizeof(line), "%.*s", (int)(end - want), want);
            failed += differs(name, said, n, at++, line);
        }
        for (; (more = next_line(file, line, sizeof(line))) != NULL && line[0] == ' '; at++)
            failed += differs(name, said, n, at, line + 4);
        if (at < n || n == 0) {
            print_error("%s\n  %u are said, and not %u\n", name, n, at);
            failed++;
        }
        free(printed);
        cases++;
    }
    fclose(file);
    assert_int_equal(chdir("/"), 0);
    rmdir(folder);
    assert_int_equal(failed, 0);
    assert_true(cases >= 140);
}
