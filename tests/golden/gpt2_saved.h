/* gpt2_saved.h - written by check_peft.py: FNV-1a 64 of files of ours that transformers
 * and peft have loaded, with the right logits; do not edit. */
#ifndef GOLDEN_GPT2_SAVED_H
#define GOLDEN_GPT2_SAVED_H
#include <stdint.h>

static const struct {
    const char *file;
    uint64_t hash;
} golden_saved[] = {
    { "model/config.json", 0xd455907520ba765eu },
    { "model/model.safetensors", 0x1c4d2eca2b96496du },
};
#endif
