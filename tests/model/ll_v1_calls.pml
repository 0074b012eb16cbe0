/* The calls of ll_v1.pml and ll_v1_cuda.pml: chooses their order and assigns sets. SET_IS_FREE: a
 * dispatch into NEXT_SET is possible; MAY_REPEAT: the combined dispatch `first` may be combined
 * again. */

#define MAY_OPEN (open <= (ORDER == 1 || ORDER == 2))

init
{
    byte a, b, open, opened;
    byte first;   /* the oldest open dispatch */
    byte second;  /* the other open dispatch; 0: none */
    byte last[2]; /* last dispatch of each set */
    byte fresh;   /* dispatch combined in the previous step; 0: none */

    atomic {
        do
        :: a < S && MAY_OPEN && SET_IS_FREE ->
            b = NEXT_SET;
            act[a] = DISPATCH;
            opened++;
            epoch_of[a] = opened;
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
            fresh = (MAY_REPEAT -> first : 0);
            first = second;
            second = 0;
            open--;
            a++
        :: a < S && ORDER == 2 && fresh != 0 ->
            act[a] = AGAIN;
            epoch_of[a] = fresh;
            a++
        :: a < S && ORDER >= 2 && open > 0 && a > 0 && act[a - 1] == DISPATCH ->
            act[a] = DISCARD;
            epoch_of[a] = opened;
            if
            :: open == 1 -> first = 0
            :: else -> second = 0
            fi;
            last[set[opened]] = had[opened]; /* its y is no longer read */
            open--;
            a++
        :: a == S -> break
        od;
#ifdef STORES_COME_BY_THEMSELVES
        EACH(a, N, inside[a] = true);
#endif
        RUN_RANKS(a, b);
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
