// A program that keeps its memory with malloc and forks, like servers that save themselves. Its first argument names a test. It
// prints the amount of its memory in the region, and fails with a line that names the defect.
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/check.h"

// A non-PIE program that takes the address has a stub for it under the name malloc.
void *(*volatile allocate)(size_t) = malloc;

// A figure of /proc/self/status, in KiB.
static long status_kib(const char *name) {
    FILE *file = fopen("/proc/self/status", "r");
    CHECK(file, "status");
    char line[256];
    long value = -1;
    size_t length = strlen(name);
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, name, length) && line[length] == ':') value = atol(line + length + 1);
    fclose(file);
    CHECK(value >= 0, "%s", name);
    return value;
}

static uint64_t next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

// ---- Blocks whose content identifies them --------------------------------------------------------------------------

struct block {
    uint32_t size;
    uint32_t seed;
    unsigned char bytes[];
};

static struct block *make(uint32_t size, uint32_t seed) {
    struct block *block = allocate(sizeof *block + size);
    CHECK(block, "malloc of %u bytes", size);
    block->size = size;
    block->seed = seed;
    for (uint32_t i = 0; i < size; i++) block->bytes[i] = (unsigned char)(seed + i * 7);
    return block;
}

static int is_whole(const struct block *block) {
    for (uint32_t i = 0; i < block->size; i++)
        if (block->bytes[i] != (unsigned char)(block->seed + i * 7)) return 0;
    return 1;
}

static void reap_child(pid_t pid) {
    int result = -1;
    CHECK(waitpid(pid, &result, 0) == pid && result == 0, "the child %d ended with %d", pid, result);
}

// ---- A heap of some MiB, whose old content a child sees ------------------------------------------------------------

static void heap(size_t mib) {
    static const uint32_t SIZES[] = {24, 100, 500, 3000, 20000, 300000, 5000000};
    size_t total = mib * MIB, bytes = 0, count = 0, room = total / 100;
    struct block **blocks = malloc(room * sizeof *blocks);
    CHECK(blocks, "malloc");
    uint64_t random = 1;
    while (bytes < total && count < room) {
        uint32_t size = SIZES[next(&random) % 7];
        if (size > total / 8) continue;
        blocks[count] = make(size, (uint32_t)count);
        count++;
        bytes += size;
    }
    // The memory of blocks, and the memory of the allocator and the C library beside them.
    long shared = status_kib("RssShmem"), others = status_kib("RssAnon");
    printf("shared=%ld others=%ld\n", shared / 1024, others / 1024);
    fflush(stdout);
    for (int round = 0; round < 3; round++) {
        int go[2];
        CHECK(!pipe(go), "pipe");
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0) {
            close(go[1]);
            char byte;
            (void)!read(go[0], &byte, 1);
            for (size_t i = 0; i < count; i++) {
                CHECK(blocks[i]->seed == (uint32_t)i + round, "block %zu is of another moment", i);
                CHECK(is_whole(blocks[i]), "block %zu has changed", i);
            }
            // The child may change and free its blocks.
            for (size_t i = 0; i < count; i += 2) {
                blocks[i]->bytes[0]++;
                free(blocks[i]);
            }
            struct block *own = make(3 * MIB, 5);
            CHECK(is_whole(own), "the child's own block has changed");
            _exit(0);
        }
        close(go[0]);
        for (size_t i = 0; i < count; i++) {
            uint32_t size = blocks[i]->size;
            free(blocks[i]);
            blocks[i] = make(size, (uint32_t)i + round + 1);
        }
        close(go[1]);
        reap_child(pid);
        for (size_t i = 0; i < count; i++) CHECK(is_whole(blocks[i]), "block %zu has changed in the parent", i);
    }
}

// ---- A server that forks while its threads allocate --------------------------------------------------------------

enum { THREADS = 4, SLOTS = 400, CHILDREN = 8, ROUNDS = 5 };

static _Atomic(struct block *) slots[THREADS][SLOTS];
static atomic_int over;

// Blocks are whole as long as they are in a slot.
static void *exchange(void *argument) {
    size_t thread = (size_t)argument;
    uint64_t random = thread + 1;
    while (!atomic_load(&over)) {
        size_t slot = next(&random) % SLOTS;
        uint32_t size = 16 << next(&random) % 14;
        struct block *block = make(size, (uint32_t)next(&random));
        free(atomic_exchange(&slots[thread][slot], NULL));
        atomic_store(&slots[thread][slot], block);
    }
    return NULL;
}

static void *allocate_a_little(void *argument) {
    for (uint32_t i = 0; i < 1000; i++) {
        struct block *block = make(16 << i % 12, i);
        CHECK(is_whole(block), "a block of a child's thread has changed");
        free(block);
    }
    return argument;
}

static void child(void) {
    size_t seen = 0;
    for (int thread = 0; thread < THREADS; thread++)
        for (int slot = 0; slot < SLOTS; slot++) {
            struct block *block = atomic_load(&slots[thread][slot]);
            if (!block) continue;
            CHECK(is_whole(block), "a block has changed");
            seen++;
            free(block);
        }
    CHECK(seen > 0, "there are no blocks");
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) CHECK(!pthread_create(&threads[i], NULL, allocate_a_little, NULL), "thread");
    for (int i = 0; i < 2; i++) CHECK(!pthread_join(threads[i], NULL), "join");
    pid_t pid = fork();
    CHECK(pid >= 0, "fork in a child");
    if (pid == 0) {
        allocate_a_little(NULL);
        _exit(0);
    }
    reap_child(pid);
}

static void server(void) {
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++) CHECK(!pthread_create(&threads[i], NULL, exchange, (void *)i), "thread");
    // The children must find some blocks.
    for (int slot = 0; slot < SLOTS; slot++)
        for (int thread = 0; thread < THREADS; thread++)
            while (slot % 50 == 0 && !atomic_load(&slots[thread][slot])) usleep(1000);
    for (int round = 0; round < ROUNDS; round++) {
        pid_t children[CHILDREN];
        for (int i = 0; i < CHILDREN; i++) {
            children[i] = fork();
            CHECK(children[i] >= 0, "fork");
            if (children[i] == 0) {
                child();
                _exit(0);
            }
        }
        for (int i = 0; i < CHILDREN; i++) reap_child(children[i]);
    }
    atomic_store(&over, 1);
    for (size_t i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int thread = 0; thread < THREADS; thread++)
        for (int slot = 0; slot < SLOTS; slot++) {
            struct block *block = atomic_load(&slots[thread][slot]);
            CHECK(!block || is_whole(block), "a block has changed in the parent");
        }
}

// ---- Every function of the allocator -------------------------------------------------------------------------------

static void is_usable(void *at, size_t align, size_t size, const char *name) {
    CHECK(at, "%s gave nothing", name);
    CHECK((uintptr_t)at % align == 0, "%s: %p is not aligned to %zu", name, at, align);
    CHECK(malloc_usable_size(at) >= size, "%s: only %zu bytes", name, malloc_usable_size(at));
    memset(at, 1, size);
    free(at);
}

static void functions(void) {
    volatile size_t most = SIZE_MAX;
    is_usable(malloc(100), 16, 100, "malloc");
    is_usable(malloc(0), 16, 0, "malloc of nothing");
    is_usable(aligned_alloc(1024, 4096), 1024, 4096, "aligned_alloc");
    is_usable(memalign(512, 100), 512, 100, "memalign");
    is_usable(valloc(100), PAGE, 100, "valloc");
    is_usable(pvalloc(100), PAGE, PAGE, "pvalloc");
    is_usable(memalign(4 * MIB, MIB), 4 * MIB, MIB, "a large memalign");
    void *at = NULL;
    CHECK(posix_memalign(&at, 256, 100) == 0, "posix_memalign");
    is_usable(at, 256, 100, "posix_memalign");
    CHECK(posix_memalign(&at, 3, 100) == EINVAL, "posix_memalign took an alignment of 3");
    unsigned char *zeros = calloc(1000, 1000);
    for (size_t i = 0; i < 1000000; i++) CHECK(!zeros[i], "calloc");
    zeros = realloc(zeros, 2000000);
    CHECK(zeros && !zeros[999999], "realloc");
    zeros = reallocarray(zeros, 3000, 1000);
    is_usable(zeros, 16, 3000000, "reallocarray");
    errno = 0;
    CHECK(!calloc(most, 2) && errno == ENOMEM, "calloc of too much");
    errno = 0;
    CHECK(!reallocarray(NULL, most, 2) && errno == ENOMEM, "reallocarray of too much");
    errno = 0;
    CHECK(!pvalloc(most) && errno == ENOMEM, "pvalloc of too much");
    errno = 0;
    CHECK(!malloc(most / 2) && errno == ENOMEM, "malloc of too much");
    free(NULL);
    CHECK(malloc_usable_size(NULL) == 0, "malloc_usable_size of nothing");
}

// ---- Reservations and the program break --------------------------------------------------------------------------

// Callers other than the allocator get the kernel's break, and reservations that cannot be read.
static void others(void) {
    long before = status_kib("RssShmem");
    char *start = sbrk(2 * MIB);
    CHECK(start != (void *)-1, "sbrk");
    memset(start, 1, 2 * MIB);
    CHECK(sbrk(0) == start + 2 * MIB, "the break is elsewhere");
    CHECK(status_kib("RssShmem") < before + 1024, "the program's break is in the region");
    char *reserved = mmap(NULL, 4 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(reserved != MAP_FAILED, "mmap");
    int ends[2];
    CHECK(!pipe(ends), "pipe");
    CHECK(write(ends[1], reserved, 1) == -1 && errno == EFAULT, "a reservation can be read");
    CHECK(!mprotect(reserved, PAGE, PROT_READ | PROT_WRITE), "mprotect");
    reserved[0] = 1;
}

// The functions of own_malloc.c.
__attribute__((weak)) char *reserve(size_t bytes);

// Whether an allocator's reservation is in the region.
static int reservation_is_shared(size_t bytes) {
    char *at = reserve(bytes);
    CHECK(at != MAP_FAILED, "a reservation of %zu bytes", bytes);
    long before = status_kib("RssShmem");
    CHECK(!mprotect(at, 4 * MIB, PROT_READ | PROT_WRITE), "mprotect");
    memset(at, 1, 4 * MIB);
    return status_kib("RssShmem") >= before + 4096;
}

static void limit(void) {
    const size_t largest = (size_t)2 << 30;
    CHECK(reservation_is_shared(largest), "a reservation of 2 GiB is not in the region");
    CHECK(!reservation_is_shared(largest + PAGE), "a reservation of more than 2 GiB is in the region");
    CHECK(reservation_is_shared(MIB * 4), "a small reservation is not in the region");
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "heap"))
        heap((size_t)(argc > 2 ? atoi(argv[2]) : 200));
    else if (!strcmp(what, "server"))
        server();
    else if (!strcmp(what, "functions"))
        functions();
    else if (!strcmp(what, "others"))
        others();
    else if (!strcmp(what, "limit"))
        limit();
    else
        return 2;
    puts("as it was");
    return 0;
}
