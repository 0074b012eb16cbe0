/* The kernels of a dispatch of token_flag on GPUs: a GPU with two blocks sends rows to a peer in E
 * dispatches, which nothing combines, so that it runs ahead as far as the dispatches allow.
 * token_flag.pml has the flags of all calls; this model has the blocks of the two kernels, which run
 * side by side: dispatch_recv begins after the kernels before dispatch_send have ended.
 *
 * The key idea: memory holds epoch numbers in place of data. A store of a row takes two steps, with
 * 0 in between. A block has a row for the peer, or none, as spin chooses, and takes its place from a
 * counter, which the receiving half clears. The peer sends no rows, only its count of 0.
 *
 * TOKEN 1 (flag_granularity: token): the first block publishes the number of rows at once, and a
 * row carries its epoch. TOKEN 0 (flag_granularity: rank): the last block to end publishes.
 *
 * Parameters by -D: E, TOKEN, and at most one MUTANT_*. */

#include "common.pml"

#define BLOCKS 2
#define ROW(e, place) row[(MUTANT_ONE_SET -> 0 : (e) % 2) * BLOCKS + (place)]
#define FLAG(e) flag[(MUTANT_ONE_PLACE -> 0 : (e) % 2)]

/* Memory of the peer. flag: epoch * 4 + number of rows. */
byte row[2 * BLOCKS], flag[2];

/* Memory of the sending GPU. answer: last epoch whose count the peer has sent. chosen: rows of odd
 * and of even epochs. ended: blocks of dispatch_send that have ended, in all epochs. received: last
 * epoch with an ended dispatch_recv. */
byte answer, sent, arrived, chosen[2], begun, ended, received;
bool has[BLOCKS];

/* The choices of an epoch, before its first block runs. */
inline choose_rows()
{
    atomic {
        if
        :: begun < e ->
            EACH(place, BLOCKS,
                if
                :: has[place] = true
                :: has[place] = false
                fi);
            chosen[e % 2] = has[0] + has[1];
            begun = e
        :: else
        fi
    }
}

inline take_place()
{
#if MUTANT_PLACE_IN_TWO_STEPS
    place = sent;
    sent = place + 1
#else
    d_step {
        place = sent;
        sent = place + 1
    }
#endif
}

inline store_row()
{
    assert(place < BLOCKS);
    IF(!TOKEN, ROW(e, place) = 0);
    ROW(e, place) = e
}

inline count_block()
{
    d_step {
        arrived = arrived + 1;
        last = arrived == (MUTANT_FIRST_PUBLISHES -> 1 : BLOCKS)
    }
}

proctype send_block(byte b)
{
    byte e = 0, place = 0;
    bool last;

    do
    :: e < E ->
        e++;
        (MUTANT_SENDS_OVERLAP || received >= e - 1);
        choose_rows();
#if TOKEN
        IF(b == 0, FLAG(e) = e * 4 + chosen[e % 2]);
#else
        IF(MUTANT_NO_FENCE, count_block());
#endif
        IF(has[b], take_place(); store_row());
#if !TOKEN
        IF(!MUTANT_NO_FENCE, count_block());
        IF(last, FLAG(e) = e * 4 + sent);
#endif
        d_step {
            last = false;
            place = 0;
            ended = ended + 1
        }
    :: else -> break
    od
}

inline clear_counters()
{
    d_step {
        sent = 0;
        arrived = 0
    }
}

/* dispatch_recv of the sending GPU. */
proctype receive()
{
    byte e = 0;

    do
    :: e < E ->
        e++;
        begun >= e;
        IF(MUTANT_CLEAR_EARLY, clear_counters());
        answer >= e;
        /* the end of this half implies the end of the sending half */
        (MUTANT_NO_END_WAIT || ended == e * BLOCKS);
        IF(!MUTANT_CLEAR_EARLY && !MUTANT_NOT_CLEARED, clear_counters());
        received = e
    :: else -> break
    od
}

/* Both kernels of the peer. */
proctype peer()
{
    byte e = 0, i = 0, n = 0;

    do
    :: e < E ->
        e++;
        answer = e;
        d_step {
            (MUTANT_NO_COUNT_WAIT || FLAG(e) / 4 >= e) ->
            assert(FLAG(e) / 4 == e);
            n = FLAG(e) % 4;
            assert(n == chosen[e % 2])
        };
        EACH(i, n, d_step {
            (!TOKEN || MUTANT_NO_ROW_WAIT || ROW(e, i) >= e - MUTANT_ROW_OF_EPOCHS_BEFORE) ->
            assert(ROW(e, i) == e)
        });
        n = 0
    :: else -> break
    od
}

init {
    atomic {
        run send_block(0);
        run send_block(1);
        run receive();
        run peer()
    }
}
