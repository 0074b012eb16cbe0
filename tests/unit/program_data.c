/* Tests of src/tool/base/program_data.c and src/lib/base/object_path.c: a program in the build tree finds its data files in the source
 * tree. */
#include "test.h"

#include <limits.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/object_path.h"
#include "base/program_data.h"

TEST(data_files_are_found_in_the_source_tree)
{
    char path[PATH_MAX], top[PATH_MAX], build[PATH_MAX + 16];

    assert_true(object_build_tree(top, sizeof(top)));
    snprintf(build, sizeof(build), "%s/build.ninja", top);
    assert_int_equal(access(build, R_OK), 0);
    assert_true(program_data_find("configs/small.yaml", path, sizeof(path)));
    assert_int_equal(access(path, R_OK), 0);
    /* installed as share/epa2a/contract, stored as share/contract */
    assert_true(program_data_find("contract/moe.yaml", path, sizeof(path)));
    assert_words(path, "/share/contract/moe.yaml");
    assert_false(program_data_find("configs/absent.yaml", path, sizeof(path)));
}

TEST(names_of_data_files_are_sorted_and_lack_the_suffix)
{
    struct arena *arena = arena_create();
    const char **name;
    uint32_t n = program_data_names("configs", ".yaml", arena, &name), small = 0;

    assert_in_range(n, 10, 1000);
    for (uint32_t i = 0; i < n; i++) {
        assert_null(strstr(name[i], ".yaml"));
        assert_true(i == 0 || strcmp(name[i - 1], name[i]) < 0);
        small += strcmp(name[i], "small") == 0;
    }
    assert_int_equal(small, 1);
    assert_int_equal(program_data_names("absent", ".yaml", arena, &name), 0);
    arena_destroy(arena);
}

TEST(an_absolute_folder_is_not_relative_to_the_program)
{
    char path[PATH_MAX];

    object_folder("/usr/share/epa2a", path, sizeof(path));
    assert_string_equal(path, "/usr/share/epa2a");
    object_folder("../share/epa2a", path, sizeof(path));
    assert_int_equal(path[0], '/');
    assert_null(strstr(path, ".."));
}
