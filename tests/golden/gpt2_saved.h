#ifndef GOLDEN_GPT2_SAVED_H
#define GOLDEN_GPT2_SAVED_H
#include <stdint.h>
static const struct {
    const char *file;
    uint64_t hash;
} golden_saved[] = { { "", 0 } };
#endif
