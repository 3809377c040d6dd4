// Descriptors of the program: duplicates, open modes, and files that are never served.

#include <string.h>
#include <sys/socket.h>

#include "program.h"

void duplicates(void) {
    int one = open_file(O_RDONLY), two = dup(one);
    uint64_t at = read_to(one, 0, 8 << 20);
    at = read_to(two, at, 12 << 20);
    at = read_to(one, at, 16 << 20);
    CHECK(close(one) == 0);
    at = read_to(two, at, 20 << 20);
    // The number then belongs to another file, which is not served.
    int pipes[2];
    CHECK(pipe(pipes) == 0 && write(pipes[1], "pipe", 4) == 4);
    CHECK(dup2(pipes[0], two) == two);
    char text[8];
    CHECK(read(two, text, 8) == 4 && memcmp(text, "pipe", 4) == 0);
    CHECK(close(two) == 0);
    int null = open("/dev/null", O_RDONLY);
    CHECK(read(null, text, 8) == 0);
    int again = open_file(O_RDONLY);
    CHECK(read_to(again, 0, 8 << 20));
    CHECK(dup3(null, again, O_CLOEXEC) == again);
    CHECK(read(again, text, 8) == 0);
}

void modes(void) {
    static uint64_t aligned[SIZE / 8] __attribute__((aligned(BLOCK)));
    int reader = open_file(O_RDONLY);
    CHECK(read_to(reader, 0, 8 << 20));
    int writer = open_file(O_WRONLY), name = open_file(O_PATH), direct = open_file(O_RDONLY | O_DIRECT);
    for (uint64_t at = 0; at < 8 << 20; at += SIZE) {
        CHECK(pread(writer, aligned, SIZE, at) == -1 && errno == EBADF);
        CHECK(pread(name, aligned, SIZE, at) == -1 && errno == EBADF);
        CHECK(pread(direct, aligned, SIZE, at) == SIZE && is_content(aligned, at, SIZE, 0));
    }
    CHECK(pread(direct, (char *)aligned + 1, SIZE - 1, 0) == -1 && errno == EINVAL);
    CHECK(pread(-1, aligned, SIZE, 0) == -1 && errno == EBADF);
    CHECK(pread(1 << 20, aligned, SIZE, 0) == -1 && errno == EBADF);
}

void other_files(void) {
    int pipes[2], pair[2];
    char text[16];
    CHECK(pipe(pipes) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    int zero = open("/dev/zero", O_RDONLY), random = open("/proc/self/maps", O_RDONLY);
    static char large[1 << 19];
    for (int round = 0; round < 2000; round++) {
        CHECK(write(pipes[1], "abc", 3) == 3 && read(pipes[0], text, 16) == 3);
        CHECK(send(pair[1], "abc", 3, 0) == 3 && read(pair[0], text, 16) == 3);
        CHECK(read(zero, large, sizeof large) == sizeof large);
    }
    while (read(random, large, sizeof large) > 0)
        ;
    CHECK(read(STDIN_FILENO, text, 16) == 0);
    CHECK(pread(pipes[0], text, 16, 0) == -1 && errno == ESPIPE);
}
