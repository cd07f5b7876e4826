/* adapters.h - written by adapters.py with PyTorch, transformers and peft in float64; do not
 * edit. */
#ifndef GOLDEN_ADAPTERS_H
#define GOLDEN_ADAPTERS_H
#include <stdint.h>

static const double adapters_losses_gpt2_dora[10] = {
    5.2534291517281977, 5.090133769814849, 4.934562931304554, 4.7906112919463339,
    4.6608682219083901, 4.5440094626922587, 4.4368344019778698, 4.3371663874738804,
    4.2435546561827548, 4.1546711059723318
};
static const double adapters_losses_gpt2_saved[10] = {
    5.3276780474730447, 5.1709529486675807, 5.0223344680451243, 4.883108294963721,
    4.7537442518667046, 4.6337022940769588, 4.5216533845016214, 4.4159902826622126,
    4.3153476252149439, 4.2187470275696999
};
static const double adapters_losses_llama_dora[10] = {
    5.4251528919607512, 5.2797787178581901, 5.1444848175611666, 5.016903821033087,
    4.8946354604000826, 4.7764737139537781, 4.6652575399614999, 4.5668516110344317,
    4.4778089073057057, 4.3945131523609406
};
static const double adapters_losses_llama_saved[10] = {
    5.6184583761652496, 5.4264109472151256, 5.2393147730724197, 5.0577596535391933,
    4.8819314168002625, 4.7114542925012817, 4.5459835304086589, 4.3853913142706809,
    4.2297389574408903, 4.0790667630434276
};
static const double adapters_losses_llama_tied[10] = {
    5.5799855433425938, 5.1779494608385672, 4.8459525564819907, 4.5593249128160824,
    4.304392776857342, 4.0747397674332104, 3.863232586363138, 3.6661453056123081,
    3.4794984908131443, 3.30199737882739
};
static const double adapters_losses_llama_module[10] = {
    5.7005344855161368, 5.0811949234890044, 4.5725712031835393, 4.1399980703163131,
    3.7608884337159116, 3.4196546472086693, 3.1109251189797575, 2.8365738644644876,
    2.5887643525400814, 2.3589583316158516
};
static const int32_t adapters_generated_gpt2_dora[32] = {
    81, 81, 81, 45, 45, 45, 45, 45, 45, 45, 45, 45, 45, 45, 45, 45, 45, 81, 81, 45, 45, 81, 45,
    81, 45, 45, 45, 81, 45, 45, 81, 45
};
static const int32_t adapters_generated_gpt2_saved[32] = {
    88, 80, 77, 45, 45, 45, 45, 45, 45, 45, 81, 45, 45, 32, 27, 81, 81, 15, 81, 81, 84, 81, 81,
    6, 106, 45, 77, 45, 81, 81, 45, 73
};
static const int32_t adapters_generated_llama_dora[32] = {
    109, 109, 109, 109, 109, 109, 109, 109, 109, 109, 109, 109, 109, 109, 115, 115, 115, 115,
    115, 20, 20, 20, 20, 20, 20, 20, 20, 20, 20, 20, 20, 20
};
static const int32_t adapters_generated_llama_saved[32] = {
    87, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55,
    55, 55, 55, 55, 55, 55, 55, 55, 55
};
static const int32_t adapters_generated_llama_tied[32] = {
    55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55, 55,
    55, 55, 55, 55, 55, 55, 55, 55, 55
};
static const int32_t adapters_generated_llama_module[32] = {
    25, 5, 104, 122, 101, 104, 115, 25, 67, 68, 67, 68, 124, 24, 32, 47, 119, 60, 114, 96, 12,
    53, 104, 7, 67, 1, 124, 24, 53, 104, 7, 67
};
static const struct {
    const char *name, *base;
    const double *losses;
    const int32_t *made;
} golden_adapters[] = {
    { "gpt2_dora", "tests/golden/gpt2/model", adapters_losses_gpt2_dora,
      adapters_generated_gpt2_dora },
    { "gpt2_saved", "tests/golden/gpt2/model", adapters_losses_gpt2_saved,
      adapters_generated_gpt2_saved },
    { "llama_dora", "tests/golden/llama/qwen2", adapters_losses_llama_dora,
      adapters_generated_llama_dora },
    { "llama_saved", "tests/golden/llama/gqa", adapters_losses_llama_saved,
      adapters_generated_llama_saved },
    { "llama_tied", "tests/golden/llama/gqa", adapters_losses_llama_tied,
      adapters_generated_llama_tied },
    { "llama_module", "tests/golden/llama/mha", adapters_losses_llama_module,
      adapters_generated_llama_module },
};
#endif
