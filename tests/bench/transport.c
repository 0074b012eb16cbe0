/* What a transport does between two ranks, to be put beside ucx_perftest: puts without a
 * pause (its ucp_put_bw), one put there and one back, its last byte being what is waited for
 * (its ucp_put_lat), and the same as protocols may do it: with a signal, by put_signal().
 *
 *     bench-transport [--sizes BYTES,...] [--plain] PLUGIN.so fork|thread [OPTION=VALUE]...
 *
 * Medians of five. --plain: a line for each size, with numbers alone, for scripts. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <cmocka.h>

#include "contract/ranks.h"

enum {
    SIZES = 32,
    MOST = 4 << 20,
    REPEATS = 5,
    DST = MOST, /* sources lie in the lower half of the heap */
};

struct plan {
    uint32_t size[SIZES], n;
    bool plain;
};

struct row {
    double put_ns, last_byte_ns, signal_ns;
};

/* In memory that ranks share with who prints: what ranks print bears their number. */
struct results {
    struct row row[SIZES];
    char facts[2048];
};

static struct plan plan;        /* set by main() before there are ranks */
static struct results *results; /* same */

static uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, REPEATS, sizeof(*values), by_size);
    return values[REPEATS / 2];
}

/* How often something is done with a size: so many bytes, but not for ever. */
static uint32_t times_of(uint32_t size, uint32_t bytes, uint32_t most)
{
    return bytes / size < most ? bytes / size : most;
}

/* ns for each put; the other rank is in the transport until the last has come. */
static double stream(struct rank *r, uint32_t size, uint64_t epoch)
{
    uint32_t n = times_of(size, 256u << 20, 20000);
    uint64_t begun;

    if (!meet(r))
        return 0;
    begun = now_ns();
    if (r->me == 1) {
        await(r, 0, epoch);
        return 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!put(r, DST, r->t->heap, size, 1))
            return 0;
    }
    works(r, r->t->ops->quiet(r->t));
    begun = now_ns() - begun;
    raise_signal(r, 0, epoch, EPA_SIGNAL_SET, 1);
    return (double)begun / n;
}

/* What no protocol may do: the last byte need not be the last to come. */
static bool see_last_byte(struct rank *r, uint32_t size, unsigned char want)
{
    const unsigned char *last = (unsigned char *)r->t->heap + DST + size - 1;

    for (uint32_t i = 1; __atomic_load_n(last, __ATOMIC_ACQUIRE) != want; i++) {
        if (!works(r, r->t->ops->progress(r->t)))
            return false;
        if (i % 1000 == 0)
            sched_yield();
    }
    return true;
}

static bool send_last_byte(struct rank *r, uint32_t size, uint64_t turn)
{
    r->t->heap[size - 1] = (char)turn;
    return put(r, DST, r->t->heap, size, 1 - r->me);
}

static bool see_signal(struct rank *r, uint64_t turn)
{
    return await(r, 1, turn);
}

static bool send_signal(struct rank *r, uint32_t size, uint64_t turn)
{
    return put_signal(r, DST, r->t->heap, size, 1, turn, EPA_SIGNAL_SET, 1 - r->me);
}

/* ns one way. Turns count up over all, so that what is waited for is never there yet. */
static double ping(struct rank *r, uint32_t size, bool signals, uint64_t *turn)
{
    uint32_t turns = times_of(size, 64u << 20, 2000);
    uint64_t begun;

    if (!meet(r))
        return 0;
    begun = now_ns();
    for (uint32_t i = 0; i < turns; i++) {
        uint64_t now = ++*turn;
        bool good = true;

        if (r->me == 0)
            good = signals ? send_signal(r, size, now) : send_last_byte(r, size, now);
        good = good && (signals ? see_signal(r, now) : see_last_byte(r, size, (unsigned char)now));
        if (good && r->me == 1)
            good = signals ? send_signal(r, size, now) : send_last_byte(r, size, now);
        if (!good)
            return 0;
    }
    begun = now_ns() - begun;
    meet(r);
    return (double)begun / (2 * turns);
}

static void clear(struct rank *r)
{
    memset(r->t->heap, 0, 2 * (size_t)MOST);
    meet(r);
}

static struct row measure(struct rank *r, uint32_t size, uint64_t *epoch, uint64_t *turn)
{
    double put_ns[REPEATS], last_byte_ns[REPEATS], signal_ns[REPEATS];
    uint64_t bytes_turn = 0;

    clear(r);
    for (uint32_t i = 0; i < REPEATS; i++)
        put_ns[i] = stream(r, size, ++*epoch);
    clear(r);
    for (uint32_t i = 0; i < REPEATS; i++)
        last_byte_ns[i] = ping(r, size, false, &bytes_turn);
    for (uint32_t i = 0; i < REPEATS; i++)
        signal_ns[i] = ping(r, size, true, turn);
    return (struct row){.put_ns = median(put_ns),
                        .last_byte_ns = median(last_byte_ns),
                        .signal_ns = median(signal_ns)};
}

static void say(void *arg, const char *key, const char *value)
{
    size_t n = strlen(results->facts);

    (void)arg;
    snprintf(results->facts + n, sizeof(results->facts) - n, "# %s: %s\n", key, value);
}

static void body(struct rank *r)
{
    uint64_t epoch = 0, turn = 0;

    if (r->me == 0 && r->t->ops->describe != NULL)
        r->t->ops->describe(r->t, say, NULL);
    for (uint32_t i = 0; i < plan.n; i++) {
        struct row row = measure(r, plan.size[i], &epoch, &turn);

        if (r->me == 0)
            results->row[i] = row;
    }
}

static void print(void)
{
    if (!plan.plain)
        printf("%s# one way: put, its last byte polled; put_signal, its signal waited for\n"
               "%10s %12s %12s %12s %16s\n",
               results->facts, "bytes", "put MB/s", "puts/ms", "put us", "put_signal us");
    for (uint32_t i = 0; i < plan.n; i++) {
        const struct row *row = &results->row[i];

        printf(plan.plain ? "%u %.1f %.1f %.3f %.3f\n" : "%10u %12.1f %12.1f %12.3f %16.3f\n",
               plan.size[i], plan.size[i] * 1e3 / row->put_ns, 1e6 / row->put_ns,
               row->last_byte_ns * 1e-3, row->signal_ns * 1e-3);
    }
}

static bool read_sizes(const char *text)
{
    char *end;

    for (plan.n = 0; plan.n < SIZES; text = end + 1) {
        unsigned long size = strtoul(text, &end, 10);

        if (end == text || size == 0 || size > MOST || (*end != ',' && *end != '\0'))
            return false;
        plan.size[plan.n++] = (uint32_t)size;
        if (*end == '\0')
            return true;
    }
    return false;
}

/* How many words of argv are taken; -1: one is wrong. */
static int read_options(char **argv)
{
    int i = 1;

    for (uint32_t size = 8; size <= MOST; size *= 2)
        plan.size[plan.n++] = size;
    for (; argv[i] != NULL && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--plain") == 0) {
            plan.plain = true;
        } else if (strcmp(argv[i], "--sizes") == 0 && argv[i + 1] != NULL &&
                   read_sizes(argv[i + 1])) {
            i++;
        } else {
            fprintf(stderr, "%s: %s: it takes --plain and --sizes 8,1024,... up to %d\n", argv[0],
                    argv[i], MOST);
            return -1;
        }
    }
    return i - 1;
}

int main(int argc, char **argv)
{
    struct subject subject;
    int taken = read_options(argv);

    if (taken < 0)
        return 2;
    results =
        mmap(NULL, sizeof(*results), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (results == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    argv[taken] = argv[0];
    subject = ranks_subject(argc - taken, argv + taken);
    ranks_run(
        &subject,
        &(struct ranks){.ranks = 2, .signals = 2, .heap_bytes = 2 * (uint64_t)MOST, .body = body});
    print();
    return 0;
}
