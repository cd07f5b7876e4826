/* gpt2_saved.h - written by check_peft.py: FNV-1a 64 of files that gradckpt saved
 * and transformers and peft loaded, with the right logits; do not edit. */
#ifndef GOLDEN_GPT2_SAVED_H
#define GOLDEN_GPT2_SAVED_H
#include <stdint.h>

static const struct {
    const char *file;
    uint64_t hash;
} golden_saved[] = {
    { "adaption/adapter_config.json", 0x5eee87fcc065bf61u },
    { "adaption/adapter_model.safetensors", 0x6bc6db89a7f365ebu },
    { "biases/adapter_config.json", 0x5a1153793b842e69u },
    { "biases/adapter_model.safetensors", 0xd4e81e2a951f9b58u },
    { "lora/adapter_config.json", 0x392d3ff9ebb9ef30u },
    { "lora/adapter_model.safetensors", 0xf0285522591a2a95u },
    { "model/config.json", 0xda0bcc02856330c1u },
    { "model/model.safetensors", 0xd36fb4042f309960u },
    { "patterns/adapter_config.json", 0x54bc104281f6c3c3u },
    { "patterns/adapter_model.safetensors", 0x5c90c10e1df04e8eu },
    { "prefix/adapter_config.json", 0xbcc4040a1d8bfa2cu },
    { "prefix/adapter_model.safetensors", 0x6ba057a86bd85870u },
    { "prompt/adapter_config.json", 0xfdb6d8d0ac569be9u },
    { "prompt/adapter_model.safetensors", 0xb3b4e866fdfeb892u },
};
#endif
