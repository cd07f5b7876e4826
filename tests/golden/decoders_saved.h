/* decoders_saved.h - written by check_peft.py: FNV-1a 64 of files that gradckpt saved
 * and transformers and peft loaded, with the right logits; do not edit. */
#ifndef GOLDEN_DECODERS_SAVED_H
#define GOLDEN_DECODERS_SAVED_H
#include <stdint.h>

static const struct {
    const char *file;
    uint64_t hash;
} golden_saved[] = {
    { "phi3/config.json", 0x1d7923d9cf8dec6au },
    { "phi3/model.safetensors", 0xb02eb3130c57ff58u },
    { "phi3_both/config.json", 0x8ea8c392b66b90bfu },
    { "phi3_both/model.safetensors", 0xb2b18e418d90a4bcu },
    { "phi3_long/config.json", 0xb9a9b3b291174a90u },
    { "phi3_long/model.safetensors", 0x7e2077dc114a3507u },
    { "phi3_lora/adapter_config.json", 0x45ecb6abdf51a598u },
    { "phi3_lora/adapter_model.safetensors", 0x3a48c575c286444du },
    { "phi3_short/config.json", 0xcd38bcedb2ea62e7u },
    { "phi3_short/model.safetensors", 0x29c9bc5c830c80e0u },
};
#endif
