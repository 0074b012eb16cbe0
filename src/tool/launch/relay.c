/* Relay of a rank's output. The relay writes each line of a rank in one write, so that lines of ranks do
 * not mix; it splits lines longer than its buffer. A pipe keeps its contents after the death of the
 * writer, so the relay also prints the last output of a killed rank. */
#include "launch/relay.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "boot/close_open.h"

enum {
    TURN_READS = 16, /* reads of a rank per turn: it may write faster than the relay reads */
    FINISH_READS =
        256, /* more than a pipe holds; a limit, since a grandchild may continue to write */
    FULL_WAIT_MS = 100, /* wait for room in standard error */
};

/* Writes to standard error in pieces that do not block if poll() reports room. The relay drops output
 * rather than delay the ranks. */
static void write_output(struct relay *relay, char *data, size_t bytes)
{
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};

    /* The text may reach a terminal, now or later from a file. */
    bytes = terminal_clean(data, bytes, true);
    if (relay->asked != NULL && relay->asked->poll_launch != NULL)
        (void)relay->asked->poll_launch(relay->asked->poll_arg, EPA_POLL_PRINTING);
    while (bytes > 0) {
        ssize_t n;

        relay->unread = poll(&out, 1, relay->unread ? 0 : FULL_WAIT_MS) <= 0;
        if (relay->unread)
            return;
        n = write(STDERR_FILENO, data, bytes < PIPE_BUF ? bytes : PIPE_BUF);
        if (n > 0) {
            data += n;
            bytes -= (size_t)n;
        } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
            return;
        }
    }
}

static void write_line(struct relay *relay)
{
    size_t bytes = relay->head + relay->held;

    relay->line[bytes] = '\n';
    write_output(relay, relay->line, bytes + 1);
    relay->held = 0;
}

static void add_to_line(struct relay *relay, const char *data, size_t bytes)
{
    size_t room = sizeof(relay->line) - 1 - relay->head;

    while (bytes > 0) {
        const char *end = memchr(data, '\n', bytes);
        size_t n = end != NULL ? (size_t)(end - data) : bytes;
        bool whole = n <= room - relay->held;

        if (!whole)
            n = room - relay->held;
        memcpy(relay->line + relay->head + relay->held, data, n);
        relay->held += n;
        data += n;
        bytes -= n;
        if (whole && end == NULL)
            return;
        write_line(relay);
        if (whole) {
            data++;
            bytes--;
        }
    }
}

static void read_pipe(struct relay *relay, uint32_t reads)
{
    char data[4096];

    for (uint32_t i = 0; i < reads && relay->from >= 0; i++) {
        ssize_t n = read(relay->from, data, sizeof(data));

        if (n > 0 && relay->prefix) {
            add_to_line(relay, data, (size_t)n);
        } else if (n > 0) {
            write_output(relay, data, (size_t)n);
        } else if (n < 0 && errno == EAGAIN) {
            return;
        } else if (n == 0 || errno != EINTR) {
            close(relay->from);
            relay->from = -1;
        }
    }
}

void relay_init(struct relay *out, int from, uint32_t rank, bool prefix)
{
    out->from = from;
    out->prefix = prefix;
    out->held = 0;
    out->unread = false;
    out->asked = NULL;
    out->head = (size_t)snprintf(out->line, sizeof(out->line), "[rank %u] ", rank);
}

void relay_turn(struct relay *relay)
{
    read_pipe(relay, TURN_READS);
}

void relay_finish(struct relay *relay)
{
    read_pipe(relay, FINISH_READS);
    if (relay->held > 0)
        write_line(relay);
    close_open(relay->from);
    relay->from = -1;
}
