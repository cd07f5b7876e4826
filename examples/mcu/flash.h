/* flash.h - keeps a store's state in flash, safe against power failures. There are two slots; saves
 * alternate between them. A save erases the slot with the older state, programs the new state after
 * the slot's header, reads it back, and programs the header last. Until then, the other slot has
 * the newest complete state. The header has a sequence number and checksums of the state and of
 * itself, so an incomplete, torn or half-erased slot is ignored. A save needs no copy of the state,
 * only about 150 bytes of stack. */
#ifndef FLASH_H
#define FLASH_H
#include <string.h>

enum { FLASH_WORD = 8 }; /* bytes that are programmed together, once after each erase */

typedef struct {
    size_t page;  /* bytes that an erase sets to 0xff together */
    size_t pages; /* number of pages of a slot; the second slot follows the first one */
    /* The chip's functions; each one returns 1 after success, else 0. */
    int (*read)(size_t at, void *bytes, size_t size);
    int (*erase)(size_t at);
    int (*program)(size_t at, const unsigned char *word);
} flash_chip;

typedef struct {
    uint32_t sequence, size; /* sequence number of the save; bytes of the state */
    /* state_sum: checksum of the state; sum: checksum of the header's other fields */
    uint64_t state_sum, sum;
} flash_header;

/* A state that is being written to a slot or read from it. */
typedef struct {
    const flash_chip *chip;
    size_t at, end;
    uint64_t sum;
    unsigned char word[FLASH_WORD];
} flash_stream;

enum { FLASH_SUM_BYTES = sizeof(flash_header) - sizeof(uint64_t) };

/* continues a checksum (FNV-1a) */
static uint64_t flash_sum(uint64_t sum, const void *bytes, size_t size)
{
    for (const unsigned char *p = (const unsigned char *)bytes; size-- > 0; p++)
        sum = (sum ^ *p) * UINT64_C(1099511628211);
    return sum;
}

static const uint64_t flash_sum_begin = UINT64_C(14695981039346656037);

static size_t flash_slot(const flash_chip *chip, int slot)
{
    return (size_t)slot * chip->pages * chip->page;
}

static uint64_t flash_state_sum(const flash_chip *chip, int slot, size_t size)
{
    unsigned char piece[64];
    uint64_t sum = flash_sum_begin;
    size_t at = flash_slot(chip, slot) + sizeof(flash_header);
    for (size_t n; size > 0; size -= n, at += n) {
        n = size < sizeof piece ? size : sizeof piece;
        if (!chip->read(at, piece, n))
            return 0;
        sum = flash_sum(sum, piece, n);
    }
    return sum;
}

/* Returns the slot with the newest complete state and copies its header, or returns -1 if there is
 * none. */
static int flash_newest(const flash_chip *chip, flash_header *newest)
{
    int found = -1;
    memset(newest, 0, sizeof *newest);
    for (int slot = 0; slot < 2; slot++) {
        flash_header h;
        if (chip->read(flash_slot(chip, slot), &h, sizeof h) &&
            h.sum == flash_sum(flash_sum_begin, &h, FLASH_SUM_BYTES) &&
            h.size <= chip->pages * chip->page - sizeof h && h.sequence > newest->sequence &&
            h.state_sum == flash_state_sum(chip, slot, h.size)) {
            *newest = h;
            found = slot;
        }
    }
    return found;
}

/* Appends bytes to the slot, in whole words. A gckpt_write_fn. */
static size_t flash_put(void *user, const void *bytes, size_t size)
{
    flash_stream *s = (flash_stream *)user;
    s->sum = flash_sum(s->sum, bytes, size);
    for (size_t i = 0; i < size; i++, s->at++) {
        s->word[s->at % FLASH_WORD] = ((const unsigned char *)bytes)[i];
        if (s->at % FLASH_WORD == FLASH_WORD - 1 &&
            (s->at >= s->end || !s->chip->program(s->at + 1 - FLASH_WORD, s->word)))
            return i;
    }
    return size;
}

/* reads the next bytes of the slot; a gckpt_read_fn */
static size_t flash_get(void *user, void *bytes, size_t size)
{
    flash_stream *s = (flash_stream *)user;
    size = s->chip->read(s->at, bytes, size) ? size : 0;
    s->at += size;
    return size;
}

/* Saves the store. Returns 1 after success. Returns 0 after a failure; flash then still has a
 * complete state: the previous one or, if only the final check failed, the new one. */
static int flash_save(const flash_chip *chip, gckpt_store *store)
{
    flash_header h;
    const int slot = flash_newest(chip, &h) == 0;
    const size_t begin = flash_slot(chip, slot);
    flash_stream s = {
        chip, begin + sizeof h, begin + chip->pages * chip->page, flash_sum_begin, { 0 }
    };
    /* begins with the header's page, which invalidates the slot */
    for (size_t page = 0; page < chip->pages; page++)
        if (!chip->erase(begin + page * chip->page))
            return 0;
    if (gckpt_store_write(store, flash_put, &s, NULL) != GCKPT_OK)
        return 0;
    h.sequence++;
    h.size = (uint32_t)(s.at - begin - sizeof h);
    h.state_sum = s.sum;
    h.sum = flash_sum(flash_sum_begin, &h, FLASH_SUM_BYTES);
    while (s.at % FLASH_WORD != 0)
        if (flash_put(&s, "\xff", 1) != 1)
            return 0;
    s.at = begin;
    return h.state_sum == flash_state_sum(chip, slot, h.size) &&
           flash_put(&s, &h, sizeof h) == sizeof h;
}

/* Loads the newest state into the store, which has the parameters but no values yet. Returns 1
 * after success, also for a state of another GCKPT_CONTRACT, from which training continues with
 * other bits. Returns 0 if there is no state, or if loading failed (the store has the error). */
static int flash_load(const flash_chip *chip, gckpt_store *store)
{
    flash_header h;
    const int slot = flash_newest(chip, &h);
    flash_stream s = { chip, 0, 0, 0, { 0 } };
    s.at = flash_slot(chip, slot < 0 ? 0 : slot) + sizeof h;
    if (slot < 0)
        return 0;
    const gckpt_result result = gckpt_store_read(store, flash_get, &s, h.size, NULL);
    return result == GCKPT_OK || result == GCKPT_OTHER_CONTRACT;
}
#endif
