/* names.h - names of modes and instruction sets, for messages of tests, and those of the ops of the library. */
#ifndef TESTS_NAMES_H
#define TESTS_NAMES_H
#include <stdio.h>
#include <string.h>

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

/* Reads the i-th name of GCKPTI_OPS, the list of ops in gradckpt.h, for tests that use public names only. Returns 0 if
 * the list has no i-th name, or if gradckpt.h is not in this folder. */
static inline int op_name(int i, char name[48])
{
    char line[256];
    int found = -1, inside = 0;
    FILE *f = fopen("gradckpt.h", "r");
    while (f && found < i && fgets(line, sizeof line, f)) {
        for (char *at = line; inside && found < i && (at = strstr(at, " X(")) != NULL; at += 3, found++)
            snprintf(name, 48, "%.*s", (int)strcspn(at + 3, ","), at + 3);
        if (inside && !strchr(line, '\\'))
            break;
        inside = inside || !strncmp(line, "#define GCKPTI_OPS(", 19);
    }
    if (f)
        fclose(f);
    return found == i;
}
#endif
