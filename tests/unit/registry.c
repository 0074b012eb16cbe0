/* The plugin loader: which names it takes, who may decide what is loaded, and that no code runs of
 * what others could have written. Each test has a new folder with copies of the plugins of
 * tests/plugins/bad ($EPA2A_TEST_BAD_PLUGINS), whose code leaves a mark. What `list` says of
 * folders and of plugins that do not load is in tests/cli/list.case. */
#include "test.h"

#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugin/registry.h"

struct fixture {
    char top[64];    /* a new folder */
    char folder[96]; /* top/plugins, given as --plugin-path */
    char empty[96];  /* top/empty, the usual place */
    char mark[96];   /* made by any code of a plugin */
    char good[192];  /* the file of transport `good` in `folder` */
    struct registry *registry;
    struct epa_error err;
};

static void copy_to(const char *folder, const char *name)
{
    char command[1024];

    snprintf(command, sizeof(command), "install -m 644 '%s/epa2a-transport-%s.so' '%s'",
             getenv("EPA2A_TEST_BAD_PLUGINS"), name, folder);
    assert_int_equal(system(command), 0);
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    umask(022);
    snprintf(f->top, sizeof(f->top), "/tmp/epa2a-registry-XXXXXX");
    assert_non_null(mkdtemp(f->top));
    snprintf(f->folder, sizeof(f->folder), "%s/plugins", f->top);
    snprintf(f->empty, sizeof(f->empty), "%s/empty", f->top);
    snprintf(f->mark, sizeof(f->mark), "%s/mark", f->top);
    snprintf(f->good, sizeof(f->good), "%s/epa2a-transport-good.so", f->folder);
    assert_int_equal(mkdir(f->folder, 0755), 0);
    assert_int_equal(mkdir(f->empty, 0755), 0);
    setenv("EPA2A_TEST_MARK", f->mark, 1);
    setenv("EPA2A_PLUGIN_PATH", f->empty, 1);
    copy_to(f->folder, "good");
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    char command[128];

    registry_destroy(f->registry);
    snprintf(command, sizeof(command), "rm -rf '%s'", f->top);
    free(f);
    return system(command);
}

#define TEST_OF_LOADER(name) TEST_WITH(set_up, tear_down, name, struct fixture *f)

/* Loads transport `name` out of `folder`. */
static enum epa_status find_in(struct fixture *f, const char *folder, const char *name)
{
    const struct epa_plugin *plugin = NULL;
    const char *const path[] = {folder, NULL};

    registry_destroy(f->registry);
    f->registry = NULL;
    f->err = (struct epa_error){EPA_OK, ""};
    assert_int_equal(registry_create(path, &f->registry, &f->err), EPA_OK);
    return registry_find(f->registry, EPA_PLUGIN_TRANSPORT, name, &plugin, &f->err);
}

static void assert_no_code_ran(const struct fixture *f)
{
    assert_int_equal(access(f->mark, F_OK), -1);
}

/* `good` is refused before any of its code runs. */
static void assert_not_trusted(struct fixture *f, const char *why)
{
    assert_int_equal(find_in(f, f->folder, "good"), EPA_ERR_UNSUPPORTED);
    assert_non_null(strstr(f->err.text, "'good' cannot be loaded: "));
    assert_non_null(strstr(f->err.text, why));
    assert_no_code_ran(f);
}

/* ---- names ---- */

TEST_OF_LOADER(code_runs_once_a_plugin_is_wanted)
{
    assert_int_equal(registry_create((const char *[]){f->folder, NULL}, &f->registry, &f->err),
                     EPA_OK);
    assert_no_code_ran(f);
    assert_int_equal(find_in(f, f->folder, "good"), EPA_OK);
    assert_int_equal(access(f->mark, F_OK), 0);
}

static volatile sig_atomic_t hung_up;

static void note_hang_up(int signal)
{
    (void)signal;
    hung_up++;
}

TEST_OF_LOADER(plugin_that_takes_a_signal_for_itself_does_not_get_it)
{
    struct sigaction after;

    signal(SIGHUP, note_hang_up);
    setenv("EPA2A_TEST_TAKE_SIGHUP", "1", 1);
    assert_int_equal(find_in(f, f->folder, "good"), EPA_OK);
    unsetenv("EPA2A_TEST_TAKE_SIGHUP");
    assert_int_equal(hung_up, 1); /* which came while it was loaded */
    assert_int_equal(sigaction(SIGHUP, NULL, &after), 0);
    assert_true(after.sa_handler == note_hang_up);
    signal(SIGHUP, SIG_DFL);
}

TEST_OF_LOADER(name_that_is_a_path_is_refused)
{
    static const char *const names[] = {
        "", "../good", "/tmp/good", "good.so", "Good", "a b", "a123456789012345678901234567890123"};

    for (size_t i = 0; i < LENGTH(names); i++) {
        assert_int_equal(find_in(f, f->folder, names[i]), EPA_ERR_CONFIG);
        assert_non_null(strstr(f->err.text, "cannot name a plugin"));
    }
    assert_no_code_ran(f);
}

/* ---- who may decide what is loaded ---- */

TEST_OF_LOADER(what_is_no_file_is_refused)
{
    char real[192];

    snprintf(real, sizeof(real), "%s/real.so", f->top);
    assert_int_equal(rename(f->good, real), 0);
    assert_int_equal(symlink(real, f->good), 0);
    assert_not_trusted(f, "the file is a symbolic link");
    assert_int_equal(unlink(f->good), 0);
    assert_int_equal(mkfifo(f->good, 0600), 0); /* which is not waited for */
    assert_not_trusted(f, "the file is a pipe");
    assert_int_equal(unlink(f->good), 0);
    assert_int_equal(mkdir(f->good, 0755), 0);
    assert_not_trusted(f, "the file is a folder");
}

TEST_OF_LOADER(file_of_another_user_or_that_others_can_write_is_refused)
{
    assert_int_equal(chmod(f->good, 0664), 0);
    assert_not_trusted(f, "the file can be written by others (mode 0664)");
    assert_int_equal(chmod(f->good, 0646), 0);
    assert_not_trusted(f, "the file can be written by others (mode 0646)");
    if (geteuid() != 0)
        return; /* only root can give a file away */
    assert_int_equal(chown(f->good, 12345, (gid_t)-1), 0);
    assert_not_trusted(f, "the file belongs to user 12345, neither to root nor to you");
}

TEST_OF_LOADER(folder_that_others_can_write_is_refused_even_if_sticky)
{
    static const mode_t modes[] = {0777, 01777, 0775};
    char why[256];

    for (size_t i = 0; i < LENGTH(modes); i++) {
        assert_int_equal(chmod(f->folder, modes[i]), 0);
        snprintf(why, sizeof(why), "the folder %s can be written by others (mode %04o)", f->folder,
                 (unsigned)modes[i]);
        assert_not_trusted(f, why);
    }
}

TEST_OF_LOADER(folder_above_that_others_can_write_is_refused_unless_sticky)
{
    char why[256];

    assert_int_equal(chmod(f->top, 0777), 0);
    snprintf(why, sizeof(why), "the folder %s can be written by others (mode 0777)", f->top);
    assert_not_trusted(f, why);
    assert_int_equal(chmod(f->top, 01777), 0);
    assert_int_equal(find_in(f, f->folder, "good"), EPA_OK);
}

TEST_OF_LOADER(link_into_a_folder_that_others_can_write_is_refused)
{
    char link[PATH_MAX];

    snprintf(link, sizeof(link), "%s/link", f->top);
    assert_int_equal(symlink(f->folder, link), 0);
    assert_int_equal(find_in(f, link, "good"), EPA_OK); /* the link alone is no reason */
    assert_int_equal(unlink(f->mark), 0);
    assert_int_equal(chmod(f->folder, 0777), 0);
    assert_int_equal(find_in(f, link, "good"), EPA_ERR_UNSUPPORTED);
    assert_non_null(strstr(f->err.text, f->folder));
    assert_no_code_ran(f);
}
