/* Descriptions of the transport, and explanations of failures. */
#include "describe.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t count_mapped(const struct ucx *u)
{
    uint32_t n = 0;

    for (uint32_t r = 0; r < u->base.size; r++)
        n += r != u->base.rank && u->peer[r].map != NULL;
    return n;
}

/* Number of peers with the same lanes as `peer`; 0 if an earlier peer has them, too. */
static uint32_t count_like(const struct ucx *u, uint32_t peer)
{
    uint32_t n = 0;

    for (uint32_t r = 0; r < u->base.size; r++) {
        if (r == u->base.rank || u->peer[r].map != NULL ||
            memcmp(&u->peer[r].lanes, &u->peer[peer].lanes, sizeof(struct lanes)) != 0)
            continue;
        if (r < peer)
            return 0;
        n++;
    }
    return n;
}

static void say_choices(const struct ucx *u,
                        void (*say)(void *arg, const char *key, const char *value), void *arg)
{
    char *text = NULL, choices[128];
    size_t n;
    FILE *stream = open_memstream(&text, &n);

    if (stream != NULL) {
        ucp_context_print_info(u->context, stream);
        fclose(stream);
    }
    lanes_choices(text != NULL ? text : "", choices, sizeof(choices));
    free(text);
    if (choices[0] != '\0')
        say(arg, "may use", choices);
}

void ucx_describe(struct epa_transport *t,
                  void (*say)(void *arg, const char *key, const char *value), void *arg)
{
    struct ucx *u = ucx_of(t);
    char text[160];

    say(arg, "ucx", ucp_get_version_string());
    say_choices(u, say, arg);
    snprintf(text, sizeof(text), "%u of %u peers", count_mapped(u), t->size - 1);
    say(arg, "loads and stores", text);
    for (uint32_t r = 0; r < t->size; r++) {
        const struct lanes *lanes = &u->peer[r].lanes;
        uint32_t n = r != t->rank && u->peer[r].map == NULL ? count_like(u, r) : 0;

        if (n == 0)
            continue;
        snprintf(text, sizeof(text), "%u of %u peers by %s%s", n, t->size - 1, lanes->names,
                 !lanes->puts        ? ", executed by the peer's CPU"
                 : !lanes->additions ? ", additions by the peer's CPU"
                                     : "");
        say(arg, "puts", text);
    }
    say(arg, "progress", u->helper.on ? "calls and a thread" : "calls");
    say(arg, "dead peers", u->watched ? "seen by UCX" : "seen by the launcher alone");
}

static void explain_quiet(const struct ucx *u, const struct failure *f, const char *why,
                          struct epa_error *err)
{
    char whom[48] = "";

    if (f->peer != EPA_WAIT_NOBODY)
        snprintf(whom, sizeof(whom), "for rank %u ", f->peer);
    (void)epa_fail(epa_awaits(err, f->peer), f->status,
                   "ucx: rank %u waited %.3f s %sfor the completion of its puts, %u "
                   "requests in flight%s%s",
                   u->base.rank, (double)f->waited_ns * 1e-9, whom, u->outstanding,
                   f->code != UCS_OK ? ": " : why,
                   f->code != UCS_OK ? ucs_status_string((ucs_status_t)f->code) : "");
}

void ucx_explain(struct epa_transport *t, struct epa_error *err)
{
    struct ucx *u = ucx_of(t);
    const struct failure *f = &u->failure;
    const char *why = wait_why(f);

    switch (f->at) {
    case FAILED_QUIET:
        explain_quiet(u, f, why, err);
        break;
    case FAILED_START:
        (void)epa_fail(epa_awaits(err, f->peer), f->status, "ucx: rank %u to rank %u: %s: %s",
                       t->rank, f->peer, f->what, ucs_status_string((ucs_status_t)f->code));
        break;
    case FAILED_LINK:
        (void)epa_fail(epa_awaits(err, f->peer), f->status,
                       "ucx: rank %u has lost rank %u, over %s: %s", t->rank, f->peer,
                       u->peer[f->peer].lanes.names, ucs_status_string((ucs_status_t)f->code));
        break;
    default:
        wait_explain("ucx", t, u->boot, f, err);
        break;
    }
}
