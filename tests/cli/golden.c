/* Runs command lines and holds what they print against cases. Most cases are one line,
 *     CODE COMMAND [OPERATOR TEXT]
 * about what counts, which is standard output where CODE is 0 and standard error elsewhere:
 *     => WORDS .. WORDS    it has these words in this order, and the other stream is empty
 *     == LINE\nLINE        it is just this, and the other stream is empty
 *     ~> and ~=            the same, and the other stream may have anything
 * Without an operator both are empty. Where both count, a case is the line after "$ ", then
 * standard output ("> "), standard error ("! ") and the exit code ("? ", if not 0). "#" begins a
 * comment.
 *
 * A line runs under sh in a new empty folder, with the program under test first in PATH
 * as epa2a, and with $SRC and $BUILD, the source and build trees. In what it prints, the
 * paths of these and of the new folder are read as $SRC, $BUILD and $TMP. In an expected
 * text {n} stands for a number, {w} for anything but blanks, {*} for anything; the line
 * {...} stands for any number of lines. */
#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_LINES = 1024, MAX_CASE = 65536 };

struct lines {
    char *line[MAX_LINES];
    uint32_t n;
};

struct golden {
    char command[4096];
    uint32_t number; /* of the command's line in the case file */
    struct lines out, err;
    char words[4096]; /* as {*}WORDS{*}WORDS{*}; what they are of may have no lines above */
    bool other;       /* the stream that does not count may have anything */
    int code;
    char text[MAX_CASE]; /* what the lines point into */
    size_t bytes;
};

struct place {
    const char *name, *path;
};

static void die(const char *what)
{
    fprintf(stderr, "golden: %s: %s\n", what, strerror(errno));
    exit(99);
}

/* Whether `text` is what `pattern` allows, from here to the end of both. */
static bool match_line(const char *pattern, const char *text)
{
    size_t most;

    while (*pattern != '{' && *pattern != '\0' && *pattern == *text) {
        pattern++;
        text++;
    }
    if (strncmp(pattern, "{n}", 3) == 0) {
        most = strspn(text, "0123456789.,+-e");
        if (most == 0 || strcspn(text, "0123456789") >= most)
            return false;
    } else if (strncmp(pattern, "{w}", 3) == 0) {
        most = strcspn(text, " \t");
    } else if (strncmp(pattern, "{*}", 3) == 0) {
        most = strlen(text);
    } else if (*pattern == *text && *pattern != '\0') { /* a brace that is meant as one */
        return match_line(pattern + 1, text + 1);
    } else {
        return *pattern == *text;
    }
    for (size_t n = pattern[1] == '*' ? 0 : 1; n <= most; n++) {
        if (match_line(pattern + 3, text + n))
            return true;
    }
    return false;
}

static bool match_lines(char *const *want, uint32_t n_want, char *const *have, uint32_t n_have)
{
    while (n_want > 0 && strcmp(*want, "{...}") != 0) {
        if (n_have == 0 || !match_line(*want, *have))
            return false;
        want++, have++;
        n_want--, n_have--;
    }
    if (n_want == 0)
        return n_have == 0;
    for (uint32_t skip = 0; skip <= n_have; skip++) {
        if (match_lines(want + 1, n_want - 1, have + skip, n_have - skip))
            return true;
    }
    return false;
}

static void add_line(struct lines *lines, char *line)
{
    if (lines->n == MAX_LINES) {
        errno = E2BIG;
        die("lines of one stream");
    }
    lines->line[lines->n++] = line;
}

/* Keeps a copy of `line` with the case. */
static char *keep(struct golden *golden, const char *line)
{
    size_t n = strlen(line) + 1;
    char *copy = golden->text + golden->bytes;

    if (golden->bytes + n > sizeof(golden->text)) {
        errno = E2BIG;
        die("one case");
    }
    memcpy(copy, line, n);
    golden->bytes += n;
    return copy;
}

/* "CODE COMMAND [OPERATOR TEXT]" */
static void read_row(struct golden *golden, char *line, uint32_t number)
{
    struct lines *lines;
    char *at, *next;
    size_t used = 0;

    golden->code = (int)strtol(line, &at, 10);
    golden->number = number;
    lines = golden->code == 0 ? &golden->out : &golden->err;
    line = at;
    do
        at = strchr(at + 1, ' ');
    while (at != NULL && !((at[1] == '=' || at[1] == '~') && (at[2] == '>' || at[2] == '=') &&
                           (at[3] == ' ' || at[3] == '\0')));
    snprintf(golden->command, sizeof(golden->command), "%.*s", at == NULL ? -1 : (int)(at - line),
             line);
    if (at == NULL)
        return;
    golden->other = at[1] == '~';
    if (at[2] == '>') {
        for (at += at[3] == ' ' ? 4 : 3; at != NULL; at = next) {
            next = strstr(at, " .. ");
            used += (size_t)snprintf(golden->words + used, sizeof(golden->words) - used, "{*}%.*s",
                                     next == NULL ? -1 : (int)(next - at), at);
            next = next == NULL ? NULL : next + 4;
        }
        strcat(golden->words, "{*}");
        return;
    }
    for (at += at[3] == ' ' ? 4 : 3; at != NULL && *at != '\0'; at = next) {
        next = strstr(at, "\\n");
        if (next != NULL) {
            *next = '\0';
            next += 2;
        }
        add_line(lines, keep(golden, at));
    }
}

/* Takes one case off the file; false at its end. *number counts lines. */
static bool read_case(FILE *file, uint32_t *number, struct golden *out)
{
    char line[4096];
    long before = ftell(file);

    memset(out, 0, sizeof(*out));
    while (fgets(line, sizeof(line), file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if ((line[0] == '$' || isdigit(line[0])) && out->command[0] != '\0') {
            fseek(file, before, SEEK_SET);
            break;
        }
        ++*number;
        before = ftell(file);
        if (line[0] == '\0' || line[0] == '#')
            continue;
        if (line[0] == '$') {
            snprintf(out->command, sizeof(out->command), "%s", line + 1);
            out->number = *number;
        } else if (isdigit(line[0])) {
            read_row(out, line, *number);
        } else if (line[0] == '>') {
            add_line(&out->out, keep(out, line + (line[1] == ' ' ? 2 : 1)));
        } else if (line[0] == '!') {
            add_line(&out->err, keep(out, line + (line[1] == ' ' ? 2 : 1)));
        } else if (line[0] == '?') {
            out->code = atoi(line + 1);
        } else {
            fprintf(stderr, "golden: line %u begins with none of # $ > ! ? and digits\n", *number);
            exit(99);
        }
    }
    return out->command[0] != '\0';
}

/* Writes `text` to `to` with paths replaced by their names. */
static void replace_paths(const char *text, const struct place *places, FILE *to)
{
    while (*text != '\0') {
        const struct place *place = places;

        while (place->name != NULL && strncmp(text, place->path, strlen(place->path)) != 0)
            place++;
        if (place->name != NULL) {
            fputs(place->name, to);
            text += strlen(place->path);
        } else {
            fputc(*text++, to);
        }
    }
}

/* Reads a stream into lines; its text stays whole in *whole. The caller frees both. */
static char *read_stream(const char *path, const struct place *places, struct lines *out,
                         char **whole)
{
    FILE *file = fopen(path, "rb"), *to;
    char *raw = calloc(1, MAX_CASE), *text = NULL;
    size_t bytes = 0;

    if (file == NULL || raw == NULL)
        die(path);
    raw[fread(raw, 1, MAX_CASE - 1, file)] = '\0';
    fclose(file);
    to = open_memstream(&text, &bytes);
    if (to == NULL)
        die("open_memstream");
    replace_paths(raw, places, to);
    fclose(to);
    free(raw);
    *whole = strdup(text);
    for (char *line = text, *end; *line != '\0'; line = end) {
        end = line + strcspn(line, "\n");
        if (*end != '\0')
            *end++ = '\0';
        add_line(out, line);
    }
    return text;
}

static bool compare(const struct golden *golden, bool is_err, const struct lines *have,
                    const char *whole)
{
    const struct lines *want = is_err ? &golden->err : &golden->out;
    const char *name = is_err ? "error" : "output";
    bool counts = is_err == (golden->code != 0);
    char mark = is_err ? '!' : '>';

    if (counts && golden->words[0] != '\0' ? match_line(golden->words, whole)
                                           : match_lines(want->line, want->n, have->line, have->n))
        return true;
    if (!counts && golden->other)
        return true;
    printf("  standard %s is not as expected; it is\n", name);
    for (uint32_t i = 0; i < have->n; i++)
        printf("%c %s\n", mark, have->line[i]);
    return false;
}

static bool run_case(const struct golden *golden)
{
    char top[] = "/tmp/epa2a-cli-XXXXXX", path[64], line[8192];
    struct place places[] = {
        {"$TMP", path}, {"$BUILD", getenv("BUILD")}, {"$SRC", getenv("SRC")}, {0}};
    struct lines out = {0}, err = {0};
    char *out_text, *err_text, *out_whole, *err_whole;
    int status, code;
    bool ok;

    if (mkdtemp(top) == NULL)
        die(top);
    snprintf(line, sizeof(line), "mkdir %s/tmp && cd %s/tmp && { %s\n} >../out 2>../err", top, top,
             golden->command);
    status = system(line);
    code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    snprintf(line, sizeof(line), "%s/err", top);
    snprintf(path, sizeof(path), "%s/tmp", top);
    err_text = read_stream(line, places, &err, &err_whole);
    snprintf(line, sizeof(line), "%s/out", top);
    out_text = read_stream(line, places, &out, &out_whole);
    ok = compare(golden, false, &out, out_whole);
    ok = compare(golden, true, &err, err_whole) && ok;
    if (code != golden->code)
        printf("  the exit code is %d, not %d\n", code, golden->code);
    ok = ok && code == golden->code;
    if (!ok)
        printf("  that was line %u:%s\n\n", golden->number, golden->command);
    free(out_text);
    free(err_text);
    free(out_whole);
    free(err_whole);
    snprintf(line, sizeof(line), "rm -rf %s", top);
    return system(line) == 0 && ok;
}

int main(int argc, char **argv)
{
    static struct golden golden;
    uint32_t number = 0, cases = 0, failed = 0;
    char path[8192];
    FILE *file = argc == 3 ? fopen(argv[1], "r") : NULL;

    if (file == NULL || getenv("SRC") == NULL || getenv("BUILD") == NULL) {
        fprintf(stderr, "usage: SRC=TREE BUILD=TREE %s CASES FOLDER-OF-EPA2A\n", argv[0]);
        return 99;
    }
    snprintf(path, sizeof(path), "%s:%s", argv[2], getenv("PATH"));
    setenv("PATH", path, 1);
    umask(022); /* folders that cases make must do for plugins */
    while (read_case(file, &number, &golden)) {
        cases++;
        failed += !run_case(&golden);
    }
    fclose(file);
    printf("%u cases, %u failed\n", cases, failed);
    return failed != 0 || cases == 0;
}
