/* gpt2_saved.h - written by check_peft.py: FNV-1a 64 of files of ours that transformers
 * and peft have loaded, with the right logits; do not edit. */
#ifndef GOLDEN_GPT2_SAVED_H
#define GOLDEN_GPT2_SAVED_H
#include <stdint.h>

static const struct {
    const char *file;
    uint64_t hash;
} golden_saved[] = {
    { "adaption/adapter_config.json", 0x5eee87fcc065bf61u },
    { "adaption/adapter_model.safetensors", 0xcf2204a2e666cccdu },
    { "biases/adapter_config.json", 0x5a1153793b842e69u },
    { "biases/adapter_model.safetensors", 0x14b3e06d1ae8cd39u },
    { "lora/adapter_config.json", 0x392d3ff9ebb9ef30u },
    { "lora/adapter_model.safetensors", 0xd12b9fd4c4a9b5e5u },
    { "model/config.json", 0xda0bcc02856330c1u },
    { "model/model.safetensors", 0x1c4d2eca2b96496du },
    { "patterns/adapter_config.json", 0x54bc104281f6c3c3u },
    { "patterns/adapter_model.safetensors", 0x07b2627009394d19u },
    { "prefix/adapter_config.json", 0xbcc4040a1d8bfa2cu },
    { "prefix/adapter_model.safetensors", 0xecfc1eb2a05005a6u },
    { "prompt/adapter_config.json", 0xfdb6d8d0ac569be9u },
    { "prompt/adapter_model.safetensors", 0xd39db095589bf700u },
};
#endif
