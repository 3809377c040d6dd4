// Signal handlers that interrupt reads: they read, fork, or leave the read by a jump.

#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "program.h"

/// Requests a signal in a millisecond. A handler requests the next signal at its end, so that a slow handler leaves the program
/// time.
static void arm(void) {
    struct itimerval once = {{0, 0}, {0, 1000}};
    CHECK(setitimer(ITIMER_REAL, &once, NULL) == 0);
}

static void every_millisecond(void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    if (handler != SIG_IGN)
        arm();
}

static int handler_fd;
static _Atomic int handled;

static void on_signal(int signal) {
    (void)signal;
    int saved = errno;
    uint64_t buffer[512];
    uint64_t at = handled++ * 4096 % (32 << 20);
    ssize_t count = pread(handler_fd, buffer, sizeof buffer, at);
    CHECK(count == sizeof buffer && is_content(buffer, at, count, 0));
    arm();
    errno = saved;
}

void signals(void) {
    handler_fd = open_file(O_RDONLY);
    every_millisecond(on_signal);
    for (int round = 0; round < 3 || handled < 50; round++) {
        int fd = open_file(O_RDONLY);
        read_to(fd, 0, size_of(fd));
        CHECK(close(fd) == 0);
    }
    every_millisecond(SIG_IGN);
}

static void on_fork(int signal) {
    (void)signal;
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    int saved = errno, status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    handled++;
    arm();
    errno = saved;
}

void forks_in_handlers(void) {
    every_millisecond(on_fork);
    for (int round = 0; round < 2 || handled < 200; round++) {
        int fd = open_file(O_RDONLY);
        read_to(fd, 0, size_of(fd));
        CHECK(close(fd) == 0);
    }
    every_millisecond(SIG_IGN);
}

static pid_t first_process;

/// The child continues the read that the signal interrupted.
static void on_fork_and_read(int signal) {
    (void)signal;
    if (handled >= 40 || getpid() != first_process)
        return;
    handled++;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0)
        arm();
}

/// Children of a handler finish the read that the handler interrupted, while their parent continues to read.
void forks_in_reads(void) {
    first_process = getpid();
    int fd = open_file(O_RDONLY);
    uint64_t size = size_of(fd);
    static uint64_t buffer[1 << 18];
    pread_to(fd, 0, 8 << 20);
    every_millisecond(on_fork_and_read);
    for (int round = 0; round < 4 || (handled < 40 && getpid() == first_process); round++)
        for (uint64_t at = 0; at < size; at += sizeof buffer) {
            ssize_t count = pread(fd, buffer, sizeof buffer, at);
            CHECK(count > 0 && is_content(buffer, at, count, 0));
            if (getpid() != first_process)
                _exit(0);
        }
    every_millisecond(SIG_IGN);
    int status;
    while (wait(&status) > 0)
        CHECK(status == 0);
}

static sigjmp_buf jump;

static void on_jump(int signal) {
    (void)signal;
    siglongjmp(jump, 1);
}

void jumps_out_of_reads(void) {
    static _Atomic int jumped;
    int fd = open_file(O_RDONLY);
    uint64_t size = size_of(fd);
    if (sigsetjmp(jump, 1))
        jumped++;
    if (jumped < 20) {
        every_millisecond(on_jump);
        for (;;)
            pread_to(fd, 0, size);
    }
    every_millisecond(SIG_IGN);
    pread_to(fd, 0, size);
}
