/* relay.h - the training that lesson 8 hands from machine to machine: a GPT over bytes (tiny.h) of
 * 7,360 weights, whose steps have two virtual ranks, so that two processes can share them. Every
 * program of the relay includes this file, so all train the same model on the same rows. Include
 * gradckpt.h first. */
#ifndef RELAY_H
#define RELAY_H
#include "../playground/tiny.h"

enum { RELAY_STEPS = 60, RELAY_LEGS = 5, RELAY_ROWS = 8, RELAY_CONTEXT = 16 };

static const unsigned char relay_text[] = "Tyger Tyger, burning bright,\nIn the forests of the night;\n"
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

#endif
