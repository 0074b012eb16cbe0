/* Any bytes as a trace: read, checked, summed up, merged with itself and drawn. A trace is read
 * from a file, so it is one in memory. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "trace/read.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void demand(bool holds)
{
    if (!holds)
        abort();
}

static void use(struct trace_file *f)
{
    struct trace_file twice[2] = {*f, *f};
    struct epa_error err = {EPA_OK, ""};
    struct text out = {0};

    for (size_t i = 0; i < f->n; i++)
        demand(f->item[i].name != NULL && f->item[i].cat != NULL && f->item[i].id != NULL &&
               (i == 0 || f->item[i].ts_ns >= f->item[i - 1].ts_ns));
    trace_check(f);
    trace_summary(f, &out);
    (void)trace_merge(f, 1, &out, &err);
    (void)trace_merge(twice, 2, &out, &err);
    trace_view(f, &out);
    text_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static int fd = -1;
    struct epa_error err = {EPA_OK, ""};
    struct trace_file f;
    char path[64];

    if (fd < 0)
        fd = memfd_create("trace", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0 || pwrite(fd, data, bytes, 0) != (ssize_t)bytes)
        abort();
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (trace_read(path, &f, &err) == EPA_OK)
        use(&f);
    trace_free(&f);
    return 0;
}
