/* llama_saved.h - written by check_peft.py: FNV-1a 64 of files that gradckpt saved
 * and transformers and peft loaded, with the right logits; do not edit. */
#ifndef GOLDEN_LLAMA_SAVED_H
#define GOLDEN_LLAMA_SAVED_H
#include <stdint.h>

static const struct {
    const char *file;
    uint64_t hash;
} golden_saved[] = {
    { "adaption/adapter_config.json", 0xac995bbcd780e12du },
    { "adaption/adapter_model.safetensors", 0xc07e0c84ba43058au },
    { "biases/adapter_config.json", 0x197cbb978d10152bu },
    { "biases/adapter_model.safetensors", 0x2ed867d6743424ecu },
    { "gemma/config.json", 0xb1570456c0d9e1dau },
    { "gemma/model.safetensors", 0x059acc19d69c6fdeu },
    { "gemma_lora/adapter_config.json", 0xaaadda6275c3ca77u },
    { "gemma_lora/adapter_model.safetensors", 0xf626b8463cc57b44u },
    { "gqa/config.json", 0xacfb39aca43e1db0u },
    { "gqa/model.safetensors", 0xf1bf23e39ef35dd9u },
    { "linear/config.json", 0x34a91131668c9a21u },
    { "linear/model.safetensors", 0xa87718ee74a501bcu },
    { "lora/adapter_config.json", 0xfae4f52ed29c3bf3u },
    { "lora/adapter_model.safetensors", 0xdfcd5d8f322a74aeu },
    { "mha/config.json", 0xf93aab1d55ecfa5fu },
    { "mha/model.safetensors", 0xc71d323da90bebc0u },
    { "mistral/config.json", 0x50f6bf631dc9fdafu },
    { "mistral/model.safetensors", 0x0e0fee77119cf004u },
    { "mqa/config.json", 0x0314306fd397b475u },
    { "mqa/model.safetensors", 0xbb62e34efa579a34u },
    { "patterns/adapter_config.json", 0x4faab352f823950au },
    { "patterns/adapter_model.safetensors", 0xb8cfc784dba315e0u },
    { "prefix/adapter_config.json", 0xcbe8f10aa88e898eu },
    { "prefix/adapter_model.safetensors", 0x5496ea23c0da985eu },
    { "prompt/adapter_config.json", 0x473c839cde59440au },
    { "prompt/adapter_model.safetensors", 0x844474d53f3d6a1du },
    { "qwen2/config.json", 0x70ac0346cee51e50u },
    { "qwen2/model.safetensors", 0xbedc6345995fb7e4u },
    { "qwen3/config.json", 0xb3f1f0296c7c4df0u },
    { "qwen3/model.safetensors", 0xc9a710fce31ba380u },
    { "smollm3/config.json", 0x04cf53c383ebd6fcu },
    { "smollm3/model.safetensors", 0x08f2b53610f0667bu },
    { "yarn/config.json", 0x0e80f863dd100ce7u },
    { "yarn/model.safetensors", 0xb34f26167e2b28afu },
};
#endif
