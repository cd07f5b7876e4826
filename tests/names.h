/* names.h - names of modes and instruction sets, for messages of tests. */
#ifndef TESTS_NAMES_H
#define TESTS_NAMES_H
static inline const char *mode_name(int mode)
{
    static const char *const names[] = { "auto", "store-all", "memory-poor", "segments",
                                         "sqrt", "optimal",   "schedule",    "inference" };
    return mode >= 0 && mode < 8 ? names[mode] : "not a gckpt_mode";
}

static inline const char *isa_name(int isa)
{
    static const char *const names[] = { "auto", "plain", "c", "neon", "avx2", "avx512", "amx" };
    return isa >= 0 && isa < 7 ? names[isa] : "not a gckpt_isa";
}
#endif
