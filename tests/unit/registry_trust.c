/* The plugin loader: who can decide what is loaded. Files and folders that others can
 * write, links, and what is no file are refused, each with its sentence, before any code
 * of it runs. */
#include "registry_fixture.h"

TEST_OF_LOADER(pipe_is_refused_and_not_waited_for)
{
    assert_int_equal(mkfifo(path_of(f, "pipe"), 0600), 0);
    assert_refused(f, "pipe", "the file is a pipe");
}

TEST_OF_LOADER(folder_in_place_of_the_file_is_refused)
{
    assert_int_equal(mkdir(path_of(f, "folder"), 0755), 0);
    assert_refused(f, "folder", "the file is a folder");
}

TEST_OF_LOADER(symbolic_link_is_refused_before_its_code_runs)
{
    char target[PATH_MAX];

    copy(f, "good");
    snprintf(target, sizeof(target), "%s/real.so", f->top);
    assert_int_equal(rename(path_of(f, "good"), target), 0);
    assert_int_equal(symlink(target, path_of(f, "good")), 0);
    assert_refused(f, "good", "the file is a symbolic link");
    assert_no_code_ran(f);
}

TEST_OF_LOADER(file_that_others_can_write_is_refused_before_its_code_runs)
{
    copy(f, "good");
    assert_int_equal(chmod(path_of(f, "good"), 0664), 0);
    assert_refused(f, "good", "the file can be written by others (mode 0664)");
    assert_int_equal(chmod(path_of(f, "good"), 0646), 0);
    assert_refused(f, "good", "the file can be written by others (mode 0646)");
    assert_no_code_ran(f);
}

TEST_OF_LOADER(file_of_another_user_is_refused_before_its_code_runs)
{
    if (geteuid() != 0)
        skip(); /* only root can give a file away */
    copy(f, "good");
    assert_int_equal(chown(path_of(f, "good"), 12345, (gid_t)-1), 0);
    assert_refused(f, "good", "the file belongs to user 12345, neither to root nor to you");
    assert_no_code_ran(f);
}

TEST_OF_LOADER(folder_that_others_can_write_is_refused_even_if_sticky)
{
    static const mode_t modes[] = {0777, 01777, 0775};
    char why[256];

    copy(f, "good");
    for (size_t i = 0; i < LENGTH(modes); i++) {
        assert_int_equal(chmod(f->folder, modes[i]), 0);
        snprintf(why, sizeof(why), "the folder %s can be written by others (mode %04o)", f->folder,
                 (unsigned)modes[i]);
        assert_refused(f, "good", why);
    }
    assert_no_code_ran(f);
}

TEST_OF_LOADER(folder_above_that_others_can_write_is_refused_unless_sticky)
{
    char why[256];

    copy(f, "good");
    assert_int_equal(chmod(f->top, 0777), 0);
    snprintf(why, sizeof(why), "the folder %s can be written by others (mode 0777)", f->top);
    assert_refused(f, "good", why);
    assert_no_code_ran(f);
    assert_int_equal(chmod(f->top, 01777), 0);
    assert_int_equal(find_in(f, f->folder, "good"), EPA_OK);
}

TEST_OF_LOADER(link_into_a_folder_that_others_can_write_is_refused)
{
    char link[PATH_MAX];

    copy(f, "good");
    snprintf(link, sizeof(link), "%s/link", f->top);
    assert_int_equal(symlink(f->folder, link), 0);
    assert_int_equal(find_in(f, link, "good"), EPA_OK); /* the link alone is no reason */
    assert_int_equal(unlink(f->mark), 0);
    assert_int_equal(chmod(f->folder, 0777), 0);
    assert_int_equal(find_in(f, link, "good"), EPA_ERR_UNSUPPORTED);
    assert_non_null(strstr(f->err.text, f->folder));
    assert_non_null(strstr(f->err.text, "can be written by others (mode 0777)"));
    assert_no_code_ran(f);
}
