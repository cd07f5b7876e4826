/* decoders.h - written by decoders.py with PyTorch, transformers and peft in float64; do not
 * edit. */
#ifndef GOLDEN_DECODERS_H
#define GOLDEN_DECODERS_H
#include "gpt2.h"

#define GOLDEN_EVERY 8
static const double decoders_losses_phi3[10] = {
    5.5210355863841745, 5.2056910860336387, 4.9598382884565559, 4.7538656127763579,
    4.5688315310491774, 4.4036974263042534, 4.2580001041328472, 4.1307195268240573,
    4.0150482434960653, 3.9062794794113564
};
static const int32_t decoders_generated_phi3[32] = {
    106, 71, 4, 50, 50, 71, 4, 115, 17, 49, 45, 76, 92, 69, 76, 78, 15, 69, 45, 7, 1, 1, 1, 103,
    33, 15, 92, 50, 7, 45, 33, 45
};
static const double decoders_losses_phi3_short[10] = {
    5.6513320660733113, 5.3775879651934648, 5.1564526065585978, 4.9610635263659297,
    4.7862083256741919, 4.6254417007657782, 4.4757424955029101, 4.3320476562455825,
    4.1956845446149602, 4.0753469458857623
};
static const int32_t decoders_generated_phi3_short[32] = {
    106, 107, 4, 50, 29, 16, 61, 109, 95, 30, 96, 62, 16, 2, 79, 16, 2, 79, 50, 71, 11, 79, 42,
    84, 10, 7, 79, 16, 59, 110, 79, 71
};
static const double decoders_losses_phi3_long[10] = {
    5.4344038746489201, 5.1749226857442876, 4.9565648180239537, 4.7917084446627607,
    4.6520107320558131, 4.5115922524175112, 4.3777191482597413, 4.2665839006048394,
    4.1564353535484422, 4.0428887425268094
};
static const int32_t decoders_generated_phi3_long[32] = {
    106, 10, 69, 101, 10, 114, 35, 71, 71, 45, 117, 54, 107, 97, 71, 42, 96, 50, 96, 96, 96, 84,
    113, 115, 69, 101, 39, 71, 45, 117, 39, 115
};
static const double decoders_losses_phi3_both[10] = {
    5.53177432547841, 5.2517914847703686, 5.0325782746495502, 4.8449314527619745,
    4.6738731543535197, 4.5225096150696062, 4.3781953664938849, 4.2451326126260813,
    4.1208455318235853, 4.0001046746868685
};
static const double decoders_losses_phi3_lora[10] = {
    5.5779674839533007, 5.5007599604199866, 5.4303904323325121, 5.3649125021844446,
    5.3033973240516197, 5.2434211808097331, 5.1832690121316158, 5.1225520471613581,
    5.0596636117320761, 4.9936195422914462
};
static const int32_t decoders_generated_phi3_lora[32] = {
    106, 114, 50, 71, 7, 45, 4, 4, 4, 39, 71, 4, 50, 71, 53, 118, 97, 96, 107, 14, 115, 84, 50,
    42, 116, 50, 71, 53, 77, 50, 42, 116
};
static const struct {
    const char *name, *weights; /* the folder that has them */
    const char *base; /* of an adapter; NULL for a model */
    const double *losses;
    const int32_t *made; /* NULL for none */
} golden_decoders[] = {
    { "phi3", "phi3", NULL, decoders_losses_phi3,
      decoders_generated_phi3 },
    { "phi3_short", "phi3", NULL, decoders_losses_phi3_short,
      decoders_generated_phi3_short },
    { "phi3_long", "phi3", NULL, decoders_losses_phi3_long,
      decoders_generated_phi3_long },
    { "phi3_both", "phi3", NULL, decoders_losses_phi3_both,
      NULL },
    { "phi3_lora", "phi3_lora", "phi3", decoders_losses_phi3_lora,
      decoders_generated_phi3_lora },
};
#endif
