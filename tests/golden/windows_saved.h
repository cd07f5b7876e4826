/* windows_saved.h - written by check_peft.py: FNV-1a 64 of files of ours that transformers
 * and peft have loaded, with the right logits; do not edit. */
#ifndef GOLDEN_WINDOWS_SAVED_H
#define GOLDEN_WINDOWS_SAVED_H
#include <stdint.h>

static const struct {
    const char *file;
    uint64_t hash;
} golden_saved[] = {
    { "all/adapter_config.json", 0x771610fa9086f590u },
    { "all/adapter_model.safetensors", 0xede2df1835876105u },
    { "gemma2/config.json", 0x3e30f3d95b93bceeu },
    { "gemma2/model.safetensors", 0xd54e7b681bdb552fu },
    { "gemma2_old/config.json", 0x73e1bf040e6e63f8u },
    { "gemma2_old/model.safetensors", 0x32a51ead08e70eacu },
    { "gemma3/config.json", 0xa5a91f4e62341269u },
    { "gemma3/model.safetensors", 0x68f6ab5b5cd476ecu },
    { "gemma3_capped/config.json", 0x5ae7ad90df7ea6fdu },
    { "gemma3_capped/model.safetensors", 0x8ecbfb8792993482u },
    { "gemma3_old/config.json", 0x57e70ca1a036a8f1u },
    { "gemma3_old/model.safetensors", 0x68f6ab5b5cd476ecu },
    { "lora/adapter_config.json", 0x92cfb3d078c9fe79u },
    { "lora/adapter_model.safetensors", 0x452422835d59cb87u },
    { "mistral/config.json", 0xd0980f04f0136379u },
    { "mistral/model.safetensors", 0xaf54ac050c9afb7eu },
    { "prefix/adapter_config.json", 0x9c46b2d8f4053843u },
    { "prefix/adapter_model.safetensors", 0x9ee545b17c626589u },
    { "prompt/adapter_config.json", 0x7de83320339c6136u },
    { "prompt/adapter_model.safetensors", 0x3b11c9cd3f6ae817u },
    { "qwen2/config.json", 0x02366eed544b8465u },
    { "qwen2/model.safetensors", 0x3b5848e7ce2d6cfcu },
    { "qwen3/config.json", 0x6800c0198a4e94adu },
    { "qwen3/model.safetensors", 0x813d0c709576b642u },
    { "smollm3/config.json", 0x306494338680cbc3u },
    { "smollm3/model.safetensors", 0x6b78c83c7dd4254eu },
};
#endif
