// A process under the library does everything that any process may do. Its argument selects the action. It prints errors on the
// standard error.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/check.h"

// More children exist at once than there could ever be snapshots.
static void children(void) {
    enum { CHILDREN = 40, BYTES = 2 * MIB };
    unsigned char *at = map(BYTES, 0);
    int go[CHILDREN];
    for (int i = 0; i < CHILDREN; i++) {
        memset(at, i, BYTES);
        go[i] = child_that_sees(at, BYTES, i);
        fcntl(go[i], F_SETFD, FD_CLOEXEC);
    }
    memset(at, 255, BYTES);
    // Children have the ends of pipes of earlier children, so the last one ends first.
    for (int i = CHILDREN; i-- > 0;) {
        close(go[i]);
        reap();
    }
    CHECK(is(at, BYTES, 255), "the parent's memory has changed");
}

// Only the program's present memory is locked, not all that it could have.
static void locked(void) {
    unsigned char *at = map(32 * MIB, 1);
    CHECK(!mlockall(MCL_CURRENT | MCL_FUTURE), "mlockall");
    CHECK(status("VmRSS") < 200, "%ld MiB are resident", status("VmRSS"));
    unsigned char *more = map(32 * MIB, 2);
    int go = child_that_sees(at, 32 * MIB, 1);
    memset(at, 3, 32 * MIB);
    close(go);
    reap();
    CHECK(is(at, 32 * MIB, 3) && is(more, 32 * MIB, 2), "memory has changed");
    CHECK(status("VmRSS") < 400, "%ld MiB are resident after a snapshot", status("VmRSS"));
}

// No memory counts twice: neither when the program is idle, nor while a child exists and nothing is written.
static void resident(void) {
    enum { BYTES = 128 * MIB };
    unsigned char *at = map(BYTES, 1);
    rest(1500);
    CHECK(status("VmRSS") < 128 * 21 / 20 + 8, "%ld MiB are resident", status("VmRSS"));
    int go = child_that_sees(at, BYTES, 1);
    // Detached tables are dropped in the background.
    for (int i = 0; i < 200 && status("VmRSS") > 32; i++) rest(10);
    CHECK(is(at, BYTES, 1), "memory has changed");
    CHECK(status("VmRSS") < 128 * 21 / 20 + 8, "%ld MiB are resident beside a child", status("VmRSS"));
    close(go);
    reap();
}

// A core dump has the program's memory.
static void dump(void) {
    unsigned char *at = map(32 * MIB, 1);
    int go = child_that_sees(at, 32 * MIB, 1);
    memset(at, 2, MIB);
    close(go);
    reap();
    abort();
}

// Pages that are released one by one while a child exists are zero, and their memory is free.
static void discards(void) {
    enum { PAGES = 40000 };
    size_t bytes = (size_t)PAGES * PAGE;
    unsigned char *at = map(bytes, 1);
    int go = child_that_sees(at, bytes, 1);
    memset(at, 2, bytes);
    long before = status("RssAnon");
    CHECK(before > 150, "only %ld MiB were copied", before);
    for (size_t page = 0; page < PAGES; page += 2) CHECK(!madvise(at + page * PAGE, PAGE, MADV_DONTNEED), "madvise");
    long after = status("RssAnon");
    CHECK(after < before - 70, "%ld MiB of %ld are left", after, before);
    for (size_t page = 0; page < PAGES; page++)
        CHECK(is(at + page * PAGE, PAGE, page % 2 ? 2 : 0), "page %zu", page);
    // Some pages are used again.
    for (size_t page = 0; page < PAGES; page += 20) at[page * PAGE] = 3;
    close(go);
    reap();
    for (int round = 0; round < 2; round++) {
        for (size_t page = 0; page < PAGES; page++) {
            unsigned char first = page % 20 == 0 ? 3 : page % 2 ? 2 : 0;
            CHECK(at[page * PAGE] == first && at[page * PAGE + 64] == (page % 2 ? 2 : 0), "page %zu", page);
        }
        rest(1000);
    }
}

// Memory of which a part is locked is released while a child exists, and shared again afterwards.
static void locked_part(void) {
    enum { BYTES = 64 * MIB };
    unsigned char *gone = map(BYTES, 1), *kept = map(BYTES, 1);
    int go = child_that_sees(gone, BYTES, 1);
    CHECK(!mlock(gone + 16 * MIB, 16 * MIB) && !mlock(kept + 16 * MIB, 16 * MIB), "mlock");
    memset(gone, 2, BYTES);
    memset(kept, 3, BYTES);
    long before = status("RssAnon");
    CHECK(before > 120, "only %ld MiB were copied", before);
    CHECK(!munmap(gone, BYTES), "munmap");
    long after = status("RssAnon");
    CHECK(after < before - 60, "%ld MiB of %ld are left", after, before);
    close(go);
    reap();
    for (int i = 0; i < 500 && status("RssAnon") > 16; i++) {
        CHECK(is(kept, BYTES, 3), "memory has changed");
        rest(10);
    }
    CHECK(status("RssAnon") <= 16, "%ld MiB are not shared again", status("RssAnon"));
    CHECK(is(kept, BYTES, 3), "memory has changed");
}

// A mapping is replaced of which a part was released before.
static void fixed(void) {
    unsigned char *at = map(4 * MIB, 1);
    CHECK(!munmap(at + MIB, 2 * MIB), "munmap");
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    CHECK(mmap(at, 4 * MIB, PROT_READ | PROT_WRITE, flags, -1, 0) == at, "mmap");
    CHECK(is(at, 4 * MIB, 0), "it is not empty");
    memset(at, 2, 4 * MIB);
    for (int i = 0; i < 8; i++) {
        unsigned char *other = map(MIB, 3);
        CHECK(other + MIB <= at || at + 4 * MIB <= other, "somebody else has it, too");
    }
    int go = child_that_sees(at, 4 * MIB, 2);
    memset(at, 4, 4 * MIB);
    close(go);
    reap();
    rest(1000);
    CHECK(is(at, 4 * MIB, 4), "memory has changed");
}

// A child that has executed another program is left alone, whatever its parent writes.
static void programs(void) {
    enum { BYTES = 8 * MIB };
    unsigned char *at = map(BYTES, 1);
    for (int i = 0; i < 8; i++) {
        int closed_by_exec[2];
        CHECK(!pipe2(closed_by_exec, O_CLOEXEC), "pipe");
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0) {
            unsetenv("LD_PRELOAD");
            execlp("sleep", "sleep", "0.3", NULL);
            _exit(3);
        }
        close(closed_by_exec[1]);
        char byte;
        (void)!read(closed_by_exec[0], &byte, 1);
        close(closed_by_exec[0]);
        memset(at, i, BYTES);
        reap();
    }
}

// Memory of which a part had other access rights can be written again after it was unmapped or replaced.
static void rights(void) {
    enum { BYTES = 4 * MIB };
    for (int i = 0; i < 4; i++) {
        unsigned char *at = map(BYTES, 1);
        CHECK(!mprotect(at + MIB, PAGE, PROT_NONE) && !mprotect(at + 2 * MIB, MIB, PROT_READ), "mprotect");
        if (i % 2) {
            int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
            CHECK(mmap(at, BYTES, PROT_READ | PROT_WRITE, flags, -1, 0) == at, "mmap");
            memset(at, 2, BYTES);
        }
        CHECK(!munmap(at, BYTES), "munmap");
        unsigned char *next = map(BYTES, 3);
        int go = child_that_sees(next, BYTES, 3);
        memset(next, 4, BYTES);
        close(go);
        reap();
        CHECK(!munmap(next, BYTES), "munmap");
    }
}

// A request to make memory executable fails if it has no effect.
static void code(void) {
    unsigned char *at = map(MIB, 0xc3);
    if (mprotect(at, MIB, PROT_READ | PROT_EXEC)) {
        CHECK(errno == EACCES, "errno is %d", errno);
        CHECK(is(at, MIB, 0xc3), "memory has changed");
        return;
    }
#ifdef __x86_64__
    ((void (*)(void))at)();
#endif
}

// A child of vfork has the owner's memory, so the memory that it releases is released in the owner.
static void vforks(void) {
    enum { BYTES = 4 * MIB };
    unsigned char *at = map(BYTES, 1);
    for (int round = 0; round < 2; round++) {
        pid_t pid = vfork();
        CHECK(pid >= 0, "vfork");
        if (pid == 0) _exit(madvise(at, BYTES / 2, MADV_DONTNEED) ? 1 : 0);
        reap();
        CHECK(is(at, BYTES / 2, 0) && is(at + BYTES / 2, BYTES / 2, 1 + round), "memory has changed");
        memset(at, 2 + round, BYTES);
        close(child_that_sees(at, BYTES, 2 + round));
        reap();
        CHECK(is(at, BYTES, 2 + round), "memory has changed after a fork");
        memset(at + BYTES / 2, 2 + round, BYTES / 2);
    }
}

static atomic_int is_over;

static void *map_for_ever(void *unused) {
    while (!is_over) munmap(map(MIB, 5), MIB);
    return unused;
}

// A mapping is replaced while another thread maps memory, which must not get its pages.
static void replaced(void) {
    enum { BYTES = 2 * MIB, FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED };
    unsigned char *at = map(BYTES, 1);
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, map_for_ever, NULL), "thread");
    for (int i = 0; i < 20000; i++) {
        CHECK(mmap(at, BYTES, PROT_READ | PROT_WRITE, FLAGS, -1, 0) == at, "mmap");
        at[BYTES / 2] = 2;
    }
    is_over = 1;
    pthread_join(thread, NULL);
    CHECK(at[0] == 0 && at[BYTES / 2] == 2, "somebody else has it, too");
    // The kernel maps whole pages.
    CHECK(!munmap(at + PAGE, PAGE) && mmap(at, PAGE + 1, PROT_READ | PROT_WRITE, FLAGS, -1, 0) == at, "mmap");
    at[PAGE] = 3;
    CHECK(mmap(at + 1, PAGE, PROT_READ | PROT_WRITE, FLAGS, -1, 0) == MAP_FAILED && errno == EINVAL, "an odd address");
    CHECK(mmap(at, 0, PROT_READ | PROT_WRITE, FLAGS, -1, 0) == MAP_FAILED && errno == EINVAL, "no pages");
    close(child_that_sees(at + PAGE, 1, 3));
    reap();
    rest(500);
    CHECK(at[PAGE] == 3 && at[BYTES / 2] == 2, "memory has changed");
}

static unsigned char *written;
static size_t written_bytes;

static void *write_for_ever(void *start) {
    size_t number = (size_t)start;
    for (;;) {
        number = number * 6364136223846793005u + 1442695040888963407u;
        written[(number >> 20) % written_bytes] = number;
    }
    return NULL;
}

// A child that is forked while threads write does not get the page tables of all the memory.
static void writers(void) {
    written_bytes = 512 * MIB;
    written = map(written_bytes, 1);
    pthread_t thread;
    for (size_t i = 0; i < 2; i++) CHECK(!pthread_create(&thread, NULL, write_for_ever, (void *)(i + 1)), "thread");
    for (int i = 0; i < 5; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0) {
            CHECK(status("VmRSS") < 128, "the child has %ld MiB", status("VmRSS"));
            _exit(0);
        }
        reap();
        // This waits until all pages are shared again.
        rest(3000);
    }
    _exit(0);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } kinds[] = {{"children", children}, {"locked", locked}, {"resident", resident},
                 {"dump", dump}, {"discards", discards}, {"writers", writers},
                 {"locked_part", locked_part}, {"fixed", fixed}, {"vforks", vforks}, {"replaced", replaced},
                 {"programs", programs}, {"rights", rights}, {"code", code}};
    for (size_t i = 0; argc == 2 && i < sizeof kinds / sizeof kinds[0]; i++)
        if (!strcmp(argv[1], kinds[i].name)) {
            kinds[i].run();
            return 0;
        }
    return 2;
}
