/* large.c - checks loading from a file of 4.3 GiB, nearly all of which is a hole: tensors before and after the
 * offsets of 2 and 4 GiB must load, also on systems where long has 32 bits (Windows).
 *
 *     large make FILE   writes the beginning of the file and prints the offset of its last values
 *     large end FILE    appends these last values
 *     large read FILE   loads both small tensors, but not the large one
 */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include <stdio.h>

static const unsigned char values[16] = { 0, 0, 0x80, 0x3f, 0, 0, 0,    0xc0,
                                          /* the floats 1 -2 3 -4 */
                                          0, 0, 0x40, 0x40, 0, 0, 0x80, 0xc0 };
static const char header[] =
    "{\"first\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},"
    "\"hole\":{\"dtype\":\"F32\",\"shape\":[1154272460],\"data_offsets\":[16,4617089856]},"
    "\"last\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[4617089856,4617089872]}} ";

static const char *without_hole(void *user, const char *name)
{
    (void)user;
    return *name == 'h' ? NULL : name;
}

static int holds(gckpt_store *s, const char *name)
{
    gckpt_parameter p;
    return gckpt_store_get(s, gckpt_store_find(s, name), &p) == GCKPT_OK && p.elements == 4 &&
           p.values[0] == 1 && p.values[1] == -2 && p.values[2] == 3 && p.values[3] == -4;
}

int main(int argc, char **argv)
{
    const unsigned char length[8] = { (sizeof header - 1) & 255, (sizeof header - 1) >> 8 };
    if (argc != 3)
        return 2;
    if (*argv[1] != 'r') {
        FILE *f = fopen(argv[2], *argv[1] == 'm' ? "wb" : "ab");
        int wrong = !f || (*argv[1] == 'm' && (fwrite(length, 8, 1, f) != 1 ||
                                               fwrite(header, sizeof header - 1, 1, f) != 1));
        wrong = wrong || fwrite(values, 16, 1, f) != 1 || fclose(f);
        printf("%.0f\n", 8.0 + (sizeof header - 1) + 4617089856.0);
        return wrong;
    }
    const gckpt_file_desc only = { .rename = without_hole };
    gckpt_store *s = gckpt_store_new(NULL);
    int loaded = gckpt_store_load(s, argv[2], &only) == GCKPT_OK;
    int right = loaded && gckpt_store_count(s) == 2 && holds(s, "first") && holds(s, "last");
    printf("%s\n", right ? "both sides of the hole" : gckpt_error_text(s));
    gckpt_store_free(s);
    return !right;
}
