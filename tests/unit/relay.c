/* What ranks print, as it comes out of the fork launcher. */
#include <fcntl.h>
#include "test.h"
#include <signal.h>
#include <unistd.h>

#include "launch_status_page.h"
#include "launch/process.h"

static const struct epa_launcher_plugin *const fork_launcher = &launch_fork_plugin;

/* Standard error goes to a file in between, of which `text` gets the contents. */
static int catch_stderr(int *saved)
{
    int file = memfd_create("stderr", MFD_CLOEXEC);

    assert_true(file >= 0);
    *saved = dup(STDERR_FILENO);
    dup2(file, STDERR_FILENO);
    return file;
}

static void read_stderr(int file, int saved, char *text, size_t room)
{
    ssize_t n = pread(file, text, room - 1, 0);

    dup2(saved, STDERR_FILENO);
    close(saved);
    close(file);
    assert_true(n >= 0);
    text[n] = '\0';
}

static void say(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0)
        _exit(99);
}

static enum epa_status speak_and_die(struct epa_bootstrap *boot, void *arg)
{
    (void)arg;
    if (boot->world.rank == 0)
        say("one\n\ntwo");
    if (boot->world.rank == 1) {
        printf("to stdout\n");
        fflush(stdout);
        say("last words");
        raise(SIGKILL);
    }
    return boot->barrier(boot) == EPA_OK ? EPA_OK : EPA_ERR_ABORTED;
}

TEST(lines_have_a_prefix_and_the_last_words_of_the_dead_are_kept)
{
    struct epa_launch launch = launch_of(2, speak_and_die, NULL);
    enum epa_status status;
    struct epa_error err;
    char text[512];
    int saved, file = catch_stderr(&saved);

    status = run(fork_launcher, &launch, &err);
    read_stderr(file, saved, text, sizeof(text));
    assert_int_equal(status, EPA_ERR_DIED);
    assert_non_null(strstr(text, "[rank 0] one\n"));
    assert_non_null(strstr(text, "[rank 0] \n"));
    assert_non_null(strstr(text, "[rank 0] two\n"));
    assert_non_null(strstr(text, "[rank 1] to stdout\n"));
    assert_non_null(strstr(text, "[rank 1] last words\n"));
}

TEST(without_prefix_bytes_go_as_they_come)
{
    struct epa_launch launch = launch_of(1, speak_and_die, NULL);
    const struct epa_options *options = &fork_launcher->plugin.options;
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status;
    char text[512], config[64];
    bool prefix = false;
    int saved, file;

    memcpy(config, options->defaults, options->size);
    for (const struct epa_option *o = options->table; o->name != NULL; o++) {
        if (strcmp(o->name, "prefix") == 0)
            memcpy(config + o->offset, &prefix, sizeof(prefix));
    }
    file = catch_stderr(&saved);
    status = fork_launcher->launch(config, &launch, &err);
    read_stderr(file, saved, text, sizeof(text));
    assert_int_equal(status, EPA_OK);
    assert_string_equal(text, "one\n\ntwo");
}

/* More than one turn takes, as a rank may have written between the last turn and its death;
 * a second writer holds the pipe open. */
TEST(all_that_was_in_the_pipe_comes_out_at_the_end)
{
    static char line[1000], text[100000];
    struct relay relay;
    size_t written = 0, seen = 0;
    int ends[2], saved, file;

    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    memset(line, 'x', sizeof(line));
    line[sizeof(line) - 1] = '\n';
    for (ssize_t n; (n = write(ends[1], line, sizeof(line))) > 0;)
        written += (size_t)n;
    file = catch_stderr(&saved);
    relay_init(&relay, ends[0], 7, false);
    relay_finish(&relay);
    read_stderr(file, saved, text, sizeof(text));
    for (const char *c = text; *c != '\0'; c++)
        seen += *c == 'x' || *c == '\n';
    assert_int_equal(seen, written);
    assert_int_equal(relay.from, -1);
    close(ends[1]);
}
