// Functions that test programs in C share. They report errors on the standard error.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20 };

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fprintf(stderr, " (%s, errno %d)\n", #condition, errno);                                                   \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

static inline unsigned char *map(size_t bytes, unsigned char value) {
    unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "mmap");
    memset(at, value, bytes);
    return at;
}

// Whether all bytes have a value.
static inline int is(const unsigned char *at, size_t bytes, unsigned char value) {
    return at[0] == value && !memcmp(at, at + 1, bytes - 1);
}

// A figure of /proc/self/status, in MiB.
static inline long status(const char *name) {
    char text[4096];
    int file = open("/proc/self/status", O_RDONLY);
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    CHECK(length > 0, "status");
    text[length] = 0;
    const char *line = strstr(text, name);
    CHECK(line, "%s", name);
    return atol(line + strlen(name) + 1) / 1024;
}

static inline void rest(long milliseconds) {
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    while (nanosleep(&time, &time)) {}
}

// Makes a child that checks whether it sees a value after it is released, which happens when the result is closed.
static inline int child_that_sees(const unsigned char *at, size_t bytes, unsigned char value) {
    int go[2];
    CHECK(!pipe(go), "pipe");
    pid_t pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        close(go[1]);
        char byte;
        (void)!read(go[0], &byte, 1);
        _exit(is(at, bytes, value) ? 0 : 1);
    }
    close(go[0]);
    return go[1];
}

static inline void reap(void) {
    int result;
    CHECK(wait(&result) > 0 && result == 0, "a child saw something else, or failed");
}
