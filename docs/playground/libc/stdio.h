#ifndef PLAYGROUND_STDIO_H
#define PLAYGROUND_STDIO_H
#include <stdarg.h>
#include <stddef.h>
typedef struct file FILE;
enum { EOF = -1, SEEK_SET, SEEK_CUR, SEEK_END };
extern FILE *stdout, *stderr;
FILE *fopen(const char *path, const char *mode);
int fclose(FILE *f);
size_t fread(void *to, size_t size, size_t n, FILE *f);
size_t fwrite(const void *from, size_t size, size_t n, FILE *f);
int fseek(FILE *f, long at, int from);
long ftell(FILE *f);
int getc(FILE *f);
int ferror(FILE *f);
int fputc(int c, FILE *f);
int putc(int c, FILE *f);
int fputs(const char *s, FILE *f);
int fflush(FILE *f);
int rename(const char *a, const char *b);
int remove(const char *a);
int fprintf(FILE *f, const char *format, ...);
int sprintf(char *to, const char *format, ...);
int snprintf(char *to, size_t room, const char *format, ...);
int vsnprintf(char *to, size_t room, const char *format, va_list of);
#endif
