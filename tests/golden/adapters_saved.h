/* adapters_saved.h - written by check_peft.py: FNV-1a 64 of files that gradckpt saved
 * and transformers and peft loaded, with the right logits; do not edit. */
#ifndef GOLDEN_ADAPTERS_SAVED_H
#define GOLDEN_ADAPTERS_SAVED_H
#include <stdint.h>

static const struct {
    const char *file;
    uint64_t hash;
} golden_saved[] = {
    { "gpt2_dora/adapter_config.json", 0x8e12593f6271759cu },
    { "gpt2_dora/adapter_model.safetensors", 0xeee42c6fc444ede2u },
    { "gpt2_saved/adapter_config.json", 0xe9b6ea7b58a5281eu },
    { "gpt2_saved/adapter_model.safetensors", 0x8a7dc50997392abau },
    { "llama_dora/adapter_config.json", 0x9cd252ef89552413u },
    { "llama_dora/adapter_model.safetensors", 0x3a085675f28be016u },
    { "llama_module/adapter_config.json", 0x24812852be10d128u },
    { "llama_module/adapter_model.safetensors", 0x4061ac6605c5d12fu },
    { "llama_saved/adapter_config.json", 0xfc1e0c700aab06f6u },
    { "llama_saved/adapter_model.safetensors", 0x92cd837777ab9610u },
    { "llama_tied/adapter_config.json", 0x23d4b975d0fd6a4eu },
    { "llama_tied/adapter_model.safetensors", 0x5219611fe3a1aba3u },
};
#endif
