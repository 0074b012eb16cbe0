/* Ranks for the contract tests: real launchers, the transport under test opened on each,
 * and claims whose first failure is told by the parent. */
#ifndef RANKS_H
#define RANKS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <epa2a/transport.h>

enum { RANKS_MOST = 8, NOTES = 8192 };

/* What is tested; cmocka's *state. */
struct subject {
    const struct epa_transport_plugin *plugin;
    const struct epa_launcher_plugin *launcher;
    const struct epa_backend_plugin *backend;
    const void *config;         /* of the transport */
    const void *backend_config; /* of the backend */
    /* That it takes to other nodes, where it was named one: there, between_nodes is its file. */
    const struct epa_transport_plugin *between;
    uint32_t most;     /* ranks; a test that wants more gets as many */
    uint32_t per_node; /* of them; the environment's EPA2A_TEST_RANKS_PER_NODE; 0: all */
    uint64_t percent;  /* of rounds, of the environment's EPA2A_TEST_ROUNDS */
};

/* Memory that all ranks of a test see, whatever the launcher. */
struct shared {
    uint64_t broken;                  /* claims that did not hold */
    uint64_t last;                    /* round, once it is time to end; 0: not yet */
    char text[1024];                  /* the first of them */
    uint64_t word[RANKS_MOST];        /* for tests; atomic */
    uint64_t note[RANKS_MOST][NOTES]; /* each rank writes its own row */
};

struct rank {
    const struct subject *subject;
    struct epa_bootstrap *boot;
    struct epa_backend *backend;
    struct epa_transport *t;
    struct shared *shared;
    const struct promise *promise; /* NULL: none of a table */
    uint32_t me, size;
    uint64_t random, begun_ns;
};

struct ranks {
    uint32_t ranks, signals;
    uint64_t heap_bytes;
    void (*body)(struct rank *);
    bool fails; /* the body makes ranks fail: nothing is asked of the launch's status */
    const struct promise *promise;
};

/* A row of a table of promises: a body, and the worlds of ranks that keep it, one after the
 * other. */
struct promise {
    const char *name;
    void (*body)(struct rank *);
    uint32_t ranks[RANKS_MOST]; /* up to a 0, ascending, and no further than there may be */
    /* For bodies that keep several. */
    bool (*send)(struct rank *, size_t bytes, uint64_t round);
    uint64_t value;
    bool fails;          /* as in struct ranks */
    bool bare;           /* no heap and no signals */
    uint64_t heap_bytes; /* other than the table's */
    const char *option;  /* of the transport: name=value, and all others as by default */
};

/* main() of a program for one table; `usual` has its signals and bytes of heap. */
int promises_main(int argc, char **argv, struct ranks usual, const struct promise *, size_t n);

#define PROMISES_MAIN(n_signals, bytes) \
    int main(int argc, char **argv) \
    { \
        return promises_main(argc, argv, \
                             (struct ranks){.signals = (n_signals), .heap_bytes = (bytes)}, \
                             promises, sizeof(promises) / sizeof(promises[0])); \
    }

/* Opens the transport once more. */
enum epa_status open_transport(struct rank *, struct epa_bootstrap *, uint64_t heap_bytes,
                               uint32_t signals, struct epa_transport **, struct epa_error *);

/* It must not come to that: `words` must be in the refusal. */
void refuses_to_open(struct rank *, struct epa_bootstrap *, uint64_t heap_bytes, const char *words);

/* Opens the transport once more over a bootstrap in which peers lie: `lie` changes what each other
 * rank says in the first exchange of `card_bytes` each. Closes it if it was opened all the same. */
enum epa_status open_with_lies(struct rank *, uint64_t heap_bytes, size_t card_bytes,
                               void (*lie)(struct rank *, void *card), struct epa_error *);

/* Longest wait in a test that should pass. */
static const uint64_t DEFAULT_TIMEOUT_NS = 150000000000u;

/* Runs the body on each rank; fails the test with the first claim that did not hold. */
void ranks_run(const struct subject *, const struct ranks *);

/* Plugin at argv[1], launcher "fork" or "thread" at argv[2]; then, or not, another backend
 * than the host's and options of the transport, as in memory=ipc. Exits the test program
 * (77: the plugin is not there, or the machine has not what it or the backend wants) if
 * it cannot. */
struct subject ranks_subject(int argc, char **argv);

/* Of a file that stays open. Exits: 77 where that is not there, else 2. */
const void *load_symbol(const char *path, const char *name);

/* The defaults and over them each "name=value"; they stay. Exits where one is wrong. */
const void *read_config(const struct epa_options *, int n, const char *const *text);

__attribute__((format(printf, 3, 4))) bool claim(struct rank *, bool holds, const char *fmt, ...);
/* Claims EPA_OK; what else it is, the transport explains. */
bool works(struct rank *, enum epa_status);
/* Claims that the transport explains its last failure with these words. */
bool explains(struct rank *, const char *words);

uint64_t draw(struct rank *, uint64_t n); /* 0 to n - 1 */

/* Until `n` ranks have come to this word, by no means of the transport. */
void gather_ranks(struct rank *, uint32_t word, uint64_t n);

uint32_t next_of(const struct rank *);
uint32_t previous_of(const struct rank *);

/* How often a test does what it does: as said on the host, less often where every step is a
 * copy to a GPU or back. */
uint64_t rounds(const struct rank *, uint64_t on_host);
/* Whether there is another round of so many, in which all ranks wait for each other; for a few
 * seconds, as each may wait for a core. */
bool goes_on(struct rank *, uint64_t round, uint64_t on_host);

/* The own heap, in whatever memory it is; store_at() for where peer_heap points. */
void store(struct rank *, uint64_t at, const void *from, size_t bytes);
void store_at(struct rank *, void *to, const void *from, size_t bytes);
void store_byte(struct rank *, uint64_t at, int byte, size_t bytes);
void load(struct rank *, uint64_t at, void *out, size_t bytes);
char load_byte(struct rank *, uint64_t at);

/* Bytes at an offset of the own heap, that tell who sent them in which round. */
void fill(struct rank *, uint64_t at, size_t bytes, uint64_t round);
bool is_filled(struct rank *, uint64_t at, size_t bytes, uint64_t round, uint32_t from);

/* As the functions of the transport, but going on while it is EPA_AGAIN. */
bool put(struct rank *, uint64_t dst, const void *src, size_t bytes, uint32_t peer);
bool put_signal(struct rank *, uint64_t dst, const void *src, size_t bytes, uint32_t signal,
                uint64_t value, enum epa_signal_op, uint32_t peer);
bool raise_signal(struct rank *, uint32_t signal, uint64_t value, enum epa_signal_op,
                  uint32_t peer);
bool await(struct rank *, uint32_t signal, uint64_t value); /* >= */
bool meet(struct rank *);                                   /* the transport's barrier */

#endif
