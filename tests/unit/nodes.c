/* Tests of the assignment of ranks to nodes, machine shares and cores, for made-up placements and
 * for the cores of this machine. */
#include "test.h"

#include <sched.h>
#include <unistd.h>

#include "boot/nodes.h"
#include "host/pin.h"

enum { MOST = 8 };

/* A rank is given as "host/machine/mask". Each hexadecimal digit of the mask is one byte. */
struct given {
    char text[MOST][24];
    unsigned char mask[MOST][4];
    struct nodes_rank rank[MOST];
};

static void find(struct given *g, const char *const *hosts, uint32_t n, uint32_t per_node)
{
    memset(g, 0, sizeof(*g));
    for (uint32_t r = 0; r < n; r++) {
        char *slash;
        size_t bytes = 0;

        snprintf(g->text[r], sizeof(g->text[r]), "%s", hosts[r]);
        slash = strchr(g->text[r], '/');
        *slash = 0;
        g->rank[r].identity = g->text[r];
        g->rank[r].machine = slash + 1;
        slash = strchr(slash + 1, '/');
        *slash = 0;
        for (const char *c = slash + 1; *c != 0; c++, bytes++)
            g->mask[r][bytes] = (unsigned char)(*c <= '9' ? *c - '0' : *c - 'a' + 10);
        g->rank[r].mask = g->mask[r];
        g->rank[r].mask_bytes = bytes;
    }
    nodes_find(g->rank, n, per_node);
}

static void assert_nodes(const struct given *g, uint32_t n, const char *want)
{
    char got[MOST + 1] = "";

    for (uint32_t r = 0; r < n; r++)
        got[r] = (char)('0' + g->rank[r].node);
    assert_string_equal(got, want);
}

TEST(hosts_are_numbered_as_they_appear_and_split_in_ascending_order)
{
    static const char *const hosts[] = {"b/b/f", "a/a/f", "b/b/f", "c/c/f",
                                        "a/a/f", "b/b/f", "b/b/f"};
    static const char *const want[] = {"0102100", "0102133", "0123456"}; /* per_node 0, 2 and 1 */
    static const uint32_t per_node[] = {0, 2, 1};
    struct given g;

    for (uint32_t i = 0; i < 3; i++) {
        find(&g, hosts, 7, per_node[i]);
        assert_nodes(&g, 7, want[i]);
    }
}

TEST(ranks_with_the_same_cores_share_them_in_order)
{
    static const char *const bound[] = {"a/a/3", "a/a/c", "a/a/3", "b/b/3", "a/a/c"};
    static const uint32_t share[] = {0, 0, 1, 0, 1}, shares[] = {2, 2, 2, 1, 2};
    static const uint32_t cores[] = {4, 4, 4, 2, 4};
    struct given g;

    find(&g, bound, 5, 0);
    for (uint32_t r = 0; r < 5; r++) {
        assert_int_equal(g.rank[r].share, share[r]);
        assert_int_equal(g.rank[r].shares, shares[r]);
        assert_int_equal(g.rank[r].local_cores, cores[r]);
    }
}

TEST(hosts_of_one_machine_divide_its_cores)
{
    /* Containers of one machine: 4 ranks with 4 cores on 2 hosts, then 4 ranks with 3 cores. */
    static const char *const roomy[] = {"a/m/f", "b/m/f", "a/m/f", "b/m/f"};
    static const char *const tight[] = {"a/m/7", "b/m/7", "b/m/7", "b/m/7"};
    struct given g;

    find(&g, roomy, 4, 0);
    for (uint32_t r = 0; r < 4; r++) {
        assert_int_equal(g.rank[r].local_cores, 2);
        assert_int_equal(g.rank[r].shares, 4);
        assert_int_equal(g.rank[r].share, r);
    }
    find(&g, tight, 4, 0);
    assert_int_equal(g.rank[0].local_cores, 1);
    assert_int_equal(g.rank[1].local_cores, 2);
}

TEST(masks_may_have_any_length_or_be_absent)
{
    static const char *const odd[] = {"a/m/ff", "a/m/f", "a/m/"};
    struct given g;

    find(&g, odd, 3, 0);
    assert_nodes(&g, 3, "000");
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(g.rank[r].shares, 1);
        assert_int_equal(g.rank[r].local_cores, 8);
    }
}

TEST(this_host_has_an_identity)
{
    struct nodes_host host, again;
    char name[80];

    nodes_host(&host);
    nodes_host(&again);
    assert_int_equal(gethostname(name, sizeof(name)), 0);
    assert_int_equal(strncmp(host.name, name, sizeof(host.name) - 1), 0);
    assert_string_equal(host.identity, again.identity);
    assert_non_null(strstr(host.network, host.machine));
    assert_non_null(strstr(host.identity, host.network));
    assert_non_null(strstr(host.identity, "user:["));
}

/* ---- cores ---- */

static int32_t made_up[] = {0, 2, 4, 6, 1, 3, 5, 7};

static struct pin_plan plan_of(uint32_t cores, uint32_t ranks, uint32_t threads)
{
    return (struct pin_plan){
        .order = made_up, .cores = cores, .pin = PIN_CORE, .ranks = ranks, .threads = threads};
}

TEST(ranks_have_distinct_cores_while_there_are_enough)
{
    for (uint32_t ranks = 1; ranks <= 8; ranks++) {
        for (uint32_t threads = 1; ranks * threads <= 8; threads++) {
            struct pin_plan plan = plan_of(8, ranks, threads);
            const int32_t *core;
            uint32_t used = 0;

            for (uint32_t r = 0; r < ranks; r++) {
                assert_int_equal(pin_plan_rank(&plan, r, &core), threads);
                for (uint32_t t = 0; t < threads; t++) {
                    assert_int_equal(used & 1u << core[t], 0);
                    used |= 1u << core[t];
                }
            }
        }
    }
}
