/* relay.h - the training that lesson 8 hands from machine to machine, and its audit: a GPT over
 * bytes (tiny.h) of 7,360 weights, whose steps have two virtual ranks, so that two processes can
 * share them. Every program of the relay includes this file, so all train the same model on the
 * same rows. It uses neither heap nor stdio. Include gradckpt.h first. */
#ifndef RELAY_H
#define RELAY_H
#include "../../examples/ledger.h"
#include "../playground/tiny.h"

enum { RELAY_STEPS = 60, RELAY_PARTS = 5, RELAY_ROWS = 8, RELAY_CONTEXT = 16 };

static const unsigned char relay_text[] =
    "Tyger Tyger, burning bright,\nIn the forests of the night;\n"
    "What immortal hand or eye,\nCould frame thy fearful symmetry?\n";

static inline tiny_options relay_options(void)
{
    tiny_options o;
    memset(&o, 0, sizeof o);
    o.layers = 1, o.heads = 2, o.width = 16, o.context = RELAY_CONTEXT;
    o.rows = RELAY_ROWS, o.micro = 1, o.lr = 0.01f, o.seed = 8, o.virtual_ranks = 2;
    return o;
}

/* Prepares the training. `ranks` and `backend` as in tiny_options. Returns 1, or 0 with a text in
 * t->error. */
static inline int relay_begin(tiny *t, const gckpt_memory *memory, const gckpt_transport *ranks,
                              const gckpt_backend *backend)
{
    tiny_options o = relay_options();
    o.ranks = ranks, o.backend = backend;
    return tiny_begin(t, &o, memory, relay_text, sizeof relay_text - 1);
}

/* ---- the ledger ------------------------------------------------------------------------------ */
enum { RELAY_DIGESTS = 48 }; /* values and two states of 16 parameters */
typedef struct {
    ledger_chain chain;
    ledger_state now;
    size_t count; /* number of digests */
    unsigned char digests[LEDGER_HASH * RELAY_DIGESTS];
} relay_ledger;

/* Takes the digests of all tensors that are trained. Returns 1, or 0 with a text in t->error. */
static inline int relay_digests(tiny *t, relay_ledger *l)
{
    l->count = ledger_digests(t->store, 0, l->digests, RELAY_DIGESTS);
    return l->count > 0 || tiny_fails(t, "the tensors are not those of the relay");
}

/* Runs a step, and notes what its record has. Returns 1, or 0 with a text in t->error. */
static inline int relay_step(tiny *t, relay_ledger *l)
{
    double loss;
    ledger_sha rows;
    if (!tiny_step(t, &loss))
        return 0;
    ledger_sha_begin(&rows);
    ledger_sha_words(&rows, t->room[0], RELAY_ROWS * RELAY_CONTEXT);
    ledger_sha_words(&rows, t->room[1], RELAY_ROWS * RELAY_CONTEXT);
    ledger_sha_words(&rows, t->room[2], RELAY_ROWS);
    ledger_add_rows(&l->now, &rows);
    ledger_set_step(&l->now, &t->report, &t->hyper);
    return relay_digests(t, l);
}

/* Repeats `steps` steps from the checkpoint in t->store, and compares the checkpoint and each step
 * with its record in a ledger of `size` bytes. Returns 1 if all are equal; or 0 with a text in
 * t->error that names the first record that differs. */
static inline int relay_audit(tiny *t, relay_ledger *l, const unsigned char *bytes, size_t size,
                              int steps)
{
    ledger_report all;
    ledger_record r;
    if (!ledger_verify(bytes, size, NULL, NULL, &all))
        return tiny_fails(t, all.error);
    t->step = gckpt_store_step(t->store);
    for (int i = 0; i <= steps; i++) {
        if (!(i == 0 ? relay_digests(t, l) : relay_step(t, l)))
            return 0;
        if (!ledger_find(bytes, size, t->step, &r))
            return tiny_fails(t, "the ledger has no record of this step");
        if (i == 0)
            l->now = r.state; /* the checkpoint has no loss and no hash of rows */
        if (!ledger_compare(&all.run, &r, &l->now, l->digests, l->count, t->error, sizeof t->error))
            return 0;
    }
    return 1;
}
#endif
