// A program that restricts itself: with a lease, with limits, or with a filter of its system calls.

#include <linux/seccomp.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "program.h"

/// The program keeps its lease.
void leased(void) {
    int fd = open_file(O_RDWR);
    CHECK(fcntl(fd, F_SETLEASE, F_WRLCK) == 0);
    read_to(fd, 0, size_of(fd));
    CHECK(fcntl(fd, F_GETLEASE) == F_WRLCK);
}

void few_addresses(void) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
    limit.rlim_cur = 256 << 20;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    int fd = open_file(O_RDONLY);
    read_to(fd, 0, size_of(fd));
    CHECK(malloc(128 << 20) != NULL);
}

void few_descriptors(void) {
    struct rlimit limit = {6, 6};
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    int fd = open_file(O_RDONLY);
    CHECK(fd == 3);
    read_to(fd, 0, size_of(fd));
    // The library has taken none of the program's descriptors.
    CHECK(open_file(O_RDONLY) >= 0);
}

/// After this, the kernel ends the process for any call except `read`, `write` and `exit`.
void strict_filter(void) {
    int fd = open_file(O_RDONLY);
    uint64_t at = read_to(fd, 0, 16 << 20);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
    read_to(fd, at, at + (8 << 20));
    write(1, "as it is\n", 9);
    syscall(SYS_exit, 0);
}
