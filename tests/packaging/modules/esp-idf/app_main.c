/* Substitutes for ESP-IDF on a board of examples/mcu: main() calls app_main(), and picolibc's printf prints by
 * board_print(). */
#include "board.h"
#include <stdio.h>

void app_main(void);

static int put(char c, FILE *file)
{
    const char text[2] = { c, 0 };
    (void)file;
    board_print(text);
    return 0;
}

static FILE text = FDEV_SETUP_STREAM(put, NULL, NULL, _FDEV_SETUP_WRITE);
FILE *const stdout = &text;

int main(void)
{
    app_main();
    return 0;
}
