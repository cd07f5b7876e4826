/* relay.c - the part of lesson 8's relay (docs/course/relay.h) that a board runs: it reads a
 * checkpoint that another machine wrote, trains some steps, and writes the next checkpoint.
 * flash.bin has the checkpoint after a word of 4 bytes, its size; the number on the command line is
 * that of the steps. */
#include "job.h"
#include "../../docs/course/relay.h"

#ifdef PLAN
int main(void)
{
    tiny t;
    memset(&t, 0, sizeof t);
    t.o = relay_options();
    t.store = gckpt_store_new(NULL);
    t.graph = gckpt_graph_new(t.store, NULL);
    const gckpt_term term = tiny_term(&t);
    gckpt_plan_desc desc = tiny_desc(&t);
    desc.budget = 200000; /* some results are computed again; the bits are the same */
    return job_print_plan(t.graph, &term, &desc);
}
#else
#include "relay_plan.h"

/* bytes for the header of the checkpoint, needed only while it is read */
enum { HEADER = 12000 };
enum { BEGIN = 4 }; /* where the checkpoint begins in flash.bin */
static char store_block[plan_store_bytes + HEADER], exec_block[plan_exec_bytes];
static int32_t tokens[RELAY_ROWS * RELAY_CONTEXT], targets[RELAY_ROWS * RELAY_CONTEXT];
static float weights[RELAY_ROWS];

/* Read and write at an offset, and advance it: a gckpt_read_fn and a gckpt_write_fn. */
static size_t get(void *user, void *bytes, size_t size)
{
    size_t *at = (size_t *)user;
    size = board_read(*at, bytes, size);
    *at += size;
    return size;
}

static size_t put(void *user, const void *bytes, size_t size)
{
    size_t *at = (size_t *)user;
    size = board_write(*at, bytes, size);
    *at += size;
    return size;
}

static void set_up(tiny *t)
{
    memset(t, 0, sizeof *t);
    t->o = relay_options();
    t->text = relay_text, t->length = sizeof relay_text - 1;
    t->room[0] = tokens, t->room[1] = targets, t->room[2] = weights;
    t->feeds[0].input = plan_tokens, t->feeds[1].input = plan_targets, t->feeds[2].input = plan_weights;
    for (int i = 0; i < 3; i++)
        t->feeds[i].data = t->room[i];
}

/* Reads the checkpoint and binds the plan. Returns 1 after an error, else 0. */
static int start(job *j)
{
    size_t from = BEGIN;
    uint32_t size = 0;
    job_new_store(j, store_block, sizeof store_block);
    if (job_failed(j, gckpt_plan_params(&plan, j->store)))
        return 1;
    if (board_read(0, &size, sizeof size) == sizeof size && size > 0 &&
        job_failed(j, gckpt_store_read(j->store, get, &from, size, NULL)))
        return 1;
    return job_bind(j, &plan, exec_block, sizeof exec_block);
}

/* Prints a line as docs/course/relay.c does. */
static void print_step(const tiny *t, double loss)
{
    board_print("step ");
    job_print_number((uint32_t)t->step);
    board_print(", loss ");
    job_print_real(loss);
    board_print(", weights ");
    job_print_hash(gckpt_store_hash(t->store));
}

int main(void)
{
    static tiny t;
    job j;
    size_t to = BEGIN;
    set_up(&t);
    int failed = start(&j);
    t.store = j.store, t.exec = j.exec;
    t.step = failed ? 0 : gckpt_store_step(j.store); /* selects the rows of the next step */
    for (int left = board_argument(); left > 0 && !failed; left--) {
        double loss = 0;
        const uint64_t began = board_instructions();
        if (!tiny_step(&t, &loss))
            return job_failed(&j, GCKPT_E_ARG);
        job_add_step(&j, loss, board_instructions() - began);
        print_step(&t, loss);
    }
    failed = failed || job_failed(&j, gckpt_store_write(j.store, put, &to, NULL));
    const uint32_t size = (uint32_t)(to - BEGIN);
    if (failed || board_write(0, &size, sizeof size) != sizeof size)
        return 1;
    job_print_board(j.steps ? j.instructions / (uint64_t)j.steps : 0);
    return 0;
}
#endif
