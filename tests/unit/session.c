/* What a session asks of the launcher. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fake_session.h"

static struct epa_launch asked;

static enum epa_status remember(const void *config, const struct epa_launch *launch,
                                struct epa_error *err)
{
    (void)config;
    (void)err;
    asked = *launch;
    return EPA_OK;
}

static const struct epa_launcher_plugin launcher = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_LAUNCHER, struct epa_launcher_plugin),
               .name = "remembers"},
    .launch = remember};

static uint64_t grace_of(enum epa_memory memory)
{
    const struct epa_backend_plugin backend = {
        .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_BACKEND, struct epa_backend_plugin),
                   .name = "fake"},
        .memory = memory,
        .threads = fake_threads};
    struct session_notes notes = {.n_stages = 0};
    struct epa_error err = {EPA_OK, ""};
    struct fake f;

    fake_init(&f, VERB_RUN, 4, 10);
    f.experiment.launcher.plugin = &launcher.plugin;
    f.experiment.backend.plugin = &backend.plugin;
    f.session.notes = &notes;
    assert_int_equal(session_run(&f.session, -1, &err), EPA_OK);
    fake_finish(&f);
    return asked.grace_ns;
}

static void ranks_of_a_device_have_longer_to_leave(void **state)
{
    (void)state;
    assert_int_equal(grace_of(EPA_MEMORY_HOST), 1000000000);
    assert_int_equal(grace_of(EPA_MEMORY_CUDA), 10000000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_a_device_have_longer_to_leave),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
