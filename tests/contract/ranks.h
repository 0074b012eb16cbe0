/* Ranks for contract tests: real launchers, the transport under test opened on each rank, and
 * claims. The parent reports the first failed claim. */
#ifndef RANKS_H
#define RANKS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <epa2a/transport.h>

enum { RANKS_MOST = 8, NOTES = 8192 };

/* Transport, launcher and backend under test; *state of cmocka. */
struct subject {
    const struct epa_transport_plugin *plugin;
    const struct epa_launcher_plugin *launcher;
    const struct epa_backend_plugin *backend;
    const void *config;         /* options of the transport */
    const void *backend_config; /* options of the backend */
    /* Transport to other nodes, if the transport names one by between_nodes. */
    const struct epa_transport_plugin *between;
    uint32_t most;     /* limit of ranks; a test with more ranks runs with this number */
    uint32_t per_node; /* ranks per node from EPA2A_TEST_RANKS_PER_NODE; 0: one node */
    uint64_t percent;  /* percentage of rounds, from EPA2A_TEST_ROUNDS */
};

/* Memory that all ranks of a test share under any launcher. */
struct shared {
    uint64_t broken;                  /* number of failed claims */
    uint64_t last;                    /* last round, set when the time is up; 0: not yet */
    uint64_t opened;                  /* number of ranks that have opened the transport; atomic */
    char text[1024];                  /* message of the first failed claim */
    uint64_t word[RANKS_MOST];        /* free for tests; atomic */
    uint64_t note[RANKS_MOST][NOTES]; /* each rank writes its own row */
};

struct rank {
    const struct subject *subject;
    struct epa_bootstrap *boot;
    struct epa_backend *backend;
    struct epa_transport *t;
    struct shared *shared;
    const struct promise *promise; /* NULL: not from a table */
    uint32_t me, size;
    uint64_t random, begun_ns;
};

struct ranks {
    uint32_t ranks, signals;
    uint64_t heap_bytes;
    void (*body)(struct rank *);
    bool fails; /* the body makes ranks fail: ranks_run() ignores the status of the launch */
    const struct promise *promise;
};

/* Row of a table of promises: a body, and the numbers of ranks with which it runs, one after the
 * other. */
struct promise {
    const char *name;
    void (*body)(struct rank *);
    uint32_t ranks[RANKS_MOST]; /* ascending, ends with 0; numbers above the limit are skipped */
    /* For bodies that serve several promises. */
    bool (*send)(struct rank *, size_t bytes, uint64_t round);
    uint64_t value;
    bool fails;          /* see struct ranks */
    bool bare;           /* no heap and no signals */
    uint64_t heap_bytes; /* replaces the size of the table */
    const char *option;  /* option of the transport, name=value; other options have defaults */
};

/* main() of a program with one table. `usual` gives signals and heap bytes. */
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

/* Opens the transport and claims that this fails with `words` in the message. */
void refuses_to_open(struct rank *, struct epa_bootstrap *, uint64_t heap_bytes, const char *words);

/* Opens the transport over a bootstrap with lying peers: `lie` changes the card of each other rank
 * in the first exchange of `card_bytes` each. Closes the transport if open() succeeds
 * nevertheless. */
enum epa_status open_with_lies(struct rank *, uint64_t heap_bytes, size_t card_bytes,
                               void (*lie)(struct rank *, void *card), struct epa_error *);

/* Limit of waits in tests that should pass. */
static const uint64_t DEFAULT_TIMEOUT_NS = 150000000000u;

/* Runs the body on each rank. Fails the test with the first failed claim. */
void ranks_run(const struct subject *, const struct ranks *);

/* Arguments: plugin in argv[1], launcher "fork" or "thread" in argv[2]; then optionally a backend
 * other than the host's, and options of the transport such as memory=ipc. Exits the program on
 * errors: with 77 if the plugin is not built or the machine lacks what transport or backend
 * need. */
struct subject ranks_subject(int argc, char **argv);

/* Returns a symbol of a file that stays open. Exits with 77 if the file is missing, with 2 if the
 * symbol is. */
const void *load_symbol(const char *path, const char *name);

/* Returns the defaults with each "name=value" applied, in permanent memory. Exits on invalid
 * options. */
const void *read_config(const struct epa_options *, int n, const char *const *text);

__attribute__((format(printf, 3, 4))) bool claim(struct rank *, bool holds, const char *fmt, ...);
/* Claims EPA_OK; the message includes the explanation of the transport. */
bool works(struct rank *, enum epa_status);
/* Claims that the transport explains its last failure with these words. */
bool explains(struct rank *, const char *words);
/* Claims that its last failure is a wait for that rank. */
bool awaits(struct rank *, uint32_t rank);

uint64_t draw(struct rank *, uint64_t n); /* random number below n */

/* Waits until `n` ranks have entered this word, without the transport. */
void gather_ranks(struct rank *, uint32_t word, uint64_t n);

uint32_t next_of(const struct rank *);
uint32_t previous_of(const struct rank *);

/* Returns the number of rounds: `on_host` on a host, fewer if each step is a copy to or from a
 * GPU. */
uint64_t rounds(const struct rank *, uint64_t on_host);
/* Returns true while there is another round, in which all ranks wait for each other. Ends after
 * `on_host` rounds or a few seconds, since each rank may wait for a core. */
bool goes_on(struct rank *, uint64_t round, uint64_t on_host);

/* Writes to the own heap in any kind of memory; store_at() writes to memory that peer_heap points
 * to. */
void store(struct rank *, uint64_t at, const void *from, size_t bytes);
void store_at(struct rank *, void *to, const void *from, size_t bytes);
void store_byte(struct rank *, uint64_t at, int byte, size_t bytes);
void load(struct rank *, uint64_t at, void *out, size_t bytes);
char load_byte(struct rank *, uint64_t at);

/* Fills bytes of the own heap with a pattern that identifies sender and round. */
void fill(struct rank *, uint64_t at, size_t bytes, uint64_t round);
bool is_filled(struct rank *, uint64_t at, size_t bytes, uint64_t round, uint32_t from);

/* Like the functions of the transport, but repeat the call while it returns EPA_AGAIN. */
bool put(struct rank *, uint64_t dst, const void *src, size_t bytes, uint32_t peer);
bool put_signal(struct rank *, uint64_t dst, const void *src, size_t bytes, uint32_t signal,
                uint64_t value, enum epa_signal_op, uint32_t peer);
bool raise_signal(struct rank *, uint32_t signal, uint64_t value, enum epa_signal_op,
                  uint32_t peer);
bool await(struct rank *, uint32_t signal, uint64_t value); /* waits for >= value */
bool meet(struct rank *);                                   /* barrier of the transport */

#endif
