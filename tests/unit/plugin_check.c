/* Descriptors with one thing wrong in each: the sentence that it gets. */
#include "test.h"

#include <epa2a/algorithm.h>

#include "plugin/registry.h"

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

/* What a test changes: a good plugin with a good table. */
struct subject {
    struct epa_option table[4];
    struct epa_algorithm_plugin algorithm;
};

static enum epa_status plan(const struct epa_problem *problem, const struct epa_world *world,
                            uint32_t transport_flags, const void *config, struct epa_footprint *out,
                            struct epa_error *err)
{
    (void)problem, (void)world, (void)transport_flags, (void)config, (void)out;
    return epa_fail(err, EPA_ERR_UNSUPPORTED, "not called");
}

static enum epa_status create(const struct epa_algorithm_params *params, struct epa_algorithm **out,
                              struct epa_error *err)
{
    (void)params, (void)out;
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

static void assert_refused(const struct subject *s, const char *why)
{
    struct epa_error err = {EPA_OK, ""};

    assert_int_equal(plugin_check(&s->algorithm.plugin, EPA_PLUGIN_ALGORITHM, "subject", &err),
                     EPA_ERR_UNSUPPORTED);
    assert_words(err.text, why);
}

TEST(good_descriptor_is_taken)
{
    struct epa_error err = {EPA_OK, ""};
    struct subject s;

    subject_init(&s);
    assert_int_equal(plugin_check(&s.algorithm.plugin, EPA_PLUGIN_ALGORITHM, "subject", &err),
                     EPA_OK);
    s.algorithm.plugin.options = (struct epa_options){0}; /* no options at all */
    assert_int_equal(plugin_check(&s.algorithm.plugin, EPA_PLUGIN_ALGORITHM, "subject", &err),
                     EPA_OK);
}

TEST(built_in_plugins_pass_the_same_check)
{
    const struct epa_plugin *const all[] = {&backend_host_plugin.plugin, &launch_fork_plugin.plugin,
                                            &launch_thread_plugin.plugin};

    for (size_t i = 0; i < LENGTH(all); i++) {
        struct epa_error err = {EPA_OK, ""};

        if (plugin_check(all[i], all[i]->kind, all[i]->name, &err) != EPA_OK)
            fail_msg("%s: %s", all[i]->name, err.text);
    }
}

/* A good plugin after `change`. */
#define REFUSED(why, change) \
    do { \
        struct subject s; \
\
        subject_init(&s); \
        change; \
        assert_refused(&s, why); \
    } while (0)

TEST(functions_texts_and_memory_must_be_there)
{
    REFUSED("unknown kind 17", s.algorithm.plugin.kind = (enum epa_plugin_kind)17);
    REFUSED("function create", s.algorithm.create = NULL);
    REFUSED("function plan", s.algorithm.plan = NULL);
    REFUSED("summary .. one line", s.algorithm.plugin.summary = "two\nlines");
    REFUSED("summary .. one line", s.algorithm.plugin.summary = NULL);
    REFUSED("name .. 1 to 32 of a-z, 0-9 and _", s.algorithm.plugin.name = "\033[31m");
    REFUSED("name .. 1 to 32 of a-z, 0-9 and _", s.algorithm.plugin.name = NULL);
    REFUSED("memory", s.algorithm.memory = 0);
    REFUSED("options .. defaults", s.algorithm.plugin.options.defaults = NULL);
    REFUSED("options .. defaults", s.algorithm.plugin.options.size = 0);
}

TEST(options_must_lie_in_the_struct)
{
    struct subject s;

    subject_init(&s);
    s.table[2].offset = 16;
    assert_refused(&s, "'bytes' .. 16");
    s.table[2].offset = 12; /* begins inside and ends outside */
    assert_refused(&s, "'bytes' .. 12 .. 16");
    s.table[2].offset = 1; /* not aligned */
    assert_refused(&s, "'bytes' .. 1 .. 16");
    s.table[2].offset = SIZE_MAX;
    assert_int_equal(plugin_check(&s.algorithm.plugin, EPA_PLUGIN_ALGORITHM, "subject", NULL),
                     EPA_ERR_UNSUPPORTED);
}

TEST(options_must_be_usable)
{
    static const struct epa_choice none[] = {{0}};
    static const struct epa_choice other[] = {{"slow", SLOW, "one by one"}, {0}};

    REFUSED("'depth' .. type 42", s.table[0].type = (enum epa_option_type)42);
    REFUSED("'depth' .. no value", s.table[0].min = 10);
    REFUSED("'depth' .. help", s.table[0].help = NULL);
    REFUSED("'speed' .. no choices", s.table[1].choices = NULL);
    REFUSED("'speed' .. no choices", s.table[1].choices = none);
    REFUSED("default .. 'speed' (1) .. choices", s.table[1].choices = other);
    REFUSED("option 1 .. a-z, 0-9 and _", s.table[1].name = "De pth");
    REFUSED("'depth' .. twice", s.table[1].name = "depth");
    REFUSED("'name' .. names the plugin", s.table[1].name = "name");
}
