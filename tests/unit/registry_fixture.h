/* What tests of the plugin loader share: a new folder for each test, and copies of the
 * plugins of tests/plugins/bad ($EPA2A_TEST_BAD_PLUGINS) in it, with the names and modes that the test
 * is about. */
#ifndef REGISTRY_FIXTURE_H
#define REGISTRY_FIXTURE_H

#include "test.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugin/registry.h"

#define BAD_PLUGINS_ENV "EPA2A_TEST_BAD_PLUGINS"

struct fixture {
    char top[64];    /* a new folder */
    char folder[96]; /* top/plugins, given as --plugin-path */
    char empty[96];  /* top/empty, the usual place */
    char mark[96];   /* made by any code of a plugin */
    struct registry *registry;
    struct epa_error err;
};

static inline int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    umask(022);
    snprintf(f->top, sizeof(f->top), "/tmp/epa2a-registry-XXXXXX");
    assert_non_null(mkdtemp(f->top));
    snprintf(f->folder, sizeof(f->folder), "%s/plugins", f->top);
    snprintf(f->empty, sizeof(f->empty), "%s/empty", f->top);
    snprintf(f->mark, sizeof(f->mark), "%s/mark", f->top);
    assert_int_equal(mkdir(f->folder, 0755), 0);
    assert_int_equal(mkdir(f->empty, 0755), 0);
    setenv("EPA2A_TEST_MARK", f->mark, 1);
    setenv("EPA2A_PLUGIN_PATH", f->empty, 1);
    *state = f;
    return 0;
}

static inline int tear_down(void **state)
{
    struct fixture *f = *state;
    char command[128];

    registry_destroy(f->registry);
    snprintf(command, sizeof(command), "rm -rf '%s'", f->top);
    free(f);
    return system(command);
}

/* Copies the first `bytes` of a plugin under a new name; SIZE_MAX: all. */
static inline void copy_part(const char *folder, const char *from, const char *to, size_t bytes)
{
    char path[PATH_MAX], block[4096];
    FILE *in, *out;
    size_t n;

    snprintf(path, sizeof(path), "%s/epa2a-transport-%s.so", getenv(BAD_PLUGINS_ENV), from);
    in = fopen(path, "rb");
    assert_non_null(in);
    snprintf(path, sizeof(path), "%s/epa2a-transport-%s.so", folder, to);
    out = fopen(path, "wb");
    assert_non_null(out);
    while (bytes > 0 &&
           (n = fread(block, 1, bytes < sizeof(block) ? bytes : sizeof(block), in)) > 0) {
        assert_int_equal(fwrite(block, 1, n, out), n);
        bytes -= n;
    }
    fclose(in);
    assert_int_equal(fclose(out), 0);
    assert_int_equal(chmod(path, 0644), 0);
}

static inline void copy(const struct fixture *f, const char *name)
{
    copy_part(f->folder, name, name, SIZE_MAX);
}

static inline char *path_of(const struct fixture *f, const char *name)
{
    static char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/epa2a-transport-%s.so", f->folder, name);
    return path;
}

/* Loads transport `name` out of `folder`. */
static inline enum epa_status find_in(struct fixture *f, const char *folder, const char *name)
{
    const struct epa_plugin *plugin = NULL;

    const char *const path[] = {folder, NULL};

    registry_destroy(f->registry);
    f->registry = NULL;
    f->err = (struct epa_error){EPA_OK, ""};
    assert_int_equal(registry_create(path, &f->registry, &f->err), EPA_OK);
    return registry_find(f->registry, EPA_PLUGIN_TRANSPORT, name, &plugin, &f->err);
}

static inline void assert_refused(struct fixture *f, const char *name, const char *why)
{
    char words[512];

    snprintf(words, sizeof(words), "'%s' cannot be loaded: .. %s", name, why);
    assert_int_equal(find_in(f, f->folder, name), EPA_ERR_UNSUPPORTED);
    assert_words(f->err.text, words);
}

static inline void assert_no_code_ran(const struct fixture *f)
{
    assert_int_equal(access(f->mark, F_OK), -1);
}

#define TEST_OF_LOADER(name) TEST_WITH(set_up, tear_down, name, struct fixture *f)

#endif
