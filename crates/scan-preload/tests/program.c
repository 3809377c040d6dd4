// What a program does with a large file, by name: `program SCENARIO FILE`. Each scenario finds out whether the program sees what
// the kernel's reads return, prints "as it is" and ends with 0; or it says what differs and ends with 1.

#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                                  \
    do {                                                                                                  \
        if (!(condition)) {                                                                               \
            dprintf(2, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);                  \
            _exit(1);                                                                                     \
        }                                                                                                 \
    } while (0)

#define SIZE (8 << 10)
#define BLOCK 4096

static const char *path;

// What the compiler is not to know, because it warns of calls that must fail.
static void *volatile nowhere = NULL;
static volatile int no_parts = -1;

/// The eight bytes at a multiple of eight.
static uint64_t word(uint64_t offset, uint64_t generation) {
    return (offset / 8 * 0x9e3779b97f4a7c15 & 0xffffffffffff) | generation << 48;
}

static void fill(uint64_t *buffer, uint64_t offset, size_t len, uint64_t generation) {
    for (size_t at = 0; at < len / 8; at++)
        buffer[at] = word(offset + at * 8, generation);
}

/// Whether bytes are those of the file at an offset, in a generation.
static int is_content(const void *buffer, uint64_t offset, size_t len, uint64_t generation) {
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

static int open_file(int flags) {
    int fd = open(path, flags);
    CHECK(fd >= 0);
    return fd;
}

static uint64_t size_of(int fd) {
    struct stat stat;
    CHECK(fstat(fd, &stat) == 0);
    return stat.st_size;
}

/// Reads by `read` from the descriptor's position to an offset, which the reads do not have to meet.
static uint64_t read_to(int fd, uint64_t at, uint64_t end) {
    static _Thread_local uint64_t buffer[SIZE / 8];
    while (at < end) {
        ssize_t count = read(fd, buffer, SIZE);
        CHECK(count > 0);
        CHECK(is_content(buffer, at, count, 0));
        at += count;
    }
    return at;
}

/// Reads by `pread` from an offset to another.
static void pread_to(int fd, uint64_t at, uint64_t end) {
    static _Thread_local uint64_t buffer[SIZE / 8];
    while (at < end) {
        ssize_t count = pread(fd, buffer, SIZE, at);
        CHECK(count > 0);
        CHECK(is_content(buffer, at, count, 0));
        at += count;
    }
}

static void reads(void) {
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

static void preads_of_any_size(void) {
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

static void vectors(void) {
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

static void large_reads_anywhere(void) {
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

static void jumps(void) {
    int fd = open_file(O_RDONLY);
    uint64_t size = size_of(fd), at = read_to(fd, 0, size / 4);
    for (int round = 0; round < 200; round++) {
        CHECK(read_to(fd, at, at + (round % 7) * 100000) > 0);
        at = (round * 99991ull * 8192) % (size / 2);
        CHECK(lseek(fd, at, SEEK_SET) == (off_t)at);
    }
    CHECK(lseek(fd, -SIZE, SEEK_END) > 0);
    CHECK(read_to(fd, size - SIZE, size) == size);
    // Nothing behind the bytes that are read is written to.
    static uint64_t buffer[SIZE / 8];
    memset(buffer, 7, SIZE);
    CHECK(lseek(fd, -100, SEEK_END) > 0 && read(fd, buffer, SIZE) == 100);
    for (int at = 104; at < SIZE; at++)
        CHECK(((char *)buffer)[at] == 7);
    CHECK(lseek(fd, size * 2, SEEK_SET) > 0);
    char byte;
    CHECK(read(fd, &byte, 1) == 0);
}

static int shared;
static _Atomic uint64_t total;

static void *read_by_position(void *unused) {
    (void)unused;
    static _Thread_local uint64_t buffer[SIZE / 8];
    for (;;) {
        ssize_t count = read(shared, buffer, SIZE);
        CHECK(count >= 0);
        if (count == 0)
            return NULL;
        // The content says where it is from: a thread reads whole blocks, of which each is read once.
        uint64_t at = 0;
        while ((word(at, 0) ^ buffer[0]) && at < (1ull << 40))
            at += SIZE;
        CHECK(is_content(buffer, at, count, 0));
        total += count;
    }
}

static void *read_by_offset(void *part) {
    uint64_t size = size_of(shared), share = size / 4, start = (uintptr_t)part * share;
    pread_to(shared, start, start + share);
    return NULL;
}

static void run_threads(void *(*body)(void *), int count) {
    pthread_t threads[8];
    for (intptr_t at = 0; at < count; at++)
        CHECK(pthread_create(&threads[at], NULL, body, (void *)at) == 0);
    for (int at = 0; at < count; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
}

static void threads(void) {
    shared = open_file(O_RDONLY);
    run_threads(read_by_offset, 4);
    run_threads(read_by_position, 3);
    CHECK(total == size_of(shared));
}

static void duplicates(void) {
    int one = open_file(O_RDONLY), two = dup(one);
    uint64_t at = read_to(one, 0, 8 << 20);
    at = read_to(two, at, 12 << 20);
    at = read_to(one, at, 16 << 20);
    CHECK(close(one) == 0);
    at = read_to(two, at, 20 << 20);
    // The number becomes another file's, which is not served.
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

static void modes(void) {
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

static void forks(void) {
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

static int handler_fd;
static _Atomic int handled;

static void on_signal(int signal) {
    (void)signal;
    int saved = errno;
    uint64_t buffer[512];
    uint64_t at = handled++ * 4096 % (32 << 20);
    ssize_t count = pread(handler_fd, buffer, sizeof buffer, at);
    CHECK(count == sizeof buffer && is_content(buffer, at, count, 0));
    errno = saved;
}

static void every_millisecond(void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval interval = {{0, handler == SIG_IGN ? 0 : 1000}, {0, handler == SIG_IGN ? 0 : 1000}};
    CHECK(setitimer(ITIMER_REAL, &interval, NULL) == 0);
}

static void signals(void) {
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
    errno = saved;
    handled++;
}

static pid_t first_process;

/// The child goes on with what the signal interrupted.
static void on_fork_and_read(int signal) {
    (void)signal;
    if (handled >= 40 || getpid() != first_process)
        return;
    handled++;
    pid_t child = fork();
    CHECK(child >= 0);
}

/// Children of a handler finish the read that the handler interrupted, while their parent reads on.
static void forks_in_reads(void) {
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

static void *read_all(void *unused) {
    (void)unused;
    int fd = open_file(O_RDONLY);
    pread_to(fd, 0, size_of(fd));
    CHECK(close(fd) == 0);
    return NULL;
}

/// Connections are closed by a way that the library does not see, while their ranges are read and other readers want memory.
static void connections_are_closed(void) {
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

static void forks_in_handlers(void) {
    every_millisecond(on_fork);
    for (int round = 0; round < 2 || handled < 200; round++) {
        int fd = open_file(O_RDONLY);
        read_to(fd, 0, size_of(fd));
        CHECK(close(fd) == 0);
    }
    every_millisecond(SIG_IGN);
}

static sigjmp_buf jump;

static void on_jump(int signal) {
    (void)signal;
    siglongjmp(jump, 1);
}

static void jumps_out_of_reads(void) {
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

static void *read_for_ever(void *unused) {
    (void)unused;
    int fd = open_file(O_RDONLY);
    uint64_t size = size_of(fd);
    for (;;)
        pread_to(fd, 0, size);
    return NULL;
}

static void cancelled_threads(void) {
    for (int round = 0; round < 40; round++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, read_for_ever, NULL) == 0);
        usleep(round * 500);
        CHECK(pthread_cancel(thread) == 0);
        void *result;
        CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    }
    reads();
}

static void bad_buffers(void) {
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
    // More bytes than there are addresses.
    CHECK(read(fd, pages, (size_t)1 << 62) == -1 && errno == EFAULT);
    CHECK(readv(fd, nowhere, 3) == -1 && errno == EFAULT);
    CHECK(lseek(fd, 0, SEEK_CUR) == (off_t)at);
    read_to(fd, at, at + SIZE);
}

/// A thread whose reads are all served can be cancelled.
static void cancelled_where_served(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, read_for_ever, NULL) == 0);
    usleep(300000);
    CHECK(pthread_cancel(thread) == 0);
    struct timespec end;
    CHECK(clock_gettime(CLOCK_REALTIME, &end) == 0);
    end.tv_sec += 30;
    CHECK(pthread_timedjoin_np(thread, NULL, &end) == 0);
}

/// A child that shares the memory closes its own descriptors.
static void vfork_and_close(void) {
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
    int descriptors = 0;
    for (int number = 0; number < 1024; number++)
        descriptors += fcntl(number, F_GETFD) != -1;
    // Those of the test, the file, and at most three of the library.
    CHECK(descriptors <= 3 + 1 + 3);
}

/// A child that the C library does not notice goes on in the file, and so does its parent.
static void bare_forks(void) {
    int fd = open_file(O_RDONLY);
    pread_to(fd, 0, (4 << 20) + (64 << 10));
    pid_t child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    CHECK(child >= 0);
    if (child == 0) {
        pread_to(fd, (4 << 20) + (64 << 10), size_of(fd));
        _exit(0);
    }
    // The child releases what it has from its parent, if it has that.
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    static uint8_t buffer[64 << 10];
    for (uint64_t at = (4 << 20) + (64 << 10); at < 12 << 20; at += sizeof buffer)
        CHECK(pread(fd, buffer, sizeof buffer, at) == sizeof buffer && is_content(buffer, at, sizeof buffer, 0));
}

/// A lease that the program has stays.
static void leased(void) {
    int fd = open_file(O_RDWR);
    CHECK(fcntl(fd, F_SETLEASE, F_WRLCK) == 0);
    read_to(fd, 0, size_of(fd));
    CHECK(fcntl(fd, F_GETLEASE) == F_WRLCK);
}

static void few_addresses(void) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
    limit.rlim_cur = 256 << 20;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    int fd = open_file(O_RDONLY);
    read_to(fd, 0, size_of(fd));
    CHECK(malloc(128 << 20) != NULL);
}

/// After this the kernel ends the process for any call but `read`, `write` and `exit`.
static void strict_filter(void) {
    int fd = open_file(O_RDONLY);
    uint64_t at = read_to(fd, 0, 16 << 20);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
    read_to(fd, at, at + (8 << 20));
    write(1, "as it is\n", 9);
    syscall(SYS_exit, 0);
}

/// The numbers of what the program opens are the lowest.
static void lowest_numbers(void) {
    int fd = open_file(O_RDONLY);
    CHECK(close(0) == 0);
    read_to(fd, 0, 16 << 20);
    CHECK(open("/dev/null", O_RDONLY) == 0);
    CHECK(open("/dev/null", O_RDONLY) == fd + 1);
}

/// Descriptors that the program has not opened are nobody's business: it closes them, and their numbers become its own.
static void closes_all(void) {
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
            // Without the library.
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

static void few_descriptors(void) {
    struct rlimit limit = {6, 6};
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    int fd = open_file(O_RDONLY);
    CHECK(fd == 3);
    read_to(fd, 0, size_of(fd));
    // What the program may open, it may still open.
    CHECK(open_file(O_RDONLY) >= 0);
}

static void overwritten(void) {
    int fd = open_file(O_RDONLY), writer = open_file(O_WRONLY);
    static uint64_t buffer[SIZE / 8], seen[SIZE / 8];
    uint64_t at = read_to(fd, 0, 16 << 20);
    for (uint64_t round = 1; round < 40; round++) {
        // It was read ahead.
        fill(buffer, at, SIZE, round);
        CHECK(pwrite(writer, buffer, SIZE, at) == SIZE);
        CHECK(read(fd, seen, SIZE) == SIZE);
        CHECK(is_content(seen, at, SIZE, round));
        at += SIZE;
        if (round % 8 == 0) {
            // Until it is served again.
            CHECK(fsync(writer) == 0);
            usleep(400000);
            at = read_to(fd, at, at + (3 << 20));
        }
    }
}

static void stored_by_a_mapping(void) {
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

static void time_set_back(void) {
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

static void punched(void) {
    int fd = open_file(O_RDONLY), writer = open_file(O_WRONLY);
    static uint64_t buffer[SIZE / 8];
    uint64_t at = read_to(fd, 0, 16 << 20);
    CHECK(fallocate(writer, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, SIZE) == 0);
    CHECK(read(fd, buffer, SIZE) == SIZE);
    for (int i = 0; i < SIZE / 8; i++)
        CHECK(buffer[i] == 0);
    read_to(fd, at + SIZE, at + (2 << 20));
}

static void cut_and_grown(void) {
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

static void replaced(void) {
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
    // Who has the old one open reads the old one, and who opens the name the new one.
    int new = open_file(O_RDONLY);
    for (; at + SIZE <= size; at += SIZE) {
        CHECK(pread(new, buffer, SIZE, at) == SIZE && is_content(buffer, at, SIZE, 7));
        CHECK(read(old, buffer, SIZE) == SIZE && is_content(buffer, at, SIZE, 0));
    }
    CHECK(dup2(new, old) == old);
    CHECK(pread(old, buffer, SIZE, 0) == SIZE && is_content(buffer, 0, SIZE, 7));
}

static void other_files(void) {
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

static const struct {
    const char *name;
    void (*run)(void);
} SCENARIOS[] = {
    {"reads", reads},
    {"preads_of_any_size", preads_of_any_size},
    {"vectors", vectors},
    {"large_reads_anywhere", large_reads_anywhere},
    {"jumps", jumps},
    {"threads", threads},
    {"duplicates", duplicates},
    {"modes", modes},
    {"forks", forks},
    {"signals", signals},
    {"forks_in_handlers", forks_in_handlers},
    {"forks_in_reads", forks_in_reads},
    {"connections_are_closed", connections_are_closed},
    {"jumps_out_of_reads", jumps_out_of_reads},
    {"cancelled_threads", cancelled_threads},
    {"bad_buffers", bad_buffers},
    {"cancelled_where_served", cancelled_where_served},
    {"vfork_and_close", vfork_and_close},
    {"bare_forks", bare_forks},
    {"leased", leased},
    {"few_addresses", few_addresses},
    {"strict_filter", strict_filter},
    {"lowest_numbers", lowest_numbers},
    {"closes_all", closes_all},
    {"few_descriptors", few_descriptors},
    {"overwritten", overwritten},
    {"stored_by_a_mapping", stored_by_a_mapping},
    {"time_set_back", time_set_back},
    {"punched", punched},
    {"cut_and_grown", cut_and_grown},
    {"replaced", replaced},
    {"other_files", other_files},
};

int main(int argc, char **argv) {
    CHECK(argc == 3);
    path = argv[2];
    for (size_t at = 0; at < sizeof SCENARIOS / sizeof *SCENARIOS; at++)
        if (strcmp(SCENARIOS[at].name, argv[1]) == 0) {
            SCENARIOS[at].run();
            puts("as it is");
            return 0;
        }
    dprintf(2, "no such scenario: %s\n", argv[1]);
    return 1;
}
