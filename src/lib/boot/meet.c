/* Rank 0 listens at a free port and creates a secret. The exchange brings both to the other ranks, and
 * later the results of all ranks, so the ranks decide the same. */
#include "boot/meet.h"

#include <stdlib.h>
#include <string.h>

#include "boot/close_open.h"
#include "boot/conn.h"
#include "boot/contact.h"
#include "boot/net.h"

/* The ranks have just left the exchange, so longer waits mean that a host cannot be reached. */
static const uint64_t connect_most_ns = 10000000000;

/* Result of a step on one rank. */
struct outcome {
    int32_t status; /* enum epa_status */
    char text[sizeof(((struct epa_error *)NULL)->text)];
};

static struct outcome outcome_of(const struct epa_error *failure)
{
    struct outcome out = {.status = failure->status};

    snprintf(out.text, sizeof(out.text), "%s", failure->text);
    return out;
}

/* Collective: returns the failure of the first failed rank in `why`. */
static enum epa_status gather_outcomes(struct exchange *x, struct epa_error *why,
                                       struct epa_error *err)
{
    struct outcome mine = outcome_of(why), *all = calloc(x->params.ranks, sizeof(*all));
    enum epa_status status = EPA_OK;

    if (all == NULL)
        status = epa_fail(err, EPA_ERR_NOMEM, "bootstrap: no memory for %u ranks", x->params.ranks);
    status = exchange_call(x, status, &mine, sizeof(mine), all, false, err);
    *why = (struct epa_error){EPA_OK, ""};
    for (uint32_t r = 0; status == EPA_OK && r < x->params.ranks; r++)
        if (all[r].status != EPA_OK)
            (void)epa_fail(why, (enum epa_status)all[r].status, "%.*s",
                           (int)sizeof(all[r].text) - 1, all[r].text);
    free(all);
    return status;
}

/* Collective: `contact` of rank 0 replaces the contact of each rank. */
static enum epa_status send_contact(struct exchange *x, struct contact *contact,
                                    struct epa_error *err)
{
    struct contact *all = calloc(x->params.ranks, sizeof(*all));
    enum epa_status status = EPA_OK;

    if (all == NULL)
        status = epa_fail(err, EPA_ERR_NOMEM, "bootstrap: no memory for %u ranks", x->params.ranks);
    status = exchange_call(x, status, contact, sizeof(*contact), all, false, err);
    if (status == EPA_OK)
        *contact = all[0];
    free(all);
    return status;
}

enum epa_status meet_other_hosts(struct exchange *x, const char *interface, uint64_t timeout_ns,
                                 struct star **out, struct epa_error *why, struct epa_error *err)
{
    struct star_params p = {.rank = x->params.rank,
                            .ranks = x->params.ranks,
                            .listener = -1,
                            .frame_bytes = EXCHANGE_FRAME,
                            .timeout_ns = timeout_ns};
    struct contact contact = {.port = 0};
    enum epa_status status;

    *out = NULL;
    *why = (struct epa_error){EPA_OK, ""};
    if (conn_check_mac(why) == EPA_OK && p.rank == 0)
        (void)net_listen(&contact, interface[0] != 0 ? interface : NULL, &p.listener, why);
    status = gather_outcomes(x, why, err);
    if (status == EPA_OK && why->status == EPA_OK)
        status = send_contact(x, &contact, err);
    if (status == EPA_OK && why->status == EPA_OK) {
        p.contact = &contact;
        p.connect_ns = timeout_ns < connect_most_ns ? timeout_ns : connect_most_ns;
        (void)star_create(&p, out, why);
        status = gather_outcomes(x, why, err);
    }
    close_open(p.listener);
    if (status != EPA_OK || why->status != EPA_OK) {
        star_destroy(*out);
        *out = NULL;
    }
    return status;
}
