/* cnn.c - trains a small residual network (He 2016) on images: the handwritten digits of
 * digits.h, or CIFAR-10, MNIST or pictures from your files.
 *
 *     build/cnn                                         # digits: about 96 % right
 *     build/cnn --budget 2300K                          # in fewer bytes, to the same weights
 *     build/cnn --data cifar-10-batches-bin --blocks 3 --augment  # the 20 layers of He 2016
 *
 * Batch norms compute with all rows of a batch, so a batch is never split into micro-batches,
 * whatever the budget is. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "images.h"
#include "layers.h"
#include "onnx.h"
#include "options.h"
#include "train.h"

static struct {
    const char *data, *save, *log, *onnx;
    int64_t width, blocks, epochs, batch, budget, seed, threads, augment, help;
    double lr, decay;
} o;
static const options_desc rows[] = {
    { "data", OPTIONS_FILE, &o.data, NULL, 0, 0, NULL,
      "folder with the files of CIFAR-10 or MNIST, or with pictures, or a FILE.npz (images.h lists "
      "the formats); default: the handwritten digits in digits.h" },
    { "width", OPTIONS_INT, &o.width, "16", 1, 4096, NULL,
      "channels of the first stage; the next stages have 2 and 4 times as many" },
    { "blocks", OPTIONS_INT, &o.blocks, "1", 1, 100, NULL, "residual blocks per stage" },
    { "epochs", OPTIONS_INT, &o.epochs, "12", 1, 100000, NULL, "passes over the training images" },
    { "batch", OPTIONS_INT, &o.batch, "64", 2, 65536, NULL, "images per step" },
    { "lr", OPTIONS_REAL, &o.lr, "3e-3", 0, 10, NULL,
      "learning rate at the start, with cosine decay" },
    { "decay", OPTIONS_REAL, &o.decay, "0.05", 0, 10, NULL, "weight decay" },
    { "budget", OPTIONS_BYTES, &o.budget, "0", 0, 1e15, NULL,
      "limit for weights, optimiser state and activations; 0 sets no limit" },
    { "augment", OPTIONS_FLAG, &o.augment, NULL, 0, 0, NULL,
      "shift images by up to an eighth, and mirror half of them if they have colours" },
    { "save", OPTIONS_FILE, &o.save, NULL, 0, 0, NULL,
      "write the state of the training after each epoch; if the file exists, continue from it" },
    { "onnx", OPTIONS_FILE, &o.onnx, NULL, 0, 0, NULL,
      "export the trained network as FILE for onnxruntime: input \"pixels\", output \"logits\"" },
    { "log", OPTIONS_FILE, &o.log, NULL, 0, 0, NULL, "write a CSV file with one line per epoch" },
    { "seed", OPTIONS_INT, &o.seed, "0", 0, 1e9, NULL,
      "seed of weights and of the order of images" },
    { "threads", OPTIONS_INT, &o.threads, "1", 1, 1024, NULL, "number of threads" },
    { "help", OPTIONS_FLAG, &o.help, NULL, 0, 0, NULL, "print this text" },
};
static const options_table options = { "cnn", rows, sizeof rows / sizeof rows[0], 13, "", NULL,
                                       0,     NULL };
static const char *const groups[] = { "Data and files",
                                      "data augment save onnx log",
                                      "Model",
                                      "width blocks",
                                      "Training",
                                      "epochs batch lr decay seed",
                                      "Memory and speed",
                                      "budget threads",
                                      "Reports",
                                      "help",
                                      NULL };

/* Appends a residual block: conv, norm, relu, conv, norm, + x. If the block changes the size, x
 * first goes through a separate 1x1 convolution. */
static gckpt_tensor *block(gckpt_tensor *x, const char *stage, int64_t at, int64_t out, int stride)
{
    char name[5][64];
    static const char *const part[5] = { "conv1", "bn1", "conv2", "bn2", "shortcut" };
    for (int i = 0; i < 5; i++)
        snprintf(name[i], sizeof name[i], "%s.%i.%s", stage, (int)at, part[i]);
    gckpt_tensor *h = layers_conv(x, name[0], out, 3, stride);
    h = gckpt_relu(layers_batchnorm(h, name[1]));
    h = layers_batchnorm(layers_conv(h, name[2], out, 3, 1), name[3]);
    if (stride > 1 || layers_width(x) != out)
        x = layers_conv(x, name[4], out, 1, stride);
    return gckpt_relu(gckpt_add(h, x));
}

/* Builds the network of three stages. Each stage has half the height and width of the previous one,
 * and twice the channels. */
static void model(train_net *net, void *user)
{
    static const char *const stage[3] = { "stage1", "stage2", "stage3" };
    const images_set *s = (const images_set *)user;
    const gckpt_shape shape = gckpt_shape4(net->rows, s->height, s->width, s->channels);
    gckpt_tensor *h = layers_conv(gckpt_reshape(net->in[0], shape), "conv", o.width, 3, 1);
    h = gckpt_relu(layers_batchnorm(h, "bn"));
    for (int i = 0; i < 3; i++)
        for (int64_t k = 0; k < o.blocks; k++)
            h = block(h, stage[i], k, o.width << i, i > 0 && k == 0 ? 2 : 1);
    net->output = layers_dense(gckpt_global_average_pool(h), "fc", s->classes);
    net->loss = gckpt_cross_entropy(net->output, net->in[1], NULL, 0);
}

/* Exports the network with its trained weights. Returns 0, or 1 after an error message. */
static int export_network(gckpt_store *weights, images_set *s)
{
    train_net net;
    char error[ONNX_ERROR];
    memset(&net, 0, sizeof net);
    net.rows = 1;
    net.graph = gckpt_graph_new(weights, NULL);
    net.in[0] = gckpt_input(net.graph, "pixels", GCKPT_F32, gckpt_shape2(1, images_row_size(s)));
    net.in[1] = gckpt_input(net.graph, "label", GCKPT_I32, gckpt_shape1(1));
    model(&net, s);
    const onnx_output logits = { net.output, "logits" };
    const int failed = onnx_save(net.graph, weights, &logits, 1, o.onnx, error);
    if (failed)
        fprintf(stderr, "cnn: --onnx: %s\n", error);
    gckpt_graph_free(net.graph);
    return failed != 0;
}

static int run(images_set *s)
{
    /* pixels have no array (NULL), because images_batch writes the pixels of each batch */
    train_data data = { { { "pixels", GCKPT_F32, images_row_size(s), NULL },
                          { "label", GCKPT_I32, 0, s->label } },
                        s->rows,
                        s->validation };
    train_options t = train_defaults((float)o.lr);
    train_report r;
    gckpt_store_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.seed = (uint64_t)o.seed;
    t.hyper.weight_decay = (float)o.decay;
    t.schedule = SCHEDULE_COSINE;
    t.plan.batch = o.batch;
    t.plan.budget = (size_t)o.budget;
    t.plan.threads = (int)o.threads;
    t.epochs = (int)o.epochs;
    t.seed = (uint64_t)o.seed;
    t.batch = images_batch;
    t.save = o.save;
    t.log = o.log;
    t.user = s;
    s->padding = o.augment ? s->height / 8 : 0;
    s->flip = o.augment && s->channels == 3;
    gckpt_store *weights = gckpt_store_new(&desc);
    int failed = train_fit(weights, model, &data, &t, &r);
    if (failed)
        fprintf(stderr, "cnn: %s\n", r.error);
    else
        printf("in %zu bytes; weights %016llx\n", r.bytes,
               (unsigned long long)gckpt_store_hash(weights));
    if (!failed && o.onnx != NULL)
        failed = export_network(weights, s);
    gckpt_store_free(weights);
    return failed != 0;
}

int main(int argc, char **argv)
{
    images_set s;
    if (options_parse(&options, argc, argv) != 0)
        return 2;
    if (o.help) {
        printf("cnn - trains a small residual network on images within a byte budget\n\n"
               "Usage: cnn [--OPTION VALUE ..]\n\n"
               "Example:\n"
               "    cnn --data cifar-10-batches-bin --blocks 3 --augment --budget 20M\n\n");
        options_print_groups(&options, groups);
        return 0;
    }
    FILE *onnx = o.onnx != NULL ? fopen(o.onnx, "ab") : NULL; /* an error now, not after training */
    if (o.onnx != NULL && onnx == NULL) {
        fprintf(stderr, "cnn: --onnx: cannot write %s: %s\n", o.onnx, strerror(errno));
        return 2;
    }
    if (onnx != NULL)
        fclose(onnx);
    if (images_read_u8(&s, o.data) != 0) {
        fprintf(stderr, "cnn: %s\n", s.error);
        return 1;
    }
    printf("%.0f images of %.0f x %.0f x %.0f, %.0f of them for validation\n", (double)s.rows,
           (double)s.height, (double)s.width, (double)s.channels, (double)s.validation);
    const int failed = run(&s);
    images_free(&s);
    return failed;
}
