/* Runs all tests that the files of this program registered, or those whose names match the pattern
 * in $EPA2A_TEST. */
#include "test.h"

#include <arpa/inet.h>
#include <sys/socket.h>

enum { FILES = 16, TESTS = 64 };

struct group {
    const char *file;
    CMFixtureFunction set_up, tear_down;
    struct CMUnitTest test[TESTS];
    size_t n;
};

int test_argc;
char **test_argv;
static struct group group[FILES];

static struct group *group_of(const char *file)
{
    size_t i = 0;

    while (i < FILES && group[i].file != NULL && strcmp(group[i].file, file) != 0)
        i++;
    if (i == FILES)
        abort();
    group[i].file = file;
    return &group[i];
}

uint32_t test_reserve_port(int *out)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;

    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    assert_int_equal(bind(fd, (struct sockaddr *)&at, bytes), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    *out = fd;
    return ntohs(at.sin_port);
}

void test_add(const char *file, const struct CMUnitTest *test)
{
    struct group *of = group_of(file);

    if (of->n == TESTS)
        abort();
    of->test[of->n++] = *test;
}

void test_group(const char *file, CMFixtureFunction set_up, CMFixtureFunction tear_down)
{
    group_of(file)->set_up = set_up;
    group_of(file)->tear_down = tear_down;
}

void assert_words(const char *text, const char *words)
{
    const char *at = text;

    for (const char *word = words, *end; word != NULL; word = end == NULL ? NULL : end + 4) {
        char part[512];

        end = strstr(word, " .. ");
        snprintf(part, sizeof(part), "%.*s", end == NULL ? -1 : (int)(end - word), word);
        at = strstr(at, part);
        if (at == NULL)
            fail_msg("'%s' does not say: %s", text, words);
        at += strlen(part);
    }
}

static struct epa_error error;

struct epa_error *test_error(void)
{
    error = (struct epa_error){EPA_OK, ""};
    return &error;
}

void assert_status(enum epa_status have, enum epa_status want, const char *words)
{
    if (have != want || (words[0] == '\0' && error.text[0] != '\0'))
        fail_msg("status %d, not %d: %s", have, want, error.text);
    assert_words(error.text, words);
}

void set_variables(const char *text)
{
    char copy[400], *rest = copy;

    snprintf(copy, sizeof(copy), "%s", text);
    for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
        char *value = strchr(word, '=');

        if (value == NULL) {
            unsetenv(word);
            continue;
        }
        *value++ = '\0';
        setenv(word, value, 1);
    }
}

int main(int argc, char **argv)
{
    int failed = 0;

    test_argc = argc;
    test_argv = argv;
    if (getenv("EPA2A_TEST") != NULL)
        cmocka_set_test_filter(getenv("EPA2A_TEST"));
    for (struct group *of = group; of < group + FILES && of->n > 0; of++)
        failed += _cmocka_run_group_tests(strrchr(of->file, '/') + 1, of->test, of->n, of->set_up,
                                          of->tear_down);
    return failed != 0;
}
