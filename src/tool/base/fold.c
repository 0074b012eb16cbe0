/* Folds pages of help. A page is a list of paragraphs and of separate lines (headings, commands,
 * YAML, rows of a table). A line belongs to a paragraph if it had no room for the first word of the
 * next line. */
#include "base/fold.h"

#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/memory.h"

enum {
    COLUMNS_LEAST = 40,
    WRAPPED = 86,   /* a line of a page that ends behind this column was wrapped */
    HANG_MOST = 48, /* the last column begins before this one */
    HANG_PARTS = 2, /* at most half of the width is indentation */
    QUOTED_MOST = 40,
};

/* A line of a page. */
struct line {
    const char *text;
    size_t bytes, indent;
    size_t hang; /* position of its last column; `indent`: the line has one column */
};

uint32_t fold_columns(FILE *file)
{
    struct winsize size;
    /* terminal_guard() leaves streams of terminals without a descriptor. */
    int fd = file == stdout ? STDOUT_FILENO : file == stderr ? STDERR_FILENO : fileno(file);

    if (fd < 0 || !isatty(fd) || ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        return FOLD_COLUMNS;
    return size.ws_col > COLUMNS_LEAST ? size.ws_col : COLUMNS_LEAST;
}

/* Returns the number of UTF-8 characters, one column each. */
static size_t count_columns(const char *text, size_t bytes)
{
    size_t n = 0;

    for (size_t i = 0; i < bytes; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

/* Returns true for the begin of a command; commands are indented. */
static bool begins_command(const char *text, size_t indent)
{
    static const char *const commands[] = {"epa2a ", "mpirun ", "srun ", "torchrun ",
                                           "chrt ",  "old/",    "new/"};

    for (size_t i = 0; indent > 0 && i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strncmp(text, commands[i], strlen(commands[i])) == 0)
            return true;
    return false;
}

/* Finds the last column of a line, which follows two blanks or more. */
static size_t find_hang(const struct line *line)
{
    size_t hang = line->indent;

    for (size_t i = line->indent + 1; i < line->bytes && i < HANG_MOST; i++)
        if (line->indent > 0 && line->text[i] != ' ' && line->text[i - 1] == ' ' &&
            line->text[i - 2] == ' ')
            hang = i;
    return hang;
}

static struct line read_line(const char *text)
{
    struct line line = {.text = text, .bytes = strcspn(text, "\n")};

    while (line.indent < line.bytes && text[line.indent] == ' ')
        line.indent++;
    line.hang = find_hang(&line);
    return line;
}

/* Returns true if `next` continues the paragraph of `line`, whose lines are indented by `hang`. */
static bool continues_paragraph(const struct line *line, size_t hang, const struct line *next)
{
    const char *word = next->text + next->indent;
    size_t first = strcspn(word, " \n");

    return next->bytes > next->indent && next->indent == hang && next->hang == next->indent &&
           !begins_command(word, next->indent) && line->bytes + 1 + first > WRAPPED;
}

/* Returns the bytes of the first word. A command in quotes, `epa2a help KEY`, is one word. */
static size_t word_bytes(const char *text)
{
    size_t bytes = strcspn(text, " ");
    const char *quote = text + (*text == '('), *end;

    if (*quote != '`' && *quote != '\'')
        return bytes;
    end = strchr(quote + 1, *quote);
    if (end == NULL || end < text + bytes || end - quote > QUOTED_MOST)
        return bytes;
    return (size_t)(end - text) + strcspn(end, " ");
}

/* Returns true if the last column is a command, which stays whole for copying. */
static bool ends_with_command(const struct line *line)
{
    return line->hang > line->indent && begins_command(line->text + line->hang, line->hang);
}

/* Adds words of `text` until the width is used. Returns the number of consumed bytes, with
 * blanks. */
static size_t add_words(struct text *out, const char *text, size_t room)
{
    size_t end = word_bytes(text);

    while (text[end] != '\0') {
        size_t next = end + strspn(text + end, " "), word = word_bytes(text + next);

        if (word == 0 || count_columns(text, next + word) > room)
            break;
        end = next + word;
    }
    text_add_bytes(out, text, end);
    return end + strspn(text + end, " ");
}

/* Adds a paragraph: its first line is indented by `indent`, all others by `hang`. */
static void add_paragraph(struct text *out, const char *text, size_t indent, size_t hang,
                          bool command, size_t columns)
{
    size_t at = indent;

    while (*text != '\0') {
        size_t room = columns > at + 2 * command ? columns - at - 2 * command : 1;

        if (command && at + count_columns(text, strlen(text)) <= columns)
            room = columns - at;
        text_add(out, "%*s", (int)at, "");
        text += add_words(out, text, room);
        text_add(out, "%s\n", command && *text != '\0' ? " \\" : "");
        at = hang;
    }
}

void fold_add(struct text *out, const char *text, enum fold how, uint32_t columns)
{
    while (*text != '\0') {
        struct line line = read_line(text);
        const char *begin = line.text + line.indent;
        bool command = begins_command(begin, line.indent), alone = line.hang == line.indent;
        size_t hang = alone && line.indent > 0 && command ? line.indent + 4 : line.hang;
        text_auto paragraph = {0};
        bool joined = false;

        text_add(&paragraph, "%.*s", (int)(line.bytes - line.indent), begin);
        text += line.bytes + (text[line.bytes] == '\n');
        for (struct line next = read_line(text); how == FOLD_PAGE && !command && *text != '\0';
             next = read_line(text)) {
            if (!continues_paragraph(&line, line.hang, &next))
                break;
            text_add(&paragraph, " %.*s", (int)(next.bytes - next.indent), next.text + next.indent);
            text += next.bytes + (text[next.bytes] == '\n');
            line = (struct line){next.text, next.bytes, line.indent, line.hang};
            joined = true;
        }
        if ((alone && !joined && !command) || hang > columns / HANG_PARTS)
            hang = line.indent + 4; /* continuations of YAML and messages are indented */
        if (paragraph.bytes == 0)
            text_add(out, "\n");
        else if (ends_with_command(&line))
            text_add(out, "%*s%s\n", (int)line.indent, "", paragraph.data);
        else
            add_paragraph(out, paragraph.data, line.indent, hang, command && alone, columns);
    }
}

void fold_print(FILE *file, const char *text, enum fold how)
{
    text_auto out = {0};

    fold_add(&out, text, how, fold_columns(file));
    if (out.bytes > 0)
        fwrite(out.data, 1, out.bytes, file);
}
