#include "search/own.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* ---- what is proven of a model, by its bounds at all prices of copies (search/bound) ----
 * Where copies run beside what is computed (gckpti_planner.beside), neither of the two engines is
 * done before its own work is: with C computed and M copied a schedule takes at least the time
 * ((8 - a) C + a M) / 8, for each a. That is (8 - a) / 8 of C + M a / (8 - a), which cuts bound:
 * copies have a price there. (Rounded down unit by unit, which only lowers it.) With a of 0 to 4: M
 * is rarely more than C. */
GCKPTI_FN void gckpti_open_bounds(gckpti_planner *p)
{
    for (; p; p = p->next) {
        if (p->bound)
            continue;
        const size_t prices = (size_t)(GCKPTI_PRICES - gckpti_lowest_price(p));
        p->bound = (gckpti_bound *)gckpti_scratch_take(&p->scratch, prices, sizeof *p->bound);
        for (int k = gckpti_lowest_price(p); k < GCKPTI_PRICES && p->bound; k++)
            gckpti_bound_open(&p->bound[GCKPTI_WHOLE_PRICE - k], p, k, &p->scratch);
    }
}

GCKPTI_FN uint64_t gckpti_bound_time(const gckpti_planner *p, int64_t limit, int all)
{
    uint64_t most = 0;
    int at;
    for (int k = gckpti_lowest_price(p); k < GCKPTI_PRICES; k++) {
        gckpti_bound *b = &p->bound[GCKPTI_WHOLE_PRICE - k];
        uint64_t work =
            all ? gckpti_bound_work(b, limit, &at) : gckpti_hulls_work(b, limit, &at);
        if (work == UINT64_MAX || !p->beside)
            return work;
        work = gckpti_add_work(work, b->work);
        work -= work / 8 * (uint64_t)k + work % 8 * (uint64_t)k / 8; /* (8 - k) / 8, rounded up */
        work = work > b->work ? work - b->work : 0;
        most = work > most ? work : most;
    }
    return most;
}

GCKPTI_FN uint64_t gckpti_prove_work(const gckpti_planner *p, size_t arena)
{
    const gckpti_bound *b = p->bound; /* at the whole price */
    gckpt_mode mode = p->desc->mode;
    int searched = mode == GCKPT_AUTO || mode == GCKPT_OPTIMAL;
    int64_t limit = b->spare + (int64_t)(arena < PTRDIFF_MAX / 2 ? arena : PTRDIFF_MAX / 2);
    return gckpti_add_work(gckpti_bound_time(p, limit, searched), b->work);
}

GCKPTI_FN size_t gckpti_prove_bytes(const gckpti_planner *p)
{
    const gckpti_bound *b = p->bound; /* at the whole price */
    int64_t least = b->least - b->spare;
    return least < 0 ? 0 : (uint64_t)least < PTRDIFF_MAX ? (size_t)least : (size_t)PTRDIFF_MAX;
}
#endif
