// Reads of one thread: by position and by offset, of any size, into any buffers.

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "program.h"

// The compiler must not know these values, because it warns of calls that must fail.
static void *volatile nowhere = NULL;
static volatile int no_parts = -1;

void reads(void) {
    int fd = open_file(O_RDONLY);
    uint64_t size = size_of(fd);
    CHECK(read_to(fd, 0, size) == size);
    char byte;
    CHECK(read(fd, &byte, 1) == 0);
    CHECK(lseek(fd, 0, SEEK_CUR) == (off_t)size);
    CHECK(close(fd) == 0);
    // The library starts no thread.
    struct stat tasks;
    CHECK(stat("/proc/self/task", &tasks) == 0 && tasks.st_nlink == 3);
}

void preads_of_any_size(void) {
    int fd = open_file(O_RDONLY);
    uint64_t size = size_of(fd), at = 0;
    static uint64_t buffer[1 << 17];
    for (size_t len = 1; at < size; len = (len * 3 + 7) % sizeof buffer + 1) {
        ssize_t count = pread(fd, buffer, len, at);
        CHECK(count == (ssize_t)(len < size - at ? len : size - at));
        CHECK(is_content(buffer, at, count, 0));
        at += count;
    }
    CHECK(pread(fd, buffer, 1, size) == 0);
    CHECK(pread(fd, buffer, 1, -1) == -1 && errno == EINVAL);
    CHECK(lseek(fd, 0, SEEK_CUR) == 0);
}

void vectors(void) {
    int fd = open_file(O_RDONLY);
    uint64_t size = size_of(fd), at = 0;
    static char a[1000], b[5000], c[3];
    struct iovec parts[] = {{a, sizeof a}, {NULL, 0}, {b, sizeof b}, {c, sizeof c}};
    while (at < size) {
        ssize_t count = at % 2 ? readv(fd, parts, 4) : preadv(fd, parts, 4, at);
        CHECK(count > 0);
        if (at % 2 == 0)
            CHECK(lseek(fd, count, SEEK_CUR) == (off_t)(at + count));
        size_t left = count;
        for (int part = 0; part < 4; part++) {
            size_t taken = left < parts[part].iov_len ? left : parts[part].iov_len;
            CHECK(is_content(parts[part].iov_base, at, taken, 0));
            at += taken;
            left -= taken;
        }
    }
    CHECK(readv(fd, parts, no_parts) == -1 && errno == EINVAL);
    struct iovec too_long[] = {{a, SIZE_MAX / 2}, {b, SIZE_MAX / 2 + 1}};
    CHECK(preadv(fd, too_long, 2, 0) == -1 && errno == EINVAL);
}

void vectors_with_flags(void) {
    int fd = open_file(O_RDONLY);
    uint64_t size = size_of(fd), at = 0;
    static char a[7000], b[9000];
    struct iovec parts[] = {{a, sizeof a}, {b, sizeof b}};
    // With -1 as the offset, the function reads at the position and moves it.
    for (int round = 0; at < size; round++) {
        off_t offset = round % 2 ? (off_t)at : -1;
        CHECK(lseek(fd, at, SEEK_SET) == (off_t)at);
        ssize_t count = preadv2(fd, parts, 2, offset, 0);
        CHECK(count > 0);
        CHECK(lseek(fd, 0, SEEK_CUR) == (off_t)(round % 2 ? at : at + count));
        size_t first = (size_t)count < sizeof a ? (size_t)count : sizeof a;
        CHECK(is_content(a, at, first, 0) && is_content(b, at + first, count - first, 0));
        at += count;
    }
    // The kernel knows flags, and refuses unknown ones.
    CHECK(preadv2(fd, parts, 2, 0, RWF_HIPRI) == sizeof a + sizeof b && is_content(a, 0, sizeof a, 0));
    CHECK(preadv2(fd, parts, 2, 0, 1 << 30) == -1 && errno == EOPNOTSUPP);
    CHECK(preadv2(fd, parts, 2, -2, 0) == -1 && errno == EINVAL);
}

void large_reads_anywhere(void) {
    int fd = open_file(O_RDONLY);
    uint64_t size = size_of(fd);
    size_t len = 5 << 20;
    char *buffer = malloc(len + 8);
    for (int round = 0; round < 30; round++) {
        uint64_t at = (round * 7777777ull) % (size - len);
        CHECK(pread(fd, buffer + round % 8, len - round, at) == (ssize_t)(len - round));
        CHECK(is_content(buffer + round % 8, at, len - round, 0));
    }
}

void jumps(void) {
    int fd = open_file(O_RDONLY);
    uint64_t size = size_of(fd), at = read_to(fd, 0, size / 4);
    for (int round = 0; round < 200; round++) {
        CHECK(read_to(fd, at, at + (round % 7) * 100000) > 0);
        at = (round * 99991ull * 8192) % (size / 2);
        CHECK(lseek(fd, at, SEEK_SET) == (off_t)at);
    }
    CHECK(lseek(fd, -SIZE, SEEK_END) > 0);
    CHECK(read_to(fd, size - SIZE, size) == size);
    // A read writes to no byte after those that it returns.
    static uint64_t buffer[SIZE / 8];
    memset(buffer, 7, SIZE);
    CHECK(lseek(fd, -100, SEEK_END) > 0 && read(fd, buffer, SIZE) == 100);
    for (int at = 104; at < SIZE; at++)
        CHECK(((char *)buffer)[at] == 7);
    CHECK(lseek(fd, size * 2, SEEK_SET) > 0);
    char byte;
    CHECK(read(fd, &byte, 1) == 0);
}

/// Whether the page cache has the page at an offset.
static int is_cached(int fd, uint64_t offset) {
    unsigned char is_there = 0;
    void *page = mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, fd, offset);
    CHECK(page != MAP_FAILED && mincore(page, BLOCK, &is_there) == 0 && munmap(page, BLOCK) == 0);
    return is_there & 1;
}

// A program scans, and then reads short records by the same descriptor. The kernel reads ahead for these.
void short_reads_after_a_scan(void) {
    int fd = open_file(O_RDONLY);
    uint64_t at = read_to(fd, 0, 16 << 20);
    char record[100];
    for (int round = 0; round < 200; round++) {
        uint64_t where = at + (round * 7919ull * BLOCK) % (8 << 20);
        CHECK(pread(fd, record, sizeof record, where) == sizeof record && is_content(record, where, sizeof record, 0));
    }
    uint64_t start = size_of(fd) / BLOCK * BLOCK - (16 << 20);
    int count = 8;
    for (int page = 0; page < count; page++)
        CHECK(pread(fd, record, sizeof record, start + page * BLOCK) == sizeof record);
    CHECK(is_cached(fd, start + count * BLOCK));
}

void bad_buffers(void) {
    int fd = open_file(O_RDONLY);
    uint64_t at = read_to(fd, 0, 16 << 20);
    char *pages = mmap(NULL, 3 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED);
    CHECK(mprotect(pages + SIZE, SIZE, PROT_READ) == 0);
    for (int round = 0; round < 3; round++) {
        CHECK(read(fd, pages + SIZE, SIZE) == -1 && errno == EFAULT);
        CHECK(read(fd, nowhere, SIZE) == -1 && errno == EFAULT);
        CHECK(pread(fd, (void *)-1, SIZE, at) == -1 && errno == EFAULT);
        struct iovec parts[] = {{pages, SIZE}, {pages + SIZE, SIZE}};
        CHECK(preadv(fd, parts, 2, at) == SIZE && is_content(pages, at, SIZE, 0));
    }
    // The length exceeds the address space.
    CHECK(read(fd, pages, (size_t)1 << 62) == -1 && errno == EFAULT);
    CHECK(readv(fd, nowhere, 3) == -1 && errno == EFAULT);
    CHECK(lseek(fd, 0, SEEK_CUR) == (off_t)at);
    read_to(fd, at, at + SIZE);
}
