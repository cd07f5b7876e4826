/* keyword.c - keyword spotting that is trained on the host and adapted to its owner on the chip. A
 * network of depthwise-separable convolutions (DS-CNN, Zhang 2017) has learned six words from many
 * speakers. On the chip its convolutions stay in flash, as bytes with a scale per row. The owner
 * has another accent and says these six words and two new ones, and the chip trains the last layer
 * only. Two plans over one store recognise and learn; their executors share an arena. If PLAN is
 * defined, the program trains the network on the host and prints its weights and both plans. */
#define JOB_QUANTISED
#include "job.h"
#include "keyword.h"
#ifdef PLAN
#include <math.h>
#endif

enum { KNOWN = 6, WORDS = 8, CHANNELS = 12, MIDDLE = 26, FEATURES = 32, ROWS = WORDS };
enum { HEARD = KEYWORD_FRAMES * KEYWORD_NUMBERS, OWNER = 500, ACCENT = 56 };

#ifdef PLAN
enum { TRAIN_ROWS = 48, TRAIN_STEPS = 400 };

static gckpt_tensor *param(gckpt_graph *g, int layer, const char *what, gckpt_shape shape, int fans)
{
    char name[32] = { 'c', (char)('0' + layer), '.', 0 };
    const gckpt_init init = { fans ? sqrtf(2 / (float)fans) : 0, 0, 0 };
    strcat(name, what);
    return gckpt_param(g, layer < 0 ? what : name, shape, init);
}

/* Appends a 3 x 3 depthwise convolution and a pointwise (1 x 1) convolution, computed as a linear
 * layer. */
static gckpt_tensor *separable(gckpt_tensor *x, int layer, int stride, int from, int to)
{
    gckpt_graph *g = gckpt_graph_of(x);
    const gckpt_window w = { .stride = { stride, stride }, .padding = { 1, 1 }, .groups = from };
    x = gckpt_conv2d(x, param(g, layer, "deep", gckpt_shape4(3, 3, 1, from), 9), NULL, &w);
    x = gckpt_linear(gckpt_relu(x), param(g, layer, "wide", gckpt_shape2(from, to), from),
                     param(g, layer, "wide.b", gckpt_shape1(to), 0));
    return gckpt_relu(x);
}

static gckpt_tensor *features_of(gckpt_tensor *x)
{
    gckpt_graph *g = gckpt_graph_of(x);
    const gckpt_window first = { .stride = { 2, 2 }, .padding = { 3, 1 } };
    x = gckpt_conv2d(x, param(g, 0, "w", gckpt_shape4(8, 4, 1, CHANNELS), 32),
                     param(g, 0, "b", gckpt_shape1(CHANNELS), 0), &first);
    x = separable(gckpt_relu(x), 1, 2, CHANNELS, MIDDLE);
    x = separable(x, 2, 1, MIDDLE, FEATURES);
    return gckpt_name(gckpt_global_average_pool(x), "features");
}

static gckpt_tensor *last_layer(gckpt_tensor *x)
{
    gckpt_graph *g = gckpt_graph_of(x);
    x = gckpt_linear(x, param(g, -1, "last.w", gckpt_shape2(FEATURES, WORDS), FEATURES),
                     param(g, -1, "last.b", gckpt_shape1(WORDS), 0));
    return gckpt_name(x, "scores");
}

static gckpt_tensor *heard(gckpt_graph *g, int rows)
{
    const gckpt_shape shape = gckpt_shape4(rows, KEYWORD_FRAMES, KEYWORD_NUMBERS, 1);
    return gckpt_input(g, "heard", GCKPT_F32, shape);
}

static gckpt_tensor *meant(gckpt_graph *g, int rows)
{
    return gckpt_input(g, "meant", GCKPT_I32, gckpt_shape1(rows));
}

/* Trains the network on six words of forty speakers. Returns 0 after success. */
static int learn(gckpt_store *s)
{
    static float x[TRAIN_ROWS * HEARD];
    static int32_t y[TRAIN_ROWS];
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = heard(g, TRAIN_ROWS), *target = meant(g, TRAIN_ROWS);
    const gckpt_term term = { gckpt_cross_entropy(last_layer(features_of(in)), target, NULL, 0), 1, 0 };
    gckpt_exec *e = gckpt_exec_new(gckpt_plan_new(g, &term, 1, NULL), s, NULL);
    const gckpt_feed feeds[2] = { { gckpt_id(in), x }, { gckpt_id(target), y } };
    gckpt_report report;
    for (uint32_t step = 0; step < TRAIN_STEPS; step++) {
        const gckpt_hyper hyper = { .lr = gckpt_lr_cosine(step, 20, TRAIN_STEPS, 5e-3f, 0),
                                    .weight_decay = 1 };
        for (uint32_t i = 0; i < TRAIN_ROWS; i++) {
            const uint32_t n = step * TRAIN_ROWS + i;
            y[i] = (int32_t)(n % KNOWN);
            keyword_synth(n % KNOWN, n / KNOWN % 40, (int32_t)(n / KNOWN % 40), n / KNOWN / 40,
                        x + i * HEARD);
        }
        if (gckpt_step(e, feeds, 2, TRAIN_ROWS, &hyper, &report) != GCKPT_OK)
            return 1;
        if (step % 50 == 49)
            fprintf(stderr, "step %d: loss %.4f\n", (int)step, report.loss);
    }
    gckpt_exec_free(e);
    gckpt_graph_free(g);
    return 0;
}

int main(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    if (learn(s) || gckpt_store_freeze(s, "c?.*", 1) != GCKPT_OK ||
        gckpt_store_quantise(s, "c?.*", GCKPT_STORAGE_I8) != GCKPT_OK ||
        weights_print(s, "weights", job_to_stdout, NULL) != GCKPT_OK)
        return 1;
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *features = features_of(heard(g, 1));
    const gckpt_fetch_spec fetch[2] = { { features, 0 }, { last_layer(features), 0 } };
    gckpt_plan_desc recognise = { .mode = GCKPT_INFERENCE, .fetch.specs = fetch, .fetch.count = 2 };
    if (job_print_plan_as(g, NULL, &recognise, "recognise"))
        return 1;
    g = gckpt_graph_new(s, NULL);
    features = gckpt_input(g, "features", GCKPT_F32, gckpt_shape2(ROWS, FEATURES));
    const gckpt_term term = { gckpt_cross_entropy(last_layer(features), meant(g, ROWS), NULL, 0), 1, 0 };
    gckpt_plan_desc learns = { .optimiser = GCKPT_SGD };
    return job_print_plan_as(g, &term, &learns, "learn");
}
#else
#include "keyword_plan.h"

enum { TAKES = 3, TESTS = 3, ROUNDS = 20 };
enum {
    ARENA = recognise_arena_bytes > learn_arena_bytes ? recognise_arena_bytes : learn_arena_bytes
};

static char store_block[recognise_store_bytes - weights_bytes];
static char recognise_block[recognise_exec_bytes - recognise_arena_bytes];
static char learn_block[learn_exec_bytes - learn_arena_bytes];
/* shared by both executors, which never run at the same time */
static double arena[(ARENA + sizeof(double) - 1) / sizeof(double)];
static float sound[HEARD], features[ROWS][FEATURES];

/* Generates the take-th utterance of a word in the owner's voice. Returns the word that the network
 * recognises, or a negative number after an error. If `keep` is not NULL, copies the output of the
 * convolutions to it. */
static int guess_word(job *j, uint32_t word, uint32_t take, float *keep)
{
    const gckpt_feed feed = { recognise_heard, sound };
    int best = 0;
    keyword_synth(word, OWNER, ACCENT, take, sound);
    const uint64_t began = board_instructions();
    if (job_failed(j, gckpt_forward(j->exec, &feed, 1, 1, NULL)))
        return -1;
    job_add_step(j, 0, board_instructions() - began);
    const float *scores = gckpt_fetch(j->exec, recognise_scores, 0);
    for (int i = 1; i < WORDS; i++)
        best = scores[i] > scores[best] ? i : best;
    if (keep) /* copied now, before the other executor overwrites the shared arena */
        memcpy(keep, gckpt_fetch(j->exec, recognise_features, 0), FEATURES * sizeof *keep);
    return best;
}

/* Returns how many utterances the network recognises among those that are not trained on, or a
 * negative number after an error. */
static int count_right(job *j)
{
    int count = 0;
    for (uint32_t i = 0; i < TESTS * WORDS; i++) {
        const int guess = guess_word(j, i % WORDS, 100 + i / WORDS, NULL);
        if (guess < 0)
            return -1;
        count += guess == (int)(i % WORDS);
    }
    return count;
}

/* For each take, first computes the convolutions' outputs for all words, then trains the last layer
 * on these outputs for ROUNDS steps. Returns 0, or a negative number after an error. */
static int train_words(job *ears, job *j)
{
    static const int32_t words[ROWS] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    const gckpt_feed feeds[2] = { { learn_features, features }, { learn_meant, words } };
    const gckpt_hyper hyper = gckpt_hyper_lr(0.01f);
    gckpt_report report;
    for (uint32_t take = 0; take < TAKES; take++) {
        for (uint32_t word = 0; word < WORDS; word++)
            if (guess_word(ears, word, take, features[word]) < 0)
                return -1;
        for (int round = 0; round < ROUNDS; round++) {
            const uint64_t began = board_instructions();
            if (job_failed(j, gckpt_step(j->exec, feeds, 2, ROWS, &hyper, &report)))
                return -1;
            job_add_step(j, report.loss, board_instructions() - began);
        }
    }
    return 0;
}

int main(void)
{
    job ears, learner;
    job_new_store(&ears, store_block, sizeof store_block);
    learner = ears;
    const gckpt_exec_desc hears = { .memory = { .memory = recognise_block,
                                                .size = sizeof recognise_block },
                                    .arena = arena,
                                    .arena_size = sizeof arena };
    gckpt_exec_desc learns = hears;
    learns.memory.memory = learn_block;
    learns.memory.size = sizeof learn_block;
    if (job_failed(&ears, weights_bind(ears.store)) || job_bind_as(&ears, &recognise, &hears) ||
        job_bind_as(&learner, &learn, &learns))
        return 1;
    const int before = count_right(&ears);
    if (before < 0 || train_words(&ears, &learner) < 0)
        return 1;
    const int after = count_right(&ears);
    if (after < 0)
        return 1;
    job_print_line("right before ", (uint64_t)before);
    job_print_line("right after ", (uint64_t)after);
    if (board_ram() > 0)
        job_print_line("instructions of a word ", ears.instructions / (uint64_t)ears.steps);
    return job_report(&learner);
}
#endif
