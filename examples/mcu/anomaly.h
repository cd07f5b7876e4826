/* anomaly.h - a simulated machine and its sensor for anomaly.c: rows of READINGS vibration values
 * of the healthy machine and of faulty ones. */
#ifndef ANOMALY_H
#define ANOMALY_H
#include <stdint.h>

enum { READINGS = 16 };

/* State of the simulated machine: healthy, or a fault of the machine or of its sensor. */
typedef enum { HEALTHY, KNOCKS, TOO_FAST, STUCK } machine_fault;

/* Computes row `number` of the sensor: the vibration during two turns of a shaft, with an amplitude
 * that depends on the load, an overtone, noise and a random phase. The arithmetic is in integers,
 * so that all machines compute the same row. */
static void sense(uint32_t number, machine_fault what, float row[READINGS])
{
    static const int16_t sine[32] = { 0,      6393,   12540,  18205,  23170,  27246,  30274,
                                      32138,  32767,  32138,  30274,  27246,  23170,  18205,
                                      12540,  6393,   0,      -6393,  -12540, -18205, -23170,
                                      -27246, -30274, -32138, -32767, -32138, -30274, -27246,
                                      -23170, -18205, -12540, -6393 };
    uint32_t state = (number + 1) * 2654435761u;
    const int32_t load = 60 + (int32_t)(state >> 24) % 40, noise = 1000;
    const uint32_t phase = state >> 8, step = what == TOO_FAST ? 5 : 4;
    for (uint32_t i = 0; i < READINGS; i++) {
        state = state * 1664525u + 1013904223u;
        const uint32_t at = what == STUCK ? phase : phase + i * step;
        int32_t x = (sine[at % 32] * 3 + sine[2 * at % 32]) / 4 * load / 100;
        x += (int32_t)(state >> 16) % (2 * noise) - noise;
        if (what == KNOCKS && i == phase / 32 % READINGS)
            x += 30000;
        row[i] = (float)x / 32768;
    }
}
#endif
