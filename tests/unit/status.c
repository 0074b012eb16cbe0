/* Tests of status pages: the displayed state of ranks, and robustness against random contents. */
#include "test.h"
#include <unistd.h>

#include <epa2a/wait.h>
#include "session/status.h"
#include "session/status_page.h"
#include "session/status_text.h"

enum { RANKS = 3 };

struct fixture {
    struct status_page *status_page;
    struct status_page_run run;
    struct session_notes *notes;
    struct session_rank *rank;
};

static struct fixture *fixture_create(void)
{
    static struct fixture fixture;
    struct fixture *f = &fixture;

    *f = (struct fixture){.run = {.began_ns = epa_now_ns(),
                                  .verb = VERB_BENCH,
                                  .number = 2,
                                  .of = 5,
                                  .ranks = RANKS,
                                  .warmup = 10,
                                  .iterations = 100,
                                  .block_bytes = sizeof(struct session_rank),
                                  .file = "a.yaml",
                                  .label = "topk=8"}};
    assert_int_equal(status_page_create(&f->status_page, NULL), EPA_OK);
    f->notes = status_page_map(f->status_page, sizeof(*f->notes), &f->run.notes_at);
    f->rank = status_page_map(f->status_page, RANKS * sizeof(*f->rank), &f->run.block_at);
    assert_non_null(f->notes);
    assert_non_null(f->rank);
    f->notes->n_stages = 1;
    strcpy(f->notes->stage[0], "dispatch");
    for (uint32_t r = 0; r < RANKS; r++) {
        f->rank[r].pid = (int32_t)getpid();
        f->rank[r].stage = 0;
        f->rank[r].iteration = 7;
        gethostname(f->rank[r].host, sizeof(f->rank[r].host) - 1);
    }
    status_page_show(f->status_page, &f->run);
    return f;
}

static void fixture_destroy(struct fixture *f)
{
    status_page_unmap(f->status_page, f->rank, RANKS * sizeof(*f->rank));
    status_page_unmap(f->status_page, f->notes, sizeof(*f->notes));
    status_page_destroy(f->status_page);
}

static struct session_wait note_of(enum epa_wait_kind kind, const char *what)
{
    struct session_wait note = {.turn = 2,
                                .kind = kind,
                                .peer = 1,
                                .number = 12,
                                .iteration = 7,
                                .seen = 6,
                                .wanted = 7,
                                .since_ns = epa_now_ns() + 1000000000000};

    snprintf(note.what, sizeof(note.what), "%s", what);
    return note;
}

static void waits_for(const struct session_wait *note, const char *want)
{
    struct fixture *f = fixture_create();
    struct status s;
    char text[200];

    f->rank[2].waiting = *note;
    assert_int_equal(status_read(status_page_file(f->status_page), &s, NULL), EPA_OK);
    status_waits_for(&s, 2, text, sizeof(text));
    assert_string_equal(text, want);
    status_finish(&s);
    fixture_destroy(f);
}

TEST(a_waiting_rank_names_signal_and_peer)
{
    static const struct {
        enum epa_wait_kind kind;
        const char *what, *text;
    } c[] = {
        {EPA_WAIT_SIGNAL, "rows", "rows of rank 1 for 0.00 s: signal 12 is 6, wants 7"},
        {EPA_WAIT_SIGNAL, "", "a signal of rank 1 for 0.00 s: signal 12 is 6, wants 7"},
        {EPA_WAIT_BARRIER, "", "rank 1 for 0.00 s: reached barrier 6, wants 7"},
        {EPA_WAIT_SET_UP, "", "rank 1 for 0.00 s: reached barrier 6 of set-up, wants 7"},
        {EPA_WAIT_DATA, "row", "row 12 of rank 1 for 0.00 s: its flag is 6, wants 7"},
        {EPA_WAIT_PUTS, "", "its puts to rank 1 to be in place for 0.00 s"},
        {EPA_WAIT_CALL, "MPI_Barrier", "MPI_Barrier of rank 1 for 0.00 s"},
        {EPA_WAIT_DEVICE, "", "its device for 0.00 s"},
        {EPA_WAIT_NOTHING, "", "-"},
    };
    struct session_wait note;

    for (uint32_t i = 0; i < LENGTH(c); i++) {
        note = note_of(c[i].kind, c[i].what);
        waits_for(&note, c[i].text);
    }
    note = note_of(EPA_WAIT_DATA, "counts");
    note.number = EPA_WAIT_NOBODY;
    waits_for(&note, "counts of rank 1 for 0.00 s: its flag is 6, wants 7");
    note.iteration = 6; /* A note of an earlier iteration or of another stage is outdated. */
    waits_for(&note, "-");
    note.iteration = 7;
    note.stage = 1;
    waits_for(&note, "-");
}

#define TEST_OF_STATUS_PAGE(name) \
    TEST_OF(name, struct fixture, f, fixture_create(), fixture_destroy)

static void refused(const struct fixture *f, off_t at, const void *bytes, size_t n, const char *why)
{
    struct status status;

    assert_int_equal(pwrite(status_page_file(f->status_page), bytes, n, at), n);
    assert_status(status_read(status_page_file(f->status_page), &status, test_error()),
                  EPA_ERR_UNSUPPORTED, why);
}

TEST_OF_STATUS_PAGE(another_build_is_refused_by_its_version)
{
    const uint32_t bytes = 8;

    refused(f, offsetof(struct status_page_head, rank_bytes), &bytes, sizeof(bytes),
            ", and this is another build");
    refused(f, 0, "epa2a\0b\2", 8, "runs an epa2a of an unknown version");
}

/* The page may contain any bytes, since a process may write anything into it. */
TEST_OF_STATUS_PAGE(random_bytes_do_no_harm)
{
    uint64_t random = 88172645463325252u;

    for (uint32_t i = 0; i < 2000; i++) {
        struct text text = {0};
        struct status_page_run run = f->run;
        struct status s;

        for (uint32_t k = 0; k < sizeof(*f->notes); k++)
            ((unsigned char *)f->notes)[k] = (unsigned char)next_random(&random);
        for (uint32_t k = 0; k < RANKS * sizeof(*f->rank); k++)
            ((unsigned char *)f->rank)[k] = (unsigned char)next_random(&random);
        f->rank[0].waiting.turn &= ~1ull;
        f->rank[0].waiting.kind %= 9;
        f->rank[0].waiting.stage = f->rank[0].stage;
        f->rank[0].waiting.iteration = f->rank[0].iteration;
        if (i % 2 == 0)
            for (uint32_t k = 8; k < sizeof(run); k++)
                ((unsigned char *)&run)[k] = (unsigned char)next_random(&random);
        run.ranks %= 100;
        status_page_show(f->status_page, &run);
        assert_int_equal(status_read(status_page_file(f->status_page), &s, NULL), EPA_OK);
        status_print(&s, "", &text);
        assert_non_null(text.data);
        for (size_t k = 0; k < text.bytes; k++)
            assert_true(text.data[k] == '\n' || (unsigned char)text.data[k] >= ' ');
        text_free(&text);
        status_finish(&s);
    }
}
