/* Lesson 7: one model on 1 to 8 machines. Each is a process, connected by sockets only. */
#include "gradckpt.h"
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const gckpt_init small = { 0.1f, 0, 0 };
enum { MOST = 8, ROWS = 16, T = 6, CLASSES = 512, WIDTH = 64, STEPS = 10 };
static int sockets[MOST][MOST]; /* [a][b]: a's socket to b */

/* The only function that the library needs of a network: sends to a peer and receives from it. */
static int exchange(void *user, int peer, const void *from, size_t out, void *to, size_t in)
{
    int me = *(const int *)user, at = sockets[me][peer], ok = 1;
    for (int phase = 0; phase < 2 && ok; phase++) /* the lower rank sends first, then receives */
        ok = (phase == 0) == (me < peer) ? out == 0 || send(at, from, out, 0) == (ssize_t)out
                                        : in == 0 || recv(at, to, in, MSG_WAITALL) == (ssize_t)in;
    return ok;
}

static int machine(int me, int machines, int fault)
{
    int32_t token[ROWS][T], next[ROWS][T]; /* next: -1 after the end of a sentence */
    int part[MOST] = { 0 }, all = 0;       /* targets of each machine, of all */
    float weight[ROWS]; /* the library divides by all; a mean of means divides by each part */
    for (int r = 0; r < ROWS; r++)
        for (int t = 0; t < T; t++) {
            token[r][t] = (r * 3 + t * 7) % CLASSES;
            next[r][t] = t > r * 5 % T ? -1 : (all++, part[r * machines / ROWS]++, token[r][t] + 1);
        }
    for (int r = 0; r < ROWS; r++)
        weight[r] = fault ? (float)all / (float)(machines * part[r * machines / ROWS]) : 1;
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_store_ranks(s, me, machines, GCKPT_SHARD_NONE);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "token", GCKPT_I32, gckpt_shape2(1, T));
    gckpt_tensor *out = gckpt_input(g, "next", GCKPT_I32, gckpt_shape2(1, T));
    gckpt_tensor *row_weight = gckpt_input(g, "weight", GCKPT_F32, gckpt_shape1(1));
    gckpt_tensor *x = gckpt_embed(gckpt_param(g, "table", gckpt_shape2(CLASSES, WIDTH), small), in);
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(WIDTH, CLASSES), small);
    gckpt_term loss = { gckpt_cross_entropy(gckpt_linear(x, w, NULL), out, row_weight, 0), 1, 0 };
    const gckpt_plan_desc desc = { .batch = ROWS, .ranks.virtual_ranks = MOST }; /* eight for any machines */
    gckpt_plan *p = gckpt_plan_new(g, &loss, 1, &desc);
    const gckpt_transport others = { .rank = me, .size = machines, .exchange = exchange, .user = &me };
    gckpt_exec *e = gckpt_exec_new(p, s, &(gckpt_exec_desc){ .transport = &others });
    int64_t first = 0;
    gckpt_plan_rank_rows(p, ROWS, me, &first); /* first row of this machine */
    const gckpt_feed feeds[3] = { { gckpt_id(in), token[first] },
                                  { gckpt_id(out), next[first] },
                                  { gckpt_id(row_weight), weight + first } };
    const gckpt_hyper adamw = gckpt_hyper_lr(0.02f);
    gckpt_report r;
    alarm(60); /* ends this process if another one died */
    for (int step = 0; step < STEPS; step++)
        if (gckpt_step(e, feeds, 3, ROWS, &adamw, &r) != GCKPT_OK)
            return printf("machine %d: %s\n", me, gckpt_error_text(e)), 1;
    if (me == 0)
        printf("%s on %d: loss %.4f, weights %016llx, sent %6.0f bytes a step\n",
               fault ? "mean of means" : "divided once ", machines, r.loss,
               (unsigned long long)gckpt_store_hash(s), (double)gckpt_exec_bytes_sent(e) / STEPS);
    gckpt_exec_free(e), gckpt_plan_free(p), gckpt_graph_free(g), gckpt_store_free(s);
    return 0;
}

int main(void)
{
    for (int i = 0, ends[2]; i < MOST * MOST; i++)
        if (i / MOST < i % MOST && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0)
            sockets[i / MOST][i % MOST] = ends[0], sockets[i % MOST][i / MOST] = ends[1];
    for (int run = 0; run < 8; run++) { /* the right rule, then the fault, on 1, 2, 4, 8 */
        for (int me = 0; me < 1 << run % 4; me++)
            if (fork() == 0)
                return machine(me, 1 << run % 4, run / 4);
        while (wait(NULL) > 0)
            continue;
    }
    return 0;
}
