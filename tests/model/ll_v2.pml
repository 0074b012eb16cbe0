/* The protocol of ll_v2: N ranks exchange counts, rows and answers for E epochs with B buffer
 * sets and no barrier.
 *
 * The idea needed to read it: memory holds epoch numbers in place of data, and a put is a span
 * of time. It may write from the moment when it is issued, and is known to be in place only when
 * a signal has come that transport.h orders after it. In between its slot is torn: to read it,
 * to put into it again, or to change what the put reads from, is an error. So each put is
 * checked against arriving as early and as late as the contract allows, which is more than
 * interleaving alone would show, and stands for late stores of a weak memory as well as for
 * networks that reorder. Signals wait on links between ranks and come in any order that is
 * allowed: a put_signal's after its own payload, any after what was issued before a fence. They
 * come only while their sender is in a stage: a transport may hold back what it is not called
 * for.
 *
 * A rank issues to all peers in one step and reads from all sources in one step. Nothing is lost
 * by that: signals stay on their links, and a rank before its next step, as long as they like.
 *
 * With PUBLISH counts are routes, which a rank stores in its own heap and all load: a put into
 * what each sees, and its epoch a signal after it, in two places by turns. Rows and expert
 * outputs then go to, and are waited for from, those that have some: WANTS() says who, by turns.
 *
 * Given by -D: N, E, B (buffer sets), PUBLISH (with PULL), PULL (1: peers load expert outputs
 * from y; 0: they are put into the source's `expert outputs`), BLOCKS (1: the last of the rows,
 * and of the expert outputs that are put, brings the signal), SLOW (1: what rank 0 does between
 * its stages takes until all others have ended theirs), ORDER (below), and at most one MUTANT_*. */

/* Which dispatch (D) and combine (C) come when; the same on every rank.
 *   0  D1 C1 D2 C2 ...
 *   1  D1 D2 C1 D3 C2 ... C(E-1) CE
 *   2  every order with at most two dispatches open; spin chooses */

#if PUBLISH
#define TURN(e) (MUTANT_ONE_PLACE -> 0 : ((e) % 2))
#define COUNTS_HAD(e) (MUTANT_ONE_PLACE -> ((e) - 1) : ((e) > 2 -> (e) - 2 : 0))
#define COUNT_WORD(p, e, s) (((p) * 2 + TURN(e)) * N + (s))
#define COUNT_SLOT(p, e, s) COUNT_WORD(p, e, s)
#define WANTS(s, p, e) (((s) + 2 * (p) + (e)) % 3 != 0) /* s has rows for p in epoch e */
#define SKIPPED(kind, epoch) \
    ((((kind) == PUT_ROWS || (kind) == SIGNAL_DATA) && !WANTS(from, to, epoch)) || \
     (((kind) == PUT_OUTPUTS || (kind) == SIGNAL_OUTPUT) && !WANTS(to, from, epoch)))
#else
#define COUNTS_HAD(e) had[e]
#define COUNT_WORD(p, e, s) ((p) * N + (s))
#define COUNT_SLOT(p, e, s) SLOT(p, e, s)
#define WANTS(s, p, e) true
#endif
#include "links.pml"

/* Signals: the word of source s at rank p is [p * N + s]; of counts, by COUNT_WORD(). */
byte count_at[2 * N * N], data_at[N * N], output_at[N * N];

/* Memory, as epochs. */
#define SLOT(p, e, s) (((p) * B + set[e]) * N + (s))
byte counts[N * 2 * N], recv[N * B * N], outputs[N * B * N];
#if BLOCKS
byte last_rows[N * B * N], last_outputs[N * B * N];
#endif

/* The last epoch that their owner has read for the last time. */
byte counts_read[N], recv_read[N], outputs_read[N];

bool dispatch_next[2 * E]; /* the order: step i is a dispatch, or else a combine */
byte set[E + 1];           /* of each epoch: the first that no open dispatch has */
byte had[E + 1];           /* the epoch that had its set before; 0: none */
#define BEGIN(memory, read) BEGIN_AT(memory, SLOT(to, epoch, from), read, had[epoch])

#define RAISE(word) RAISE_AT(word, to * N + from)

inline begin(kind, epoch)
{
    if
    :: kind == PUT_COUNTS ->
        BEGIN_AT(counts, COUNT_SLOT(to, epoch, from), counts_read, COUNTS_HAD(epoch))
    :: kind == PUT_ROWS -> BEGIN(recv, recv_read)
    :: kind == PUT_OUTPUTS -> BEGIN(outputs, outputs_read)
#if BLOCKS
    :: kind == PUT_LAST_ROWS -> BEGIN(last_rows, recv_read)
    :: kind == PUT_LAST_OUTPUTS -> BEGIN(last_outputs, outputs_read)
#endif
    :: else
    fi
}

inline come(kind, epoch)
{
    if
    :: kind == PUT_COUNTS -> counts[COUNT_SLOT(to, epoch, from)] = epoch
    :: kind == PUT_ROWS -> recv[SLOT(to, epoch, from)] = epoch
    :: kind == PUT_OUTPUTS -> outputs[SLOT(to, epoch, from)] = epoch
#if BLOCKS
    :: kind == PUT_LAST_ROWS -> last_rows[SLOT(to, epoch, from)] = epoch
    :: kind == PUT_LAST_OUTPUTS -> last_outputs[SLOT(to, epoch, from)] = epoch
#endif
    :: kind == SIGNAL_COUNT -> RAISE_AT(count_at, COUNT_WORD(to, epoch, from))
    :: kind == SIGNAL_DATA -> RAISE(data_at)
    :: kind == SIGNAL_OUTPUT -> RAISE(output_at)
    :: else
    fi
}

CARRIER

/* Every word of this rank that it waits for has come to `epoch`; that of rank `but` is not looked
 * at. */
#define CAME_OF(at, wants, s, but) (s == but || !(wants) || at)
#define ASKS(s, e) (MUTANT_COUNTS_OF_SENDERS -> WANTS(s, from, e) : true)
#define COUNT_CAME(s, cmp, epoch, but) \
    CAME_OF(count_at[COUNT_WORD(from, opened, s)] cmp epoch, ASKS(s, opened), s, but)
#define DATUM_CAME(s, cmp, epoch, but) \
    CAME_OF(data_at[from * N + s] cmp epoch, WANTS(s, from, opened), s, but)
#define OUTPUT_CAME(s, cmp, epoch, but) \
    CAME_OF(output_at[from * N + s] cmp epoch, WANTS(from, s, closed), s, but)
#define NOBODY N

#define COUNTS_CAME(epoch) \
    (MUTANT_COUNT_EQ -> OF_ALL(COUNT_CAME, ==, epoch, NOBODY) : \
     (MUTANT_COUNT_STALE -> OF_ALL(COUNT_CAME, >=, epoch - 2, NOBODY) : \
     (MUTANT_NO_COUNT_WAIT -> true : \
     (MUTANT_COUNT_OF_ALL_BUT_ONE -> OF_ALL(COUNT_CAME, >=, epoch, 0) : \
     OF_ALL(COUNT_CAME, >=, epoch, NOBODY)))))

#define DATA_CAME(epoch) \
    (MUTANT_DATA_EQ -> OF_ALL(DATUM_CAME, ==, epoch, NOBODY) : \
     (MUTANT_DATA_OF_ALL_BUT_ONE -> OF_ALL(DATUM_CAME, >=, epoch, 0) : \
     (MUTANT_DATA_OF_LAST_EPOCH -> OF_ALL(DATUM_CAME, >=, epoch - 1, NOBODY) : \
     OF_ALL(DATUM_CAME, >=, epoch, NOBODY))))

#define OUTPUTS_CAME(epoch) \
    (MUTANT_OUTPUT_EQ -> OF_ALL(OUTPUT_CAME, ==, epoch, NOBODY) : \
     (MUTANT_OUTPUT_OF_ALL_BUT_ONE -> OF_ALL(OUTPUT_CAME, >=, epoch, 0) : \
     OF_ALL(OUTPUT_CAME, >=, epoch, NOBODY)))

/* Every source's slot at this rank, that is written at all, is in place and of `epoch`. */
#define READ(memory, slot, epoch, wants) \
    EACH(i, N, assert(!(wants) || memory[slot(from, epoch, i)] == epoch))
#define READ_ALL(memory, epoch) READ(memory, SLOT, epoch, WANTS(i, from, epoch))
#define READ_OUTPUTS(epoch) READ(outputs, SLOT, epoch, WANTS(from, i, epoch))

/* What this rank put from its buffers of `epoch` before has come: they may be written. */
#define SOURCE_FREE(memory, epoch) SOURCE_FREE_AT(memory, SLOT, epoch)
#define SOURCE_FREE_AT(memory, slot, epoch) EACH(i, N, assert(memory[slot(i, epoch, from)] < TORN))

inline send_counts(epoch)
{
    SOURCE_FREE_AT(counts, COUNT_SLOT, epoch);
    issue(PUT_COUNTS, epoch);
    issue(SIGNAL_COUNT, epoch)
}

inline send_rows(epoch)
{
    SOURCE_FREE(recv, epoch);
    IF(MUTANT_DATA_BEFORE_ROWS, issue(FENCE, 0); issue(SIGNAL_DATA, epoch));
    issue(PUT_ROWS, epoch);
    IF(!MUTANT_DATA_BEFORE_ROWS,
        DATA_FENCE;
        IF(BLOCKS, issue(PUT_LAST_ROWS, epoch));
        issue(SIGNAL_DATA, epoch))
}

/* Experts store into y. Where peers load from y these stores are what they wait for, and they
 * become visible to each on their own: puts into what each sees. What ll_v2 keeps apart has the
 * same owners at the same times: rows that cross once and arrive apart are `recv` here; expert
 * outputs that are added up or quantised before they leave are y, stored later, at the start of
 * the combine, which asks for less. */
inline store_y(epoch)
{
    SOURCE_FREE(outputs, epoch);
    IF(PULL, issue(PUT_OUTPUTS, epoch))
}

inline send_outputs(epoch)
{
    IF(!PULL, issue(PUT_OUTPUTS, epoch));
    OUTPUT_FENCE;
    IF(BLOCKS && !PULL, issue(PUT_LAST_OUTPUTS, epoch));
    issue(SIGNAL_OUTPUT, epoch)
}

proctype rank(byte from)
{
    byte step, opened, closed; /* epochs: dispatched, combined */
    byte to, i, before, since;

    ordered;
    do
    :: step < 2 * E && dispatch_next[step] && MAY_BEGIN ->
        d_step {
            inside[from] = true;
            opened++;
            IF(MUTANT_Y_BEFORE_COUNTS, store_y(opened));
            send_counts(opened);
            IF(MUTANT_ROWS_BEFORE_COUNTS, send_rows(opened))
        }
        d_step {
            COUNTS_CAME(opened) ->
            READ(counts, COUNT_SLOT, opened, ASKS(i, opened)); /* the copy from which places are computed */
            counts_read[from] = opened;
            IF(!MUTANT_ROWS_BEFORE_COUNTS, send_rows(opened));
            IF(MUTANT_EXPERTS_BEFORE_DATA, READ_ALL(recv, opened))
        }
        d_step {
            DATA_CAME(opened) ->
            READ_ALL(recv, opened); /* experts */
#if BLOCKS
            READ_ALL(last_rows, opened);
#endif
        }
        d_step {
            QUIET ->
            IF(!MUTANT_Y_BEFORE_COUNTS, store_y(opened));
            END_STAGE
        }
    :: step < 2 * E && !dispatch_next[step] && MAY_BEGIN ->
        d_step {
            inside[from] = true;
            closed++;
            send_outputs(closed)
        }
        d_step {
            OUTPUTS_CAME(closed) ->
            READ_OUTPUTS(closed);
#if BLOCKS && !PULL
            READ_ALL(last_outputs, closed);
#endif
            outputs_read[from] = closed;
            READ_ALL(recv, closed); /* views are good until now */
            recv_read[from] = closed
        }
        d_step {
            QUIET ->
            END_STAGE
        }
    :: step == 2 * E -> break
    od
}

init
{
    byte a, b, open, opened;
    bool taken[2];
    byte last[2]; /* epoch of each set */

    atomic {
        do
        :: a < 2 * E && opened < E && open <= (ORDER != 0) ->
            dispatch_next[a] = true;
            opened++;
            open++;
            b = (taken[0] && !MUTANT_ONE_SET -> 1 : 0);
            assert(b < B);
            set[opened] = b;
            taken[b] = true;
            had[opened] = last[b];
            last[b] = opened;
            b = 0;
            a++
        :: a < 2 * E && open > 0 && (ORDER != 1 || open == 2 || opened == E) ->
            open--;
            taken[set[opened - open]] = false; /* combines come in the order of dispatches */
            a++
        :: a == 2 * E -> break
        od;
        RUN_RANKS(a, b);
        open = 0;
        opened = 0;
        taken[0] = false;
        taken[1] = false;
        last[0] = 0;
        last[1] = 0;
        ordered = true
    }
}
