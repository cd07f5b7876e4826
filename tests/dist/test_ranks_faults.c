/* test_ranks_faults.c - faults on one of several ranks: a call of the transport fails, hangs or kills the rank; a
 * rank is fed wrong data, is cancelled at any instruction, has no memory, or has another request than the others. All
 * ranks must end with the same error and change no more than necessary. If all ranks still run, they repeat the step
 * and get the same bits as without the fault.
 *
 *     build/test_ranks_faults [wide]    the fault at every call instead of at some */
#include "gradckpt.h"
#include "rank_training.h"
#if RANKS_THREADS

static const setting base = { .ranks = 4,
                              .mode = GCKPT_STORE_ALL,
                              .rows = 2,
                              .virtual_ranks = VRANKS,
                              .flags = DROPOUT | SECOND | SMALL,
                              .steps = 2 };

/* Runs a training with a fault of the transport and checks that all ranks abort. Returns 0 if the training made fewer
 * calls than the number of the faulty call. */
static int expect_abort(const setting *s, const injection *bad, const outcome *want)
{
    static trial t;
    ranks_world w;
    char name[200], what[260];
    const ranks_fault *f = &bad->fault;
    name_of(s, name, sizeof name);
    snprintf(what, sizeof what, "%s: fault %d in call %ld of %d on rank %d%s", name, (int)f->how,
             f->at, (int)f->call, f->rank, bad->silent ? ", silent" : "");
    if (!run(&t, s, bad, &w))
        return 0;
    const int reached = f->at == 0 || w.rank[f->rank].calls[f->call] >= f->at;
    for (int i = 0; i < s->ranks; i++) {
        const outcome *o = &t.out[i];
        if ((i == f->rank && f->how >= RANKS_DIES && reached) || (bad->no_memory && i == bad->rank))
            continue;
        if (!reached) {
            CHECK_MSG(o->failed == 0 && o->hashed == GCKPT_OK, "%s: rank %d: %s", what, i,
                      o->first_text);
            continue;
        }
        /* a rank that had already finished its steps when the fault occurred may not notice the fault */
        CHECK_MSG(o->failed ? o->failed == 2 && o->first == GCKPT_E_PEER && o->last == GCKPT_E_PEER
                            : o->hashed == GCKPT_E_PEER ||
                                  (i != f->rank && o->hashed == GCKPT_OK && o->hash == want->hash),
                  "%s: rank %d: failed %d times, %d and %d: %s; %s", what, i, o->failed,
                  (int)o->first, (int)o->last, o->first_text, o->text);
        CHECK_MSG(!o->failed || strlen(o->first_text) > 20, "%s: rank %d: \"%s\"", what, i,
                  o->first_text);
        CHECK_MSG(!o->changed, "%s: rank %d: other values before the first update", what, i);
    }
    return reached;
}

static void test_calls(int wide)
{
    outcome want;
    one_process(&base, &want);
    for (int shard = 0, n = 0; shard <= GCKPT_SHARD_VALUES; shard++)
        for (int how = 0; how <= RANKS_VANISHES; how++)
            for (int call = 0; call <= RANKS_DONE; call++, n++) {
                setting s = base;
                long at = 1 + n % 5, stride = wide ? 1 : check_iterations(9) > 1 ? 53 : 101;
                s.shard = (gckpt_shard)shard;
                s.feed = n % 3 ? WHOLE : PIECES;
                s.blocking = call == RANKS_EXCHANGE && n % 4 == 2;
                s.overlap = how % 2;
                injection bad = { .rank = -1, .silent = n % 5 == 1 };
                do {
                    bad.fault =
                        (ranks_fault){ (int)(at % s.ranks), (ranks_call)call, (ranks_how)how, at };
                    at += call == RANKS_DONE ? 7 * stride : stride;
                } while (expect_abort(&s, &bad, &want));
                CHECK(at > 50);
            }
    setting s = base;
    injection bad = { .rank = 2, .no_memory = 1 };
    expect_abort(&s, &bad, &want);
}

/* ---- an error of one rank that the others can learn of: all ranks return it, and can go on ---- */
static void expect_shared_error(const setting *s, const injection *bad, const outcome *want, gckpt_result result,
                   const char *text)
{
    static trial t;
    ranks_world w;
    char name[200], rank[32];
    name_of(s, name, sizeof name);
    snprintf(rank, sizeof rank, "rank %d", bad->rank);
    if (!run(&t, s, bad, &w))
        return;
    const int failed = t.out[0].failed, ignored = bad->cancel_at && !failed;
    for (int i = 0; i < s->ranks; i++) {
        const outcome *o = &t.out[i];
        CHECK_MSG(o->failed == failed && (ignored || o->first == result),
                  "%s: rank %d: %d, not %d: %s", name, i, (int)o->first, (int)result,
                  o->first_text);
        CHECK_MSG(ignored || strstr(o->first_text, text), "%s: rank %d: \"%s\" lacks \"%s\"", name,
                  i, o->first_text, text);
        CHECK_MSG(ignored || i == bad->rank || bad->differs || strstr(o->first_text, rank),
                  "%s: rank %d: \"%s\" lacks \"%s\"", name, i, o->first_text, rank);
        CHECK_MSG(!o->changed, "%s: rank %d: other values", name, i);
        if (failed < 2)
            CHECK_MSG(o->text[0] == 0 && o->hashed == GCKPT_OK && o->hash == want->hash,
                      "%s: rank %d: not the same afterwards: %s", name, i, o->text);
    }
}

static void test_local_errors(int wide)
{
    static const char *const texts[DIFFERENCES] = {
        "",      "rows",  "hyper", "seed", "should be the same",
        "plans", "plans", "plans", "plans", "plans"
    };
    outcome want;
    one_process(&base, &want);
    for (int shard = 0, n = 0; shard <= GCKPT_SHARD_VALUES; shard++)
        for (int rank = 0; rank < base.ranks; rank++, n++) {
            setting s = base;
            s.shard = (gckpt_shard)shard;
            s.feed = n % 2 ? PIECES : WHOLE;
            s.mode = n % 3 ? GCKPT_STORE_ALL : GCKPT_OPTIMAL;
            s.overlap = n % 2 == 0;
            injection bad = { .rank = rank, .step = rank < 3 && n % 2, .bad_index = 1 };
            expect_shared_error(&s, &bad, &want, GCKPT_E_DATA, "250");
            for (int differs = OTHER_ROWS; differs < DIFFERENCES; differs++) {
                injection other = { .rank = rank, .differs = differs };
#ifdef GCKPT_NO_BF16
                if (differs == PRECISION_OF)
                    continue;
#endif
                if (wide || (n + differs) % 4 == 0)
                    expect_shared_error(&s, &other, &want, GCKPT_E_ARG, texts[differs]);
            }
        }
}

static void test_cancel(int wide)
{
    outcome want;
    one_process(&base, &want);
    for (int shard = 0; shard <= GCKPT_SHARD_VALUES; shard++) {
        long seen = 1 + shard;
        for (long at = 1 + shard; at <= seen; at += wide ? 1 : 59) {
            static trial t;
            ranks_world w;
            setting s = base;
            injection none = { .rank = -1, .cancel_at = 1 };
            s.shard = (gckpt_shard)shard;
            s.rows = 1 + (int)(at % 2);
            s.feed = at % 3 ? WHOLE : PIECES;
            s.overlap = (int)(at / 3 % 2);
            injection bad = { .rank = (int)(at / 2 % s.ranks), .cancel_at = at };
            if (run(&t, &s, &none, &w))
                seen = t.out[bad.rank].progress_calls;
            expect_shared_error(&s, &bad, &want, GCKPT_CANCELLED, "cancelled");
        }
        CHECK_MSG(seen > 50, "shard %d: %ld instructions", shard, seen);
    }
}

/* Tests transports that return other values than 1 and -1, and broken clocks, which do no harm as long as all ranks
 * answer. Even with a broken clock, a rank that fails tells the other ranks by the transport's `abort`. */
static void test_odd(void)
{
    outcome want;
    setting s = base;
    one_process(&base, &want);
    for (int n = 0; n < 8; n++) {
        static trial t;
        ranks_world w;
        injection bad = { .rank = -1, .odd = n < 4, .clock = n % 4 };
        s.shard = (gckpt_shard)(n % 4);
        s.blocking = n == 4;
        run(&t, &s, &bad, &w);
        for (int i = 0; i < s.ranks; i++)
            CHECK_MSG(t.out[i].failed == 0 && t.out[i].hash == want.hash,
                      "odd %d, clock %d, rank %d: %s", bad.odd, bad.clock, i,
                      t.out[i].first_text);
        for (int call = 0; call <= RANKS_DONE; call++) {
            bad.fault = (ranks_fault){ n % s.ranks, (ranks_call)call, RANKS_FAILS, 9 + 3 * n };
            CHECK(s.blocking || expect_abort(&s, &bad, &want));
        }
    }
}

int main(int argc, char **argv)
{
    int wide = argc > 1;
    (void)argv;
    fill();
    test_local_errors(wide);
    test_cancel(wide);
    test_calls(wide);
    test_odd();
    return check_report("test_ranks_faults");
}
#else
int main(void) { return check_report("test_ranks_faults"); /* this system has no threads */ }
#endif
