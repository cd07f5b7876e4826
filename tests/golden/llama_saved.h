/* llama_saved.h - written by check_peft.py: FNV-1a 64 of files of ours that transformers
 * and peft have loaded, with the right logits; do not edit. */
#ifndef GOLDEN_LLAMA_SAVED_H
#define GOLDEN_LLAMA_SAVED_H
#include <stdint.h>

static const struct {
    const char *file;
    uint64_t hash;
} golden_saved[] = {
    { "adaption/adapter_config.json", 0xac995bbcd780e12du },
    { "adaption/adapter_model.safetensors", 0x9184f928184a2676u },
    { "biases/adapter_config.json", 0x197cbb978d10152bu },
    { "biases/adapter_model.safetensors", 0x8309dcd012691cb0u },
    { "gemma/config.json", 0xb1570456c0d9e1dau },
    { "gemma/model.safetensors", 0x245dab9650159fe1u },
    { "gemma_lora/adapter_config.json", 0xaaadda6275c3ca77u },
    { "gemma_lora/adapter_model.safetensors", 0x067eabd1e8e12791u },
    { "gqa/config.json", 0xacfb39aca43e1db0u },
    { "gqa/model.safetensors", 0xe61e5fb560ff8642u },
    { "linear/config.json", 0x34a91131668c9a21u },
    { "linear/model.safetensors", 0x66a0e7af10c66698u },
    { "lora/adapter_config.json", 0xfae4f52ed29c3bf3u },
    { "lora/adapter_model.safetensors", 0x6a1e425c3198ba68u },
    { "mha/config.json", 0xf93aab1d55ecfa5fu },
    { "mha/model.safetensors", 0x63f4365028d71b6au },
    { "mistral/config.json", 0x50f6bf631dc9fdafu },
    { "mistral/model.safetensors", 0xd12f61b03889d2b3u },
    { "mqa/config.json", 0x0314306fd397b475u },
    { "mqa/model.safetensors", 0x878a45bee6dacf82u },
    { "patterns/adapter_config.json", 0x4faab352f823950au },
    { "patterns/adapter_model.safetensors", 0xcb5b40826d244db3u },
    { "prefix/adapter_config.json", 0xcbe8f10aa88e898eu },
    { "prefix/adapter_model.safetensors", 0x2b77b690178c1ad2u },
    { "prompt/adapter_config.json", 0x473c839cde59440au },
    { "prompt/adapter_model.safetensors", 0xfa0bbf46cf65b4e3u },
    { "qwen2/config.json", 0x70ac0346cee51e50u },
    { "qwen2/model.safetensors", 0xfbaaecad325641b4u },
    { "qwen3/config.json", 0xb3f1f0296c7c4df0u },
    { "qwen3/model.safetensors", 0x835202811650224bu },
    { "smollm3/config.json", 0x04cf53c383ebd6fcu },
    { "smollm3/model.safetensors", 0xc5eb6a6e99d51876u },
    { "yarn/config.json", 0x0e80f863dd100ce7u },
    { "yarn/model.safetensors", 0xf80fe274d39ed8f1u },
};
#endif
