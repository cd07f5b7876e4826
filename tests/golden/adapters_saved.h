/* adapters_saved.h - written by check_peft.py: FNV-1a 64 of files of ours that transformers
 * and peft have loaded, with the right logits; do not edit. */
#ifndef GOLDEN_ADAPTERS_SAVED_H
#define GOLDEN_ADAPTERS_SAVED_H
#include <stdint.h>

static const struct {
    const char *file;
    uint64_t hash;
} golden_saved[] = {
    { "gpt2_dora/adapter_config.json", 0x8e12593f6271759cu },
    { "gpt2_dora/adapter_model.safetensors", 0xdf2437f494dcbe11u },
    { "gpt2_saved/adapter_config.json", 0xe9b6ea7b58a5281eu },
    { "gpt2_saved/adapter_model.safetensors", 0x3b706f576587695fu },
    { "llama_dora/adapter_config.json", 0x9cd252ef89552413u },
    { "llama_dora/adapter_model.safetensors", 0x3fcfc48448252cdfu },
    { "llama_module/adapter_config.json", 0x24812852be10d128u },
    { "llama_module/adapter_model.safetensors", 0x693b24517d58bb15u },
    { "llama_saved/adapter_config.json", 0xfc1e0c700aab06f6u },
    { "llama_saved/adapter_model.safetensors", 0x4946c0afd4441db1u },
    { "llama_tied/adapter_config.json", 0x23d4b975d0fd6a4eu },
    { "llama_tied/adapter_model.safetensors", 0xdba2d45dd6385c8au },
};
#endif
