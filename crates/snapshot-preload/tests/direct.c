// A program into whose memory devices write during its forks. Its argument selects the way in which it requests that. It prints
// errors on the standard error.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/check.h"

enum { SECTOR = 512, SKIPPED = 77 };

// A system call that no library sees.
static long bare_call(long number, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
#else
    return syscall(number, a, b, c, d, e, f);
#endif
}

// A ring of io_uring with one registered buffer.
struct ring {
    int fd;
    struct io_uring_params of;
    unsigned char *sq, *cq;
    struct io_uring_sqe *sqes;
};

static void map_ring(struct ring *ring) {
    struct io_uring_params *of = &ring->of;
    size_t sq = of->sq_off.array + of->sq_entries * sizeof(unsigned);
    size_t cq = of->cq_off.cqes + of->cq_entries * sizeof(struct io_uring_cqe);
    int access = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_POPULATE;
    ring->sq = mmap(NULL, sq, access, flags, ring->fd, IORING_OFF_SQ_RING);
    ring->cq = mmap(NULL, cq, access, flags, ring->fd, IORING_OFF_CQ_RING);
    ring->sqes = mmap(NULL, of->sq_entries * sizeof(struct io_uring_sqe), access, flags, ring->fd, IORING_OFF_SQES);
    CHECK(ring->sq != MAP_FAILED && ring->cq != MAP_FAILED && (void *)ring->sqes != MAP_FAILED, "mapping the ring");
}

static struct ring set_up(int is_bare) {
    struct ring ring = {0};
    ring.fd = is_bare ? bare_call(SYS_io_uring_setup, 8, (long)&ring.of, 0, 0, 0, 0)
                      : syscall(SYS_io_uring_setup, 8, &ring.of);
    if (ring.fd < 0) {
        printf("there is no io_uring here\n");
        exit(SKIPPED);
    }
    map_ring(&ring);
    return ring;
}

static void register_buffer(struct ring *ring, void *at, size_t bytes) {
    struct iovec buffer = {at, bytes};
    CHECK(!syscall(SYS_io_uring_register, ring->fd, IORING_REGISTER_BUFFERS, &buffer, 1), "registering a buffer");
}

static void begin_read(struct ring *ring, int file, void *to, unsigned bytes) {
    _Atomic unsigned *tail = (_Atomic unsigned *)(ring->sq + ring->of.sq_off.tail);
    unsigned mask = *(unsigned *)(ring->sq + ring->of.sq_off.ring_mask), at = *tail & mask;
    ring->sqes[at] = (struct io_uring_sqe){
        .opcode = IORING_OP_READ_FIXED, .fd = file, .addr = (uintptr_t)to, .len = bytes, .off = -1, .buf_index = 0};
    ((unsigned *)(ring->sq + ring->of.sq_off.array))[at] = at;
    atomic_store(tail, *tail + 1);
    CHECK(syscall(SYS_io_uring_enter, ring->fd, 1, 0, 0, NULL, 0) == 1, "submitting a read");
}

static void end_read(struct ring *ring, int bytes) {
    CHECK(syscall(SYS_io_uring_enter, ring->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 0, "waiting for a read");
    _Atomic unsigned *head = (_Atomic unsigned *)(ring->cq + ring->of.cq_off.head);
    unsigned mask = *(unsigned *)(ring->cq + ring->of.cq_off.ring_mask);
    struct io_uring_cqe *done = (struct io_uring_cqe *)(ring->cq + ring->of.cq_off.cqes) + (*head & mask);
    CHECK(done->res == bytes, "a read gave %d", done->res);
    atomic_store(head, *head + 1);
}

// Data arrives after a fork, and after the end of the child, for reads that began before the fork.
static void reads_beside_forks(struct ring *ring, unsigned char *at, size_t bytes) {
    enum { READ = 100 };
    int data[2];
    unsigned char values[READ];
    CHECK(!pipe(data), "pipe");
    for (int round = 0; round < 3; round++) {
        memset(at, 1, bytes);
        begin_read(ring, data[0], at + 1000, READ);
        int go = child_that_sees(at, bytes, 1);
        // The rest of the page belongs to the program.
        at[0] = 2;
        memset(values, 10 + round, READ);
        CHECK(write(data[1], values, READ) == READ, "write");
        end_read(ring, READ);
        CHECK(is(at + 1000, READ, 10 + round), "what was read beside a child is lost in round %d", round);
        begin_read(ring, data[0], at + 2000, READ);
        close(go);
        reap();
        // This leaves the merging thread time to run.
        rest(300);
        at[0] = 3;
        CHECK(write(data[1], values, READ) == READ, "write");
        end_read(ring, READ);
        CHECK(is(at + 2000, READ, 10 + round), "what was read after a child is lost in round %d", round);
        CHECK(is(at + 3000, bytes - 3000, 1) && at[0] == 3, "memory has changed");
    }
}

// The ring is set up by the C library's function for system calls.
static void ring(void) {
    enum { BYTES = 4 * MIB };
    unsigned char *at = map(BYTES, 1);
    struct ring ring = set_up(0);
    register_buffer(&ring, at, PAGE);
    reads_beside_forks(&ring, at, BYTES);
}

// The same, after snapshots have been taken.
static void late_ring(void) {
    enum { BYTES = 4 * MIB };
    unsigned char *at = map(BYTES, 1);
    int go = child_that_sees(at, BYTES, 1);
    memset(at, 2, BYTES / 2);
    struct ring ring = set_up(0);
    register_buffer(&ring, at, PAGE);
    close(go);
    reap();
    reads_beside_forks(&ring, at, BYTES);
}

// The library does not see the setup of the ring, but finds the ring at the next fork.
static void bare_ring(void) {
    enum { BYTES = 4 * MIB };
    unsigned char *at = map(BYTES, 1);
    struct ring ring = set_up(1);
    close(child_that_sees(at, BYTES, 1));
    reap();
    register_buffer(&ring, at, PAGE);
    reads_beside_forks(&ring, at, BYTES);
}

// The ring is set up by a library.
static void library(void) {
    extern int io_uring_queue_init(unsigned, void *, unsigned) __attribute__((weak));
    static uint64_t room[1024];
    CHECK(io_uring_queue_init, "the program is not linked with liburing");
    unsigned char *at = map(4 * MIB, 1);
    if (io_uring_queue_init(8, room, 0) < 0) {
        printf("there is no io_uring here\n");
        exit(SKIPPED);
    }
    close(child_that_sees(at, 4 * MIB, 1));
    reap();
}

enum { PIECES = 256 };
static int file;
static unsigned char *pages;
static atomic_int is_over;

static unsigned char content(size_t piece, size_t i) { return 1 + (piece * 7 + i) % 250; }

// Repeatedly reads sectors into pages while the program writes to another part of them.
static void *read_for_ever(void *from) {
    unsigned char sector[SECTOR];
    while (!is_over)
        for (size_t piece = (size_t)from; piece < PIECES; piece += 2) {
            unsigned char *at = pages + piece * PAGE;
            memset(at, 0, SECTOR);
            CHECK(pread(file, at, SECTOR, piece * SECTOR) == SECTOR, "pread");
            for (size_t i = 0; i < SECTOR; i++) sector[i] = content(piece, i);
            CHECK(!memcmp(at, sector, SECTOR), "what was read into page %zu is lost", piece);
        }
    return NULL;
}

static void write_file(const char *name) {
    unsigned char *all = malloc(PIECES * SECTOR);
    for (size_t piece = 0; piece < PIECES; piece++)
        for (size_t i = 0; i < SECTOR; i++) all[piece * SECTOR + i] = content(piece, i);
    int to = open(name, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    CHECK(to >= 0 && write(to, all, PIECES * SECTOR) == PIECES * SECTOR && !fsync(to), "the file");
    close(to);
    free(all);
}

static void reads_of_a_file(int (*open_it)(const char *)) {
    write_file("direct.data");
    pages = map(PIECES * PAGE, 0);
    file = open_it("direct.data");
    if (file < 0 && errno == EINVAL) {
        printf("the file system has no direct reads\n");
        exit(SKIPPED);
    }
    CHECK(file >= 0, "open");
    pthread_t threads[2];
    for (size_t i = 0; i < 2; i++) CHECK(!pthread_create(&threads[i], NULL, read_for_ever, (void *)i), "thread");
    for (int round = 0; round < 100; round++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0) {
            rest(2);
            _exit(0);
        }
        for (int i = 0; i < 20; i++)
            for (size_t piece = 0; piece < PIECES; piece++) pages[piece * PAGE + PAGE / 2 + i] = round;
        reap();
        rest(round % 7);
    }
    is_over = 1;
    for (size_t i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

static int open_directly(const char *name) { return open(name, O_RDONLY | O_DIRECT); }

static int open_at(const char *name) { return openat(AT_FDCWD, name, O_RDWR | O_DIRECT | O_CREAT, 0600); }

static int by_call(const char *name) { return syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_DIRECT, 0); }

static int set_later(const char *name) {
    int file = open(name, O_RDONLY);
    return file < 0 || fcntl(file, F_SETFL, O_DIRECT) < 0 ? -1 : file;
}

static void direct_open(void) { reads_of_a_file(open_directly); }
static void direct_openat(void) { reads_of_a_file(open_at); }
static void direct_syscall(void) { reads_of_a_file(by_call); }
static void direct_fcntl(void) { reads_of_a_file(set_later); }

// A file that is written directly only reads memory.
static void direct_writes(void) {
    unsigned char *at = map(4 * MIB, 1);
    int file = open("direct.data", O_CREAT | O_WRONLY | O_DIRECT, 0600);
    if (file < 0) exit(SKIPPED);
    CHECK(write(file, at, PAGE) == PAGE, "write");
    close(child_that_sees(at, 4 * MIB, 1));
    reap();
}

// Memory exists only once although it has become private. This includes memory that the program maps and releases afterwards.
static void memory(void) {
    enum { BYTES = 64 * MIB };
    unsigned char *at = map(BYTES, 1);
    close(child_that_sees(at, BYTES, 1));
    reap();
    if (open_directly("/proc/self/exe") < 0) {}
    unsigned char *more = map(BYTES, 2);
    close(child_that_sees(more, BYTES, 2));
    reap();
    CHECK(!munmap(at + BYTES / 2, BYTES / 2), "munmap");
    unsigned char *again = map(BYTES / 2, 3);
    for (int i = 0; i < 1000 && status("VmRSS") > 128 + 24; i++) {
        CHECK(is(at, BYTES / 2, 1) && is(more, BYTES, 2) && is(again, BYTES / 2, 3), "memory has changed");
        rest(10);
    }
    CHECK(status("VmRSS") <= 128 + 24, "%ld MiB are resident", status("VmRSS"));
    CHECK(is(at, BYTES / 2, 1) && is(more, BYTES, 2) && is(again, BYTES / 2, 3), "memory has changed");
    // Released memory is free, and memory that was never used takes nothing.
    CHECK(!madvise(more, BYTES / 2, MADV_DONTNEED) && is(more, BYTES / 2, 0), "madvise");
    CHECK(!munmap(more, BYTES), "munmap");
    void *sparse = mmap(NULL, 4 * BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(sparse != MAP_FAILED && !munmap(sparse, 4 * BYTES), "a mapping that is not used");
    CHECK(status("VmRSS") <= 64 + 24, "%ld MiB are resident at the end", status("VmRSS"));
    CHECK(is(map(BYTES, 4), BYTES, 4) && is(at, BYTES / 2, 1) && is(again, BYTES / 2, 3), "memory has changed");
}

// A child without the library's handlers for fork does not have the memory, and must not change the parent's.
static void bare_child(void) {
    unsigned char *at = map(4 * MIB, 1);
    pid_t pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    CHECK(pid >= 0, "clone");
    if (pid == 0) {
        int file = open_directly("/proc/self/exe");
        (void)file;
        _exit(0);
    }
    reap();
    CHECK(is(at, 4 * MIB, 1), "memory has changed");
    close(child_that_sees(at, 4 * MIB, 1));
    reap();
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } kinds[] = {{"ring", ring}, {"late_ring", late_ring}, {"bare_ring", bare_ring}, {"library", library},
                 {"open", direct_open}, {"openat", direct_openat}, {"syscall", direct_syscall},
                 {"fcntl", direct_fcntl}, {"writes", direct_writes}, {"memory", memory},
                 {"bare_child", bare_child}};
    for (size_t i = 0; argc == 2 && i < sizeof kinds / sizeof kinds[0]; i++)
        if (!strcmp(argv[1], kinds[i].name)) {
            kinds[i].run();
            return 0;
        }
    return 2;
}
