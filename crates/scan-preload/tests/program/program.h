// A program that reads a large file in the way of a scenario: `program SCENARIO FILE`. A scenario checks that the program's reads
// return the same as the kernel's. Then the program prints "as it is" and exits with 0. Otherwise it prints the difference and
// exits with 1.

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#define CHECK(condition)                                                                                  \
    do {                                                                                                  \
        if (!(condition)) {                                                                               \
            dprintf(2, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);                  \
            _exit(1);                                                                                     \
        }                                                                                                 \
    } while (0)

/// Bytes of most reads.
#define SIZE (8 << 10)
/// Bytes of a page.
#define BLOCK 4096

/// The file (`file.c`).
extern const char *path;

/// The position of the latest `pread_to`.
extern _Atomic uint64_t progress;

/// The eight bytes at a multiple of eight.
uint64_t word(uint64_t offset, uint64_t generation);

/// Fills a buffer with the bytes of the file at an offset, in a generation.
void fill(uint64_t *buffer, uint64_t offset, size_t len, uint64_t generation);

/// Whether bytes are those of the file at an offset, in a generation.
int is_content(const void *buffer, uint64_t offset, size_t len, uint64_t generation);

int open_file(int flags);

uint64_t size_of(int fd);

/// Reads by `read` from the descriptor's position, which is `at`, until `end` or a little further. Returns the offset where it
/// ended.
uint64_t read_to(int fd, uint64_t at, uint64_t end);

/// Reads by `pread` from one offset until another or a little further.
void pread_to(int fd, uint64_t at, uint64_t end);

/// Calls a macro with the name of each scenario. The scenario is the function of that name.
#define FOR_EACH_SCENARIO(SCENARIO)                                                                       \
    /* reads.c */                                                                                         \
    SCENARIO(reads) SCENARIO(preads_of_any_size) SCENARIO(vectors) SCENARIO(large_reads_anywhere)         \
    SCENARIO(vectors_with_flags)                                                                          \
    SCENARIO(jumps) SCENARIO(short_reads_after_a_scan) SCENARIO(bad_buffers)                              \
    /* threads.c */                                                                                       \
    SCENARIO(threads) SCENARIO(cancelled_threads) SCENARIO(cancelled_where_served)                        \
    /* descriptors.c */                                                                                   \
    SCENARIO(duplicates) SCENARIO(modes) SCENARIO(other_files)                                            \
    /* forks.c */                                                                                         \
    SCENARIO(forks) SCENARIO(vfork_and_close) SCENARIO(bare_forks)                                        \
    /* signals.c */                                                                                       \
    SCENARIO(signals) SCENARIO(forks_in_handlers) SCENARIO(forks_in_reads) SCENARIO(jumps_out_of_reads)   \
    /* connections.c */                                                                                   \
    SCENARIO(connections_are_closed) SCENARIO(lowest_numbers) SCENARIO(closes_all)                        \
    /* restrictions.c */                                                                                  \
    SCENARIO(leased) SCENARIO(few_addresses) SCENARIO(few_descriptors) SCENARIO(strict_filter)            \
    /* writers.c */                                                                                       \
    SCENARIO(overwritten) SCENARIO(stored_by_a_mapping) SCENARIO(time_set_back) SCENARIO(punched)         \
    SCENARIO(cut_and_grown) SCENARIO(replaced)

#define DECLARE_SCENARIO(name) void name(void);
FOR_EACH_SCENARIO(DECLARE_SCENARIO)
