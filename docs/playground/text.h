/* text.h - a text that grows, for the answers of engine.c and fits.c: JSON with a final NUL. */
#ifndef TEXT_H
#define TEXT_H
typedef struct {
    char *at;
    size_t length, room;
    int failed;
} text;

static inline size_t put_bytes(void *user, const void *bytes, size_t n)
{
    text *t = (text *)user;
    if (t->length + n + 1 > t->room) {
        const size_t room = 2 * (t->length + n + 1);
        char *to = (char *)resize(NULL, t->at, t->room, room);
        if (to == NULL) {
            t->failed = 1;
            return 0;
        }
        t->at = to, t->room = room;
    }
    memcpy(t->at + t->length, bytes, n);
    t->length += n;
    t->at[t->length] = 0;
    return n;
}

static inline void empty(text *t) { t->length = 0, t->failed = 0; }
static inline void put(text *t, const char *s) { put_bytes(t, s, strlen(s)); }

static inline void put_number(text *t, uint64_t n)
{
    char digits[24];
    int i = 24;
    do
        digits[--i] = (char)('0' + n % 10), n /= 10;
    while (n > 0);
    put_bytes(t, digits + i, (size_t)(24 - i));
}

/* Writes a nonnegative fraction with six decimals. */
static inline void put_fraction(text *t, double x)
{
    const uint64_t n = (uint64_t)(x * 1e6 + 0.5);
    put_number(t, n / 1000000);
    put(t, ".");
    for (uint64_t digit = 100000; digit > 0; digit /= 10)
        put_number(t, n / digit % 10);
}

static inline void put_name(text *t, const char *s)
{
    put(t, "\"");
    for (; *s != 0; s++) {
        if (*s == '"' || *s == '\\')
            put(t, "\\");
        put_bytes(t, s, 1);
    }
    put(t, "\"");
}

static inline void put_member(text *t, const char *name, uint64_t n)
{
    put_name(t, name);
    put(t, ":");
    put_number(t, n);
    put(t, ",");
}

/* Writes [n,n,..], after a comma unless it is the first one. */
static inline void put_list(text *t, int first, const uint64_t *numbers, int count)
{
    put(t, first ? "[" : ",[");
    for (int i = 0; i < count; i++) {
        put(t, i > 0 ? "," : "");
        put_number(t, numbers[i]);
    }
    put(t, "]");
}

/* Writes {"error":..} with the error text of an object. */
static inline const char *complain(text *t, const char *what)
{
    empty(t);
    put(t, "{\"error\":");
    put_name(t, what);
    put(t, "}");
    return t->failed ? "{\"error\":\"out of memory\"}" : t->at;
}

static inline const char *end(text *t)
{
    return t->failed ? "{\"error\":\"out of memory\"}" : t->at;
}
#endif
