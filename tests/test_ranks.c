/* test_ranks.c - threads as ranks: the engine that the tests of several processes run on. */
#include "gradckpt.h"
#include "ranks.h"
#if RANKS_THREADS

/* ---- the engine: what it is told and what it tells ---- */
enum { ROUNDS = 20 };
typedef struct {
    int breach;          /* what rank 1 does wrong in round 7: BREACHES */
    int met[RANKS_MOST]; /* results: exchanges that brought what they should */
    int failed[RANKS_MOST];
} exchanges;
enum { SIZE = 1, CHANGE, TOUCH, TWICE, AFTER, IN_PLACE, BREACHES };

static int wait_for(const gckpt_ranks *r)
{
    double begin = r->clock(r->user);
    int over = r->done ? 0 : 1;
    while (over == 0 && r->clock(r->user) - begin < r->timeout)
        over = r->done(r->user);
    return over == 1;
}

static void exchange_all(ranks_world *w, int rank, void *context)
{
    exchanges *x = (exchanges *)context;
    const gckpt_ranks *r = &w->rank[rank].engine;
    unsigned char mine[100], other[100], third[100];
    for (int round = 0; round < ROUNDS && !x->failed[rank]; round++)
        for (int bit = 1; bit < w->size && !x->failed[rank]; bit *= 2) {
            int wrong = rank == 1 && round == 7 ? x->breach : 0, peer = rank ^ bit;
            memset(mine, round * 8 + rank, sizeof mine);
            int ok = r->exchange(r->user, peer, mine, sizeof mine - (wrong == SIZE),
                                 wrong == IN_PLACE ? mine + 99 : other, sizeof other);
            mine[3] = (unsigned char)(mine[3] + (wrong == CHANGE));
            other[3] = (unsigned char)(other[3] + (wrong == TOUCH));
            if (wrong == TWICE)
                r->exchange(r->user, peer, mine, sizeof mine, third, sizeof third);
            if (wrong == AFTER)
                r->give_up(r->user);
            ok = ok && wait_for(r);
            x->met[rank] += ok && other[99] == round * 8 + peer;
            x->failed[rank] = !ok;
            if (!ok && wrong != AFTER)
                r->give_up(r->user);
        }
    if (x->breach == AFTER && rank == 1)
        r->exchange(r->user, 0, mine, 1, other, 1);
    float sums[2] = { 1, (float)rank };
    int ok = !x->failed[rank] && r->all_reduce(r->user, sums, 2) && wait_for(r);
    x->met[rank] +=
        ok && sums[0] == (float)w->size && sums[1] == (float)(w->size * (w->size - 1) / 2);
}

static void test_engine(void)
{
    static const int most = 2 * ROUNDS + 1;
    for (int blocking = 0; blocking < 2; blocking++)
        for (int how = -1; how <= RANKS_VANISHES; how++)
            for (int call = 0; call < (how < 0 || blocking ? 1 : 2); call++) {
                ranks_world w;
                exchanges x = { .breach = 0 };
                ranks_open(&w, 4);
                w.blocking = blocking;
                if (how >= 0)
                    w.fault = (ranks_fault){ 2, (ranks_call)call, (ranks_how)how, 31 };
                ranks_run(&w, exchange_all, &x);
                ranks_close(&w);
                for (int i = 0; i < 4; i++) {
                    CHECK(how < 0 ? x.met[i] == most && w.rank[i].sent == 100 * 2 * ROUNDS
                                  : x.met[i] < most);
                    CHECK(x.failed[i] == (how >= 0 && !(i == 2 && how >= RANKS_DIES)));
                }
                CHECK((w.flown > 0) ==
                      (!blocking && (how == RANKS_HANGS || how == RANKS_VANISHES)));
            }
    for (int breach = SIZE; breach < BREACHES; breach++) {
        ranks_world w;
        exchanges x = { .breach = breach };
        ranks_open(&w, 2);
        ranks_run(&w, exchange_all, &x);
        CHECK_MSG(w.wrong > 0, "breach %d is not seen", breach);
        w.wrong = 0;
        ranks_close(&w);
    }
}

int main(void)
{
    test_engine();
    return check_report("test_ranks");
}
#else
int main(void) { return check_report("test_ranks"); /* no threads here */ }
#endif
