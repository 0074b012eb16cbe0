/* The protocol of ll_v2: N ranks exchange counts, rows and expert outputs for E epochs with B
 * buffer sets and no barrier.
 *
 * The key idea: memory holds epoch numbers in place of data, and a put is a span of time. It may
 * write as soon as it is issued, and is complete only when a signal has arrived that transport.h
 * orders after it. In between its slot is torn: it is an error to read it, to put into it again, or
 * to change the source of the put. Each put is thereby checked with the earliest and the latest
 * arrival that the contract permits. This covers more than interleaving alone: it includes late
 * stores of a weak memory model and networks that reorder. Signals wait on links between ranks and
 * arrive in any permitted order: the signal of a put_signal after its own payload, any signal after
 * operations issued before a fence. They arrive only while their sender is in a stage, since a
 * transport may delay operations outside of calls.
 *
 * A rank issues to all peers in one step and reads from all sources in one step. This loses no
 * behaviour: signals may stay on their links, and a rank may pause before its next step, for any
 * time.
 *
 * With PUBLISH the counts are routes, which a rank stores in its own heap and all ranks load: a put
 * into the view of each rank, followed by a signal with its epoch, at two alternating positions.
 * Rows and expert outputs then go only to ranks that have some, and only these wait: WANTS()
 * selects the pairs, alternating by epoch.
 *
 * Parameters by -D: N, E, B (buffer sets), PUBLISH (with PULL), PULL (1: peers load expert outputs
 * from y; 0: they are put into `expert outputs` of the source), BLOCKS (1: the last of the rows,
 * and of the put expert outputs, carries the signal), SLOW (1: the work of rank 0 between its
 * stages takes until all others have ended theirs), ORDER (below), and at most one MUTANT_*. */

/* Order of dispatches (D) and combines (C), the same on every rank.
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

/* The last epochs whose data the owner has finished reading. */
byte counts_read[N], recv_read[N], outputs_read[N];

bool dispatch_next[2 * E]; /* the order: step i is a dispatch or a combine */
byte set[E + 1];           /* set of each epoch: the first one without an open dispatch */
byte had[E + 1];           /* previous epoch in the same set; 0: none */
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

/* All words that this rank waits for have reached `epoch`, except the word of rank `but`. */
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

/* The slot of every source at this rank that is written is complete and belongs to `epoch`. */
#define READ(memory, slot, epoch, wants) \
    EACH(i, N, assert(!(wants) || memory[slot(from, epoch, i)] == epoch))
#define READ_ALL(memory, epoch) READ(memory, SLOT, epoch, WANTS(i, from, epoch))
#define READ_OUTPUTS(epoch) READ(outputs, SLOT, epoch, WANTS(from, i, epoch))

/* All earlier puts from the buffers of `epoch` have completed: the buffers may be written. */
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

/* Experts store into y. If peers load from y, they wait for these stores, which become visible to
 * each peer separately: puts into the view of each. Regions that ll_v2 separates but that have the
 * same owners at the same times are one here: rows that are sent once and arrive separately are
 * `recv`; expert outputs that are added up or quantised before they are sent are y, stored later,
 * at the start of the combine, which is the weaker requirement. */
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
            /* the copy that positions are computed from */
            READ(counts, COUNT_SLOT, opened, ASKS(i, opened));
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
            READ_ALL(recv, closed); /* views are valid up to here */
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
    byte last[2]; /* last epoch of each set */

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
            taken[set[opened - open]] = false; /* combines follow the order of dispatches */
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
