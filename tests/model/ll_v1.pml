/* The protocol of ll_v1: N ranks make S calls, each an exchange of blocks with one signal, and
 * buffers that calls of a mode use in turn; no barrier. Links, puts and signals are those of
 * ll_v2 (its file says how they are modelled): memory holds the number of the call in place of
 * data, and a put is a span of time in which what it writes is torn.
 *
 * Calls are dispatches, combines, combines again and discards, in any order that the contract
 * allows; dispatches count by themselves, and so do combines. Of a dispatch, `rows` comes
 * unordered and `last` with the signal: to ranks out of reach these are tokens with splits, and
 * scales; to ranks in reach, that load them, tokens and splits. What is loaded is at its writer,
 * and a slot for each that reads it.
 *
 * Given by -D: N, S, PULL (1: expert outputs are loaded from y, which experts write; 0: they are put
 * into `expert outputs` of the combine's position), SLOW (1: what rank 0 does between its calls takes
 * until all others have ended theirs), ORDER (below), and at most one MUTANT_*. */

#ifndef N
#define N 2
#endif
#ifndef S
#define S 7
#endif
#ifndef PULL
#define PULL 1
#endif
#ifndef SLOW
#define SLOW 0
#endif

/* Which calls come when; the same on every rank.
 *   0  dispatch and combine in turn
 *   1  D1 D2 C1 D3 C2 ...
 *   2  every order with at most two dispatches open, combines again and discards among them
 *   3  dispatches alone, each of them discarded */
#ifndef ORDER
#define ORDER 2
#endif

#define NOTHING 0
#define DISPATCH 1
#define COMBINE 2
#define AGAIN 3
#define DISCARD 4

#define PUT_COUNTS 1 /* ll_v2 has them */
#define PUT_ROWS 2
#define PUT_OUTPUTS 3
#define SIGNAL_COUNT 4 /* ll_v2 has it */
#define SIGNAL_DATA 5
#define SIGNAL_OUTPUT 6
#define FENCE 7
#define PUT_LAST_ROWS 8
#define PUT_LAST_OUTPUTS 9 /* ll_v2 has them */
#define IS_PUT(kind) ((kind) <= PUT_OUTPUTS || (kind) >= PUT_LAST_ROWS)
#define IS_SIGNAL(kind) ((kind) >= SIGNAL_COUNT && (kind) <= SIGNAL_OUTPUT)

#define OP(kind, epoch) ((kind) * 16 + (epoch))
#define KIND(op) ((op) / 16)
#define EPOCH(op) ((op) % 16)

#define ROOM 12
typedef Link {
    byte n;
    byte op[ROOM];
    byte signals;
    short ready;
};
Link link[N * N];

#ifdef MUTANT_ONE_POSITION
#define POSITION(call) 0
#else
#define POSITION(call) ((call) % 2)
#endif
#ifdef MUTANT_ONE_WORD
#define WORD(p, call, s) ((p) * N + (s))
#else
#define WORD(p, call, s) (((p) * 2 + (call) % 2) * N + (s))
#endif
byte data_at[2 * N * N], output_at[2 * N * N];

#define TORN 16
#define SLOT(p, call, s) (((p) * 2 + POSITION(call)) * N + (s))
byte rows[2 * N * N], last_rows[2 * N * N];

/* Expert outputs: by dispatch in the set of that, if they are pulled, else by combine. */
#if PULL
#define OUTPUT_SLOT(p, epoch, s) (((p) * 2 + set[epoch]) * N + (s))
#define BEFORE_OUTPUT(epoch) had[epoch]
#else
#define OUTPUT_SLOT(p, call, s) SLOT(p, call, s)
#define BEFORE_OUTPUT(call) BEFORE(call)
#endif
byte outputs[2 * N * N];

/* The call that had a position before; 0: none. */
#ifdef MUTANT_ONE_POSITION
#define BEFORE(call) ((call) - 1)
#else
#define BEFORE(call) ((call) > 2 -> (call) - 2 : 0)
#endif

/* The last that their owner has read for the last time. */
byte rows_read[N], outputs_read[N];

byte act[S], epoch_of[S]; /* the order: what a step does, with which dispatch */
byte set[S + 1], had[S + 1];
bool ordered;
bool inside[N];
#if SLOW
byte ended[N];
#endif

#define BEGIN(memory, slot, read, before, call) \
    assert(read[to] >= before); /* the owner is done with what stands there */ \
    assert(memory[slot] < TORN); /* and so is the network */ \
    memory[slot] = TORN + call

#define RAISE(word) \
    assert(word[WORD(to, epoch, from)] < epoch); /* signals never go back */ \
    word[WORD(to, epoch, from)] = epoch

inline begin(kind, epoch)
{
    if
    :: kind == PUT_ROWS ->
        BEGIN(rows, SLOT(to, epoch, from), rows_read, BEFORE(epoch), epoch)
    :: kind == PUT_LAST_ROWS ->
        BEGIN(last_rows, SLOT(to, epoch, from), rows_read, BEFORE(epoch), epoch)
    :: kind == PUT_OUTPUTS ->
        BEGIN(outputs, OUTPUT_SLOT(to, epoch, from), outputs_read, BEFORE_OUTPUT(epoch), epoch)
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

#include "ll_v2_links.pml"

#ifdef MUTANT_EQ
#define CMP ==
#else
#define CMP >=
#endif
#define CAME_OF(word, s, call, but) (s == but || word[WORD(from, call, s)] CMP call)
#if N == 2
#define CAME(word, call, but) (CAME_OF(word, 0, call, but) && CAME_OF(word, 1, call, but))
#else
#define CAME(word, call, but) \
    (CAME_OF(word, 0, call, but) && CAME_OF(word, 1, call, but) && \
     CAME_OF(word, 2, call, but))
#endif
#define NOBODY N

#if defined(MUTANT_NO_DATA_WAIT)
#define DATA_CAME(call) true
#elif defined(MUTANT_DATA_OF_ALL_BUT_ONE)
#define DATA_CAME(call) CAME(data_at, call, 0)
#else
#define DATA_CAME(call) CAME(data_at, call, NOBODY)
#endif
#if defined(MUTANT_NO_OUTPUT_WAIT)
#define OUTPUTS_CAME(call) true
#elif defined(MUTANT_OUTPUT_OF_ALL_BUT_ONE)
#define OUTPUTS_CAME(call) CAME(output_at, call, 0)
#else
#define OUTPUTS_CAME(call) CAME(output_at, call, NOBODY)
#endif

#define READ_ALL(memory, slot, call) \
    i = 0; \
    do \
    :: i < N -> \
        assert(memory[slot(from, call, i)] == call); \
        i++ \
    :: else -> break \
    od; \
    i = 0

/* What this rank put before has come, at all: where it was put from may be written. */
#define SOURCE_FREE(memory) \
    i = 0; \
    do \
    :: i < 2 * N -> \
        assert(memory[i * N + from] < TORN); \
        i++ \
    :: else -> break \
    od; \
    i = 0

#ifdef MUTANT_NO_DATA_FENCE
#define DATA_FENCE
#else
#define DATA_FENCE issue(FENCE, 0);
#endif
#ifdef MUTANT_NO_OUTPUT_FENCE
#define OUTPUT_FENCE
#else
#define OUTPUT_FENCE issue(FENCE, 0);
#endif

/* quiet(): what this rank has issued is in place; puts come with the signals after them. */
#define QUIET_TO(p) (link[from * N + p].signals == 0)
#if defined(MUTANT_NO_QUIET)
#define QUIET true
#elif N == 2
#define QUIET (QUIET_TO(0) && QUIET_TO(1))
#else
#define QUIET (QUIET_TO(0) && QUIET_TO(1) && QUIET_TO(2))
#endif

#if SLOW
#define MAY_BEGIN (from != 0 || (ended[1] >= ended[0] && ended[N - 1] >= ended[0]))
#define END_CALL inside[from] = false; ended[from]++; step++
#else
#define MAY_BEGIN true
#define END_CALL inside[from] = false; step++
#endif

inline send_rows(call)
{
    SOURCE_FREE(rows);
    SOURCE_FREE(last_rows);
#ifdef MUTANT_DATA_BEFORE_ROWS
    issue(PUT_LAST_ROWS, call);
    issue(SIGNAL_DATA, call);
    issue(PUT_ROWS, call)
#else
    issue(PUT_ROWS, call);
    DATA_FENCE
    issue(PUT_LAST_ROWS, call);
    issue(SIGNAL_DATA, call)
#endif
}

/* From here on `starts` is written, and y by experts. Peers that load them see each store on
 * its own; what is put from y has been put. */
inline store_y(epoch)
{
#if PULL
    issue(PUT_OUTPUTS, epoch);
#else
    SOURCE_FREE(outputs);
#endif
}

proctype rank(byte from)
{
    byte step, opened, combined; /* calls of each mode */
    byte to, i, before, since;

    ordered;
    do
    :: step < S && act[step] == DISPATCH && MAY_BEGIN ->
        d_step {
            inside[from] = true;
            opened++;
            send_rows(opened);
#ifdef MUTANT_Y_BEFORE_DATA
            store_y(opened)
#endif
        }
        d_step {
            DATA_CAME(opened) -> skip
        }
        d_step {
            QUIET ->
            READ_ALL(rows, SLOT, opened); /* copied to where experts read */
            READ_ALL(last_rows, SLOT, opened);
            rows_read[from] = opened;
#ifndef MUTANT_Y_BEFORE_DATA
            store_y(opened);
#endif
            END_CALL
        }
    :: step < S && (act[step] == COMBINE || act[step] == AGAIN) && MAY_BEGIN ->
        d_step {
            inside[from] = true;
            combined++;
#if !PULL
            issue(PUT_OUTPUTS, combined);
#endif
            OUTPUT_FENCE
            issue(SIGNAL_OUTPUT, combined)
        }
        d_step {
            OUTPUTS_CAME(combined) -> skip
        }
        d_step {
            QUIET ->
#if PULL
            READ_ALL(outputs, OUTPUT_SLOT, epoch_of[step]);
            outputs_read[from] = epoch_of[step];
#else
            READ_ALL(outputs, OUTPUT_SLOT, combined);
            outputs_read[from] = combined;
#endif
            END_CALL
        }
    :: step < S && act[step] == DISCARD ->
        step++
    :: step == S -> break
    od
}

#define MAY_OPEN (open <= (ORDER == 1 || ORDER == 2))

/* Draws the order, and who has which set. */
init
{
    byte a, b, open, opened;
    byte first;     /* the oldest that is open */
    byte second;    /* the other; 0: none */
    byte last[2];   /* dispatch of each set */
    byte fresh;     /* combined in the step before; 0: none was */

    atomic {
        do
        :: a < S && MAY_OPEN ->
            act[a] = DISPATCH;
            opened++;
            epoch_of[a] = opened;
            b = (open > 0 && set[first] == 0 -> 1 : 0);
#ifdef MUTANT_ONE_SET
            b = 0;
#endif
            set[opened] = b;
            had[opened] = last[b];
            last[b] = opened;
            if
            :: open == 0 -> first = opened
            :: else -> second = opened
            fi;
            open++;
            fresh = 0;
            a++
        :: a < S && open > 0 && ORDER != 3 && (ORDER != 1 || open == 2) ->
            act[a] = COMBINE;
            epoch_of[a] = first;
            fresh = first;
            first = second;
            second = 0;
            open--;
            a++
        :: a < S && ORDER == 2 && fresh != 0 ->
            act[a] = AGAIN;
            epoch_of[a] = fresh;
            a++
        :: a < S && ORDER >= 2 && open > 0 && act[a - 1] == DISPATCH ->
            act[a] = DISCARD;
            epoch_of[a] = opened;
            if
            :: open == 1 -> first = 0
            :: else -> second = 0
            fi;
            last[set[opened]] = had[opened]; /* its y is read by nobody */
            open--;
            a++
        :: a == S -> break
        od;
        a = 0;
        do
        :: a < N ->
            b = 0;
            do
            :: b < N ->
                if
                :: a != b -> run carrier(a, b)
                :: else
                fi;
                b++
            :: else -> break
            od;
            run rank(a);
            a++
        :: else -> break
        od;
        a = 0;
        b = 0;
        open = 0;
        opened = 0;
        first = 0;
        second = 0;
        fresh = 0;
        last[0] = 0;
        last[1] = 0;
        ordered = true
    }
}
