/* The protocol of ll_v1: N ranks make S calls, each an exchange of blocks with one signal and
 * alternating buffers per mode, without a barrier. Links, puts and signals are modelled as in
 * ll_v2.pml: memory holds the number of the call in place of data, and a put is a span of time in
 * which its destination is torn.
 *
 * Calls are dispatches, combines, repeated combines and discards, in any order that the contract
 * permits; dispatches and combines are counted separately. The `rows` of a dispatch arrive
 * unordered and `last` arrives with the signal: for ranks out of reach these are tokens with
 * splits, and scales; for ranks in reach, which load rows, tokens and splits. Loaded data stay at
 * their writer, with a slot per reader.
 *
 * Parameters by -D: N, S, PULL (1: expert outputs are loaded from y, which experts write; 0: they
 * are put into `expert outputs` at the position of the combine), SLOW (1: the work of rank 0
 * between its calls takes until all others have ended theirs), ORDER (below), and at most one
 * MUTANT_*. */

/* Order of calls, the same on every rank.
 *   0  dispatch and combine in turn
 *   1  D1 D2 C1 D3 C2 ...
 *   2  every order with at most two dispatches open, including repeated combines and discards
 *   3  only dispatches, each discarded */

#include "links.pml"

byte act[S], epoch_of[S]; /* the order: kind of each step, and its dispatch */
byte set[S + 1], had[S + 1];
#define DISPATCH 1
#define COMBINE 2
#define AGAIN 3
#define DISCARD 4

#define POSITION(call) (MUTANT_ONE_POSITION -> 0 : ((call) % 2))
#define WORD(p, call, s) (MUTANT_ONE_WORD -> ((p) * N + (s)) : (((p) * 2 + (call) % 2) * N + (s)))
byte data_at[2 * N * N], output_at[2 * N * N];

#define SLOT(p, call, s) (((p) * 2 + POSITION(call)) * N + (s))
byte rows[2 * N * N], last_rows[2 * N * N];

/* Expert outputs: in the set of the dispatch if they are pulled, else in the set of the combine. */
#if PULL
#define OUTPUT_SLOT(p, epoch, s) (((p) * 2 + set[epoch]) * N + (s))
#define BEFORE_OUTPUT(epoch) had[epoch]
#else
#define OUTPUT_SLOT(p, call, s) SLOT(p, call, s)
#define BEFORE_OUTPUT(call) BEFORE(call)
#endif
#define OUTPUTS_OF(step) (PULL -> epoch_of[step] : combined)
byte outputs[2 * N * N];

/* Previous call at the position; 0: none. */
#define BEFORE(call) (MUTANT_ONE_POSITION -> ((call) - 1) : ((call) > 2 -> (call) - 2 : 0))

/* The last calls whose data the owner has finished reading. */
byte rows_read[N], outputs_read[N];

#define RAISE(word) RAISE_AT(word, WORD(to, epoch, from))

inline begin(kind, epoch)
{
    if
    :: kind == PUT_ROWS ->
        BEGIN_AT(rows, SLOT(to, epoch, from), rows_read, BEFORE(epoch))
    :: kind == PUT_LAST_ROWS ->
        BEGIN_AT(last_rows, SLOT(to, epoch, from), rows_read, BEFORE(epoch))
    :: kind == PUT_OUTPUTS ->
        BEGIN_AT(outputs, OUTPUT_SLOT(to, epoch, from), outputs_read, BEFORE_OUTPUT(epoch))
    :: else
    fi
}

inline come(kind, epoch)
{
    if
    :: kind == PUT_ROWS -> rows[SLOT(to, epoch, from)] = epoch
    :: kind == PUT_LAST_ROWS -> last_rows[SLOT(to, epoch, from)] = epoch
    :: kind == PUT_OUTPUTS -> outputs[OUTPUT_SLOT(to, epoch, from)] = epoch
    :: kind == SIGNAL_DATA -> RAISE(data_at)
    :: kind == SIGNAL_OUTPUT -> RAISE(output_at)
    :: else
    fi
}

CARRIER

#define CAME_OF(s, word, call, but) \
    (s == but || word[WORD(from, call, s)] == call || (!MUTANT_EQ && word[WORD(from, call, s)] > call))
#define CAME(word, call, but) OF_ALL(CAME_OF, word, call, but)
#define NOBODY N

#define DATA_CAME(call) \
    (MUTANT_NO_DATA_WAIT -> true : \
     (MUTANT_DATA_OF_ALL_BUT_ONE -> CAME(data_at, call, 0) : \
     CAME(data_at, call, NOBODY)))
#define OUTPUTS_CAME(call) \
    (MUTANT_NO_OUTPUT_WAIT -> true : \
     (MUTANT_OUTPUT_OF_ALL_BUT_ONE -> CAME(output_at, call, 0) : \
     CAME(output_at, call, NOBODY)))

#define READ_ALL(memory, slot, call) EACH(i, N, assert(memory[slot(from, call, i)] == call))

/* All earlier puts of this rank have arrived: their sources may be written. */
#define SOURCE_FREE(memory) EACH(i, 2 * N, assert(memory[i * N + from] < TORN))

inline send_rows(call)
{
    SOURCE_FREE(rows);
    SOURCE_FREE(last_rows);
    IF(!MUTANT_DATA_BEFORE_ROWS, issue(PUT_ROWS, call); DATA_FENCE);
    issue(PUT_LAST_ROWS, call);
    issue(SIGNAL_DATA, call);
    IF(MUTANT_DATA_BEFORE_ROWS, issue(PUT_ROWS, call))
}

/* From here on `starts` is written, and experts write y. Peers that load them see each store
 * separately; puts from y have completed. */
inline store_y(epoch)
{
    IF(PULL, issue(PUT_OUTPUTS, epoch));
    IF(!PULL, SOURCE_FREE(outputs))
}

proctype rank(byte from)
{
    byte step, opened, combined; /* number of calls per mode */
    byte to, i, before, since;

    ordered;
    do
    :: step < S && act[step] == DISPATCH && MAY_BEGIN ->
        d_step {
            inside[from] = true;
            opened++;
            send_rows(opened);
            IF(MUTANT_Y_BEFORE_DATA, store_y(opened))
        }
        d_step {
            DATA_CAME(opened) -> skip
        }
        d_step {
            QUIET ->
            READ_ALL(rows, SLOT, opened); /* copied to the memory of the experts */
            READ_ALL(last_rows, SLOT, opened);
            rows_read[from] = opened;
            IF(!MUTANT_Y_BEFORE_DATA, store_y(opened));
            END_STAGE
        }
    :: step < S && (act[step] == COMBINE || act[step] == AGAIN) && MAY_BEGIN ->
        d_step {
            inside[from] = true;
            combined++;
            IF(!PULL, issue(PUT_OUTPUTS, combined));
            OUTPUT_FENCE;
            issue(SIGNAL_OUTPUT, combined)
        }
        d_step {
            OUTPUTS_CAME(combined) -> skip
        }
        d_step {
            QUIET ->
            READ_ALL(outputs, OUTPUT_SLOT, OUTPUTS_OF(step));
            outputs_read[from] = OUTPUTS_OF(step);
            END_STAGE
        }
    :: step < S && act[step] == DISCARD ->
        step++
    :: step == S -> break
    od
}

#define NEXT_SET (MUTANT_ONE_SET -> 0 : (open > 0 && set[first] == 0 -> 1 : 0))
#define SET_IS_FREE true
#define MAY_REPEAT true
#include "ll_v1_calls.pml"
