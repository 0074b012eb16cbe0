/* The operations that the host of ll_v2_cuda.pml may queue next, chosen by the first rank that
 * needs one. A kernel consists of two operations, its halves: sends, and waits. */

#define OPENED(s) (state[s] == OPENED_SET)
#define NO_HALF 0

#define RULE_S(s) (MUTANT_DISCARD_SAME_SET -> true : !given_up[s])
#define RULE_A(a) (PULL || MUTANT_OUTPUTS_DO_NOT_ALTERNATE -> (a == 0) : (last_parity != 1 + a))
#define RULE_X(s) (!MUTANT_DISCARD_LATE || last_dispatch != s)
#define GIVES_UP (!MUTANT_DISCARD_LATE)

#define MAY_DISPATCH(s) \
    (s < SETS && half_dispatch == NO_HALF && (SPLIT || half_combine == NO_HALF) && \
     !OPENED(s) && half_combine != 1 + s && (OPEN == 2 || !OPENED(1 - s)) && RULE_S(s))
#define MAY_COMBINE(s) \
    (half_combine == NO_HALF && (SPLIT || half_dispatch == NO_HALF) && \
     half_dispatch != 1 + s && (OPENED(s) || (AGAIN && state[s] == COMBINED)))
#define MAY_DROP(s) \
    (DISCARD && half_dispatch == NO_HALF && half_combine == NO_HALF && OPENED(s) && \
     !given_up[1 - s] && RULE_X(s))

inline call(op)
{
    assert(queued < ROOM);
    queue[queued] = op;
    queued++
}

inline call_send_dispatch(s)
{
    if
    :: !OPENED(1 - s) -> state[1 - s] = IDLE /* can no longer be combined again */
    :: else
    fi;
    closed = !OPENED(1 - s) && half_combine != 2 - s;
    state[s] = OPENED_SET;
    half_dispatch = 1 + s;
    last_dispatch = (MUTANT_DISCARD_LATE -> s : 0);
    call(OP(SEND_DISPATCH, s, 0))
}

inline call_dispatch()
{
    call(OP(DISPATCH, half_dispatch - 1, closed));
    half_dispatch = NO_HALF;
    closed = false;
    last_parity = (straddles -> last_parity : 0);
    straddles = false;
    given_up[0] = false;
    given_up[1] = false
}

inline call_send_combine(s, a)
{
    call(OP((OPENED(s) -> SEND_COMBINE : SEND_AGAIN), s, a));
    half_combine = 1 + s;
    half_parity = a
}

inline call_combine()
{
    call(OP(COMBINE, half_combine - 1, half_parity));
    state[half_combine - 1] = (half_dispatch == NO_HALF -> COMBINED : IDLE);
    half_combine = NO_HALF;
    last_parity = (PULL -> 0 : 1 + half_parity);
    straddles = !PULL && half_dispatch != NO_HALF;
    half_parity = 0;
    given_up[0] = false;
    given_up[1] = false
}

inline call_drop(s)
{
    call(OP(DROP, s, 0));
    state[s] = IDLE;
    given_up[s] = GIVES_UP
}

inline call_next()
{
    if
    :: MAY_DISPATCH(0) -> d_step { call_send_dispatch(0) }
    :: MAY_DISPATCH(1) -> d_step { call_send_dispatch(1) }
    :: half_dispatch != NO_HALF -> d_step { call_dispatch() }
    :: MAY_COMBINE(0) && RULE_A(0) -> d_step { call_send_combine(0, 0) }
    :: MAY_COMBINE(0) && RULE_A(1) -> d_step { call_send_combine(0, 1) }
    :: MAY_COMBINE(1) && RULE_A(0) -> d_step { call_send_combine(1, 0) }
    :: MAY_COMBINE(1) && RULE_A(1) -> d_step { call_send_combine(1, 1) }
    :: half_combine != NO_HALF -> d_step { call_combine() }
    :: MAY_DROP(0) -> d_step { call_drop(0) }
    :: MAY_DROP(1) -> d_step { call_drop(1) }
    fi
}

/* Removes the operations that all ranks have passed. */
inline forget_ops()
{
    do
    :: at[0] > 0 && at[1] > 0 && at[N - 1] > 0 ->
        EACH(item, queued - 1, queue[item] = queue[item + 1]);
        queued--;
        queue[queued] = 0;
        EACH(item, N, at[item]--)
    :: else -> break
    od
}
