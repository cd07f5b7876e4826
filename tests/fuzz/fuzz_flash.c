/* fuzz_flash.c - the image of a flash chip (the file of examples/mcu/host.c) with any bytes: tests what flash_load of
 * examples/mcu/flash.h reads from the image, and what flash_save leaves if the power fails.
 *
 * The first six bytes say whether the file ends after the given bytes (if not, the rest of the chip is erased),
 * when the power fails, and where the bytes of the second slot begin. The slots follow. The rules:
 * - A state is read only from a slot with a valid header and checksums; if both slots are valid, from the newer
 *   one. The store is then like a new one with the state of that slot. If no state is read, the store is unchanged.
 * - After a successful save, the next load reads the saved state. After a save that failed or was cut off, the next
 *   load reads the earlier state or the new one, and the next save succeeds.
 *
 * One input in four saves. */
#define _GNU_SOURCE
#include "gradckpt.h"
#include "safetensors.h"
#include "input_hash.h"
#include "examples/mcu/board.h"
#include "examples/mcu/flash.h"
#include "examples/mcu/chip.h"
#include <setjmp.h>

/* ---- the chip's file, in memory ---- */
static FILE *image_open(const char *path, const char *mode);
#define fopen image_open
#include "examples/mcu/host.c"
#undef fopen

enum { HEAD = 6, SLOT = CHIP_PAGES * CHIP_PAGE };
static uint8_t image[CHIP_BYTES];
static size_t image_size, image_at;
static jmp_buf power;

static void chip_power_fails(void) { longjmp(power, 1); }

static ssize_t image_read(void *user, char *bytes, size_t size)
{
    const size_t left = image_at < image_size ? image_size - image_at : 0;
    const size_t n = size < left ? size : left;
    (void)user;
    memcpy(bytes, image + image_at, n);
    image_at += n;
    return (ssize_t)n;
}

static ssize_t image_write(void *user, const char *bytes, size_t size)
{
    (void)user;
    if (image_at > image_size || size > sizeof image - image_at)
        return 0;
    memcpy(image + image_at, bytes, size);
    image_at += size;
    image_size = image_at > image_size ? image_at : image_size;
    return (ssize_t)size;
}

static int image_seek(void *user, off64_t *at, int from)
{
    (void)user;
    MUST(from == SEEK_SET);
    image_at = (size_t)*at;
    return 0;
}

static FILE *image_open(const char *path, const char *mode)
{
    const cookie_io_functions_t io = { image_read, image_write, image_seek, NULL };
    MUST(strcmp(path, "flash.bin") == 0 && strcmp(mode, "r+b") == 0);
    FILE *f = fopencookie(NULL, mode, io);
    MUST(f != NULL && setvbuf(f, NULL, _IONBF, 0) == 0);
    return f;
}

/* ---- states ---- */
static gckpt_store *new_store(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    const gckpt_init normal = { 0.5f, 0, 0 };
    MUST(gckpt_param(g, "w", gckpt_shape2(3, 4), normal) != NULL);
    MUST(gckpt_param(g, "b", gckpt_shape1(3), normal) != NULL);
    gckpt_graph_free(g);
    return s;
}

/* Returns the bytes of a saved file with everything that the store contains. */
static fuzz_file all_of(gckpt_store *s)
{
    fuzz_file f = { NULL, 0, 0, 0, 0 };
    MUST(gckpt_store_write(s, fuzz_write, &f, NULL) == GCKPT_OK);
    return f;
}

static int same(const fuzz_file *a, const fuzz_file *b)
{
    return a->size == b->size && memcmp(a->bytes, b->bytes, a->size) == 0;
}

/* Reads the header of a slot. Returns whether it is the header of a stored state. */
static int slot_head(int slot, flash_header *h)
{
    const size_t at = (size_t)slot * SLOT;
    const size_t here = image_size > at ? image_size - at : 0;
    uint64_t sum = flash_sum_begin;
    if (here < sizeof *h)
        return 0;
    memcpy(h, image + at, sizeof *h);
    return h->sum == flash_sum(sum, h, sizeof *h - 8) && h->sequence > 0 &&
           h->size <= SLOT - sizeof *h && h->size <= here - sizeof *h &&
           h->state_sum == flash_sum(sum, image + at + sizeof *h, h->size);
}

/* Returns a new store into which flash_load has read a state, if there is one; stores whether there was one in
 * *loaded. */
static gckpt_store *booted(int *loaded)
{
    gckpt_store *s = new_store();
    *loaded = flash_load(&chip, s);
    return s;
}

/* Returns the slot with the newest valid state and copies its header to *newest, or returns -1 if no slot has one. */
static int newest_slot(flash_header *newest)
{
    flash_header h[2];
    const int fine[2] = { slot_head(0, &h[0]), slot_head(1, &h[1]) };
    const int slot = fine[1] && (!fine[0] || h[1].sequence > h[0].sequence) ? 1 : fine[0] - 1;
    memset(newest, 0, sizeof *newest);
    if (slot >= 0)
        *newest = h[slot];
    return slot;
}

static void try_load(void)
{
    flash_header h;
    int loaded;
    const int newest = newest_slot(&h);
    gckpt_store *s = booted(&loaded), *alone = new_store();
    gckpt_result result = GCKPT_OK;
    if (newest >= 0) {
        fuzz_file f = { image + newest * SLOT + sizeof h, h.size, 0, 0, 0 };
        result = gckpt_store_read(alone, fuzz_read, &f, f.size, NULL);
    }
    const int taken = result == GCKPT_OK || result == GCKPT_OTHER_CONTRACT;
    MUST(loaded == (newest >= 0 && taken) && (gckpt_error(s) == GCKPT_OK) == taken);
    fuzz_file a = all_of(s), b = all_of(alone);
    MUST(same(&a, &b));
    fuzz_file_end(&a);
    fuzz_file_end(&b);
    gckpt_store_free(s);
    gckpt_store_free(alone);
}

/* Saves with a power failure as `cut` says (see chip.h), and then again. Does nothing if the sequence numbers would
 * run out, which takes 2^32 saves, more than a chip endures. */
static void try_save(int cut)
{
    flash_header h;
    const int slot = newest_slot(&h) == 0;
    const int there = image_size >= (size_t)(slot + 1) * SLOT;
    if (h.sequence > UINT32_MAX - 4)
        return;
    static gckpt_store *s, *next; /* variables that are read after longjmp must be static */
    static fuzz_file was, is, found;
    static int saved, loaded;
    gckpt_parameter w;
    s = booted(&loaded);
    was = all_of(s);
    MUST(gckpt_store_get(s, 0, &w) == GCKPT_OK);
    if (w.elements > 0 && w.values != NULL)
        w.values[0] += 1;
    is = all_of(s);
    chip_operations = 0;
    chip_fail_at = cut;
    saved = -1;
    if (setjmp(power) == 0)
        saved = flash_save(&chip, s);
    chip_fail_at = -1;
    const int fits = there && (is.size + 7) / 8 * 8 <= SLOT - sizeof h;
    MUST(cut >= 0 || saved == fits);
    next = booted(&loaded);
    found = all_of(next);
    MUST(saved == 1 ? same(&found, &is) : same(&found, &was) || (saved < 0 && same(&found, &is)));
    if (fits && image_size == CHIP_BYTES)
        MUST(flash_save(&chip, s) && flash_save(&chip, s));
    fuzz_file_end(&found);
    fuzz_file_end(&is);
    fuzz_file_end(&was);
    gckpt_store_free(next);
    gckpt_store_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size < HEAD)
        return 0;
    const uint64_t chosen = input_hash(bytes, size);
    const int when = bytes[1] | bytes[2] << 8, ends = bytes[0] & 1;
    size_t first = (size_t)(bytes[3] | bytes[4] << 8);
    bytes += HEAD;
    size -= HEAD;
    first = first < size ? first : size;
    const size_t one = first < SLOT ? first : SLOT, two = size - first < SLOT ? size - first : SLOT;
    memset(image, 0xff, sizeof image);
    memcpy(image, bytes, one);
    memcpy(image + SLOT, bytes + first, two);
    image_size = !ends ? CHIP_BYTES : two > 0 ? SLOT + two : one;
    chip_fail_at = -1;
    try_load();
    if (chosen % 4 == 0)
        try_save(chosen / 4 % 2 ? 4 * (when % 200) + (int)(chosen / 8 % 4) : -1);
    return 0;
}

/* Corrects the checksums in a header for the data at bytes[at..end). */
static void put_right(uint8_t *bytes, size_t at, size_t end, fuzz_draws *d)
{
    flash_header h;
    if (at + sizeof h > end)
        return;
    memcpy(&h, bytes + at, sizeof h);
    if (fuzz_draw(d, 8) > 0 || h.size > end - at - sizeof h)
        h.size = (uint32_t)(end - at - sizeof h);
    if (fuzz_draw(d, 4) == 0)
        h.sequence = (uint32_t)fuzz_draw(d, 6) - 2;
    h.state_sum = flash_sum(flash_sum_begin, bytes + at + sizeof h, h.size);
    h.sum = flash_sum(flash_sum_begin, &h, sizeof h - 8);
    memcpy(bytes + at, &h, sizeof h);
}

/* Mutates any bytes, or a slot's state as a safetensors file; afterwards mostly corrects the checksums. */
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned int seed)
{
    fuzz_draws d = { seed };
    if (size < HEAD + 2 * sizeof(flash_header) || fuzz_draw(&d, 8) == 0)
        return LLVMFuzzerMutate(bytes, size, most);
    size_t first = HEAD + (size_t)(bytes[3] | bytes[4] << 8);
    first = first < size ? first : size;
    if (fuzz_draw(&d, 6) == 0) { /* changes the bytes that say when the power fails and where the second slot begins */
        bytes[fuzz_draw(&d, HEAD)] = (uint8_t)fuzz_draw(&d, 256);
    } else if (first < size && fuzz_draw(&d, 2) == 0) { /* the second slot */
        const size_t state = first + sizeof(flash_header);
        if (state < size)
            size = state + st_mutate(bytes + state, size - state, most - state, &d);
    } else { /* changes the first slot; the bytes after it move */
        const size_t rest = size - first, state = HEAD + sizeof(flash_header);
        uint8_t *copy = (uint8_t *)malloc(most);
        MUST(copy != NULL);
        memcpy(copy, bytes, size);
        size_t n = first;
        if (state < first)
            n = state + st_mutate(copy + state, first - state, most - rest - state, &d);
        memcpy(copy + n, bytes + first, rest);
        memcpy(bytes, copy, n + rest);
        free(copy);
        size = n + rest;
        bytes[3] = (uint8_t)(n - HEAD);
        bytes[4] = (uint8_t)((n - HEAD) >> 8);
    }
    first = HEAD + (size_t)(bytes[3] | bytes[4] << 8);
    first = first < size ? first : size;
    if (fuzz_draw(&d, 8) > 0)
        put_right(bytes, HEAD, first, &d);
    if (fuzz_draw(&d, 8) > 0)
        put_right(bytes, first, size, &d);
    return size;
}

/* ---- seeds: an image without a saved state, and images after one, two and three saves ---- */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *folder = getenv("FUZZ_SEEDS");
    gckpt_store *s;
    (void)argc;
    (void)argv;
    if (folder == NULL)
        return 0;
    memset(image, 0xff, sizeof image);
    image_size = sizeof image;
    s = new_store();
    for (int saves = 0, number = 0; saves < 4; saves++) {
        uint8_t bytes[HEAD + 8192] = { 0 };
        flash_header h[2];
        size_t used[2];
        MUST(saves == 0 || flash_save(&chip, s));
        MUST(gckpt_store_set_note(s, "note", "7") == GCKPT_OK);
        for (int i = 0; i < 2; i++) {
            used[i] = slot_head(i, &h[i]) ? sizeof *h + h[i].size : 0;
            MUST(used[i] <= 4096);
        }
        bytes[3] = (uint8_t)used[0];
        bytes[4] = (uint8_t)(used[0] >> 8);
        memcpy(bytes + HEAD, image, used[0]);
        memcpy(bytes + HEAD + used[0], image + SLOT, used[1]);
        for (int way = 0; way < 8; way++) {
            bytes[0] = (uint8_t)(way & 1);
            bytes[1] = (uint8_t)(25 * way);
            bytes[5] = (uint8_t)way;
            fuzz_seed(folder, number++, bytes, HEAD + used[0] + used[1]);
        }
    }
    gckpt_store_free(s);
    exit(0);
}
