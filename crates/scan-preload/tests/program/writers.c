// The file is changed while it is served. A read returns the same as the kernel's read after the change.

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "program.h"

void overwritten(void) {
    int fd = open_file(O_RDONLY), writer = open_file(O_WRONLY);
    static uint64_t buffer[SIZE / 8], seen[SIZE / 8];
    uint64_t at = read_to(fd, 0, 16 << 20);
    for (uint64_t round = 1; round < 40; round++) {
        // The service has read these bytes ahead.
        fill(buffer, at, SIZE, round);
        CHECK(pwrite(writer, buffer, SIZE, at) == SIZE);
        CHECK(read(fd, seen, SIZE) == SIZE);
        CHECK(is_content(seen, at, SIZE, round));
        at += SIZE;
        if (round % 8 == 0) {
            // After this time the file is served again.
            CHECK(fsync(writer) == 0);
            usleep(400000);
            at = read_to(fd, at, at + (3 << 20));
        }
    }
}

void stored_by_a_mapping(void) {
    int fd = open_file(O_RDONLY), writer = open_file(O_RDWR);
    uint64_t size = size_of(fd), at = read_to(fd, 0, 16 << 20);
    char *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, writer, 0);
    CHECK(pages != MAP_FAILED);
    static uint64_t seen[SIZE / 8];
    for (uint64_t round = 1; round < 20; round++) {
        fill((uint64_t *)(pages + at), at, SIZE, round);
        CHECK(read(fd, seen, SIZE) == SIZE && is_content(seen, at, SIZE, round));
        at += SIZE;
    }
}

void time_set_back(void) {
    int fd = open_file(O_RDONLY), writer = open_file(O_WRONLY);
    static uint64_t buffer[SIZE / 8];
    uint64_t at = read_to(fd, 0, 16 << 20);
    struct stat before;
    CHECK(fstat(fd, &before) == 0);
    fill(buffer, at, SIZE, 1);
    CHECK(pwrite(writer, buffer, SIZE, at) == SIZE);
    struct timespec times[] = {before.st_atim, before.st_mtim};
    CHECK(futimens(writer, times) == 0);
    CHECK(read(fd, buffer, SIZE) == SIZE && is_content(buffer, at, SIZE, 1));
}

void punched(void) {
    int fd = open_file(O_RDONLY), writer = open_file(O_WRONLY);
    static uint64_t buffer[SIZE / 8];
    uint64_t at = read_to(fd, 0, 16 << 20);
    CHECK(fallocate(writer, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, SIZE) == 0);
    CHECK(read(fd, buffer, SIZE) == SIZE);
    for (int i = 0; i < SIZE / 8; i++)
        CHECK(buffer[i] == 0);
    read_to(fd, at + SIZE, at + (2 << 20));
}

void cut_and_grown(void) {
    int fd = open_file(O_RDONLY), writer = open_file(O_RDWR);
    static uint64_t buffer[SIZE / 8];
    uint64_t size = size_of(fd), at = read_to(fd, 0, 16 << 20);
    CHECK(ftruncate(writer, at + 100) == 0);
    CHECK(read(fd, buffer, SIZE) == 100 && is_content(buffer, at, 100, 0));
    CHECK(read(fd, buffer, SIZE) == 0);
    CHECK(ftruncate(writer, size + 50) == 0);
    CHECK(pread(fd, buffer, SIZE, at + SIZE) == SIZE && buffer[0] == 0 && buffer[SIZE / 8 - 1] == 0);
    CHECK(pread(fd, buffer, SIZE, size) == 50);
    CHECK(pwrite(writer, "end", 3, size + 50) == 3);
    CHECK(pread(fd, buffer, SIZE, size + 50) == 3 && memcmp(buffer, "end", 3) == 0);
}

void replaced(void) {
    int old = open_file(O_RDONLY);
    uint64_t at = read_to(old, 0, 16 << 20), size = size_of(old);
    char other[4096];
    snprintf(other, sizeof other, "%s.new", path);
    int fd = open(other, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0);
    static uint64_t buffer[SIZE / 8];
    for (uint64_t to = 0; to < size; to += SIZE) {
        fill(buffer, to, SIZE, 7);
        CHECK(pwrite(fd, buffer, SIZE, to) == SIZE);
    }
    CHECK(rename(other, path) == 0);
    // A descriptor of the old file reads the old file, and a descriptor that was opened by the name after that reads the new one.
    int new = open_file(O_RDONLY);
    for (; at + SIZE <= size; at += SIZE) {
        CHECK(pread(new, buffer, SIZE, at) == SIZE && is_content(buffer, at, SIZE, 7));
        CHECK(read(old, buffer, SIZE) == SIZE && is_content(buffer, at, SIZE, 0));
    }
    CHECK(dup2(new, old) == old);
    CHECK(pread(old, buffer, SIZE, 0) == SIZE && is_content(buffer, 0, SIZE, 7));
}
