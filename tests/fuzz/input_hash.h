/* input_hash.h - chooses, by the bytes of an input, which slow checks are made for this input, so that the choice is
 * the same each time. An input in which one byte is changed gets other checks, so that mutations reach all of them. */
#ifndef TESTS_FUZZ_INPUT_HASH_H
#define TESTS_FUZZ_INPUT_HASH_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Returns a hash of the input, computed from words of 8 bytes. Callers divide the hash for several independent
 * draws. */
static inline uint64_t input_hash(const void *bytes, size_t size)
{
    const uint8_t *at = (const uint8_t *)bytes;
    uint64_t hash = 0x9e3779b97f4a7c15u ^ size;
    for (uint64_t word; size > 0; at += 8, size -= size < 8 ? size : 8) {
        word = 0;
        memcpy(&word, at, size < 8 ? size : 8);
        hash = (hash ^ word) * 0xbf58476d1ce4e5b9u;
        hash ^= hash >> 29;
    }
    return hash >> 8;
}
#endif
