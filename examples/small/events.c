/* events.c - training inside a program's event loop: each frame runs a few instructions of the
 * training with examples/train.h. A SIGTERM in the middle of a step ends the training at once and
 * saves its state. The next run resumes from that state and gets the same weights, to the last bit,
 * as a run without interruption. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "../digits.h"
#include "../layers.h"
#include "../train.h"
#include <signal.h>

static float pixels[DIGITS][64];
static int32_t digit[DIGITS];
static volatile sig_atomic_t quit;
static void terminated(int number) { quit = number; }

static void model(train_net *net, void *user)
{
    static const int64_t widths[] = { 64, 64, 10 };
    (void)user;
    net->output = layers_mlp(net->in[0], "mlp", widths, 3, 0.1f);
    net->loss = gckpt_cross_entropy(net->output, net->in[1], NULL, 0);
}

/* Runs the program and returns a hash of the weights, or 0 if it was ended. `kill` is the frame in
 * which a SIGTERM arrives, or 0. */
static unsigned long long run(const char *save, int kill)
{
    train_data data = { { { "pixels", GCKPT_F32, 64, pixels }, { "digit", GCKPT_I32, 0, digit } },
                        DIGITS,
                        360 };
    train_options o = train_defaults(3e-3f);
    train_report r;
    train_run t;
    gckpt_store *s = gckpt_store_new(NULL);
    int frame = 0, more;
    o.epochs = 6;
    o.schedule = SCHEDULE_LINEAR;
    o.print_every = -1;
    o.save = save;
    quit = 0;
    signal(SIGTERM, terminated);
    more = train_begin(&t, s, model, &data, &o, &r) == 0;
    for (; more && !quit; frame++) {
        /* ... read input, draw the frame, answer requests; then train for a while: */
        more = train_tick(&t, 10) > 0; /* 10 instructions take a fraction of a millisecond */
        if (frame + 1 == kill)
            raise(SIGTERM);
    }
    if (quit)
        printf("SIGTERM in frame %i: epoch %i, step %i of %i\n", frame, r.epoch, (int)r.step,
               (int)r.steps);
    if (train_end(&t) != 0)
        fprintf(stderr, "%s\n", r.error);
    const unsigned long long hash = more ? 0 : (unsigned long long)gckpt_store_hash(s);
    if (!more && r.error[0] == 0)
        printf("%i frames: %.1f %% right, weights %016llx\n", frame, 100 * r.accuracy, hash);
    gckpt_store_free(s);
    return hash;
}

int main(void)
{
    digits_read(pixels, digit);
    const unsigned long long undisturbed = run(NULL, 0);
    remove("events.st");
    /* three runs in sequence that share only the file events.st */
    int wrong = run("events.st", 300) != 0;
    wrong |= run("events.st", 400) != 0;
    wrong |= run("events.st", 0) != undisturbed;
    remove("events.st");
    remove("events.st.best");
    return wrong;
}
