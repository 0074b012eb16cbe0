/* Lines from a rank's pipe to this process' standard error.
 *
 * A line goes out in one write, so that lines of ranks do not mix; one longer than the
 * buffer is cut. A pipe holds what was written to it after its writer died, so the last
 * words of a killed rank are here, too. */
#include "launch/relay.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    TURN_READS = 16,    /* of one rank at a time: it may write faster than we read */
    FINISH_READS = 256, /* more than a pipe holds: someone it left behind may write on */
    FULL_WAIT_MS = 100,
};

static void put(const struct relay *relay, const char *data, size_t bytes)
{
    if (relay->before != NULL)
        relay->before(relay->arg);
    while (bytes > 0) {
        ssize_t n = write(STDERR_FILENO, data, bytes);

        if (n > 0) {
            data += n;
            bytes -= (size_t)n;
        } else if (n < 0 && errno == EAGAIN) {
            struct pollfd full = {.fd = STDERR_FILENO, .events = POLLOUT};

            if (poll(&full, 1, FULL_WAIT_MS) <= 0)
                return; /* nobody reads; ranks matter more than their words */
        } else if (n == 0 || errno != EINTR) {
            return;
        }
    }
}

static void put_line(struct relay *relay)
{
    size_t bytes = relay->head + relay->held;

    relay->line[bytes] = '\n';
    put(relay, relay->line, bytes + 1);
    relay->held = 0;
}

static void add(struct relay *relay, const char *data, size_t bytes)
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
        put_line(relay);
        if (whole) {
            data++;
            bytes--;
        }
    }
}

static void read_some(struct relay *relay, uint32_t reads)
{
    char data[4096];

    for (uint32_t i = 0; i < reads && relay->from >= 0; i++) {
        ssize_t n = read(relay->from, data, sizeof(data));

        if (n > 0 && relay->prefix) {
            add(relay, data, (size_t)n);
        } else if (n > 0) {
            put(relay, data, (size_t)n);
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
    out->before = NULL;
    out->head = (size_t)snprintf(out->line, sizeof(out->line), "[rank %u] ", rank);
}

void relay_turn(struct relay *relay)
{
    read_some(relay, TURN_READS);
}

void relay_finish(struct relay *relay)
{
    read_some(relay, FINISH_READS);
    if (relay->held > 0)
        put_line(relay);
    if (relay->from >= 0)
        close(relay->from);
    relay->from = -1;
}
