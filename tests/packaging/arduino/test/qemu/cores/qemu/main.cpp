/* main.cpp - runs a sketch: setup() once and loop() LOOPS times. Prints the text that the sketch prints,
 * and a line with the time whenever the LED changes. */
#include <Arduino.h>
#undef abs
#undef round
extern "C" {
#include "board.h"
int main(void);
}

SerialOf Serial;
static unsigned long now;
static int led = LOW;

void SerialOf::print(const char *text) { board_print(text); }

void SerialOf::print(char c)
{
    const char text[2] = { c, 0 };
    print(text);
}

void SerialOf::print(unsigned long n, int base)
{
    char digits[65];
    int i = 64;
    digits[i] = 0;
    do
        digits[--i] = "0123456789ABCDEF"[n % (unsigned long)base];
    while (n /= (unsigned long)base);
    print(digits + i);
}

void SerialOf::print(long n, int base)
{
    if (n < 0)
        print('-');
    print(n < 0 ? 0ul - (unsigned long)n : (unsigned long)n, base);
}

void SerialOf::print(double x, int digits)
{
    if (x < 0)
        print('-'), x = -x;
    double unit = 1;
    for (int i = 0; i < digits; i++)
        unit *= 10;
    const unsigned long all = (unsigned long)(x * unit + 0.5);
    unsigned long rest = all % (unsigned long)unit;
    print(all / (unsigned long)unit);
    if (digits > 0)
        print('.');
    for (unsigned long place = (unsigned long)unit / 10; place > 0; place /= 10)
        print((char)('0' + rest / place)), rest %= place;
}

void pinMode(int, int) {}
unsigned long millis() { return now; }

void delay(unsigned long milliseconds)
{
    now += milliseconds;
    if (now > 1000000) /* a sketch that waits forever */
        board_exit(1);
}

void digitalWrite(int pin, int value)
{
    if (pin != LED_BUILTIN || value == led)
        return;
    led = value;
    Serial.print(now), Serial.println(value ? " ms: on" : " ms: off");
}

extern "C" int main(void)
{
    setup();
    for (int i = 0; i < LOOPS; i++)
        loop();
    return 0;
}
