/* The plugin loader: which names and which files it takes, what it refuses in which
 * words, and that the code of what it refuses never runs. */
#include <sys/resource.h>

#include "registry_fixture.h"

static void good_plugin_is_loaded_and_its_constructor_leaves_the_mark(void **state)
{
    struct fixture *f = *state;

    copy(f, "good");
    assert_int_equal(find_in(f, f->folder, "good"), EPA_OK);
    assert_int_equal(access(f->mark, F_OK), 0);
}

static void plugin_with_the_older_hash_table_is_loaded(void **state)
{
    struct fixture *f = *state;

    copy(f, "sysv_hash");
    assert_int_equal(find_in(f, f->folder, "sysv_hash"), EPA_OK);
}

static void names_are_read_without_running_any_code(void **state)
{
    struct fixture *f = *state;

    copy(f, "good");
    assert_int_equal(
        registry_create((const char *[]){f->folder, NULL}, &f->registry, &f->err), EPA_OK);
    assert_no_code_ran(f);
}

static void other_abi_is_refused_before_its_code_runs(void **state)
{
    struct fixture *f = *state;

    copy(f, "old_abi");
    assert_refused(f, "old_abi", "it was built for plugin ABI 4, and this program has 5");
    assert_no_code_ran(f);
}

static void other_kind_is_refused_before_its_code_runs(void **state)
{
    struct fixture *f = *state;

    copy(f, "wrong_kind");
    assert_refused(f, "wrong_kind", "it is a launcher, not a transport");
    assert_no_code_ran(f);
}

static void other_descriptor_size_is_refused_before_its_code_runs(void **state)
{
    struct fixture *f = *state;
    char why[160];

    snprintf(why, sizeof(why),
             "its descriptor has %zu bytes, and a transport of this program has %zu",
             sizeof(struct epa_transport_plugin) - 8, sizeof(struct epa_transport_plugin));
    copy(f, "wrong_size");
    assert_refused(f, "wrong_size", why);
    assert_no_code_ran(f);
}

static void missing_symbol_is_refused_before_its_code_runs(void **state)
{
    struct fixture *f = *state;

    copy(f, "no_symbol");
    assert_refused(f, "no_symbol", "it exports no epa_plugin");
    assert_no_code_ran(f);
}

static void descriptor_that_is_a_function_is_refused_before_its_code_runs(void **state)
{
    struct fixture *f = *state;

    copy(f, "code_symbol");
    assert_refused(f, "code_symbol", "its epa_plugin is not a variable");
    assert_no_code_ran(f);
}

static void missing_function_is_named(void **state)
{
    struct fixture *f = *state;

    copy(f, "null_function");
    assert_refused(f, "null_function", "its function open is missing");
}

static void name_must_be_that_of_the_file(void **state)
{
    struct fixture *f = *state;

    copy(f, "other_name");
    assert_refused(f, "other_name", "it calls itself 'someone_else'");
}

static void missing_library_is_named(void **state)
{
    struct fixture *f = *state;

    copy(f, "missing_library");
    assert_refused(f, "missing_library", "its library libepa2a-test-gone.so is missing");
    assert_no_code_ran(f);
}

static void undefined_function_is_named(void **state)
{
    struct fixture *f = *state;

    copy(f, "missing_symbol");
    assert_refused(f, "missing_symbol", "undefined symbol: epa2a_test_nowhere");
    assert_no_code_ran(f);
}

static void file_cut_anywhere_is_refused_before_its_code_runs(void **state)
{
    struct fixture *f = *state;
    struct stat stat_buf;

    copy(f, "good");
    assert_int_equal(stat(path_of(f, "good"), &stat_buf), 0);
    for (size_t part = 0; part < 64; part++) {
        copy_part(f->folder, "good", "good", (size_t)stat_buf.st_size * part / 64);
        assert_int_equal(find_in(f, f->folder, "good"), EPA_ERR_UNSUPPORTED);
        assert_no_code_ran(f);
    }
    copy_part(f->folder, "good", "good", (size_t)stat_buf.st_size - 1);
    assert_int_equal(find_in(f, f->folder, "good"), EPA_ERR_UNSUPPORTED);
    assert_non_null(strstr(f->err.text, "the file is cut short"));
    assert_no_code_ran(f);
}

static void text_file_is_refused(void **state)
{
    struct fixture *f = *state;
    FILE *file = fopen(path_of(f, "text"), "w");

    assert_non_null(file);
    for (uint32_t i = 0; i < 100; i++)
        fputs("#!/bin/sh\n", file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path_of(f, "text"), 0755), 0);
    assert_refused(f, "text", "the file is not a shared object");
}

static void name_that_is_a_path_is_refused(void **state)
{
    struct fixture *f = *state;
    static const char *const names[] = {"",
                                        "../good",
                                        "/tmp/good",
                                        "good.so",
                                        "Good",
                                        "a b",
                                        "a123456789012345678901234567890123"};

    copy(f, "good");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_int_equal(find_in(f, f->folder, names[i]), EPA_ERR_CONFIG);
        assert_non_null(strstr(f->err.text, "cannot name a plugin"));
    }
    assert_no_code_ran(f);
}

static void unknown_name_gets_the_nearest(void **state)
{
    struct fixture *f = *state;

    copy(f, "good");
    assert_int_equal(find_in(f, f->folder, "godo"), EPA_ERR_CONFIG);
    assert_string_equal(f->err.text, "there is no transport 'godo'; is it 'good'?");
}

static void name_that_is_near_to_none_gets_them_all(void **state)
{
    struct fixture *f = *state;

    copy(f, "good");
    copy_part(f->empty, "old_abi", "old_abi", SIZE_MAX);
    assert_int_equal(find_in(f, f->folder, "ethernet"), EPA_ERR_CONFIG);
    assert_string_equal(f->err.text,
                        "there is no transport 'ethernet'; there is good, old_abi");
}

static void what_a_build_leaves_out_is_not_an_error_of_the_user(void **state)
{
    struct fixture *f = *state;

    copy(f, "good");
    copy_part(f->empty, "good", "good", SIZE_MAX);
    assert_int_equal(find_in(f, f->folder, "ucx"), EPA_ERR_UNSUPPORTED);
    assert_string_equal(f->err.text,
                        "transport 'ucx' is not part of this build: building it needs UCX "
                        "(Debian: libucx-dev)");
}

static void without_any_plugin_the_folders_are_named(void **state)
{
    struct fixture *f = *state;
    char sentence[512];

    assert_int_equal(find_in(f, f->folder, "shm"), EPA_ERR_UNSUPPORTED);
    snprintf(sentence, sizeof(sentence),
             "there is no transport 'shm': no plugins in %s; no plugins in %s", f->folder,
             f->empty);
    assert_string_equal(f->err.text, sentence);
}

static void folder_asked_for_must_be_there(void **state)
{
    struct fixture *f = *state;
    char sentence[512];

    assert_int_equal(rmdir(f->folder), 0);
    snprintf(sentence, sizeof(sentence), "the plugin path %s: No such file or directory",
             f->folder);
    assert_int_equal(
        registry_create((const char *[]){f->folder, NULL}, &f->registry, &f->err),
        EPA_ERR_CONFIG);
    assert_string_equal(f->err.text, sentence);
}

static void given_folder_comes_before_the_usual_one(void **state)
{
    struct fixture *f = *state;

    copy(f, "good");
    copy_part(f->empty, "old_abi", "good", SIZE_MAX);
    copy_part(f->empty, "sysv_hash", "sysv_hash", SIZE_MAX);
    assert_int_equal(find_in(f, f->folder, "good"), EPA_OK);
    assert_int_equal(find_in(f, f->folder, "sysv_hash"), EPA_OK);
    assert_int_equal(find_in(f, NULL, "good"), EPA_ERR_UNSUPPORTED);
}

static const char *file_of(struct fixture *f, const char *name, const char **hides)
{
    const struct registry_entry *entry;
    uint32_t n = registry_list(f->registry, &entry);

    for (uint32_t i = 0; i < n; i++) {
        *hides = entry[i].hides;
        if (strcmp(entry[i].name, name) == 0)
            return entry[i].file;
    }
    return NULL;
}

/* One name in all of four folders, and one in the last alone. */
static void folders_are_searched_in_order(void **state)
{
    struct fixture *f = *state;
    static const char *const name[] = {"a", "b", "c", "d"};
    char folder[4][96], want[512], env[256];
    const char *path[] = {folder[0], folder[1], folder[0], NULL}, *hides;

    for (uint32_t i = 0; i < 4; i++) {
        snprintf(folder[i], sizeof(folder[i]), "%s/%s", f->top, name[i]);
        assert_int_equal(mkdir(folder[i], 0755), 0);
        copy_part(folder[i], "good", "good", SIZE_MAX);
    }
    copy_part(folder[3], "sysv_hash", "sysv_hash", SIZE_MAX);
    snprintf(env, sizeof(env), ":relative:%s::%s:", folder[2], folder[3]);
    setenv("EPA2A_PLUGIN_PATH", env, 1);
    assert_int_equal(registry_create(path, &f->registry, &f->err), EPA_OK);
    snprintf(want, sizeof(want), "%s/epa2a-transport-good.so", folder[0]);
    assert_string_equal(file_of(f, "good", &hides), want);
    snprintf(want, sizeof(want),
             "%s/epa2a-transport-good.so, %s/epa2a-transport-good.so, "
             "%s/epa2a-transport-good.so",
             folder[1], folder[2], folder[3]);
    assert_string_equal(hides, want);
    snprintf(want, sizeof(want), "%s/epa2a-transport-sysv_hash.so", folder[3]);
    assert_string_equal(file_of(f, "sysv_hash", &hides), want);
    assert_null(hides);
}

static void relative_folder_of_the_environment_is_not_used(void **state)
{
    struct fixture *f = *state;

    copy(f, "good");
    assert_int_equal(chdir(f->top), 0);
    setenv("EPA2A_PLUGIN_PATH", "plugins", 1);
    assert_int_equal(find_in(f, NULL, "good"), EPA_ERR_UNSUPPORTED);
    assert_non_null(strstr(f->err.text, "there is no transport 'good': "));
    assert_int_equal(chdir("/"), 0);
    assert_no_code_ran(f);
}

static void folder_that_limits_do_not_let_open_is_a_missing_resource(void **state)
{
    struct fixture *f = *state;
    struct rlimit old, limit;
    enum epa_status status;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    limit = (struct rlimit){0, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    status = registry_create((const char *[]){f->folder, NULL}, &f->registry, &f->err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(status, EPA_ERR_SYSTEM);
    assert_non_null(strstr(f->err.text, "Too many open files"));
}

static void list_has_what_cannot_be_loaded_with_the_reason(void **state)
{
    struct fixture *f = *state;
    const struct registry_entry *entry;
    uint32_t n, seen = 0;

    copy(f, "good");
    copy(f, "old_abi");
    copy_part(f->folder, "good", "Capital", SIZE_MAX);
    assert_int_equal(
        registry_create((const char *[]){f->folder, NULL}, &f->registry, &f->err), EPA_OK);
    n = registry_list(f->registry, &entry);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(i == 0 || entry[i - 1].kind < entry[i].kind ||
                    (entry[i - 1].kind == entry[i].kind &&
                     strcmp(entry[i - 1].name, entry[i].name) < 0));
        assert_true((entry[i].plugin != NULL) != (entry[i].why != NULL));
        if (entry[i].kind != EPA_PLUGIN_TRANSPORT)
            continue;
        seen++;
        assert_non_null(entry[i].file);
        if (strcmp(entry[i].name, "good") == 0)
            assert_non_null(entry[i].plugin);
        if (strcmp(entry[i].name, "old_abi") == 0)
            assert_string_equal(entry[i].why,
                                "it was built for plugin ABI 4, and this program has 5");
        if (strcmp(entry[i].name, "Capital") == 0)
            assert_string_equal(entry[i].why, "a name is 1 to 32 of a-z, 0-9 and _");
    }
    assert_int_equal(seen, 3);
}

static void built_in_plugins_are_there_without_any_file(void **state)
{
    struct fixture *f = *state;
    static const struct {
        enum epa_plugin_kind kind;
        const char *name;
    } want[] = {{EPA_PLUGIN_BACKEND, "host"},
                {EPA_PLUGIN_LAUNCHER, "fork"},
                {EPA_PLUGIN_LAUNCHER, "thread"}};

    assert_int_equal(registry_create(NULL, &f->registry, &f->err), EPA_OK);
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        const struct epa_plugin *plugin = NULL;

        assert_int_equal(
            registry_find(f->registry, want[i].kind, want[i].name, &plugin, &f->err),
            EPA_OK);
        assert_string_equal(plugin->name, want[i].name);
    }
}

/* Every byte of the parts that the reader interprets, set to values that lead astray. */
static void corrupt_file_leads_to_no_crash_and_no_code(void **state)
{
    struct fixture *f = *state;
    static const unsigned char values[] = {0x00, 0x7f, 0xff};
    char path[PATH_MAX];
    unsigned char was;
    int fd;

    copy(f, "old_abi");
    snprintf(path, sizeof(path), "%s", path_of(f, "old_abi"));
    fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    for (off_t at = 0; at < 1600; at++) {
        assert_int_equal(pread(fd, &was, 1, at), 1);
        for (size_t i = 0; i < sizeof(values); i++) {
            assert_int_equal(pwrite(fd, &values[i], 1, at), 1);
            assert_int_equal(find_in(f, f->folder, "old_abi"), EPA_ERR_UNSUPPORTED);
        }
        assert_int_equal(pwrite(fd, &was, 1, at), 1);
    }
    close(fd);
    assert_no_code_ran(f);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(good_plugin_is_loaded_and_its_constructor_leaves_the_mark),
        CASE(plugin_with_the_older_hash_table_is_loaded),
        CASE(names_are_read_without_running_any_code),
        CASE(other_abi_is_refused_before_its_code_runs),
        CASE(other_kind_is_refused_before_its_code_runs),
        CASE(other_descriptor_size_is_refused_before_its_code_runs),
        CASE(missing_symbol_is_refused_before_its_code_runs),
        CASE(descriptor_that_is_a_function_is_refused_before_its_code_runs),
        CASE(missing_function_is_named),
        CASE(name_must_be_that_of_the_file),
        CASE(missing_library_is_named),
        CASE(undefined_function_is_named),
        CASE(file_cut_anywhere_is_refused_before_its_code_runs),
        CASE(text_file_is_refused),
        CASE(name_that_is_a_path_is_refused),
        CASE(unknown_name_gets_the_nearest),
        CASE(name_that_is_near_to_none_gets_them_all),
        CASE(what_a_build_leaves_out_is_not_an_error_of_the_user),
        CASE(without_any_plugin_the_folders_are_named),
        CASE(folder_asked_for_must_be_there),
        CASE(given_folder_comes_before_the_usual_one),
        CASE(folders_are_searched_in_order),
        CASE(relative_folder_of_the_environment_is_not_used),
        CASE(folder_that_limits_do_not_let_open_is_a_missing_resource),
        CASE(list_has_what_cannot_be_loaded_with_the_reason),
        CASE(built_in_plugins_are_there_without_any_file),
        CASE(corrupt_file_leads_to_no_crash_and_no_code),
    };

    if (!fixture_begin(argc, argv))
        return 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
