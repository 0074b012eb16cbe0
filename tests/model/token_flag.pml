/* The protocol of token_flag: N ranks exchange counts, rows and expert outputs for E epochs in four
 * calls each (dispatch_send, dispatch_recv, combine_send, combine_recv), with B buffer sets and no
 * barrier.
 *
 * The key idea: memory holds epoch numbers in place of data, and a store or put is a span of time,
 * as in ll_v2.pml: from its issue its slot is torn, and it is complete when its flag has arrived,
 * or an operation that a fence orders after it. It is an error to read a torn slot, and to write a
 * slot that is torn or that its owner has yet to read. Each rank has for each other rank, in each
 * epoch, one row or none, as spin chooses: a rank without rows does not wait for expert outputs and
 * is the one that runs ahead.
 *
 * Parameters by -D: N, E, B, SETS (B, at least 2), TOKEN (1: flag_granularity: token; 0:
 * flag_granularity: rank), FOLDED (1: counter_reset: inline; 0: memset), ONE_FREE and NONE_FREE
 * (below), FAR (1: operations of a rank arrive only while it is in a call, since a transport may
 * delay them; 0: stores), ORDER (below), and at most one MUTANT_*. */

/* Order of calls, the same on every rank.
 *   0  lockstep: a dispatch, its combine
 *   1  D1 D2 C1 D3 C2 ...
 *   2  every order that the calls allow, halves included; spin chooses
 *   3  discarded dispatches (GPUs): D1 D2 D3 ...
 *   4  layers in parts, with quiet once for a part: receive 1, send 2, return 1, receive 2, send 3,
 *      return 2, reduce 1 ...; spin chooses the last part of each layer
 * TURNS: dispatches take the sets in turn (GPUs), not the first that is free. */

#include "common.pml"

/* Ranks that may have no row for another. */
#define FREE(p) (!NONE_FREE && (!ONE_FREE || p == 0))

#define STEPS ((4 - 2 * (ORDER == 3)) * E)
#define NEXT_SET (TURNS -> n[0] % 2 : (used[0] -> (used[1] -> SETS - 1 : 1) : 0))

/* Calls of a layer that follow quiet: the return of a part, and the first two sends. */
#define LAYER (ORDER == 4)
#define QUIET_BEFORE \
    (LAYER && (call[step] == 2 || \
               (call[step] == 0 && !MUTANT_NO_QUIET_BEFORE_SEND && epoch[0] - epoch[3] < 3)))

#define TORN 64

/* Of rank p: position x (a set, or odd and even epochs) for rank s. */
#define AT(p, x, s) (((p) * SETS + (x)) * N + (s))
#define LINK(from, to) ((from) * N + (to))

/* Slot that rank s sends its output to: the choice of a flat token changes from epoch to epoch, and
 * so does the rank that writes its slot. */
#define SLOT(e, p, s) (N == 2 || (e) % 2 -> (s) : 3 - (p) - (s))
#define OUTPUT_AT(x, e, p, s) AT(p, x, SLOT(e, p, s))

byte rows[N * SETS * N], counts[N * SETS * N], outputs[N * SETS * N];
bool rows_new[N * SETS * N], counts_new[N * SETS * N], outputs_new[N * SETS * N]; /* not read yet */
/* Flags. For counts: epoch * 4 + rows + 1; for others: the epoch. */
byte count_flag[N * SETS * N], row_flag[N * SETS * N], output_flag[N * SETS * N];

/* Epochs of operations in flight; 0: none. */
byte row_due[N * N], count_due[N * N], output_due[N * N];
bool with_row[N * N]; /* count_due: the announced row */
bool inside[N];       /* in a call */

/* For each rank and set: the ranks that it has a row for, and had a row from. */
bool sent_to[N * SETS * N], got_from[N * SETS * N];

/* Counters: rows with a position at a rank; arrived rows with a position. */
byte sent[N * N], taken[N];

byte call[4 * E]; /* 0 to 3, as above */
byte set[E + 1];
bool ordered;

#define SET(e) (MUTANT_ONE_SET -> 0 : (MUTANT_TWO_SETS -> set[e] % 2 : set[e]))
#define ODD(e) (MUTANT_ONE_PLACE_FOR_COUNTS || MUTANT_CLEARED -> 0 : ((e) % 2))
#define FLAG_SET(e) (MUTANT_FLAGS_NOT_BY_SET -> 0 : set[e])

#define BEGIN(memory, unread, at, epoch) \
    assert(memory[at] < TORN); \
    assert(!unread[at]); \
    memory[at] = TORN + epoch

#define COME(memory, unread, at, epoch) \
    memory[at] = epoch; \
    unread[at] = true

#define READ(memory, unread, at, epoch) \
    assert(memory[at] == epoch); \
    unread[at] = false

#define MAY_COME (!FAR || inside[from])

/* flag_granularity: rank: the counts follow a fence. */
#define ROWS_BEFORE \
    (TOKEN || MUTANT_NO_FENCE || MUTANT_COUNTS_BEFORE_ROWS -> true : \
     (row_due[LINK(from, to)] == 0))

/* Payload first, then its flag; one step suffices, since a reader needs both. */
inline row_comes()
{
    COME(rows, rows_new, AT(to, SET(row_due[LINK(from, to)]), from), row_due[LINK(from, to)]);
    IF(TOKEN && !MUTANT_FLAG_BEFORE_ROW,
        row_flag[AT(to, FLAG_SET(row_due[LINK(from, to)]), from)] = row_due[LINK(from, to)]);
    row_due[LINK(from, to)] = 0
}

inline count_comes()
{
    COME(counts, counts_new, AT(to, ODD(count_due[LINK(from, to)]), from),
         count_due[LINK(from, to)]);
    count_flag[AT(to, ODD(count_due[LINK(from, to)]), from)] =
        count_due[LINK(from, to)] * 4 + with_row[LINK(from, to)] + 1;
    with_row[LINK(from, to)] = false;
    count_due[LINK(from, to)] = 0
}

#define OUTPUT_DUE output_due[LINK(from, to)]

inline output_comes()
{
    COME(outputs, outputs_new, OUTPUT_AT(SET(OUTPUT_DUE), OUTPUT_DUE, to, from), OUTPUT_DUE);
    output_flag[OUTPUT_AT(FLAG_SET(OUTPUT_DUE), OUTPUT_DUE, to, from)] = OUTPUT_DUE;
    output_due[LINK(from, to)] = 0
}

proctype carrier(byte from; byte to)
{
end:
    do
    :: row_due[LINK(from, to)] != 0 && MAY_COME -> d_step { row_comes() }
    :: count_due[LINK(from, to)] != 0 && MAY_COME && ROWS_BEFORE -> d_step { count_comes() }
    :: output_due[LINK(from, to)] != 0 && MAY_COME -> d_step { output_comes() }
    od
}

/* The sources of sends must no longer be in flight. */
inline issue_row(e)
{
    assert(row_due[LINK(p, to)] == 0);
    assert(sent[LINK(p, to)] == 0); /* the first row of its buffer */
    sent[LINK(p, to)]++;
    BEGIN(rows, rows_new, AT(to, SET(e), p), e);
    IF(MUTANT_FLAG_BEFORE_ROW, row_flag[AT(to, FLAG_SET(e), p)] = e);
    row_due[LINK(p, to)] = e
}

inline issue_counts(e)
{
    assert(count_due[LINK(p, to)] == 0);
    BEGIN(counts, counts_new, AT(to, ODD(e), p), e);
    with_row[LINK(p, to)] = sent_to[AT(p, set[e], to)];
    count_due[LINK(p, to)] = e
}

inline issue_output(e)
{
    assert(output_due[LINK(p, to)] == 0);
    BEGIN(outputs, outputs_new, OUTPUT_AT(SET(e), e, to, p), e);
    output_due[LINK(p, to)] = e
}

#define EACH_OTHER(...) EACH(to, N, IF(to != p, __VA_ARGS__))

#define NOT_DUE(to) (row_due[LINK(p, to)] + count_due[LINK(p, to)] + output_due[LINK(p, to)] == 0)
#define QUIET (MUTANT_NO_QUIET -> true : (OF_ALL(NOT_DUE)))

/* Waits for flags use >=. */
#define COUNT_CAME(e) \
    (MUTANT_NO_COUNT_WAIT -> true : \
     (MUTANT_COUNT_EQ -> (count_flag[AT(p, ODD(e), to)] / 4 == e) : \
     (MUTANT_FLAG_WITHOUT_EPOCH || MUTANT_CLEARED -> (count_flag[AT(p, ODD(e), to)] != 0) : \
     (count_flag[AT(p, ODD(e), to)] >= (e) * 4 + 1))))
#define ROW_CAME(e) (!TOKEN || MUTANT_NO_ROW_WAIT -> true : (row_flag[AT(p, FLAG_SET(e), to)] >= e))
#define OUTPUT_CAME(e) \
    (MUTANT_NO_OUTPUT_WAIT -> true : \
     (MUTANT_OUTPUT_OF_EPOCH_BEFORE -> (output_flag[OUTPUT_AT(FLAG_SET(e), e, p, to)] >= e - 1) : \
     (output_flag[OUTPUT_AT(FLAG_SET(e), e, p, to)] >= e)))

inline choose(e)
{
    EACH_OTHER(
        if
        :: FREE(p) -> sent_to[AT(p, set[e], to)] = false
        :: sent_to[AT(p, set[e], to)] = true
        fi)
}

inline clear_sent()
{
    EACH_OTHER(sent[LINK(p, to)] = 0)
}

/* Steps of dispatch_send before its rows are sent. */
inline reset_at_send()
{
    IF(!FOLDED && !MUTANT_NO_RESET, clear_sent());
    IF(!MUTANT_TAKEN_NOT_RESET, taken[p] = 0);
    to = 0
}

inline reset_at_recv()
{
    IF(FOLDED && !MUTANT_NO_RESET, clear_sent());
    to = 0
}

inline dispatch_send(e)
{
    reset_at_send();
    IF(TOKEN || MUTANT_COUNTS_BEFORE_ROWS, EACH_OTHER(issue_counts(e)));
    EACH_OTHER(if :: sent_to[AT(p, set[e], to)] -> issue_row(e) :: else fi);
    IF(!TOKEN && !MUTANT_COUNTS_BEFORE_ROWS, EACH_OTHER(issue_counts(e)))
}

/* The counts of one rank. The flag must agree with the words. */
inline take_counts(e)
{
    READ(counts, counts_new, AT(p, ODD(e), to), e);
    assert(count_flag[AT(p, ODD(e), to)] / 4 == e);
    got_from[AT(p, set[e], to)] = count_flag[AT(p, ODD(e), to)] % 4 - 1;
    IF(MUTANT_CLEARED, count_flag[AT(p, ODD(e), to)] = 0)
}

inline take_row(e)
{
    READ(rows, rows_new, AT(p, SET(e), to), e);
    assert(taken[p] < N - 1); /* as many as the counts state */
    taken[p]++
}

/* Waits for one rank after the other. */
inline dispatch_recv(e)
{
    EACH(to, N, IF(to != p, d_step { COUNT_CAME(e) -> take_counts(e) }));
    d_step { reset_at_recv() }
    do
    :: to < N ->
        IF(to != p && got_from[AT(p, set[e], to)], d_step { ROW_CAME(e) -> take_row(e) });
        to++
    :: else -> break
    od;
    to = 0
}

inline combine_send(e)
{
    EACH_OTHER(if :: got_from[AT(p, set[e], to)] -> issue_output(e) :: else fi)
}

inline combine_recv(e)
{
    do
    :: to < N ->
        IF(to != p && sent_to[AT(p, set[e], to)],
            d_step {
                OUTPUT_CAME(e) -> READ(outputs, outputs_new, OUTPUT_AT(SET(e), e, p, to), e)
            });
        to++
    :: else -> break
    od;
    to = 0;
    d_step {
        EACH_OTHER(
            sent_to[AT(p, set[e], to)] = false;
            got_from[AT(p, set[e], to)] = false)
    }
}

proctype rank(byte p)
{
    byte step, to;
    byte epoch[4]; /* last call of each kind */

    ordered;
    do
    :: step < STEPS ->
        d_step {
            inside[p] = true;
            epoch[call[step]]++
        }
        IF(QUIET_BEFORE, QUIET);
        if
        :: call[step] == 0 ->
            atomic {
                choose(epoch[0]);
                d_step { dispatch_send(epoch[0]) }
            }
        :: call[step] == 1 -> dispatch_recv(epoch[1])
        :: call[step] == 2 -> d_step { combine_send(epoch[2]) }
        :: call[step] == 3 -> combine_recv(epoch[3])
        fi;
        d_step {
            (LAYER && step + 1 < STEPS) || QUIET ->
            inside[p] = false;
            step++
        }
    :: else -> break
    od
}

/* Progress of each epoch as its number of calls. A dispatch needs a free set, and a received
 * previous dispatch; all other calls follow the order of epochs. */
#define OPEN (n[0] - n[3])
#define MAY_SEND \
    (LAYER -> OPEN == 0 || n[2] + 1 == n[0] : \
     (ORDER == 3 || OPEN < (ORDER == 0 -> 1 : (ORDER == 1 -> 2 : B))))
#define MAY_RECEIVE (!LAYER || (n[2] == n[1] && n[3] + 1 >= n[2]))
#define MAY_OUTPUT (ORDER != 3 && (ORDER != 1 || OPEN == 2 || n[0] == E))
#define MAY_REDUCE (!LAYER || n[3] + 1 < n[2] || n[2] == n[0])

init
{
    byte a, b, n[4];
    bool used[SETS];

    atomic {
        do
        :: a < STEPS && n[0] < E && n[0] == n[1] && MAY_SEND ->
            b = NEXT_SET;
            n[0]++;
            set[n[0]] = b;
            used[b] = true;
            call[a] = 0;
            a++
        :: a < STEPS && n[1] < n[0] && MAY_RECEIVE ->
            n[1]++;
            call[a] = 1;
            a++
        :: a < STEPS && n[2] < n[1] && MAY_OUTPUT ->
            n[2]++;
            call[a] = 2;
            a++
        :: a < STEPS && n[3] < n[2] && MAY_REDUCE ->
            n[3]++;
            used[set[n[3]]] = false;
            call[a] = 3;
            a++
        :: a == STEPS -> break
        od;
        RUN_RANKS(a, b);
        n[0] = 0;
        n[1] = 0;
        n[2] = 0;
        n[3] = 0;
        used[0] = false;
        used[1] = false;
        used[SETS - 1] = false;
        ordered = true
    }
}
