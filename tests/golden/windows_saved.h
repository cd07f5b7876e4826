/* windows_saved.h - written by check_peft.py: FNV-1a 64 of files that gradckpt saved
 * and transformers and peft loaded, with the right logits; do not edit. */
#ifndef GOLDEN_WINDOWS_SAVED_H
#define GOLDEN_WINDOWS_SAVED_H
#include <stdint.h>

static const struct {
    const char *file;
    uint64_t hash;
} golden_saved[] = {
    { "all/adapter_config.json", 0x771610fa9086f590u },
    { "all/adapter_model.safetensors", 0x4ba0c993c708d470u },
    { "gemma2/config.json", 0x3e30f3d95b93bceeu },
    { "gemma2/model.safetensors", 0xbbb7e67d35ccd808u },
    { "gemma2_old/config.json", 0x73e1bf040e6e63f8u },
    { "gemma2_old/model.safetensors", 0xa25c83fb141aa7b8u },
    { "gemma3/config.json", 0xa5a91f4e62341269u },
    { "gemma3/model.safetensors", 0x7d3aa19db7464792u },
    { "gemma3_capped/config.json", 0x5ae7ad90df7ea6fdu },
    { "gemma3_capped/model.safetensors", 0x6e74945d66bfbc89u },
    { "gemma3_old/config.json", 0x57e70ca1a036a8f1u },
    { "gemma3_old/model.safetensors", 0x7d3aa19db7464792u },
    { "lora/adapter_config.json", 0x92cfb3d078c9fe79u },
    { "lora/adapter_model.safetensors", 0x805c3662bee0d2bcu },
    { "mistral/config.json", 0xd0980f04f0136379u },
    { "mistral/model.safetensors", 0x9ae1e9ade621a3c4u },
    { "prefix/adapter_config.json", 0x9c46b2d8f4053843u },
    { "prefix/adapter_model.safetensors", 0xf1aeaf93e0247e38u },
    { "prompt/adapter_config.json", 0x7de83320339c6136u },
    { "prompt/adapter_model.safetensors", 0xd7cc27c4d30fadfbu },
    { "qwen2/config.json", 0x02366eed544b8465u },
    { "qwen2/model.safetensors", 0xd66c13a64afae27au },
    { "qwen3/config.json", 0x6800c0198a4e94adu },
    { "qwen3/model.safetensors", 0x7cadc29b6dd0ab85u },
    { "smollm3/config.json", 0x306494338680cbc3u },
    { "smollm3/model.safetensors", 0xb37751e6e9d8b8bbu },
};
#endif
