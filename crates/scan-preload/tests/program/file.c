// The file that the scenarios read: its content, and checked reads of it.

#include <sys/stat.h>

#include "program.h"

const char *path;

_Atomic uint64_t progress;

uint64_t word(uint64_t offset, uint64_t generation) {
    return (offset / 8 * 0x9e3779b97f4a7c15 & 0xffffffffffff) | generation << 48;
}

void fill(uint64_t *buffer, uint64_t offset, size_t len, uint64_t generation) {
    for (size_t at = 0; at < len / 8; at++)
        buffer[at] = word(offset + at * 8, generation);
}

int is_content(const void *buffer, uint64_t offset, size_t len, uint64_t generation) {
    const uint8_t *bytes = buffer;
    for (size_t at = 0; at < len; at++) {
        uint64_t expected = word((offset + at) / 8 * 8, generation);
        if (bytes[at] != (uint8_t)(expected >> (offset + at) % 8 * 8)) {
            dprintf(2, "the byte at %llu differs\n", (unsigned long long)(offset + at));
            return 0;
        }
    }
    return 1;
}

int open_file(int flags) {
    int fd = open(path, flags);
    CHECK(fd >= 0);
    return fd;
}

uint64_t size_of(int fd) {
    struct stat stat;
    CHECK(fstat(fd, &stat) == 0);
    return stat.st_size;
}

uint64_t read_to(int fd, uint64_t at, uint64_t end) {
    static _Thread_local uint64_t buffer[SIZE / 8];
    while (at < end) {
        ssize_t count = read(fd, buffer, SIZE);
        CHECK(count > 0);
        CHECK(is_content(buffer, at, count, 0));
        at += count;
    }
    return at;
}

void pread_to(int fd, uint64_t at, uint64_t end) {
    static _Thread_local uint64_t buffer[SIZE / 8];
    while (at < end) {
        ssize_t count = pread(fd, buffer, SIZE, at);
        CHECK(count > 0);
        CHECK(is_content(buffer, at, count, 0));
        at += count;
        progress = at;
    }
}
