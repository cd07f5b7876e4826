/* windows.h - written by windows.py with PyTorch, transformers and peft in float64; do not
 * edit. */
#ifndef GOLDEN_WINDOWS_H
#define GOLDEN_WINDOWS_H
#include "gpt2.h"

#define GOLDEN_EVERY 8
static const double windows_losses_gemma2[10] = {
    5.5123826011455996, 5.2868231189922534, 5.0857315916763781, 4.9049635596268111,
    4.7479057267095994, 4.6017440602862623, 4.4630678407918349, 4.3338877663870656,
    4.2150732985784432, 4.1052945926187228
};
static const double windows_losses_gemma3[10] = {
    5.4767572415415087, 5.1963309393218688, 4.9849239923853172, 4.8136052929024853,
    4.6603139655815715, 4.5096140409339833, 4.3647760037113237, 4.237572264625693,
    4.1226143066103971, 4.0138406235733406
};
static const double windows_losses_gemma2_old[10] = {
    5.6541308150210545, 5.3771708749161098, 5.1276068264340333, 4.904646163956178,
    4.7200969494105944, 4.5586008151916957, 4.415513616769517, 4.2719640111355117,
    4.1514874187064317, 4.039424014740983
};
static const double windows_losses_gemma3_old[10] = {
    5.4767572415415087, 5.1963309393218688, 4.9849239923853172, 4.8136052929024853,
    4.6603139655815715, 4.5096140409339833, 4.3647760037113237, 4.237572264625693,
    4.1226143066103971, 4.0138406235733406
};
static const double windows_losses_gemma3_capped[10] = {
    5.390885604466475, 5.1851214705213771, 4.9599921127215163, 4.7984944878470461,
    4.6512371193836275, 4.5225884356789727, 4.406284178249555, 4.3096149434132229,
    4.2077293164977485, 4.113528099443573
};
static const double windows_losses_mistral[10] = {
    5.5215690940785409, 4.9983543879288215, 4.5450962407584772, 4.1518532403901878,
    3.8076122164252664, 3.4980151301432616, 3.2173646133563625, 2.9660719413357626,
    2.7378077328902775, 2.5226471387096714
};
static const double windows_losses_qwen2[10] = {
    5.6775614445665621, 5.0897384764358735, 4.6124079101547322, 4.2281441122395904,
    3.9035750868329684, 3.6205374055475432, 3.3691906910770624, 3.1472994496823494,
    2.9471938488579541, 2.7611189162866809
};
static const double windows_losses_qwen3[10] = {
    5.430518436473144, 4.802735196644166, 4.2801394415592187, 3.847758044601612,
    3.4907768012475877, 3.1766571032370465, 2.8949972524939622, 2.6427666027961849,
    2.4157066950492894, 2.20865255579616
};
static const double windows_losses_smollm3[10] = {
    5.3415045819590663, 4.5706153093054054, 4.0796952393762753, 3.6936461986651059,
    3.3809159575980763, 3.1115672994128514, 2.856878337828062, 2.6222626110815708,
    2.4122569393805153, 2.2219105179443037
};
static const double windows_losses_lora[10] = {
    5.5489824507738987, 5.5162584598765312, 5.4850191998115347, 5.4552636218747281,
    5.426434246855127, 5.398046229198207, 5.3696583885225406, 5.3408438034237573,
    5.3112129165831465, 5.2803565272835673
};
static const double windows_losses_all[10] = {
    5.4412700829467866, 5.3449372306520013, 5.2668100110748242, 5.2063693633765142,
    5.1504748942616132, 5.09439899551941, 5.0394552429766639, 4.9867994700257556,
    4.9377461056211622, 4.8931442545336052
};
static const double windows_losses_prefix[10] = {
    5.4435856159759277, 5.4361990808999838, 5.4287336905091745, 5.4212503937476475,
    5.4137625408668502, 5.4063196920554955, 5.3990605587545595, 5.392176036095627,
    5.3858153814661387, 5.3800153857313884
};
static const double windows_losses_prompt[10] = {
    5.5444936821638198, 5.5145509089169042, 5.4907707522479372, 5.4722007590032264,
    5.4620760720388271, 5.4550707751616887, 5.4497728701528194, 5.4446218398096251,
    5.4397576092096367, 5.4351770315168642
};
static const int32_t windows_generated_gemma2[32] = {
    6, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9,
    9
};
static const int32_t windows_generated_gemma3[32] = {
    29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29,
    29, 29, 29, 29, 29, 29, 29, 29, 29
};
static const int32_t windows_generated_gemma2_old[32] = {
    6, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9,
    9
};
static const int32_t windows_generated_gemma3_old[32] = {
    29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29,
    29, 29, 29, 29, 29, 29, 29, 29, 29
};
static const int32_t windows_generated_gemma3_capped[32] = {
    85, 85, 85, 85, 85, 85, 85, 85, 85, 85, 85, 85, 85, 85, 85, 85, 85, 85, 85, 4, 4, 4, 4, 4, 4,
    4, 4, 4, 4, 4, 4, 4
};
static const int32_t windows_generated_mistral[32] = {
    89, 68, 107, 108, 126, 117, 34, 37, 46, 10, 93, 78, 5, 35, 9, 120, 66, 110, 94, 112, 93, 9,
    31, 55, 117, 83, 69, 28, 68, 28, 94, 37
};
static const int32_t windows_generated_qwen2[32] = {
    42, 27, 109, 64, 66, 27, 27, 95, 95, 95, 95, 95, 95, 95, 95, 95, 95, 95, 95, 95, 95, 87, 73,
    71, 100, 73, 73, 73, 10, 109, 71, 71
};
static const int32_t windows_generated_qwen3[32] = {
    21, 97, 69, 41, 122, 85, 90, 85, 43, 44, 71, 48, 42, 3, 113, 3, 113, 75, 84, 24, 1, 1, 71,
    99, 6, 117, 32, 21, 95, 3, 84, 78
};
static const int32_t windows_generated_smollm3[32] = {
    95, 9, 14, 73, 73, 73, 73, 73, 73, 73, 18, 75, 121, 17, 17, 17, 66, 42, 42, 42, 42, 42, 42,
    42, 42, 33, 40, 22, 33, 40, 33, 40
};
static const int32_t windows_generated_lora[32] = {
    6, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9,
    9
};
static const int32_t windows_generated_all[32] = {
    54, 54, 54, 54, 54, 68, 68, 68, 68, 81, 85, 85, 85, 85, 85, 85, 85, 85, 85, 85, 85, 85, 85,
    85, 4, 4, 4, 4, 4, 4, 4, 4
};
static const int32_t windows_generated_prefix[32] = {
    6, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9,
    9
};
static const int32_t windows_generated_prompt[32] = {
    54, 54, 54, 54, 54, 16, 43, 43, 43, 43, 82, 82, 82, 82, 82, 82, 82, 82, 82, 82, 82, 82, 82,
    82, 82, 82, 82, 82, 82, 82, 82, 82
};
static const struct {
    const char *name, *weights; /* the folder that has them */
    const char *base; /* of an adapter; NULL for a model */
    const double *losses;
    const int32_t *made;
} golden_windows[] = {
    { "gemma2", "windows/gemma2", NULL, windows_losses_gemma2,
      windows_generated_gemma2 },
    { "gemma3", "windows/gemma3", NULL, windows_losses_gemma3,
      windows_generated_gemma3 },
    { "gemma2_old", "windows/gemma2", NULL, windows_losses_gemma2_old,
      windows_generated_gemma2_old },
    { "gemma3_old", "windows/gemma3", NULL, windows_losses_gemma3_old,
      windows_generated_gemma3_old },
    { "gemma3_capped", "windows/gemma3", NULL, windows_losses_gemma3_capped,
      windows_generated_gemma3_capped },
    { "mistral", "llama/mistral", NULL, windows_losses_mistral,
      windows_generated_mistral },
    { "qwen2", "llama/qwen2", NULL, windows_losses_qwen2,
      windows_generated_qwen2 },
    { "qwen3", "llama/qwen3", NULL, windows_losses_qwen3,
      windows_generated_qwen3 },
    { "smollm3", "llama/smollm3", NULL, windows_losses_smollm3,
      windows_generated_smollm3 },
    { "lora", "windows/lora", "gemma2", windows_losses_lora,
      windows_generated_lora },
    { "all", "windows/all", "gemma3", windows_losses_all,
      windows_generated_all },
    { "prefix", "windows/prefix", "gemma2", windows_losses_prefix,
      windows_generated_prefix },
    { "prompt", "windows/prompt", "gemma3", windows_losses_prompt,
      windows_generated_prompt },
};
#endif
