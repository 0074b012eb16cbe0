/* Tests of src/lib/options/choose.h and requirements.h, with the plugins of the build tree and of
 * tests/plugins. */
#include "test.h"

#include <epa2a/transport.h>

#include "failing_calloc.h"
#include "launch/program_registry.h"
#include "options/choose.h"

static struct registry *registry;

static int open_registry(void **state)
{
    static const char *const folders[] = {TEST_PLUGINS, NULL};

    (void)state;
    return program_registry_create(folders, &registry, test_error()) == EPA_OK ? 0 : -1;
}

static int close_registry(void **state)
{
    (void)state;
    registry_destroy(registry);
    return 0;
}

TEST_GROUP(open_registry, close_registry)

static const uint32_t two_nodes[] = {0, 0, 1, 1};
static const struct epa_world one = {.size = 4, .local_size = 4},
                              several = {.size = 4, .local_size = 2, .node = two_nodes};

static enum epa_status choose_for(enum epa_op op, const struct epa_world *world, const char *comm,
                                  const char *text, const char *environment, struct choice *out)
{
    const struct choose_source source[] = {
        {"options of the comm", comm, true},
        {"options", text, false},
        {"EPA2A_OPTIONS", environment, true},
    };
    const struct choose_params params = {
        .world = world, .op = op, .source = source, .sources = LENGTH(source)};

    *out = (struct choice){0};
    return choose(registry, &params, out, test_error());
}

static void assert_names(const struct choice *choice, const char *transport, const char *algorithm)
{
    assert_string_equal(choice->backend.plugin->name, "host");
    assert_string_equal(choice->transport.plugin->name, transport);
    assert_string_equal(choice->algorithm.plugin->name, algorithm);
}

/* Returns the number that an option has in a choice. */
static uint64_t number_of(const struct ep_choice *of, const char *name)
{
    const struct epa_option *option = option_find(&of->plugin->options, name);
    const char *field = (const char *)of->config;

    assert_non_null(option);
    field += option->offset;
    if (option->type == EPA_OPTION_BOOL)
        return *(const bool *)field;
    return option->type == EPA_OPTION_CHOICE ? (uint64_t) * (const int *)(const void *)field
                                             : *(const uint32_t *)(const void *)field;
}

static void assert_rejected(const char *text, const char *words)
{
    struct choice choice;

    assert_status(choose_for(EPA_OP_MOE, &one, NULL, text, NULL, &choice), EPA_ERR_CONFIG, words);
    assert_null(choice.memory.last);
}

TEST(defaults_serve_ranks_of_one_host)
{
    struct choice choice;

    assert_status(choose_for(EPA_OP_MOE, NULL, NULL, NULL, NULL, &choice), EPA_OK, "");
    assert_names(&choice, "shm", "ll_v2");
    assert_int_equal(choice.threads, 1);
    assert_true(choice.timeout_ns == 0);
    assert_null(choice.between.plugin);
    choice_free(&choice);
    assert_status(choose_for(EPA_OP_AG_GEMM, &one, NULL, NULL, NULL, &choice), EPA_OK, "");
    assert_names(&choice, "shm", "ag_gemm_2d");
    choice_free(&choice);
}

TEST(a_layer_uses_the_fused_algorithm)
{
    const struct choose_params params = {.op = EPA_OP_MOE, .layer = true};
    struct choice choice;

    assert_status(choose(registry, &params, &choice, test_error()), EPA_OK, "");
    assert_names(&choice, "shm", "fused");
    choice_free(&choice);
}

TEST(keys_with_and_without_prefix_reach_their_tables)
{
    struct choice choice;

    assert_status(choose_for(EPA_OP_MOE, &one, "backend.huge_pages=false, threads=3, timeout=5s",
                             "transport.name=reorder\nalgorithm=ll_v2, dedup=true\n"
                             "algorithm.layout=expert",
                             NULL, &choice),
                  EPA_OK, "");
    assert_names(&choice, "reorder", "ll_v2");
    assert_int_equal(number_of(&choice.algorithm, "dedup"), 1);
    assert_int_equal(number_of(&choice.backend, "huge_pages"), 0);
    assert_int_equal(choice.threads, 3);
    assert_true(choice.timeout_ns == 5000000000);
    choice_free(&choice);
}

TEST(later_texts_override_and_a_named_plugin_drops_its_earlier_options)
{
    struct choice choice;

    assert_status(choose_for(EPA_OP_MOE, &one, "threads=2, buffers=1", "buffers=2, dedup=true",
                             "threads=4", &choice),
                  EPA_OK, "");
    assert_int_equal(choice.threads, 4);
    assert_int_equal(number_of(&choice.algorithm, "buffers"), 2);
    assert_int_equal(number_of(&choice.algorithm, "dedup"), 1);
    choice_free(&choice);
    assert_status(
        choose_for(EPA_OP_MOE, &one, NULL, "layout=rank", "algorithm=ll_v1, buffers=1", &choice),
        EPA_OK, "");
    assert_names(&choice, "shm", "ll_v1");
    assert_int_equal(number_of(&choice.algorithm, "buffers"), 1);
    choice_free(&choice);
}

TEST(shared_texts_may_serve_another_operation)
{
    struct choice choice;

    assert_status(choose_for(EPA_OP_AG_GEMM, &one, "algorithm=ll_v1, buffers=1", NULL,
                             "layout=rank", &choice),
                  EPA_OK, "");
    assert_names(&choice, "shm", "ag_gemm_2d");
    choice_free(&choice);
    assert_status(choose_for(EPA_OP_AG_GEMM, &one, NULL, "layout=rank", NULL, &choice),
                  EPA_ERR_CONFIG, "options .. 'layout'");
    assert_status(choose_for(EPA_OP_AG_GEMM, &one, NULL, "algorithm=ll_v1", NULL, &choice),
                  EPA_ERR_CONFIG, "'ll_v1' .. another operation");
}

TEST(a_preset_has_less_priority_and_needs_no_such_option)
{
    struct choose_source source = {"options", NULL, false};
    struct choose_params params = {
        .op = EPA_OP_MOE, .source = &source, .sources = 1, .preset = "layout=rank, nothing=1"};
    struct choice choice;

    assert_status(choose(registry, &params, &choice, test_error()), EPA_OK, "");
    assert_int_equal(number_of(&choice.algorithm, "layout"), EPA_LAYOUT_RANK);
    choice_free(&choice);
    source.text = "layout=expert";
    assert_status(choose(registry, &params, &choice, test_error()), EPA_OK, "");
    assert_int_equal(number_of(&choice.algorithm, "layout"), EPA_LAYOUT_EXPERT);
    choice_free(&choice);
}

TEST(wrong_keys_and_values_are_rejected_with_a_suggestion)
{
    assert_rejected("transprot=shm", "'transprot' .. did you mean 'transport'?");
    assert_rejected("buferss=1", "'buferss' in algorithm 'll_v2' .. 'buffers'");
    assert_rejected("huge_pages=false", "did you mean 'backend.huge_pages'?");
    assert_rejected("backend.workrs=2", "'backend.workrs' in backend 'host' .. 'workers'");
    assert_rejected("threads=0", "threads: '0' is out of range; .. 1 to 256");
    assert_rejected("timeout=5", "timeout: '5' has no unit; .. ns, us, ms or s");
    assert_rejected("backend.workers=1000", "backend.workers: '1000' is out of range");
    assert_rejected("transport=shm, transport.name=shm", "set twice");
    assert_rejected("algorithm=ll_v9", "ll_v9");
    assert_rejected("transport=[shm]", "transport: a single value is expected");
    assert_rejected("profile=true", "'profile'");
    assert_rejected("timeout=5s", "'timeout' is an option of a comm");
    assert_rejected("threads=2", "'threads' is an option of a comm");
    assert_rejected("backend=host", "'backend' is an option of a comm");
    assert_rejected("backend.huge_pages=false", "'backend.huge_pages' is an option of a comm");
}

TEST(plugins_that_do_not_fit_are_rejected)
{
    struct choice choice;

    assert_rejected("algorithm=ag_gemm_2d", "'ag_gemm_2d' is for another operation");
    assert_status(choose_for(EPA_OP_MOE, &several, NULL, "transport=shm", NULL, &choice),
                  EPA_ERR_CONFIG, "'shm' .. one node .. ucx");
}

TEST(ranks_on_several_hosts_use_a_network)
{
    struct epa_error ignored = {EPA_OK, ""};
    const struct epa_plugin *plugin;
    struct choice choice;

    if (registry_find(registry, EPA_PLUGIN_TRANSPORT, "ucx", &plugin, &ignored) != EPA_OK)
        skip(); /* this build has no UCX */
    assert_status(choose_for(EPA_OP_MOE, &several, NULL, NULL, NULL, &choice), EPA_OK, "");
    assert_names(&choice, "ucx", "ll_v2");
    choice_free(&choice);
}

/* fakelink opens the transport that between_nodes names, as nvlink does, but on hosts. */
TEST(a_transport_between_nodes_takes_its_own_options)
{
    static const char fake[] = "transport=fakelink, transport.between_nodes=reorder, "
                               "transport.between_nodes.room=3";
    struct choice choice;

    assert_status(choose_for(EPA_OP_MOE, &several, fake, "transport.between_nodes.peers=none",
                             "transport.between_nodes.room=4", &choice),
                  EPA_OK, "");
    assert_string_equal(choice.between.plugin->name, "reorder");
    assert_int_equal(number_of(&choice.between, "room"), 4);
    choice_free(&choice);
    assert_status(
        choose_for(EPA_OP_MOE, &several, fake, "transport.between_nodes.name=shm", NULL, &choice),
        EPA_OK, ""); /* the options of reorder do not count */
    assert_string_equal(choice.between.plugin->name, "shm");
    choice_free(&choice);
    assert_status(
        choose_for(EPA_OP_MOE, &several, fake, "transport.between_nodes.rom=4", NULL, &choice),
        EPA_ERR_CONFIG, "'transport.between_nodes.rom' .. 'reorder' .. 'room'");
    assert_rejected("transport=shm, transport.between_nodes.tls=tcp",
                    "'transport.between_nodes.tls' .. 'shm' .. no transport between nodes");
}

TEST(each_failed_allocation_is_an_error)
{
    static const char text[] = "algorithm=ll_v1, buffers=1, threads=2, transport=shm";
    struct choice choice;
    long needed;

    assert_status(choose_for(EPA_OP_MOE, &one, text, NULL, NULL, &choice), EPA_OK, "");
    choice_free(&choice);
    calloc_calls = 0; /* the plugins are loaded now */
    assert_status(choose_for(EPA_OP_MOE, &one, text, NULL, NULL, &choice), EPA_OK, "");
    choice_free(&choice);
    needed = calloc_calls;
    assert_true(needed > 5);
    for (long i = 0; i < needed; i++) {
        enum epa_status status;

        calloc_allowed = i;
        status = choose_for(EPA_OP_MOE, &one, text, NULL, NULL, &choice);
        calloc_allowed = -1;
        assert_status(status, EPA_ERR_NOMEM, "memory");
        assert_null(choice.memory.last);
    }
}
