/* Tests of the data of a block between its holes. */
#include "test.h"
#include <sys/mman.h>
#include <unistd.h>

#include "launch/block_file.h"

enum { PAGE = 1 << 16, PAGES = 8 }; /* of each block; a multiple of the page size of the system */

static void write_page(int fd, uint64_t page)
{
    static char data[PAGE];

    data[0] = 1;
    assert_int_equal(pwrite(fd, data, PAGE, (off_t)page * PAGE), PAGE);
}

static void assert_data(const struct epa_launch *asked, uint32_t rank, uint64_t at, uint64_t begin,
                        uint64_t end)
{
    size_t first = 77, last = 77;

    block_file_find_data(asked, rank, at * PAGE, &first, &last);
    assert_int_equal(first, begin * PAGE);
    assert_int_equal(last, end * PAGE);
}

TEST(holes_of_a_block_are_skipped)
{
    int fd = memfd_create("blocks", MFD_CLOEXEC);
    struct epa_launch asked = {.block_bytes = PAGES * PAGE, .block_file = fd, .block_at = PAGE};

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (1 + 3 * PAGES) * PAGE), 0);
    write_page(fd, 1); /* the end of the block of rank 0 is a hole, */
    write_page(fd, 1 + PAGES + 2);
    write_page(fd, 1 + PAGES + 3);
    write_page(fd, 1 + PAGES + 7); /* and the last page of rank 1 has data */
    write_page(fd, 1 + 2 * PAGES);
    assert_data(&asked, 0, 0, 0, 1);
    assert_data(&asked, 0, 1, PAGES, PAGES);
    assert_data(&asked, 1, 0, 2, 4);
    assert_data(&asked, 1, 3, 3, 4);
    assert_data(&asked, 1, 4, 7, PAGES);
    assert_data(&asked, 1, PAGES, PAGES, PAGES);
    assert_data(&asked, 2, 1, PAGES, PAGES);
    close(fd);
}

TEST(all_bytes_of_a_block_without_a_file_are_data)
{
    struct epa_launch asked = {.block_bytes = PAGES * PAGE, .block_file = -1};

    assert_data(&asked, 1, 3, 3, PAGES);
    asked.block_at = PAGE; /* the file does not exist */
    assert_data(&asked, 1, 3, 3, PAGES);
}
