/* decoders.h - written by decoders.py with PyTorch, transformers and peft in float64; do not
 * edit. */
#ifndef GOLDEN_DECODERS_H
#define GOLDEN_DECODERS_H
#include "gpt2.h"

#define GOLDEN_EVERY 8
static const double decoders_losses_phi3[10] = {
    5.7812679777967988, 5.5131390877529851, 5.2615702489905809, 5.0399366945928801,
    4.8564009904627934, 4.7032862055262648, 4.5515736483218054, 4.4058246422826413,
    4.2751417791930395, 4.1497264688577076
};
static const int32_t decoders_generated_phi3[32] = {
    107, 120, 69, 109, 120, 120, 0, 13, 120, 12, 8, 4, 69, 0, 76, 17, 52, 93, 56, 8, 126, 4, 69,
    109, 69, 98, 51, 112, 4, 76, 69, 32
};
static const double decoders_losses_granite[10] = {
    7.6560318316487352, 7.327692744731058, 7.006722341799513, 6.6957734914365163,
    6.397276505208616, 6.1124868379525381, 5.8412419176084471, 5.5823147174725118,
    5.3340729521081398, 5.0949376134908926
};
static const int32_t decoders_generated_granite[32] = {
    3, 86, 127, 100, 122, 80, 110, 88, 3, 35, 34, 100, 122, 80, 110, 88, 3, 35, 94, 12, 108, 94,
    12, 108, 94, 12, 108, 94, 12, 108, 94, 12
};
static const double decoders_losses_olmo2[10] = {
    5.4891284524234063, 5.2616452629003438, 5.0708189821294685, 4.8989432753071043,
    4.7393871975442146, 4.5884107658491571, 4.440517314027959, 4.2944886622355281,
    4.1563552452991352, 4.03850519744873
};
static const int32_t decoders_generated_olmo2[32] = {
    0, 0, 40, 45, 0, 103, 17, 0, 0, 0, 59, 92, 12, 98, 1, 59, 98, 89, 89, 11, 87, 95, 60, 89, 95,
    27, 89, 91, 7, 103, 49, 102
};
static const double decoders_losses_glm[10] = {
    5.36824830706672, 5.0849231825044763, 4.8377747788576215, 4.6277747526978272,
    4.4427732982521313, 4.279269687593195, 4.1308756983971007, 3.9889799954656353,
    3.852199150657373, 3.7199944130061935
};
static const int32_t decoders_generated_glm[32] = {
    62, 65, 37, 98, 36, 97, 36, 97, 36, 97, 36, 63, 89, 4, 69, 49, 105, 115, 124, 89, 54, 69, 71,
    5, 6, 80, 34, 43, 127, 68, 4, 78
};
static const double decoders_losses_glm4[10] = {
    5.6209263408744965, 5.3411217650283183, 5.1071570779978712, 4.9063203420830757,
    4.7322218443889081, 4.5688897735996719, 4.4100659226216727, 4.2624718345469432,
    4.1268058651720372, 4.0004114691389727
};
static const int32_t decoders_generated_glm4[32] = {
    13, 79, 54, 124, 106, 99, 124, 66, 102, 66, 124, 106, 60, 102, 66, 66, 124, 106, 89, 60, 90,
    66, 124, 0, 106, 102, 66, 102, 66, 66, 79, 106
};
static const double decoders_losses_ministral3[10] = {
    5.5737517886688721, 5.308731771197956, 5.0808279752592895, 4.8774527556725538,
    4.6915923758091962, 4.5209072702184416, 4.3628452474280719, 4.2167161439750034,
    4.0813414880641492, 3.960624244692295
};
static const int32_t decoders_generated_ministral3[32] = {
    104, 104, 104, 71, 91, 4, 95, 48, 71, 91, 78, 30, 63, 84, 71, 122, 48, 14, 116, 107, 78, 87,
    30, 119, 49, 119, 30, 63, 78, 104, 68, 85
};
static const double decoders_losses_hunyuan[10] = {
    5.5132224570970081, 5.1941836507709587, 4.9514912761478893, 4.7472329894792855,
    4.5693264762467516, 4.4065216130962908, 4.2537846951355824, 4.1087139666463379,
    3.9725845405388887, 3.8470248662279247
};
static const int32_t decoders_generated_hunyuan[32] = {
    0, 23, 23, 43, 7, 78, 23, 23, 23, 23, 41, 117, 117, 117, 117, 117, 117, 117, 55, 96, 96, 96,
    96, 96, 96, 96, 96, 96, 96, 96, 96, 96
};
static const double decoders_losses_ernie[10] = {
    5.5109032779082696, 5.2466389273150043, 5.0185888696054741, 4.8300800935470845,
    4.6618195317032125, 4.5031652022630988, 4.3509861474732103, 4.205164490922531,
    4.06593567235603, 3.9335839652619113
};
static const int32_t decoders_generated_ernie[32] = {
    11, 11, 125, 125, 125, 125, 64, 21, 105, 49, 125, 54, 112, 21, 125, 60, 5, 106, 5, 5, 5, 5,
    106, 5, 54, 54, 54, 96, 96, 96, 11, 11
};
static const double decoders_losses_neox[10] = {
    5.6526014963545217, 5.4811804425548418, 5.3143634287896351, 5.1518007409247444,
    4.9937121340234585, 4.8406123175477473, 4.6930742976826743, 4.5516003389564563,
    4.4166008018986487, 4.2883350509506757
};
static const int32_t decoders_generated_neox[32] = {
    62, 62, 122, 95, 51, 122, 95, 14, 53, 62, 122, 56, 76, 64, 122, 56, 42, 51, 122, 56, 56, 14,
    53, 62, 14, 53, 62, 122, 56, 42, 51, 122
};
static const double decoders_losses_gemma4[10] = {
    5.6006089005684601, 5.0483386639999788, 4.6273180361912871, 4.269307903188496,
    3.9976715791099902, 3.7543760479097239, 3.553943534285434, 3.3731116432316632,
    3.1989449202626683, 3.046371666789327
};
static const int32_t decoders_generated_gemma4[32] = {
    116, 116, 116, 116, 116, 19, 123, 117, 47, 54, 94, 94, 123, 94, 123, 67, 80, 21, 40, 26, 9,
    26, 9, 66, 71, 71, 92, 83, 44, 12, 49, 54
};
static const double decoders_losses_gemma4_big[10] = {
    5.5062629192158674, 5.2568891646595519, 5.0528494613423192, 4.8670431686444049,
    4.7025417541685233, 4.5592476416198791, 4.4238216213335644, 4.2913581331865238,
    4.164255536240046, 4.0453804607479782
};
static const int32_t decoders_generated_gemma4_big[32] = {
    79, 121, 2, 127, 2, 93, 57, 87, 30, 37, 57, 91, 99, 24, 4, 79, 121, 56, 37, 55, 113, 56, 27,
    27, 56, 86, 27, 99, 13, 54, 4, 116
};
static const double decoders_losses_qwen35[10] = {
    5.1049730448198494, 4.8780893024079175, 4.6905522151575241, 4.5221172028309367,
    4.3715927667489849, 4.2389611663235094, 4.1146173006755165, 3.9921184656366591,
    3.8790070204221694, 3.7714155805292759
};
static const int32_t decoders_generated_qwen35[32] = {
    102, 4, 119, 125, 48, 105, 32, 18, 3, 4, 35, 16, 91, 36, 127, 95, 125, 52, 6, 32, 119, 6, 35,
    63, 42, 12, 55, 32, 52, 48, 23, 89
};
static const double decoders_losses_phi3_short[10] = {
    5.5867121176503636, 5.2763092184043314, 5.0094786286059323, 4.8015565370388122,
    4.6177140086874626, 4.4512432998403266, 4.3010081484491751, 4.1659339487344065,
    4.0430701390794423, 3.9274604001131856
};
static const int32_t decoders_generated_phi3_short[32] = {
    107, 120, 93, 8, 20, 14, 69, 126, 69, 126, 69, 56, 20, 83, 17, 56, 81, 120, 99, 104, 69, 44,
    7, 83, 80, 69, 39, 61, 34, 56, 65, 4
};
static const double decoders_losses_phi3_long[10] = {
    5.5416265815719505, 5.2498527209640331, 5.0137839260330148, 4.8190027150726786,
    4.6628076360829089, 4.5156019104309113, 4.3706785402344952, 4.2295398793684225,
    4.0975450771734083, 3.9794612410326744
};
static const int32_t decoders_generated_phi3_long[32] = {
    11, 13, 28, 56, 116, 51, 83, 20, 126, 69, 93, 11, 56, 56, 56, 88, 93, 51, 69, 31, 69, 88, 91,
    69, 22, 89, 89, 48, 22, 0, 76, 51
};
static const double decoders_losses_phi3_both[10] = {
    5.5842717497894085, 5.3107707539115099, 5.0865952859309944, 4.8858304001126935,
    4.6984546682097204, 4.5316493951018888, 4.3751618656354454, 4.2431536993004197,
    4.1206124773072563, 4.0016602309727327
};
static const double decoders_losses_neox_old[10] = {
    5.5006938565988595, 5.2440664917374633, 5.0425589119367205, 4.8718171951436107,
    4.7243014824507519, 4.5921153230610088, 4.4673189173275327, 4.3461951585661556,
    4.2268528549786391, 4.1099265370074249
};
static const int32_t decoders_generated_neox_old[32] = {
    62, 122, 70, 5, 62, 62, 62, 62, 62, 80, 62, 62, 62, 62, 80, 80, 62, 62, 62, 62, 80, 80, 62,
    80, 80, 80, 80, 80, 80, 80, 80, 80
};
static const double decoders_losses_phi3_lora[10] = {
    5.7062820331918118, 5.617874369401858, 5.5353965167208043, 5.4596756393264263,
    5.3895995218766863, 5.3225577928015015, 5.2567957471295728, 5.1925174865579855,
    5.1304602662884244, 5.0705563071352646
};
static const int32_t decoders_generated_phi3_lora[32] = {
    107, 120, 69, 109, 120, 65, 104, 4, 0, 4, 4, 88, 120, 61, 112, 4, 4, 126, 118, 109, 76, 4,
    51, 127, 111, 69, 32, 52, 96, 69, 11, 92
};
static const double decoders_losses_neox_lora[10] = {
    5.6109581824010792, 5.582547741481247, 5.5538359805452231, 5.5245426708116101,
    5.4945148007870301, 5.4636361406220262, 5.4317886698896585, 5.3988450888858193,
    5.3647121352268297, 5.3293699994777093
};
static const int32_t decoders_generated_neox_lora[32] = {
    62, 62, 122, 95, 122, 95, 122, 95, 14, 53, 75, 14, 53, 62, 14, 53, 75, 14, 53, 62, 14, 53,
    75, 14, 53, 62, 14, 53, 62, 14, 53, 62
};
static const double decoders_losses_gemma4_lora[10] = {
    5.5207914951810722, 5.4700578905840178, 5.4192813070739572, 5.3693586235163204,
    5.3221550078868969, 5.2777915428228299, 5.2350693591450677, 5.1942276534678964,
    5.1546906317858641, 5.115871556355402
};
static const int32_t decoders_generated_gemma4_lora[32] = {
    79, 121, 111, 25, 113, 121, 2, 24, 37, 57, 37, 55, 30, 37, 55, 24, 37, 55, 24, 37, 57, 37,
    55, 37, 55, 24, 37, 87, 37, 57, 91, 99
};
static const double decoders_losses_qwen35_lora[10] = {
    5.0769439969098329, 5.0135906636885252, 4.9509079488298999, 4.8764282407250077,
    4.8317343260692329, 4.7842471053381175, 4.7425454778434082, 4.7025683340186992,
    4.6604215679714391, 4.6183555503802873
};
static const int32_t decoders_generated_qwen35_lora[32] = {
    105, 32, 6, 32, 119, 6, 127, 95, 125, 79, 109, 89, 74, 63, 69, 14, 87, 89, 32, 119, 30, 79,
    78, 70, 48, 105, 26, 14, 26, 14, 105, 74
};
static const double decoders_losses_glm4_prefix[10] = {
    5.5933766551532296, 5.5857795079034762, 5.5779317084461297, 5.5697911224121324,
    5.5613781799201609, 5.5528297170688301, 5.5443949896202893, 5.5363271750010261,
    5.5287857762509702, 5.5218237490476296
};
static const struct {
    const char *name, *weights; /* the folder that has them */
    const char *base; /* of an adapter; NULL for a model */
    const double *losses;
    const int32_t *made; /* NULL for none */
} golden_decoders[] = {
    { "phi3", "phi3", NULL, decoders_losses_phi3,
      decoders_generated_phi3 },
    { "granite", "granite", NULL, decoders_losses_granite,
      decoders_generated_granite },
    { "olmo2", "olmo2", NULL, decoders_losses_olmo2,
      decoders_generated_olmo2 },
    { "glm", "glm", NULL, decoders_losses_glm,
      decoders_generated_glm },
    { "glm4", "glm4", NULL, decoders_losses_glm4,
      decoders_generated_glm4 },
    { "ministral3", "ministral3", NULL, decoders_losses_ministral3,
      decoders_generated_ministral3 },
    { "hunyuan", "hunyuan", NULL, decoders_losses_hunyuan,
      decoders_generated_hunyuan },
    { "ernie", "ernie", NULL, decoders_losses_ernie,
      decoders_generated_ernie },
    { "neox", "neox", NULL, decoders_losses_neox,
      decoders_generated_neox },
    { "gemma4", "gemma4", NULL, decoders_losses_gemma4,
      decoders_generated_gemma4 },
    { "gemma4_big", "gemma4_big", NULL, decoders_losses_gemma4_big,
      decoders_generated_gemma4_big },
    { "qwen35", "qwen35", NULL, decoders_losses_qwen35,
      decoders_generated_qwen35 },
    { "phi3_short", "phi3", NULL, decoders_losses_phi3_short,
      decoders_generated_phi3_short },
    { "phi3_long", "phi3", NULL, decoders_losses_phi3_long,
      decoders_generated_phi3_long },
    { "phi3_both", "phi3", NULL, decoders_losses_phi3_both,
      NULL },
    { "neox_old", "neox", NULL, decoders_losses_neox_old,
      decoders_generated_neox_old },
    { "phi3_lora", "phi3_lora", "phi3", decoders_losses_phi3_lora,
      decoders_generated_phi3_lora },
    { "neox_lora", "neox_lora", "neox", decoders_losses_neox_lora,
      decoders_generated_neox_lora },
    { "gemma4_lora", "gemma4_lora", "gemma4_big", decoders_losses_gemma4_lora,
      decoders_generated_gemma4_lora },
    { "qwen35_lora", "qwen35_lora", "qwen35", decoders_losses_qwen35_lora,
      decoders_generated_qwen35_lora },
    { "glm4_prefix", "glm4_prefix", "glm4", decoders_losses_glm4_prefix,
      NULL },
};
#endif
