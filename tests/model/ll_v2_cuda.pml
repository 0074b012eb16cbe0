/* The protocol of the kernels of ll_v2: N ranks with T tokens each store into one another's
 * memory, for as long as one likes, and meet nowhere but in the words that they wait for.
 *
 * The host queues dispatches (D), each with experts (E) after it, and combines (C), in the
 * same order on all ranks; it may discard a dispatch (X). A rank runs them one by one. Any
 * order is searched that keeps these rules:
 *   - two dispatches may be open, in different sets; E runs once, then C once or more
 *   - S: after X a D or C begins and ends before the next D into that set
 *   - A: between two C with the same `expert outputs` buffer a D or C begins and ends
 * Calls that alternate between buffers keep S and A if only the last dispatch is discarded. So
 * does a graph that is replayed with the buffers of its capture, unless it is of an odd number
 * of C without a D, or discards at its end what stands in the set with which it begins.
 *
 * Two ideas are needed to read this. A store is a span of time: from when it is issued until
 * a signal that was sent behind a fence has come its slot is torn. So it arrives as early and
 * as late as can be, and signals come in any order, but those of one word. And nothing is
 * numbered, which is why the search ends though the ranks do not: a slot is FREE (whoever
 * reads it has done so for the last time), TORN or FULL, and a word counts from what its owner
 * waits for next: 1 is that, 2 one ahead, 0 or less not there. `>= epoch` is `>= 1`. To store
 * into what is not FREE, to read what is not FULL, and to wait for ever are errors.
 *
 * Why few steps are enough:
 *   - A kernel issues all its stores as soon as the one before has ended (or, for places that
 *     are computed, the counts are there). One that is issued later has a part of that span.
 *   - It waits, reads and ends in one step. That may come as soon as the wait allows, which
 *     finds what is not there yet, and as late as one likes, which finds what no longer is.
 *   - E has y torn from the end of its D, and rows in use until the first C, which is as long
 *     as can be, wherever between them it runs.
 *   - LATE: a signal comes when it is waited for, not by itself before. Coming earlier it
 *     would only put in place what is torn until then, and a wait for >= does not mind.
 *   - What a rank stores into its own memory is in place at once; it waits for itself too.
 *   - Layout expert with `once` copies rows, in D, from where they come to where E reads them.
 *     Here they are read where they come, and until C, which is longer.
 *
 * Given by -D: N, T, DIRECT (1: rows are stored where experts read them, places computed from
 * all counts; 0: each in a slot of its own), PULL (1: expert outputs are loaded from y; 0: they are
 * stored at the source), SELF (1: ranks have rows for themselves), SPLIT (1: a C may be
 * between the halves of a D, and a D between those of a C), LATE; less orders by OPEN, SETS,
 * AGAIN and DISCARD; and at most one MUTANT_*. */

#include "common.pml"

#define NT (N * T)

#define SEND_DISPATCH 1
#define DISPATCH 2
#define SEND_COMBINE 3
#define SEND_AGAIN 4 /* of a combine that is not the first of its dispatch */
#define COMBINE 5
#define DROP 6
#define OP(kind, s, a) ((kind) * 4 + (s) * 2 + (a))
#define KIND(op) ((op) / 4)
#define SET(op) (((op) / 2) % 2)
#define PARITY(op) ((op) % 2)

/* What the host has queued and not every rank is past. at[p]: the op that p is in. */
#define ROOM 12
byte queue[ROOM];
byte queued;
byte at[N];
#define NOW queue[at[me]]
#define MY_SET SET(NOW)
#define MY_PARITY PARITY(NOW)
#define CLOSED 1 /* "parity" of DISPATCH: the other set is, and nothing reads it any more */
#define WAITS ((DIRECT && KIND(NOW) == SEND_DISPATCH) || KIND(NOW) == DISPATCH || KIND(NOW) == COMBINE)

/* What decides which op may come next. */
#define IDLE 0
#define OPENED_SET 1
#define COMBINED 2
byte state[2];                    /* of the dispatch in each set */
byte half_dispatch, half_combine; /* 1 + its set, if only its first half has been queued */
byte half_parity;
bool closed;
bool given_up[2]; /* by X, and no D or C since */
byte last_parity; /* 1 + that of the last C, if no D has begun and ended since */
bool straddles;   /* half a D was queued before that C's end */
byte last_dispatch; /* its set, where MUTANT_DISCARD_LATE asks for it */

hidden byte item, peer, token, slot, before; /* not more than a step long */

/* Slots. MEMORY(s): where set s lies. */
#define FREE 0
#define TORN 1
#define FULL 2
#define MEMORY(s) (MUTANT_ONE_SET -> 0 : (s))
byte routes[N * 2 * N]; /* and counts: at p, of source q */
byte rows[N * 2 * NT];  /* at p; which slot, see PLACE */
#if PULL
byte y[N * 2 * N]; /* that of q, as p sees it */
#else
byte outputs[N * 2 * NT]; /* at p, to its token t, of holder q: q * T + t */
#endif
#define ROUTES(p, s, q) routes[((p) * 2 + MEMORY(s)) * N + (q)]
#define ROWS(p, s, slot) rows[((p) * 2 + MEMORY(s)) * NT + (slot)]
#define Y(p, s, q) y[((p) * 2 + (s)) * N + (q)]
#define OUTPUTS(p, a, q, t) outputs[((p) * 2 + (a)) * NT + (q) * T + (t)]

/* Which rows there are, in each set. want: what routes[] says, once it is there: bit
 * q * T + t, my token t goes to q. held: the private copy: bit q * T + t, I hold row t of q. */
byte want[N * 2], held[N * 2];
#define WANTS(p, s, q, t) ((want[(p) * 2 + (s)] >> ((q) * T + (t))) & 1)
#define HOLDS(p, s, q, t) ((held[(p) * 2 + (s)] >> ((q) * T + (t))) & 1)

/* Words at p that q stores to, and what q has issued and has not come: at most two for a
 * word, each with what it will be, and the set (or parity) and slot that it tells of. */
#define WORD(p, q) ((p) * N + (q))
#define FLAG(p, q, t) (((p) * N + (q)) * T + (t))
short count_at[N * N], output_at[N * N], row_at[N * NT];
short count_due[N * N], output_due[N * N], row_due[N * NT];
#if !PULL
short flag_at[N * NT], flag_due[N * NT];
#endif
#define DUE(value, s, slot) ((value) * 16 + (s) * 8 + (slot))
#define DUE_BASE 128
#define DUES(due) (((due) > 0) + ((due) >= DUE_BASE))
#define VALUE(due) (((due) % DUE_BASE) / 16)
#define DUE_SET(due) (((due) / 8) % 2)
#define SLOT(due) ((due) % 8)
#define TELLS(due, s) \
    ((due > 0 && DUE_SET(due) == s) || (due >= DUE_BASE && DUE_SET(due / DUE_BASE) == s))
/* What a word will be when all has come that q has issued: as every D sends a count and every
 * C an expert output, this is how far q is ahead of what p waits for. */
#define COUNTED(p, q) (count_at[WORD(p, q)] + DUES(count_due[WORD(p, q)]))
#define ANSWERED(p, q) (output_at[WORD(p, q)] + DUES(output_due[WORD(p, q)]))

/* ---- stores, and their coming ---- */

#define BEGIN(slot) \
    assert(slot == FREE); /* whoever reads it is done, and so is the network */ \
    slot = TORN
#define IN_PLACE_UNLESS(mutant, slot) slot = (slot == TORN && !mutant -> FULL : slot)
#define IN_PLACE(slot) IN_PLACE_UNLESS(false, slot)

/* Rank 0 has no rows for others, all know it, and nobody waits for its counts or reads them. */
#define MUTE(q) (MUTANT_COUNT_OF_ALL_BUT_ONE && (q) == 0 && me != 0)
#define SAYS(p) (!MUTANT_COUNT_OF_ALL_BUT_ONE || me != 0 || (p) == 0)

#define COUNT_BRINGS(slot) IN_PLACE_UNLESS(MUTANT_NO_COUNT_FENCE, slot)
#define ROW_BRINGS(slot) IN_PLACE_UNLESS(MUTANT_NO_ROW_FENCE, slot)
#define OUTPUT_BRINGS(slot) IN_PLACE_UNLESS(MUTANT_NO_OUTPUT_FENCE, slot)

#define ISSUE(due, entry) \
    assert(due < DUE_BASE); /* else there is a third */ \
    due = (due == 0 -> entry : due + (entry) * DUE_BASE)

inline count_comes(p, q)
{
    COUNT_BRINGS(ROUTES(p, DUE_SET(count_due[WORD(p, q)]), q));
    count_at[WORD(p, q)]++;
    count_due[WORD(p, q)] = count_due[WORD(p, q)] / DUE_BASE
}

inline row_comes(p, q, t)
{
    ROW_BRINGS(ROWS(p, DUE_SET(row_due[FLAG(p, q, t)]), SLOT(row_due[FLAG(p, q, t)])));
    assert(row_at[FLAG(p, q, t)] < VALUE(row_due[FLAG(p, q, t)])); /* flags never go back */
    row_at[FLAG(p, q, t)] = VALUE(row_due[FLAG(p, q, t)]);
    row_due[FLAG(p, q, t)] = row_due[FLAG(p, q, t)] / DUE_BASE
}

inline output_comes(p, q)
{
#if PULL
    OUTPUT_BRINGS(Y(p, DUE_SET(output_due[WORD(p, q)]), q));
#endif
    output_at[WORD(p, q)]++;
    output_due[WORD(p, q)] = output_due[WORD(p, q)] / DUE_BASE
}

inline flag_comes(p, q, t)
{
    OUTPUT_BRINGS(OUTPUTS(p, DUE_SET(flag_due[FLAG(p, q, t)]), q, t));
    assert(flag_at[FLAG(p, q, t)] < VALUE(flag_due[FLAG(p, q, t)]));
    flag_at[FLAG(p, q, t)] = VALUE(flag_due[FLAG(p, q, t)]);
    flag_due[FLAG(p, q, t)] = flag_due[FLAG(p, q, t)] / DUE_BASE
}

#if !LATE
#define CARRY(due, comes) \
    :: due != 0 -> d_step { comes }
#define CARRY_ROW(t) \
    CARRY(row_due[FLAG(to, from, t)], row_comes(to, from, t))
#define CARRY_FLAG(t) \
    CARRY(flag_due[FLAG(to, from, t)], flag_comes(to, from, t))

proctype carrier(byte from; byte to)
{
    do
    CARRY(count_due[WORD(to, from)], count_comes(to, from))
    CARRY(output_due[WORD(to, from)], output_comes(to, from))
    CARRY_ROW(0)
#if T > 1
    CARRY_ROW(1)
#endif
#if !PULL
    CARRY_FLAG(0)
#if T > 1
    CARRY_FLAG(1)
#endif
#endif
    od
}
#endif

/* ---- what a rank waits for ---- */

#if T == 1
#define OF_ALL_TOKENS(received, q) received(q, 0)
#else
#define OF_ALL_TOKENS(received, q) (received(q, 0) && received(q, 1))
#endif

/* LATE: a signal comes when it is waited for. */
#define COMES_NOW(word, due) (LATE && word < 1 && due != 0)
#define CAME(word, due) (word >= 1 || COMES_NOW(word, due))

#define COUNT_CAME(q) \
    (MUTANT_COUNT_EQ -> (count_at[WORD(me, q)] == 1) : \
     (MUTANT_NO_COUNT_WAIT -> true : \
     (MUTANT_COUNT_OF_ALL_BUT_ONE -> (MUTE(q) || CAME(count_at[WORD(me, q)], count_due[WORD(me, q)])) : \
     CAME(count_at[WORD(me, q)], count_due[WORD(me, q)]))))

#define ROW_IS_THERE(q, t) \
    (MUTANT_ROW_EQ -> (row_at[FLAG(me, q, t)] == 1) : \
     (MUTANT_NO_ROW_WAIT -> true : \
     CAME(row_at[FLAG(me, q, t)], row_due[FLAG(me, q, t)])))
#define ROW_CAME(q, t) (!WANTS(q, MY_SET, me, t) || ROW_IS_THERE(q, t))
#define ROWS_CAME(q) OF_ALL_TOKENS(ROW_CAME, q)

#define NOT_MINE(q, t) !WANTS(me, MY_SET, q, t)
#define OUTPUT_CAME(q) \
    (MUTANT_OUTPUT_EQ -> (output_at[WORD(me, q)] == 1) : \
     (MUTANT_NO_OUTPUT_WAIT -> true : \
     ((MUTANT_OUTPUT_OF_HOLDERS && OF_ALL_TOKENS(NOT_MINE, q)) || \
     CAME(output_at[WORD(me, q)], output_due[WORD(me, q)]))))

#define FLAG_IS_THERE(q, t) \
    (MUTANT_FLAG_EQ -> (flag_at[FLAG(me, q, t)] == 1) : \
     (MUTANT_NO_FLAG_WAIT -> true : \
     CAME(flag_at[FLAG(me, q, t)], flag_due[FLAG(me, q, t)])))
#define FLAG_CAME(q, t) (!WANTS(me, MY_SET, q, t) || FLAG_IS_THERE(q, t))
#define FLAGS_CAME(q) OF_ALL_TOKENS(FLAG_CAME, q)

#if PULL
#define DONE_COMBINE OF_ALL(OUTPUT_CAME)
#else
#define DONE_COMBINE (OF_ALL(OUTPUT_CAME) && OF_ALL(FLAGS_CAME))
#endif
#if DIRECT
#define DONE_DISPATCH OF_ALL(ROWS_CAME)
#else
#define DONE_DISPATCH (OF_ALL(COUNT_CAME) && OF_ALL(ROWS_CAME))
#endif

/* A flag that has been waited for, and those to come, count from the next epoch on. */
#define NEXT_EPOCH(flag_now, due) \
    flag_now = (flag_now > 0 -> flag_now - 1 : 0); \
    if \
    :: due != 0 -> \
        assert(VALUE(due) >= 2); /* none of this epoch is still to come */ \
        due = due - DUE(1, 0, 0) - (due >= DUE_BASE -> DUE(1, 0, 0) * DUE_BASE : 0) \
    :: else \
    fi

#include "ll_v2_cuda_kernels.pml"
#include "ll_v2_cuda_host.pml"

/* ---- a rank ---- */

#define ME_BITS (((1 << T) - 1) << (me * T))
#define ROUTE(v) \
    :: v < (1 << NT) && (SELF || (v & ME_BITS) == 0) && (SAYS(1) || v == 0) -> chosen = v

/* Any tokens of mine may go to any ranks. */
inline choose_routes()
{
    if
    ROUTE(0) ROUTE(1) ROUTE(2) ROUTE(3) ROUTE(4) ROUTE(5) ROUTE(6) ROUTE(7)
    ROUTE(8) ROUTE(9) ROUTE(10) ROUTE(11) ROUTE(12) ROUTE(13) ROUTE(14) ROUTE(15)
    fi
}

inline begin_op()
{
    if
    :: KIND(NOW) == SEND_DISPATCH -> start_dispatch()
    :: KIND(NOW) == SEND_COMBINE ->
        give_up_rows();
        start_combine();
        IF(PULL || !AGAIN, held[me * 2 + MY_SET] = 0)
    :: KIND(NOW) == SEND_AGAIN ->
        IF(MUTANT_EXPERTS_AGAIN, run_experts());
        start_combine()
    :: KIND(NOW) == DROP ->
        give_up_rows();
        held[me * 2 + MY_SET] = 0
    :: else
    fi
}

/* Begins all ops up to one that waits, in which this rank then is. */
inline go_on()
{
    do
    :: at[me] == queued -> call_next()
    :: else ->
        IF(KIND(NOW) == SEND_DISPATCH, choose_routes());
        d_step {
            begin_op();
            chosen = 0
        }
        if
        :: WAITS -> break
        :: else -> at[me]++
        fi
    od;
    d_step {
        forget_ops();
        item = 0
    }
}

proctype rank(byte me)
{
    byte chosen;
    bool started;

    do
    :: atomic {
            if
            :: !started -> started = true
#if DIRECT
            :: d_step {
                    started && KIND(NOW) == SEND_DISPATCH && OF_ALL(COUNT_CAME) ->
                    let_counts_come();
                    ASSERT_COUNTS;
                    send_rows();
                    at[me]++
                }
#endif
            :: d_step {
                    started && KIND(NOW) == DISPATCH && DONE_DISPATCH ->
                    finish_dispatch();
                    at[me]++
                }
            :: d_step {
                    started && KIND(NOW) == COMBINE && DONE_COMBINE ->
                    finish_combine();
                    at[me]++
                }
            fi;
            go_on()
        }
    od
}

init
{
    atomic {
        item = 0;
        do
        :: item < N ->
#if !LATE
            EACH(peer, N, IF(peer != item, run carrier(item, peer)));
#endif
            run rank(item);
            item++
        :: else -> break
        od
    }
}
