/* The kernels and the copy engines of ag_gemm_2d on GPUs: N ranks, P of them on each node, make E
 * calls with B buffer sets and no barrier. ag_gemm.pml has the words of hosts; this model has the
 * movers of a kernel, which share a chunk, the counters of their parts, the words that a rank sets
 * for itself, and the stream of copy engines. The next kernel of a rank begins when its kernel and
 * its copies have ended. The rows of a rank are one chunk.
 *
 * The key idea: memory holds the number of the call in place of rows. A store of a part takes two
 * steps, with TORN in between, and a tile reads all rows at its begin and at its end, so that a read
 * beside a write is detected.
 *
 * PULL 0: movers, or with ENGINES 1 copy engines, store own rows in the sets of their node. PULL 1:
 * movers store own rows in the own set, and the other ranks of the node copy them. Between nodes a
 * put transfers the rows from the own set at any time. The rank of the same place receives them, and
 * its movers pass them on to its node. FORWARD 1: copy engines pass them on, once a mover has opened
 * the gate of the rows. FAILS 1: a mover may give up its wait for such rows; then all waits of kernels
 * end, but the copy engines still wait for their gates. Without a reuse of sets (E <= B), the rows of
 * a word that copy engines set are in place nevertheless, and all streams end.
 *
 * BESIDE 1: a kernel beside the main kernel puts rows to other nodes. A rank has two multiprocessors.
 * The kernel of puts needs one, the main kernel has blocks on all but SPARE of them, and the two
 * kernels start in any order. BESIDE 0: the kernel of puts precedes the main kernel.
 *
 * Parameters by -D: N, P, E, B, MOVERS (of a kernel, 1 or 2), PULL, ENGINES, FORWARD, FAILS, BESIDE,
 * SPARE, ROWS (a bit for each rank with rows), and at most one MUTANT_*. */

#include "common.pml"

#define TORN 64
#define NODE(r) ((r) / P)
#define PLACE(r) ((r) % P)
#define MATES(p, q) (p != q && NODE(p) == NODE(q))
/* The rank that signals rows of s to q: on another node the rank of the same place, if it exists. */
#define COUNTERPART(s, q) (NODE(q) * P + PLACE(s))
#define SENDER(s, q) \
    (NODE(s) != NODE(q) && COUNTERPART(s, q) < N && COUNTERPART(s, q) != q -> COUNTERPART(s, q) : s)
/* q gets rows of p by a put. */
#define PUTS(p, q) (NODE(p) != NODE(q) && SENDER(p, q) == p)
/* p passes rows of s on to its node. */
#define PASSES(p, s) (P > 1 && NODE(p) != NODE(s) && COUNTERPART(s, p) == p)
/* Copy engines of p forward rows of s; a node of one has no rank to forward to. */
#define HAS_MATES(p) (P > 1 && NODE(p) * P + 1 < N)
#define FORWARDS(p, s) (FORWARD && PASSES(p, s) && HAS_MATES(p))
#define KEEPS(s, p) !FORWARDS(p, s)
#define USES_ENGINES(p) ((ENGINES && HAS_MATES(p)) || !OF_ALL(KEEPS, p))
#define LOADS(q, s) (PULL && q != s && NODE(SENDER(s, q)) == NODE(q))
#define HAS_ROWS(s) ((ROWS >> (s)) % 2 == 1)

#define AT(q, s) ((q) * N + (s))
#define ROW(q, s, e, part) row[(((q) * N + (s)) * B + (e) % B) * MOVERS + (part)]
#define NUMBER(e) number[r * 2 + (MUTANT_ONE_NUMBER -> 0 : (e) % 2)]

byte row[N * N * B * MOVERS];
byte word[N * N];   /* [receiver][source] */
byte placed[N * N]; /* words of the own rank: loaded rows, and own rows */
byte stored[N * N], loaded[N * N]; /* counters of parts: passed on or sent, loaded */
byte number[N * 2]; /* number of a call, for copy engines */
byte a[N];          /* own rows at the caller's address */
byte begun[N], moved[N], copied[N], put[N * N];
bit gate[N * N];         /* [rank][source]: the copy engines may forward rows */
byte forwarded[N * N];   /* number of the call that they then write to words */
bool failed;
byte idle[N];            /* multiprocessors without a block; of use with BESIDE only */
byte called[N], ended[N], put_ended[N]; /* calls: begun, whose main kernel and puts have ended */

#define SEEN(w) (MUTANT_EQ -> (w) == e : (MUTANT_CALL_BEFORE -> (w) + 1 >= e : (w) >= e))
#define ARRIVED(w) (failed || SEEN(w))

/* For each s < N with a condition. */
#define SKIP(s, condition) \
    do \
    :: s < N && !(condition) -> s++ \
    :: else -> break \
    od
#define EACH_WITH(s, condition, ...) \
    atomic { s = 0; SKIP(s, condition) }; \
    do \
    :: s < N -> __VA_ARGS__; atomic { s++; SKIP(s, condition) } \
    :: else -> atomic { s = 0; break } \
    od

inline raise(q, s, value)
{
    assert(word[AT(q, s)] <= value); /* words only increase */
    word[AT(q, s)] = value
}

inline count_part(counter, last)
{
    counter = counter + 1;
    last = counter == (MUTANT_FIRST_SIGNALS -> 1 : MOVERS);
    IF(counter == MOVERS && !MUTANT_NOT_CLEARED, counter = 0)
}

/* Signals rows of s to all ranks of the node, and own rows to the own rank. */
inline signal_node(s)
{
    EACH(q, N, IF(MATES(r, q), raise(q, s, e)));
    IF(s == r, placed[AT(r, r)] = e)
}

/* Stores part m of the rows of s: own rows, or rows that this rank passes on. */
#define STORES_TO(q, s) \
    ((MATES(r, q) && !PULL) || (q == r && s == r && (P == N || (PULL && BESIDE))))

inline send_part(s)
{
    atomic {
        IF(MUTANT_SIGNAL_FIRST, count_part(stored[AT(r, s)], last); IF(last, signal_node(s)));
        IF(HAS_ROWS(s),
            assert((s == r -> a[r] : ROW(r, s, e, m)) == e);
            EACH(q, N, IF(STORES_TO(q, s) && ROW(q, s, e, m) != e, ROW(q, s, e, m) = TORN)))
    };
    atomic {
        IF(HAS_ROWS(s),
            assert((s == r -> a[r] : ROW(r, s, e, m)) == e);
            EACH(q, N, IF(STORES_TO(q, s), ROW(q, s, e, m) = e)));
        IF(!MUTANT_SIGNAL_FIRST, count_part(stored[AT(r, s)], last); IF(last, signal_node(s)));
        last = false
    }
}

/* Copies part m of the rows of s from the set of their sender. */
inline load_part(s)
{
    (MUTANT_LOAD_WITHOUT_WAIT || ARRIVED(word[AT(r, s)]));
    atomic {
        IF(HAS_ROWS(s),
            assert(ROW(SENDER(s, r), s, e, m) == e);
            ROW(r, s, e, m) = TORN)
    };
    atomic {
        IF(HAS_ROWS(s),
            assert(ROW(SENDER(s, r), s, e, m) == e);
            ROW(r, s, e, m) = e);
        count_part(loaded[AT(r, s)], last);
        IF(last, placed[AT(r, s)] = e);
        last = false
    }
}

/* Lets the copy engines forward rows of s. After a failure, too, but without the number. */
inline open_gate(s)
{
    if
    :: atomic { SEEN(word[AT(r, s)]) ->
        IF(!MUTANT_GATE_FIRST, forwarded[AT(r, s)] = e);
        gate[AT(r, s)] = 1 };
        IF(MUTANT_GATE_FIRST, forwarded[AT(r, s)] = e)
    :: atomic { FAILS || failed ->
        failed = true;
        IF(MUTANT_NUMBER_OF_FAILURE, forwarded[AT(r, s)] = e);
        IF(!MUTANT_GATE_STAYS, gate[AT(r, s)] = 1) }
    fi
}

proctype mover(byte r; byte m)
{
    byte e, q, s;
    bool last;

    do
    :: e < E ->
        atomic { begun[r] > e -> e++ };
        if
        :: P > 1 && !ENGINES -> send_part(r)
        :: else
        fi;
        EACH_WITH(s, PASSES(r, s) && !FORWARD,
            (MUTANT_PASS_WITHOUT_WAIT || ARRIVED(word[AT(r, s)]));
            send_part(s));
        EACH_WITH(s, FORWARDS(r, s) && m == 0, open_gate(s));
        EACH_WITH(s, LOADS(r, s), load_part(s));
        moved[r]++
    :: else -> break
    od
}

/* Copies rows of s to q, and the number that a mover has written. */
inline forward_rows(s)
{
    atomic {
        IF(HAS_ROWS(s), EACH(m, MOVERS, ROW(q, s, e, m) = TORN))
    };
    atomic {
        IF(HAS_ROWS(s), EACH(m, MOVERS,
            ROW(q, s, e, m) = ROW(r, s, e, m);
            assert(forwarded[AT(r, s)] < e || ROW(q, s, e, m) == e)));
        raise(q, s, forwarded[AT(r, s)])
    }
}

/* The stream of the copy engines, beside the kernel. */
proctype engine(byte r)
{
    byte e, q, s, m;

    do
    :: e < E ->
        atomic { begun[r] > e -> e++ };
        EACH_WITH(q, MATES(r, q) && ENGINES,
            IF(MUTANT_WORD_FIRST, raise(q, r, NUMBER(e)));
            atomic {
                IF(HAS_ROWS(r), EACH(m, MOVERS, assert(a[r] == e); ROW(q, r, e, m) = TORN))
            };
            atomic {
                IF(HAS_ROWS(r), EACH(m, MOVERS, assert(a[r] == e); ROW(q, r, e, m) = e))
            };
            IF(!MUTANT_WORD_FIRST, raise(q, r, NUMBER(e))));
        EACH_WITH(s, FORWARDS(r, s),
            atomic {
                gate[AT(r, s)] == 1 || MUTANT_NO_GATE ->
                IF(!MUTANT_GATE_NOT_CLOSED, gate[AT(r, s)] = 0)
            };
            EACH_WITH(q, MATES(r, q), forward_rows(s)));
        copied[r] = e
    :: else -> break
    od
}

/* The kernel that copies own rows to the own set and puts them, beside the main kernel. The main
 * kernel may write the same rows there. */
proctype putter(byte r)
{
    byte e, q, m, numbered;

    do
    :: e < E ->
        atomic { called[r] > e && idle[r] > 0 -> e++; idle[r]-- };
        atomic {
            numbered = (MUTANT_NUMBER_OF_KERNEL -> ended[r] + 1 : NUMBER(e));
            IF(HAS_ROWS(r), EACH(m, MOVERS,
                assert(a[r] == numbered);
                IF(ROW(r, r, e, m) != e, ROW(r, r, e, m) = TORN)))
        };
        atomic {
            IF(HAS_ROWS(r), EACH(m, MOVERS, assert(a[r] == numbered); ROW(r, r, e, m) = e));
            EACH(q, N, IF(PUTS(r, q), put[AT(r, q)] = numbered));
            idle[r]++;
            put_ended[r] = e
        }
    :: else -> break
    od
}

/* A put arrives. */
proctype network(byte r; byte q)
{
    byte e, m;

    do
    :: e < E ->
        atomic {
            put[AT(r, q)] > e ->
            e++;
            IF(HAS_ROWS(r), EACH(m, MOVERS, ROW(q, r, e, m) = TORN))
        };
        atomic {
            IF(HAS_ROWS(r), EACH(m, MOVERS,
                assert(ROW(r, r, e, m) == e); /* the source of the put is unchanged */
                ROW(q, r, e, m) = e));
            raise(q, r, e)
        }
    :: else -> break
    od
}

inline begin_call()
{
    a[r] = e;
    IF(BESIDE, called[r] = e);
    EACH(q, N, IF(PUTS(r, q) && !BESIDE,
        EACH(m, MOVERS, ROW(r, r, e, m) = e);
        put[AT(r, q)] = e))
}

#define BLOCKS (2 - (MUTANT_NO_SPARE -> 0 : SPARE))

inline begin_kernel()
{
    IF(BESIDE, idle[r] = idle[r] - BLOCKS);
    IF(P == 1 || (ENGINES && P < N), placed[AT(r, r)] = e);
    begun[r] = e
}

/* All rows of s are in the set of this rank. */
#define IN_SET(s) (s == r || (LOADS(r, s) && !MUTANT_TILE_IGNORES_LOAD) \
    -> ARRIVED(placed[AT(r, s)]) : ARRIVED(word[AT(r, s)]))
#define OWN_ROWS_ARE_APART (P < N || ENGINES) /* tiles of own rows read them at the caller's address */

#define MAY_READ(s) (!HAS_ROWS(s) || (s == r && OWN_ROWS_ARE_APART -> true : IN_SET(s)))
#define HAS_WORD(s) (s == r || MUTANT_NO_END_WAIT || ARRIVED(word[AT(r, s)]))

inline read_rows()
{
    EACH(s, N,
        IF(HAS_ROWS(s), EACH(m, MOVERS,
            assert(failed || (s == r && OWN_ROWS_ARE_APART -> a[r] : ROW(r, s, e, m)) == e))))
}

/* The main stream of a rank: a tile with rows of all ranks, and the end of the kernel. */
proctype rank(byte r)
{
    byte e, q, s, m;

    do
    :: e < E ->
        atomic { e++; begin_call(); IF(!BESIDE, begin_kernel()) };
        IF(BESIDE, atomic { idle[r] >= BLOCKS -> begin_kernel() });
        atomic { OF_ALL(MAY_READ) -> read_rows() };
        atomic { read_rows() };
        atomic {
            OF_ALL(HAS_WORD) && (MUTANT_KERNELS_OVERLAP || moved[r] == e * MOVERS) ->
            NUMBER(e + 1) = e + 1;
            IF(BESIDE, ended[r] = e; idle[r] = idle[r] + BLOCKS)
        };
        (MUTANT_NO_PUT_WAIT || !BESIDE || put_ended[r] == e);
        (MUTANT_NO_COPY_WAIT || !USES_ENGINES(r) || copied[r] == e)
    :: else -> break
    od
}

init {
    byte p, q;

    atomic {
        do
        :: p < N ->
            number[p * 2 + (MUTANT_ONE_NUMBER -> 0 : 1)] = 1;
            run rank(p);
            run mover(p, 0);
            IF(MOVERS > 1, run mover(p, 1));
            idle[p] = 2;
            IF(BESIDE, run putter(p));
            IF(USES_ENGINES(p), run engine(p));
            EACH(q, N, IF(PUTS(p, q), run network(p, q)));
            p++
        :: else -> break
        od
    }
}
