/* Tests of plugin_check(): descriptors with one defect each, and the message for it. */
#include "test.h"

#include <epa2a/algorithm.h>

#include "registry/registry.h"
#include "registry/check.h"

enum speed { SLOW, FAST };

struct config {
    uint32_t depth;
    int speed;
    uint64_t bytes;
};

static const struct config defaults = {.depth = 8, .speed = FAST, .bytes = 64};
static const struct epa_choice speeds[] = {
    {"slow", SLOW, "one by one"},
    {"fast", FAST, "all at once"},
    {0},
};

/* A valid plugin with a valid option table, which a test then breaks. */
struct subject {
    struct epa_option table[4];
    struct epa_algorithm_plugin algorithm;
};

static enum epa_status plan(const struct epa_problem *problem, const struct epa_world *world,
                            uint32_t transport_flags, const void *config, struct epa_footprint *out,
                            struct epa_error *err)
{
    return epa_fail(err, EPA_ERR_UNSUPPORTED, "not called");
}

static enum epa_status create(const struct epa_algorithm_params *params, struct epa_algorithm **out,
                              struct epa_error *err)
{
    return epa_fail(err, EPA_ERR_UNSUPPORTED, "not called");
}

static void subject_init(struct subject *s)
{
    *s = (struct subject){
        .table = {{.name = "depth",
                   EPA_U32(struct config, depth),
                   .min = 1,
                   .max = 9,
                   .help = "requests in flight"},
                  {.name = "speed",
                   EPA_CHOICE(struct config, speed),
                   .choices = speeds,
                   .help = "how fast"},
                  {.name = "bytes", EPA_BYTES(struct config, bytes), .help = "how much"}},
        .algorithm = {.plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_ALGORITHM,
                                                   struct epa_algorithm_plugin),
                                 .name = "subject", .summary = "is looked at"},
                      .memory = EPA_MEMORY_HOST,
                      .plan = plan,
                      .create = create},
    };
    s->algorithm.plugin.options = (struct epa_options){s->table, sizeof(struct config), &defaults};
}

/* Breaks the next subject and records the expected message. */
#define WRONG(member, said) \
    s[n].member; \
    why[n++] = said;

TEST(a_broken_descriptor_is_refused_with_the_reason)
{
    static const struct epa_choice none[] = {{0}}, other[] = {{"slow", SLOW, "one by one"}, {0}};
    enum { CASES = 24 };
    static struct subject s[CASES];
    const char *why[CASES];
    uint32_t n = 0;

    for (uint32_t i = 0; i < CASES; i++) {
        subject_init(&s[i]);
        assert_int_equal(
            plugin_check(&s[i].algorithm.plugin, EPA_PLUGIN_ALGORITHM, "subject", NULL), EPA_OK);
    }
    WRONG(algorithm.plugin.kind = (enum epa_plugin_kind)17, "unknown kind 17")
    WRONG(algorithm.create = NULL, "function create")
    WRONG(algorithm.plan = NULL, "function plan")
    WRONG(algorithm.plugin.summary = "two\nlines", "summary .. one line")
    WRONG(algorithm.plugin.summary = NULL, "summary .. one line")
    WRONG(algorithm.plugin.name = "\033[31m", "name .. 1 to 32 of a-z, 0-9 and _")
    WRONG(algorithm.plugin.name = NULL, "name .. 1 to 32 of a-z, 0-9 and _")
    WRONG(algorithm.memory = 0, "memory")
    WRONG(algorithm.plugin.options.defaults = NULL, "options .. defaults")
    WRONG(algorithm.plugin.options.size = 0, "options .. defaults")
    WRONG(table[2].offset = 16, "'bytes' .. 16")
    WRONG(table[2].offset = 12, "'bytes' .. 12 .. 16") /* begins inside and ends outside */
    WRONG(table[2].offset = 1, "'bytes' .. 1 .. 16")   /* not aligned */
    WRONG(table[2].offset = SIZE_MAX, "'bytes'")
    WRONG(table[0].type = (enum epa_option_type)42, "'depth' .. type 42")
    WRONG(table[0].min = 10, "'depth' .. no value")
    WRONG(table[0].help = NULL, "'depth' .. help")
    WRONG(table[1].choices = NULL, "'speed' .. no choices")
    WRONG(table[1].choices = none, "'speed' .. no choices")
    WRONG(table[1].choices = other, "default .. 'speed' (1) .. choices")
    WRONG(table[1].name = "De pth", "option 1 .. a-z, 0-9 and _")
    WRONG(table[1].name = "depth", "'depth' .. twice")
    WRONG(table[1].name = "name", "'name' .. names the plugin")
    for (uint32_t i = 0; i < n; i++)
        assert_status(
            plugin_check(&s[i].algorithm.plugin, EPA_PLUGIN_ALGORITHM, "subject", test_error()),
            EPA_ERR_UNSUPPORTED, why[i]);
}
