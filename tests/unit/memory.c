/* Each failed allocation of the registry and of growing text is returned. The linker replaces the
 * allocation calls of the library by those below: the n-th call fails, for each n. */
#include "test.h"

#include "base/arena.h"
#include "base/text.h"
#include "registry/registry.h"

static long before_failure = -1; /* number of calls before the failing one; -1: none fails */

static bool is_failing_call(void)
{
    return before_failure >= 0 && before_failure-- == 0;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    return is_failing_call() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return is_failing_call() ? NULL : __real_calloc(n, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    return is_failing_call() ? NULL : __real_realloc(memory, bytes);
}

/* Calls `call` with the n-th allocation failing, for each n up to the number of its allocations. */
static void fail_each_allocation(enum epa_status (*call)(struct epa_error *), uint32_t least)
{
    uint32_t failures = 0;
    enum epa_status status;

    do {
        struct epa_error err = {.status = EPA_OK};

        before_failure = failures;
        status = call(&err);
        if (before_failure >= 0)
            break;
        assert_int_equal(status, EPA_ERR_NOMEM);
        assert_words(err.text, "no memory");
        failures++;
    } while (true);
    before_failure = -1;
    assert_in_range(failures, least, 100000);
}

static const char *const folders[] = {"/", "/usr", NULL};

static enum epa_status list_plugins(struct epa_error *err)
{
    struct registry *registry = NULL;
    enum epa_status status =
        registry_create(&(struct registry_params){.plugin_path = folders}, &registry, err);

    registry_destroy(registry);
    return status;
}

TEST(a_registry_returns_each_failed_allocation)
{
    fail_each_allocation(list_plugins, 10);
}

static enum epa_status find_unknown(struct epa_error *err)
{
    long wanted = before_failure;
    const struct epa_plugin *plugin;
    struct registry *registry = NULL;
    enum epa_status status;

    before_failure = -1;
    assert_int_equal(registry_create(&(struct registry_params){0}, &registry, err), EPA_OK);
    before_failure = wanted;
    status = registry_find(registry, EPA_PLUGIN_TRANSPORT, "unlike_any_transport", &plugin, err);
    registry_destroy(registry);
    return status;
}

TEST(the_message_for_an_unknown_plugin_needs_memory)
{
    fail_each_allocation(find_unknown, 1);
}

TEST(text_and_arena_stay_usable_after_a_failure)
{
    struct arena *arena = arena_try_create();
    struct text text = {0};

    assert_non_null(arena);
    before_failure = 0;
    assert_false(text_try_add(&text, "%d", 1));
    before_failure = 0;
    assert_null(arena_try_alloc(arena, 8));
    assert_true(text_try_add(&text, "%d", 2));
    assert_string_equal(text.data, "2");
    before_failure = 0;
    assert_false(text_try_add(&text, "%1000d", 3));
    assert_string_equal(text.data, "2");
    assert_non_null(arena_try_printf(arena, "%s", "after"));
    text_free(&text);
    arena_destroy(arena);
}
