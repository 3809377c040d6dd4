// Threads that share a descriptor, and threads that are cancelled while they read.

#include <pthread.h>
#include <time.h>

#include "program.h"

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
        // The content has its offset. Each read returns a whole block, and each block is read once.
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

void threads(void) {
    shared = open_file(O_RDONLY);
    run_threads(read_by_offset, 4);
    run_threads(read_by_position, 3);
    CHECK(total == size_of(shared));
}

static void *read_for_ever(void *unused) {
    (void)unused;
    int fd = open_file(O_RDONLY);
    uint64_t size = size_of(fd);
    for (;;)
        pread_to(fd, 0, size);
    return NULL;
}

void cancelled_threads(void) {
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

/// A thread whose reads are all served can be cancelled.
void cancelled_where_served(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, read_for_ever, NULL) == 0);
    while (progress < 16 << 20)
        usleep(1000);
    CHECK(pthread_cancel(thread) == 0);
    struct timespec end;
    CHECK(clock_gettime(CLOCK_REALTIME, &end) == 0);
    end.tv_sec += 30;
    CHECK(pthread_timedjoin_np(thread, NULL, &end) == 0);
}
