/* Results on disk: nothing is overwritten, nothing is left half written, and each failure
 * is told in words. */
#include "test.h"
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake_root.h"

#include "base/file.h"

static const struct text two = {(char[]){"{}\n"}, 3, 4};

static const char *out_json(const char *root)
{
    static char path[600];

    snprintf(path, sizeof(path), "%s/out.json", root);
    return path;
}

static uint32_t files_in(const char *path)
{
    DIR *dir = opendir(path);
    uint32_t n = 0;

    while (dir != NULL && readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n - 2;
}

static void holds(const char *path, const char *want)
{
    char line[16] = "";
    FILE *file = fopen(path, "r");

    assert_non_null(file);
    assert_non_null(fgets(line, sizeof(line), file));
    fclose(file);
    assert_string_equal(line, want);
}

TEST_WITH(root_set_up, root_tear_down, a_file_that_appeared_meanwhile_is_left_and_so_is_the_result,
          const char *root)
{
    struct epa_error err = {EPA_OK, ""};

    root_put(root, "/out.json", "precious");
    assert_int_equal(file_write("--json", out_json(root), false, &two, &err), EPA_ERR_CONFIG);
    holds(out_json(root), "precious");
    assert_int_equal(files_in(root), 2);
    assert_non_null(strstr(err.text, ".tmp"));
}

/* Renamed, not written over; by the umask; a link stays one. */
TEST_WITH(root_set_up, root_tear_down, force_replaces_and_leaves_nothing_beside, const char *root)
{
    mode_t mask = umask(027);
    struct stat before, after;
    char link[700];

    assert_int_equal(file_write("--json", out_json(root), false, &two, NULL), EPA_OK);
    umask(mask);
    assert_int_equal(stat(out_json(root), &before), 0);
    assert_int_equal(before.st_mode & 0777, 0640);
    snprintf(link, sizeof(link), "%s/link.json", root);
    assert_int_equal(symlink("out.json", link), 0);
    assert_int_equal(file_write("--json", link, true, &two, NULL), EPA_OK);
    assert_int_equal(stat(out_json(root), &after), 0);
    assert_int_equal(after.st_size, 3);
    assert_true(before.st_ino != after.st_ino);
    assert_int_equal(lstat(link, &after), 0);
    assert_true(S_ISLNK(after.st_mode));
    assert_int_equal(files_in(root), 2);
}

TEST_WITH(root_set_up, root_tear_down, a_disk_that_is_full_leaves_no_half_file, const char *root)
{
    struct epa_error err = {EPA_OK, ""};
    struct rlimit old, peak;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    peak = (struct rlimit){1, old.rlim_max};
    signal(SIGXFSZ, SIG_IGN); /* so that write() fails as it does on a full disk */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &peak), 0);
    assert_int_equal(file_write("--json", out_json(root), false, &two, &err), EPA_ERR_SYSTEM);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_non_null(strstr(err.text, "File too large"));
    assert_int_equal(files_in(root), 0);
}

/* Who makes a link says which file is replaced. */
TEST_WITH(root_set_up, root_tear_down, a_link_of_another_user_is_not_followed, const char *root)
{
    struct file_stream stream = {"--json-lines", out_json(root), -1};
    char path[700];

    if (geteuid() != 0)
        skip();
    root_put(root, "/mine", "precious");
    snprintf(path, sizeof(path), "%s/mine", root);
    assert_int_equal(symlink(path, out_json(root)), 0);
    assert_int_equal(file_check("--json", out_json(root), true, NULL), EPA_OK);
    assert_int_equal(file_check("--json", root, true, NULL), EPA_ERR_CONFIG);
    assert_int_equal(file_check("--json", "", false, NULL), EPA_ERR_CONFIG);
    assert_int_equal(lchown(out_json(root), 12345, (gid_t)-1), 0);
    assert_int_equal(file_check("--json", out_json(root), true, NULL), EPA_ERR_CONFIG);
    assert_int_equal(file_write("--json", out_json(root), true, &two, NULL), EPA_ERR_CONFIG);
    assert_int_equal(file_stream_open(&stream, true, NULL), EPA_ERR_CONFIG);
    holds(path, "precious");
}

static void is_not_read(const char *path, const char *why)
{
    struct epa_error err = {EPA_OK, ""};
    struct text text = {0};

    assert_int_equal(file_read(path, FILE_MOST, &text, &err), EPA_ERR_SYSTEM);
    assert_words(err.text, why);
    text_free(&text);
}

TEST_WITH(root_set_up, root_tear_down, what_has_no_end_is_not_read, const char *root)
{
    char path[700];
    int fd;

    snprintf(path, sizeof(path), "%s/pipe", root);
    assert_int_equal(mkfifo(path, 0600), 0);
    is_not_read(path, "not a regular file"); /* nobody ever writes to it */
    is_not_read("/dev/zero", "not a regular file");
    is_not_read(root, "Is a directory");
    snprintf(path, sizeof(path), "%s/long", root);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(ftruncate(fd, (off_t)1 << 40), 0);
    close(fd);
    is_not_read(path, "1048576 MiB");
}
