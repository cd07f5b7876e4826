/* decoders_saved.h - written by check_peft.py: FNV-1a 64 of files that gradckpt saved
 * and transformers and peft loaded, with the right logits; do not edit. */
#ifndef GOLDEN_DECODERS_SAVED_H
#define GOLDEN_DECODERS_SAVED_H
#include <stdint.h>

static const struct {
    const char *file;
    uint64_t hash;
} golden_saved[] = {
    { "ernie/config.json", 0x720869fab8a27af5u },
    { "ernie/model.safetensors", 0x402a21aa6ee2bb3bu },
    { "gemma4/config.json", 0x09a8483be74de357u },
    { "gemma4/model.safetensors", 0xfbde2a74eb244cd1u },
    { "gemma4_big/config.json", 0x91b5c2f8b14317bdu },
    { "gemma4_big/model.safetensors", 0x19caf335560d3564u },
    { "gemma4_lora/adapter_config.json", 0x656e627a46bd1bf6u },
    { "gemma4_lora/adapter_model.safetensors", 0xaf0e1a934a20c9e8u },
    { "glm/config.json", 0xd237fbfb7305ba45u },
    { "glm/model.safetensors", 0xd97c38b77de970a4u },
    { "glm4/config.json", 0x521727082f6ffc4du },
    { "glm4/model.safetensors", 0x37771fe1faaf3a54u },
    { "glm4_prefix/adapter_config.json", 0xcd0710e0a30536e3u },
    { "glm4_prefix/adapter_model.safetensors", 0x74ce0ef015853ae4u },
    { "granite/config.json", 0x42351f7028600475u },
    { "granite/model.safetensors", 0x87d5a729262c389fu },
    { "hunyuan/config.json", 0xd293c1af418f8fe8u },
    { "hunyuan/model.safetensors", 0xbc5aeb85645635efu },
    { "ministral3/config.json", 0xe1879345827d2adcu },
    { "ministral3/model.safetensors", 0x93a178003e7aa25eu },
    { "neox/config.json", 0x2cd2f67aea1b7f8fu },
    { "neox/model.safetensors", 0x6aa3db35a61e5429u },
    { "neox_lora/adapter_config.json", 0xc37a2ec511c266cfu },
    { "neox_lora/adapter_model.safetensors", 0xe5b2c7c5bdec90e3u },
    { "neox_old/config.json", 0xd7f8eedca7c1d490u },
    { "neox_old/model.safetensors", 0xf674926ecd266bd9u },
    { "olmo2/config.json", 0x47f99ab4096703a5u },
    { "olmo2/model.safetensors", 0x8d20d6bf29dec7dau },
    { "phi3/config.json", 0x1d7923d9cf8dec6au },
    { "phi3/model.safetensors", 0x60dcfcc2cb33e1e3u },
    { "phi3_both/config.json", 0x8ea8c392b66b90bfu },
    { "phi3_both/model.safetensors", 0x2b813a99add741eeu },
    { "phi3_long/config.json", 0xb9a9b3b291174a90u },
    { "phi3_long/model.safetensors", 0xe772c0840683484au },
    { "phi3_lora/adapter_config.json", 0x45ecb6abdf51a598u },
    { "phi3_lora/adapter_model.safetensors", 0x77ec6900990fc979u },
    { "phi3_short/config.json", 0xcd38bcedb2ea62e7u },
    { "phi3_short/model.safetensors", 0xacee72d2443b59dfu },
    { "qwen35/config.json", 0x83565ef9cb950422u },
    { "qwen35/model.safetensors", 0x33b0cfab57dbf699u },
    { "qwen35_lora/adapter_config.json", 0xba30ef2b03b7a326u },
    { "qwen35_lora/adapter_model.safetensors", 0x6dc94e80d95a8c60u },
};
#endif
