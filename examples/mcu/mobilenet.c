/* mobilenet.c - trains an image network on the chip: MobileNetV2 (Sandler 2018) of width 0.35 for
 * 96 x 96 pixels, with norms folded into the convolutions. Only the classifier and the biases from
 * block 8 on are trained. All other parameters are frozen and stay in flash: the weights of 1 x 1
 * convolutions and those of 3 x 3 convolutions from block 8 on as bytes with a scale per row, the
 * rest as floats. A step has one image, and each parameter is updated as soon as its gradient is complete.
 * Images are fed as bytes; all arithmetic is in fp32. The weights are random and the images are
 * generated, since there are no pretrained weights here. The example therefore shows memory, time
 * and a falling loss with the same bits as on the host, but no accuracy. */
#define JOB_QUANTISED
#include "job.h"
#ifdef PLAN
#include <math.h>
#endif

enum { SIDE = 96, COLOURS = 3, CLASSES = 10, LAST = 1280 };

#ifdef PLAN
/* TRAINED: first block whose biases are trained; ARENA: bytes of the arena */
enum { TRAINED = 8, ARENA = 97000 };

static gckpt_tensor *param(gckpt_graph *g, int block, const char *what, gckpt_shape shape, int fans)
{
    char name[32];
    const gckpt_init init = { fans ? sqrtf(2 / (float)fans) : 0, 0, 0 };
    snprintf(name, sizeof name, "b%d.%s", block, what);
    return gckpt_param(g, name, shape, init);
}

/* Appends a 1 x 1 convolution, computed as a linear layer over the channels of each pixel. */
static gckpt_tensor *pointwise(gckpt_tensor *x, int block, const char *w, const char *b, int to,
                          int fans)
{
    gckpt_graph *g = gckpt_graph_of(x);
    const int from = (int)gckpt_shape_of(x).d[3];
    return gckpt_linear(x, param(g, block, w, gckpt_shape2(from, to), fans),
                        param(g, block, b, gckpt_shape1(to), 0));
}

/* Appends a 3 x 3 convolution; it is depthwise if it keeps the number of channels. Convolutions
 * read their weights as floats; in fused groups, these weights are read from flash row by row. */
static gckpt_tensor *depthwise(gckpt_tensor *x, int block, int to, int stride)
{
    gckpt_graph *g = gckpt_graph_of(x);
    const int from = (int)gckpt_shape_of(x).d[3], each = from == to ? 1 : from;
    const gckpt_window w = { .stride = { stride, stride }, .padding = { 1, 1 },
                             .groups = from / each };
    x = gckpt_conv2d(x, param(g, block, block < TRAINED ? "deep.f" : "deep.w", gckpt_shape4(3, 3, each, to), 9 * each),
                     param(g, block, "deep.b", gckpt_shape1(to), 0), &w);
    return gckpt_relu(x);
}

/* Appends an inverted residual block: a convolution to `times` as many channels, a depthwise one,
 * and one to `to` channels. */
static gckpt_tensor *inverted(gckpt_tensor *x, int block, int times, int to, int stride)
{
    const int from = (int)gckpt_shape_of(x).d[3];
    gckpt_tensor *h = x;
    if (times > 1)
        h = gckpt_relu(pointwise(h, block, "wide.w", "wide.b", from * times, from));
    h = pointwise(depthwise(h, block, from * times, stride), block, "back.w", "back.b", to,
             4 * from * times);
    return stride == 1 && from == to ? gckpt_add(x, h) : h;
}

static gckpt_tensor *features_of(gckpt_tensor *image)
{
    /* Per stage: expansion factor, channels, number of blocks, stride of the first block. */
    static const int stages[7][4] = {
                                      { 1, 8, 1, 1 },  { 6, 8, 2, 2 },  { 6, 16, 3, 2 },
                                      { 6, 24, 4, 2 }, { 6, 32, 3, 1 }, { 6, 56, 3, 2 },
                                      { 6, 112, 1, 1 } };
    int block = 0;
    gckpt_tensor *x = depthwise(gckpt_from_u8(image, 1.0f / 128, -1), block++, 16, 2);
    for (int s = 0; s < 7; s++)
        for (int i = 0; i < stages[s][2]; i++)
            x = inverted(x, block++, stages[s][0], stages[s][1], i ? 1 : stages[s][3]);
    x = gckpt_relu(pointwise(x, block, "wide.w", "wide.b", LAST, 112));
    return gckpt_global_average_pool(x);
}

/* Appends the classifier. Its initial values are not printed with the plan but generated on the
 * chip. */
static gckpt_tensor *scores_of(gckpt_tensor *features)
{
    gckpt_graph *g = gckpt_graph_of(features);
    const gckpt_init init = { 0.5f / sqrtf(LAST), 0, 0 }, zero = { 0, 0, 0 };
    return gckpt_linear(features,
                        gckpt_param(g, "class.weight", gckpt_shape2(LAST, CLASSES), init),
                        gckpt_param(g, "class.bias", gckpt_shape1(CLASSES), zero));
}

int main(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *image = gckpt_input(g, "image", GCKPT_U8, gckpt_shape4(1, SIDE, SIDE, COLOURS));
    gckpt_tensor *shows = gckpt_input(g, "shows", GCKPT_I32, gckpt_shape1(1));
    gckpt_tensor *features = features_of(image);
    gckpt_plan_desc learns = { .optimiser = GCKPT_SGD, .update_in_backward = 1 };
    gckpt_parameter drawn;
    char frozen[16];
    for (int block = 0; block < TRAINED; block++) {
        snprintf(frozen, sizeof frozen, "b%d.*", block);
        if (gckpt_store_freeze(s, frozen, 1) != GCKPT_OK)
            return 1;
    }
    for (int i = 0; i < gckpt_store_count(s); i++)
        if (gckpt_store_get(s, i, &drawn) != GCKPT_OK)
            return 1;
    if (gckpt_store_freeze(s, "*.w", 1) != GCKPT_OK ||
        gckpt_store_quantise(s, "*.w", GCKPT_STORAGE_I8) != GCKPT_OK ||
        weights_print(s, "weights", job_to_stdout, NULL) != GCKPT_OK) {
        fprintf(stderr, "%s\n", gckpt_error_text(s));
        return 1;
    }
    const gckpt_term term = { gckpt_cross_entropy(scores_of(features), shows, NULL, 0), 1, 0 };
    learns.budget = gckpt_store_bytes(s) + ARENA;
    return job_print_plan(g, &term, &learns);
}
#else
#include "mobilenet_plan.h"

enum { STEPS = 4 };

static char store_block[plan_store_bytes - weights_bytes];
static char exec_block[plan_exec_bytes];
static unsigned char image[SIDE * SIDE * COLOURS];

/* Generates an image: stripes whose direction, width and colours depend on the class `shows`, and
 * noise that depends on the image's `number`. */
static void picture(uint32_t shows, uint32_t number)
{
    for (uint32_t y = 0; y < SIDE; y++)
        for (uint32_t x = 0; x < SIDE; x++)
            for (uint32_t c = 0; c < COLOURS; c++) {
                const uint32_t along = shows % 2 ? x : y, at = (SIDE * y + x) * COLOURS + c;
                const uint32_t dust = (at + 7919 * number) * 2654435761u >> 26;
                const uint32_t stripe = along * (3 + shows) / 16 & 1;
                image[at] = (unsigned char)(stripe * (64 + 40 * ((shows + c) % 3)) + dust);
            }
}

int main(void)
{
    job j;
    const gckpt_hyper hyper = gckpt_hyper_lr(0.05f);
    int32_t shows = 0;
    const gckpt_feed feeds[2] = { { plan_image, image }, { plan_shows, &shows } };
    gckpt_report report;
    job_new_store(&j, store_block, sizeof store_block);
    if (job_failed(&j, weights_bind(j.store)) || job_bind(&j, &plan, exec_block, sizeof exec_block))
        return 1;
    for (uint32_t i = 0; i < STEPS; i++) {
        const uint64_t began = board_instructions();
        shows = i % 2 ? 3 : 0;
        picture((uint32_t)shows, i);
        if (job_failed(&j, gckpt_step(j.exec, feeds, 2, 1, &hyper, &report)))
            return 1;
        job_add_step(&j, report.loss, board_instructions() - began);
    }
    return job_report(&j);
}
#endif
