// Children of the program, which continue to read or close their descriptors.

#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "program.h"

void forks(void) {
    int fd = open_file(O_RDONLY), own = open_file(O_RDONLY);
    uint64_t at = read_to(fd, 0, 16 << 20);
    CHECK(read_to(own, 0, 16 << 20));
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            // The position is shared with the parent, which waits.
            read_to(fd, at, at + (4 << 20));
            pread_to(own, 16 << 20, 32 << 20);
            exit(0);
        }
        pread_to(own, 16 << 20, 32 << 20);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        at = read_to(fd, at + (4 << 20), at + (8 << 20));
    }
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    read_to(fd, at, at + (4 << 20));
}

/// Number of open descriptors.
static int descriptors(void) {
    int count = 0;
    for (int number = 0; number < 1024; number++)
        count += fcntl(number, F_GETFD) != -1;
    return count;
}

/// A child that shares the memory closes its own descriptors.
void vfork_and_close(void) {
    int before = descriptors();
    int fd = open_file(O_RDONLY);
    uint64_t at = read_to(fd, 0, 8 << 20);
    for (int round = 0; round < 20; round++) {
        pid_t child = vfork();
        if (child == 0) {
            close(fd);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        at = read_to(fd, at, at + (1 << 20));
    }
    // These are the file, and at most three descriptors of the library.
    CHECK(descriptors() <= before + 1 + 3);
}

/// The C library does not notice this fork. The child and its parent both continue to read.
void bare_forks(void) {
    int fd = open_file(O_RDONLY);
    pread_to(fd, 0, (4 << 20) + (64 << 10));
    pid_t child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    CHECK(child >= 0);
    if (child == 0) {
        pread_to(fd, (4 << 20) + (64 << 10), size_of(fd));
        _exit(0);
    }
    // When the child ends, it must not release the ranges of its parent.
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    static uint8_t buffer[64 << 10];
    for (uint64_t at = (4 << 20) + (64 << 10); at < 12 << 20; at += sizeof buffer)
        CHECK(pread(fd, buffer, sizeof buffer, at) == sizeof buffer && is_content(buffer, at, sizeof buffer, 0));
}
