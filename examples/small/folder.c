/* folder.c - trains a convolutional net to classify a folder of pictures, train/CLASS/NAME.pgm and
 * val/CLASS/NAME.pgm. Pictures stay in memory as one byte per pixel and are randomly shifted for
 * training. If no folder is given, the program first writes the digits of digits.h as such a
 * folder, build/pictures. */
#define _POSIX_C_SOURCE 200809L
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "../layers.h"
#include "../train.h"

#include "../images.h"
#include <sys/stat.h>

static void model(train_net *net, void *user)
{
    const images_set *s = (const images_set *)user;
    gckpt_tensor *h = gckpt_reshape(
        net->in[0], gckpt_shape4(net->rows, images_side(s, 0), images_side(s, 1), s->channels));
    h = gckpt_relu(layers_conv(h, "conv1", 16, 3, 1));
    h = gckpt_relu(layers_conv(h, "conv2", 32, 3, 2));
    h = gckpt_relu(layers_conv(h, "conv3", 64, 3, 2));
    net->output = layers_dense(gckpt_global_average_pool(h), "fc", s->classes);
    net->loss = gckpt_cross_entropy(net->output, net->in[1], NULL, 0);
}

/* Writes digit 17, a 3, as FOLDER/train/3/17.pgm, and so on. The last 360 digits, written by other
 * people, go to FOLDER/val. Returns `folder`. */
static const char *digits(const char *folder)
{
    char path[400];
    mkdir(folder, 0777);
    for (int k = 0; k < 22; k++) { /* k selects the folder: train, val, train/0, val/0, .. */
        snprintf(path, sizeof path, k < 2 ? "%s/%s" : "%s/%s/%i", folder, k % 2 ? "val" : "train",
                 k / 2 - 1);
        mkdir(path, 0777);
    }
    for (int i = 0; i < DIGITS; i++) {
        snprintf(path, sizeof path, "%s/%s/%c/%i.pgm", folder, i < DIGITS - 360 ? "train" : "val",
                 digits_rows[i][64], i);
        FILE *f = fopen(path, "wb");
        if (f == NULL)
            break; /* images_read_u8 will report the missing file */
        fprintf(f, "P5 8 8 255\n");
        for (int k = 0; k < 64; k++)
            fputc(15 * (digits_rows[i][k] - 'A'), f);
        fclose(f);
    }
    return folder;
}

int main(int argc, char **argv)
{
    images_set s;
    if (images_read_u8(&s, argc > 1 ? argv[1] : digits("build/pictures")) != 0) {
        fprintf(stderr, "%s\n", s.error);
        return 1;
    }
    s.padding = s.height / 8;
    /* pixels have no array (NULL), because images_batch writes the pixels of each batch */
    train_data data = { { { "pixels", GCKPT_F32, images_row_size(&s), NULL },
                          { "label", GCKPT_I32, 0, s.label } },
                        s.rows,
                        s.validation };
    train_options o = train_defaults(3e-3f);
    train_report r;
    o.schedule = SCHEDULE_ONE_CYCLE;
    o.batch = images_batch;
    o.user = &s;
    gckpt_store *weights = gckpt_store_new(NULL);
    const int failed = train_fit(weights, model, &data, &o, &r);
    printf("%s%.0f pictures of %.0f classes in %.0f bytes\n", r.error, (double)s.rows,
           (double)s.classes, (double)(s.rows * images_size(&s)));
    gckpt_store_free(weights);
    images_free(&s);
    return failed || (argc < 2 && r.accuracy < 0.85);
}
