// The library's own descriptors, which the program did not open. The program may close them, and their numbers must not disturb
// it.

#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "program.h"

static void *read_all(void *unused) {
    (void)unused;
    int fd = open_file(O_RDONLY);
    pread_to(fd, 0, size_of(fd));
    CHECK(close(fd) == 0);
    return NULL;
}

/// The program closes the library's connections by a call that the library does not see, while threads read.
void connections_are_closed(void) {
    pthread_t threads[3];
    for (int round = 0; round < 3; round++) {
        for (int at = 0; at < 3; at++)
            CHECK(pthread_create(&threads[at], NULL, read_all, NULL) == 0);
        for (int step = 0; step < 4; step++) {
            usleep(30000);
            syscall(SYS_close_range, 768, ~0u, 0);
        }
        for (int at = 0; at < 3; at++)
            CHECK(pthread_join(threads[at], NULL) == 0);
    }
}

/// Files that the program opens get the lowest numbers.
void lowest_numbers(void) {
    int fd = open_file(O_RDONLY);
    CHECK(close(0) == 0);
    read_to(fd, 0, 16 << 20);
    CHECK(open("/dev/null", O_RDONLY) == 0);
    CHECK(open("/dev/null", O_RDONLY) == fd + 1);
}

/// The program closes all descriptors, including those of the library, and opens files that get their numbers.
void closes_all(void) {
    for (int way = 0; way < 4; way++) {
        int fd = open_file(O_RDONLY);
        read_to(fd, 0, 16 << 20);
        if (way == 0)
            closefrom(3);
        else if (way == 1)
            CHECK(close_range(3, ~0u, 0) == 0);
        else if (way == 2)
            for (int other = 3; other < 1024; other++)
                close(other);
        else {
            // The library does not see this call.
            CHECK(syscall(SYS_close_range, 3, ~0u, 0) == 0);
            for (int other = 3; other < 1024; other++)
                CHECK(dup2(1, other) == other || errno == EBADF);
            closefrom(3);
        }
        CHECK(fcntl(fd, F_GETFD) == -1 && errno == EBADF);
        int pair[2];
        CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair) == 0);
        for (int number = 700; number < 900; number++)
            if (fcntl(number, F_GETFD) == -1)
                CHECK(dup2(pair[0], number) == number);
        fd = open_file(O_RDONLY);
        read_to(fd, 0, size_of(fd));
        char byte;
        CHECK(recv(pair[1], &byte, 1, 0) == -1 && errno == EAGAIN);
        for (int number = 700; number < 900; number++)
            close(number);
        CHECK(close(fd) == 0 && close(pair[0]) == 0 && close(pair[1]) == 0);
    }
    CHECK(close_range(9, 8, 0) == -1 && errno == EINVAL);
    CHECK(close(-1) == -1 && errno == EBADF);
}
