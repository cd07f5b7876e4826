/* relay.c - what a board does in lesson 8's relay (docs/course/relay.h): it reads a checkpoint that
 * another machine wrote, trains some steps, and writes the next checkpoint. If flash has a ledger
 * after the program, the board repeats the steps and compares them with it instead. flash.bin has
 * the checkpoint after a word of 4 bytes, its size; the number on the command line is that of the
 * steps. */
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

/* the first byte after the program's part of flash, which the linker defines */
extern const unsigned char board_ledger[];

/* HEADER: bytes for the header of the checkpoint, needed only while it is read; BEGIN: offset of
 * the checkpoint in flash.bin */
enum { HEADER = 12000, BEGIN = 4 };
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
    t->feeds[0].input = plan_tokens;
    t->feeds[1].input = plan_targets;
    t->feeds[2].input = plan_weights;
    for (int i = 0; i < 3; i++)
        t->feeds[i].data = t->room[i];
}

/* Reads the checkpoint, if there is one, and binds the plan. Returns 1 after an error, else 0. */
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

/* Trains and writes the next checkpoint. Returns 1, or 0 with a text in t->error. */
static int train(tiny *t, job *j, int steps)
{
    size_t to = BEGIN;
    for (int i = 0; i < steps; i++) {
        double loss = 0;
        const uint64_t began = board_instructions();
        if (!tiny_step(t, &loss))
            return 0;
        job_add_step(j, loss, board_instructions() - began);
        board_print("step ");
        job_print_number((uint32_t)t->step);
        board_print(", loss ");
        job_print_real(loss);
        board_print(", weights ");
        job_print_hash(gckpt_store_hash(t->store));
    }
    if (gckpt_store_write(t->store, put, &to, NULL) != GCKPT_OK)
        return tiny_fails(t, gckpt_error_text(t->store));
    const uint32_t size = (uint32_t)(to - BEGIN);
    return board_write(0, &size, sizeof size) == sizeof size ||
           tiny_fails(t, "flash.bin cannot be written");
}

/* Returns the bytes of the ledger in flash, up to the first head that is wrong and including it; 0
 * if there is no ledger. */
static size_t ledger_size(void)
{
    size_t size = 0;
    while (memcmp(board_ledger + size, "gckptled", 8) == 0) {
        if (ledger_check_head(board_ledger + size) != NULL)
            return size + LEDGER_HEAD;
        size += (size_t)ledger_get_le(board_ledger + size + 16, 4);
    }
    return size;
}

/* Repeats steps and compares each with its record. Returns 1, or 0 with a text in t->error. */
static int audit(tiny *t, size_t size, int steps)
{
    static relay_ledger l;
    const uint32_t first = (uint32_t)t->step + 1;
    if (!relay_audit(t, &l, board_ledger, size, steps))
        return 0;
    board_print("steps ");
    job_print_number(first);
    board_print(" to ");
    job_print_number((uint32_t)t->step);
    board_print(": every record is true\n");
    return 1;
}

int main(void)
{
    static tiny t;
    job j;
    set_up(&t);
    if (start(&j))
        return 1;
    t.store = j.store, t.exec = j.exec;
    t.step = gckpt_store_step(j.store); /* selects the rows of the next step */
    const size_t size = ledger_size();
    if (size > 0 ? !audit(&t, size, board_argument()) : !train(&t, &j, board_argument())) {
        board_print(t.error);
        board_print("\n");
        return 1;
    }
    job_print_board(j.steps ? j.instructions / (uint64_t)j.steps : 0);
    return 0;
}
#endif
