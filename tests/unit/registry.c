/* The plugin loader: which names and which files it takes, what it refuses in which
 * words, and that the code of what it refuses never runs. */
#include <sys/resource.h>

#include "registry_fixture.h"

/* What is said of old_abi, which has the number before this one. */
static const char *old_abi(void)
{
    static char words[32];

    snprintf(words, sizeof(words), "ABI %u .. %u", EPA_ABI - 1, EPA_ABI);
    return words;
}

TEST_OF_LOADER(good_plugin_is_loaded_and_its_constructor_leaves_the_mark)
{
    copy(f, "good");
    assert_int_equal(find_in(f, f->folder, "good"), EPA_OK);
    assert_int_equal(access(f->mark, F_OK), 0);
}

TEST_OF_LOADER(plugin_with_the_older_hash_table_is_loaded)
{
    copy(f, "sysv_hash");
    assert_int_equal(find_in(f, f->folder, "sysv_hash"), EPA_OK);
}

TEST_OF_LOADER(names_are_read_without_running_any_code)
{
    copy(f, "good");
    assert_int_equal(registry_create((const char *[]){f->folder, NULL}, &f->registry, &f->err),
                     EPA_OK);
    assert_no_code_ran(f);
}

TEST_OF_LOADER(each_bad_plugin_is_refused_with_the_reason)
{
    const struct {
        const char *name, *why;
        bool runs; /* what is wrong is known only behind dlopen() */
    } bad[] = {
        {"old_abi", old_abi(), false},
        {"wrong_kind", "launcher .. transport", false},
        {"wrong_size", "descriptor .. bytes .. transport", false},
        {"no_symbol", "epa_plugin", false},
        {"code_symbol", "epa_plugin .. variable", false},
        {"missing_library", "libepa2a-test-gone.so", false},
        {"missing_symbol", "epa2a_test_nowhere", false},
        {"null_function", "open", true},
        {"other_name", "'someone_else'", true},
    };

    for (size_t i = 0; i < LENGTH(bad); i++) {
        copy(f, bad[i].name);
        assert_refused(f, bad[i].name, bad[i].why);
        assert_int_equal(access(f->mark, F_OK), bad[i].runs ? 0 : -1);
    }
}

TEST_OF_LOADER(file_cut_anywhere_is_refused_before_its_code_runs)
{
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

TEST_OF_LOADER(text_file_is_refused)
{
    FILE *file = fopen(path_of(f, "text"), "w");

    assert_non_null(file);
    for (uint32_t i = 0; i < 100; i++)
        fputs("#!/bin/sh\n", file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path_of(f, "text"), 0755), 0);
    assert_refused(f, "text", "shared object");
}

TEST_OF_LOADER(name_that_is_a_path_is_refused)
{
    static const char *const names[] = {
        "", "../good", "/tmp/good", "good.so", "Good", "a b", "a123456789012345678901234567890123"};

    copy(f, "good");
    for (size_t i = 0; i < LENGTH(names); i++) {
        assert_int_equal(find_in(f, f->folder, names[i]), EPA_ERR_CONFIG);
        assert_non_null(strstr(f->err.text, "cannot name a plugin"));
    }
    assert_no_code_ran(f);
}

TEST_OF_LOADER(unknown_name_gets_the_nearest)
{
    copy(f, "good");
    assert_int_equal(find_in(f, f->folder, "godo"), EPA_ERR_CONFIG);
    assert_string_equal(f->err.text, "there is no transport 'godo'; is it 'good'?");
}

TEST_OF_LOADER(name_that_is_near_to_none_gets_them_all)
{
    copy(f, "good");
    copy_part(f->empty, "old_abi", "old_abi", SIZE_MAX);
    assert_int_equal(find_in(f, f->folder, "ethernet"), EPA_ERR_CONFIG);
    assert_words(f->err.text, "'ethernet' .. good, old_abi");
}

TEST_OF_LOADER(what_a_build_leaves_out_is_not_an_error_of_the_user)
{
    copy(f, "good");
    copy_part(f->empty, "good", "good", SIZE_MAX);
    assert_int_equal(find_in(f, f->folder, "ucx"), EPA_ERR_UNSUPPORTED);
    assert_words(f->err.text, "'ucx' .. UCX (Debian: libucx-dev)");
}

TEST_OF_LOADER(without_any_plugin_the_folders_are_named)
{
    char sentence[512];

    assert_int_equal(find_in(f, f->folder, "shm"), EPA_ERR_UNSUPPORTED);
    snprintf(sentence, sizeof(sentence),
             "there is no transport 'shm': no plugins in %s; no plugins in %s", f->folder,
             f->empty);
    assert_string_equal(f->err.text, sentence);
}

TEST_OF_LOADER(given_folder_comes_before_the_usual_one)
{
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
TEST_OF_LOADER(folders_are_searched_in_order)
{
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

TEST_OF_LOADER(relative_folder_of_the_environment_is_not_used)
{
    copy(f, "good");
    assert_int_equal(chdir(f->top), 0);
    setenv("EPA2A_PLUGIN_PATH", "plugins", 1);
    assert_int_equal(find_in(f, NULL, "good"), EPA_ERR_UNSUPPORTED);
    assert_words(f->err.text, "there is no transport 'good': ");
    assert_int_equal(chdir("/"), 0);
    assert_no_code_ran(f);
}

TEST_OF_LOADER(folder_that_limits_do_not_let_open_is_a_missing_resource)
{
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

TEST_OF_LOADER(list_has_what_cannot_be_loaded_with_the_reason)
{
    const struct registry_entry *entry;
    uint32_t n, seen = 0;

    copy(f, "good");
    copy(f, "old_abi");
    copy_part(f->folder, "good", "Capital", SIZE_MAX);
    assert_int_equal(registry_create((const char *[]){f->folder, NULL}, &f->registry, &f->err),
                     EPA_OK);
    n = registry_list(f->registry, &entry);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(
            i == 0 || entry[i - 1].kind < entry[i].kind ||
            (entry[i - 1].kind == entry[i].kind && strcmp(entry[i - 1].name, entry[i].name) < 0));
        assert_true((entry[i].plugin != NULL) != (entry[i].why != NULL));
        if (entry[i].kind != EPA_PLUGIN_TRANSPORT)
            continue;
        seen++;
        assert_non_null(entry[i].file);
        if (strcmp(entry[i].name, "good") == 0)
            assert_non_null(entry[i].plugin);
        if (strcmp(entry[i].name, "old_abi") == 0)
            assert_words(entry[i].why, old_abi());
        if (strcmp(entry[i].name, "Capital") == 0)
            assert_words(entry[i].why, "1 to 32 .. a-z, 0-9 and _");
    }
    assert_int_equal(seen, 3);
}

/* Every byte of the parts that the reader interprets, set to values that lead astray. */
TEST_OF_LOADER(corrupt_file_leads_to_no_crash_and_no_code)
{
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
