/* The kernels of ll_v2_cuda.pml. Each inline runs in one d_step without a choice. The choices of
 * ranks are in choose_routes() and call_next(). */

/* Slot of row `row` = q * T + t at p: what is_row(p, row) counts before it. */
#if DIRECT
#define PLACE(is_row, p, row) \
    slot = 0; \
    EACH(before, row, slot = slot + is_row(p, before))
#else
#define PLACE(is_row, p, row) slot = row
#endif
#define WANTED_AT(p, row) WANTS((row) / T, MY_SET, p, (row) % T)
#define HELD_AT(p, row) HOLDS(p, MY_SET, (row) / T, (row) % T)

inline send_rows()
{
    EACH(item, NT,
        peer = item / T;
        token = item % T;
        IF(WANTS(me, MY_SET, peer, token),
            PLACE(WANTED_AT, peer, me * T + token);
            BEGIN(ROWS(peer, MY_SET, slot));
            if
            :: peer == me ->
                IN_PLACE(ROWS(peer, MY_SET, slot));
                row_at[FLAG(me, me, token)] = 1
            :: else ->
                ISSUE(row_due[FLAG(peer, me, token)], DUE(COUNTED(peer, me), MY_SET, slot))
            fi))
}

inline let_counts_come()
{
    EACH(peer, N,
        IF(COMES_NOW(count_at[WORD(me, peer)], count_due[WORD(me, peer)]), count_comes(me, peer)))
}

#define ASSERT_COUNTS EACH(peer, N, assert(MUTE(peer) || ROUTES(me, MY_SET, peer) == FULL))

inline send_output()
{
    EACH(peer, N,
        if
        :: peer == me -> output_at[WORD(me, me)]++
        :: else -> ISSUE(output_due[WORD(peer, me)], DUE(1, MY_SET, 0))
        fi)
}

inline start_dispatch()
{
    want[me * 2 + MY_SET] = chosen;
    held[me * 2 + MY_SET] = 0;
    peer = 0;
    do
    :: peer < N ->
#if PULL
        if
        :: Y(me, MY_SET, peer) == FULL -> Y(me, MY_SET, peer) = FREE /* from the previous epoch */
        :: else
        fi;
#endif
        IF(SAYS(peer), BEGIN(ROUTES(peer, MY_SET, me)));
        if
        :: peer == me ->
            IN_PLACE(ROUTES(me, MY_SET, me));
            count_at[WORD(me, me)]++
        :: else -> ISSUE(count_due[WORD(peer, me)], DUE(1, MY_SET, 0))
        fi;
        peer++
    :: else -> break
    od;
    IF(MUTANT_OUTPUT_BEFORE_EXPERTS, send_output());
    IF(MUTANT_PLACE_WITHOUT_COUNTS, ASSERT_COUNTS);
    IF(MUTANT_PLACE_WITHOUT_COUNTS || !DIRECT, send_rows())
}

inline run_experts()
{
#if PULL
    EACH(peer, N,
        assert(!TELLS(output_due[WORD(peer, me)], MY_SET)); /* not written yet */
        Y(peer, MY_SET, me) = (peer == me -> FULL : TORN))
#else
    skip
#endif
}

/* No longer read, so that states need not differ in it. */
inline forget_set(s)
{
    want[me * 2 + s] = 0;
    held[me * 2 + s] = 0;
#if PULL
    EACH(peer, N, Y(me, s, peer) = FREE)
#endif
}

inline finish_dispatch()
{
    let_counts_come();
    ASSERT_COUNTS;
    EACH(item, NT,
        peer = item / T;
        token = item % T;
        held[me * 2 + MY_SET] =
            held[me * 2 + MY_SET] | (WANTS(peer, MY_SET, me, token) << item);
        IF(HOLDS(me, MY_SET, peer, token),
            IF(COMES_NOW(row_at[FLAG(me, peer, token)], row_due[FLAG(me, peer, token)]),
                row_comes(me, peer, token));
            PLACE(HELD_AT, me, item);
            assert(ROWS(me, MY_SET, slot) == FULL));
        NEXT_EPOCH(row_at[FLAG(me, peer, token)], row_due[FLAG(me, peer, token)]));
    EACH(peer, N,
        IF(!MUTANT_ROUTES_IN_COMBINE, ROUTES(me, MY_SET, peer) = FREE);
        count_at[WORD(me, peer)]--);
    IF(MY_PARITY == CLOSED, forget_set(1 - MY_SET));
    run_experts()
}

/* Its first C, or X: the rows are no longer read. */
inline give_up_rows()
{
    EACH(item, NT,
        IF(HOLDS(me, MY_SET, item / T, item % T),
            PLACE(HELD_AT, me, item);
            assert(ROWS(me, MY_SET, slot) == FULL);
            ROWS(me, MY_SET, slot) = FREE))
}

inline start_combine()
{
    IF(!MUTANT_OUTPUT_BEFORE_EXPERTS, send_output());
#if !PULL
    EACH(item, NT,
        peer = item / T;
        token = item % T;
        IF(HOLDS(me, MY_SET, peer, token),
            BEGIN(OUTPUTS(peer, MY_PARITY, me, token));
            if
            :: peer == me ->
                IN_PLACE(OUTPUTS(me, MY_PARITY, me, token));
                flag_at[FLAG(me, me, token)] = 1
            :: else ->
                ISSUE(flag_due[FLAG(peer, me, token)],
                      DUE(ANSWERED(peer, me), MY_PARITY, 0))
            fi))
#endif
}

inline finish_combine()
{
    item = 0;
    do
    :: item < NT ->
        peer = item / T;
        token = item % T;
        if
        :: WANTS(me, MY_SET, peer, token) ->
#if PULL
            IF(COMES_NOW(output_at[WORD(me, peer)], output_due[WORD(me, peer)]),
                output_comes(me, peer));
            assert(Y(me, MY_SET, peer) == FULL)
#else
            IF(COMES_NOW(flag_at[FLAG(me, peer, token)], flag_due[FLAG(me, peer, token)]),
                flag_comes(me, peer, token));
            assert(OUTPUTS(me, MY_PARITY, peer, token) == FULL);
            OUTPUTS(me, MY_PARITY, peer, token) = FREE
#endif
        :: else
        fi;
#if !PULL
        NEXT_EPOCH(flag_at[FLAG(me, peer, token)], flag_due[FLAG(me, peer, token)]);
#endif
        item++
    :: else -> break
    od;
    EACH(peer, N,
        IF(MUTANT_ROUTES_IN_COMBINE,
            assert(ROUTES(me, MY_SET, peer) == FULL);
            ROUTES(me, MY_SET, peer) = FREE);
        IF(COMES_NOW(output_at[WORD(me, peer)], output_due[WORD(me, peer)]),
            output_comes(me, peer));
        output_at[WORD(me, peer)]--)
}
