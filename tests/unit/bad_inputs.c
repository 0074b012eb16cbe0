/* The cases of tests/cli/bad-inputs.txt ($EPA2A_TEST_BAD_INPUTS), which says how they are written. */
#include <unistd.h>

#include "test.h"

#include "config/batch.h"
#include "config/diag.h"
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

/* Cuts the first error or note off `*at`, as "[note ]PLACE WORDS", PLACE as in the file of cases
 * and WORDS with the hint. False at the end. */
static bool cut_error(char **at, char *out, size_t room)
{
    char *head = *at, *end = strchr(head, '\n'), *kind, *caret, *next;
    int place, width = 1;

    if (*head == 0)
        return false;
    *end = 0;
    *at = end + 1;
    kind = strstr(head, ": error: ");
    if (kind == NULL)
        kind = strstr(head, ": note: ");
    assert_non_null(kind);
    place = (int)(kind - head);
    if (strncmp(head, "bad.yaml", 8) == 0) {
        head += place == 8 ? 8 : 9;
        place = (int)(kind - head);
    }
    snprintf(out, room, "%s%.*s", kind[2] == 'n' ? "note " : "", place, head);
    if (place <= 0)
        strcat(out, "-");
    caret = place > 0 && *end == 0 ? strstr(*at, "| ") : NULL;
    next = caret != NULL ? strchr(caret, '\n') + 1 : NULL;
    caret = next != NULL ? strstr(next, "| ") : NULL;
    if (caret != NULL) {
        end = strchr(caret, '\n');
        *end = 0;
        *at = end + 1;
        caret = strchr(caret, '^');
        assert_non_null(caret);
        width = (int)strspn(caret + 1, "~") + 1;
        snprintf(out + strlen(out), room - strlen(out), "+%d", width);
        caret += width;
    }
    kind = strchr(kind + 2, ':') + 1;
    snprintf(out + strlen(out), room - strlen(out), "%s%s", kind, caret == NULL ? "" : caret);
    return true;
}

/* `want`: a place, and words with " .. " between. */
static bool says(const char *got, char *want)
{
    size_t place = strncmp(want, "note ", 5) == 0 ? 5 : 0;

    place += strcspn(want + place, " ");
    if (strncmp(got, want, place + 1) != 0)
        return false;
    got += place;
    for (char *word = want + place + 1, *end; word != NULL; word = end) {
        end = strstr(word, " .. ");
        if (end != NULL) {
            *end = 0;
            end += 4;
        }
        got = strstr(got, word);
        if (got == NULL)
            return false;
        got += strlen(word);
    }
    return true;
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

TEST(each_bad_input_is_refused_at_its_place)
{
    const char *path = getenv("EPA2A_TEST_BAD_INPUTS");
    FILE *file = fopen(path != NULL ? path : "", "r");
    char folder[] = "/tmp/epa2a-bad-XXXXXX", line[1024], name[1024], got[1024];
    uint32_t cases = 0, failed = 0;
    char *more;

    assert_non_null(file);
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    more = next_line(file, line, sizeof(line));
    while (more != NULL) {
        char *errors, *at;

        strcpy(name, line);
        errors = at = print_errors(line);
        cases++;
        while ((more = next_line(file, line, sizeof(line))) != NULL && line[0] == ' ') {
            if (!cut_error(&at, got, sizeof(got)))
                strcpy(got, "nothing");
            else if (says(got, line + 4))
                continue;
            print_error("%s\n  %s\n", name, got);
            failed++;
        }
        if (*at != 0 || at == errors) {
            print_error("%s\n  more is said: %s\n", name, at);
            failed++;
        }
        free(errors);
    }
    fclose(file);
    assert_int_equal(chdir("/"), 0);
    rmdir(folder);
    assert_int_equal(failed, 0);
    assert_true(cases >= 140);
}
