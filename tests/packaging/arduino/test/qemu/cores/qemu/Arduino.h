/* Arduino.h - a small Arduino core for a board in QEMU. It has the functions that our sketches use, and
 * those macros of real cores that can break a header. millis() returns the sum of all delays so far, so
 * that a sketch prints the same text in every run. */
#ifndef Arduino_h
#define Arduino_h
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { LOOPS = 100 }; /* number of calls of loop(), after which the board stops */

#define HIGH         1
#define LOW          0
#define INPUT        0
#define OUTPUT       1
#define INPUT_PULLUP 2
#define LED_BUILTIN  13
#define PI           3.1415926535897932384626433832795
#define EULER        2.718281828459045235360287471352
#define SERIAL       0
#define DISPLAY      1
#define DEFAULT      1
#define EXTERNAL     0
#define INTERNAL     3
#define CHANGE       1
#define FALLING      2
#define RISING       3
#define B0           0
#define B1           1
#define B10          2
#define B11          3
#define DEC          10
#define HEX          16
#define F(text)      (text)
#define PROGMEM
#define _BV(bit)               (1 << (bit))
#define min(a, b)              ((a) < (b) ? (a) : (b))
#define max(a, b)              ((a) > (b) ? (a) : (b))
#define abs(x)                 ((x) > 0 ? (x) : -(x))
#define round(x)               ((x) >= 0 ? (long)((x) + 0.5) : (long)((x)-0.5))
#define sq(x)                  ((x) * (x))
#define radians(x)             ((x)*PI / 180)
#define degrees(x)             ((x)*180 / PI)
#define constrain(x, low, high) ((x) < (low) ? (low) : (x) > (high) ? (high) : (x))
#define lowByte(w)             ((uint8_t)((w)&0xff))
#define highByte(w)            ((uint8_t)((w) >> 8))
#define bit(b)                 (1UL << (b))
#define bitRead(value, b)      ((value) >> (b)&1)
#define bitSet(value, b)       ((value) |= 1UL << (b))
#define bitClear(value, b)     ((value) &= ~(1UL << (b)))
#define interrupts()
#define noInterrupts()
typedef bool boolean;
typedef uint8_t byte;
typedef unsigned int word;

void setup();
void loop();
void pinMode(int pin, int mode);
void digitalWrite(int pin, int value);
unsigned long millis();
void delay(unsigned long milliseconds);

/* Prints to the debugger of QEMU (semihosting), or to stdout. */
class SerialOf
{
  public:
    void begin(unsigned long) {}
    operator bool() const { return true; }
    void print(const char *text);
    void print(char c);
    void print(unsigned long n, int base = DEC);
    void print(long n, int base = DEC);
    void print(unsigned n, int base = DEC) { print((unsigned long)n, base); }
    void print(int n, int base = DEC) { print((long)n, base); }
    void print(double x, int digits = 2);
    void println() { print("\n"); }
    template <class T> void println(T what) { print(what), println(); }
    template <class T> void println(T what, int how) { print(what, how), println(); }
};
extern SerialOf Serial;
#endif
