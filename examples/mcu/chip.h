/* chip.h - simulates flash memory in a file (board_read, board_write), for tests of flash.h. An
 * erase sets a page to 0xff; a word can be programmed once after each erase; power can fail during
 * any operation. */
#ifndef CHIP_H
#define CHIP_H
#include <string.h>

enum { CHIP_PAGE = 1024, CHIP_PAGES = 16, CHIP_BYTES = 2 * CHIP_PAGES * CHIP_PAGE };

/* chip_operations counts flash operations. Power fails during operation chip_fail_at / 4 (counted
 * from 0), or never if chip_fail_at is negative. chip_fail_at % 4 says how far that operation got:
 * 0 not begun, 1 and 2 some of the bits written (a different choice for each), 3 complete. */
static int chip_operations, chip_fail_at = -1;
/* called when power fails; the job defines it, and it must not return */
static void chip_power_fails(void);

/* Replaces the bytes `from` by `to` at offset `at` or, if power fails, by a mixture of both. */
static int chip_write(size_t at, const unsigned char *from, unsigned char *to, size_t size)
{
    const int fails = chip_fail_at >= 0 && chip_operations == chip_fail_at / 4, how = chip_fail_at % 4;
    uint32_t noise = (uint32_t)chip_fail_at * 2654435761u + 1;
    for (size_t i = 0; fails && i < size; i++) {
        noise = noise * 1664525u + 1013904223u;
        const unsigned done = how == 0 ? 0 : how == 3 ? 255 : noise >> 24;
        to[i] = (unsigned char)((to[i] & done) | (from[i] & ~done));
    }
    const int fine = board_write(at, to, size) == size;
    if (fails)
        chip_power_fails();
    chip_operations++;
    return fine;
}

static int chip_read(size_t at, void *bytes, size_t size)
{
    return board_read(at, bytes, size) == size;
}

static int chip_program(size_t at, const unsigned char *word)
{
    unsigned char from[FLASH_WORD], to[FLASH_WORD];
    if (!chip_read(at, from, sizeof from))
        return 0;
    for (size_t i = 0; i < sizeof from; i++)
        if (from[i] != 0xff) /* a word may be programmed only if it is erased */
            return 0;
    memcpy(to, word, sizeof to);
    return chip_write(at, from, to, sizeof to);
}

static int chip_erase(size_t at)
{
    static unsigned char from[CHIP_PAGE], to[CHIP_PAGE];
    memset(to, 0xff, sizeof to);
    return chip_read(at, from, sizeof from) && chip_write(at, from, to, sizeof to);
}

static const flash_chip chip = { CHIP_PAGE, CHIP_PAGES, chip_read, chip_erase, chip_program };
#endif
