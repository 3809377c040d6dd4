// An allocator that is a part of the program: it gets its first memory from sbrk, and then reserves addresses, whose access
// rights it gets piece by piece. It never uses memory twice. It is for programs with one thread.
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HEADER = 16, PIECE = 2 << 20, BY_BREAK = 32 << 20 };
static const size_t RESERVED = 1 << 30;

static char *at, *end, *reserved, *reserved_end;

static void defect(const char *what) {
    (void)!write(2, what, strlen(what));
    _exit(1);
}

// Gets more memory from sbrk. Memory that was released is zero when it is returned again.
static int grow_by_break(void) {
    char *more = sbrk(PIECE);
    if (more == (void *)-1) return 0;
    if (more != end) at = more;
    end = more + PIECE;
    memset(end - PIECE / 2, 1, PIECE / 2);
    if (sbrk(-PIECE / 2) != end || sbrk(PIECE / 2) != end - PIECE / 2) defect("the break moved elsewhere\n");
    for (char *byte = end - PIECE / 2; byte < end; byte++)
        if (*byte) defect("memory of the break is not zero\n");
    return 1;
}

// Reserves addresses like the allocator.
char *reserve(size_t bytes) {
    return mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static int grow(size_t size) {
    static size_t by_break;
    if (by_break < BY_BREAK && size < PIECE) {
        by_break += PIECE;
        if (grow_by_break()) return 1;
    }
    if (!reserved) {
        reserved = reserve(RESERVED);
        if (reserved == MAP_FAILED) return 0;
        reserved_end = reserved + RESERVED;
    }
    size_t piece = (size + PIECE) / PIECE * PIECE;
    if (reserved + piece > reserved_end || mprotect(reserved, piece, PROT_READ | PROT_WRITE)) return 0;
    if (reserved != end) at = reserved;
    end = reserved += piece;
    return 1;
}

void *memalign(size_t align, size_t size) {
    for (;;) {
        uintptr_t start = ((uintptr_t)at + HEADER + align - 1) / align * align;
        if (at && start + size <= (uintptr_t)end) {
            at = (char *)((start + size + HEADER - 1) / HEADER * HEADER);
            ((size_t *)start)[-1] = size;
            return (void *)start;
        }
        if (size > RESERVED || !grow(size + align + HEADER)) {
            errno = ENOMEM;
            return NULL;
        }
    }
}

void *malloc(size_t size) {
    return memalign(HEADER, size);
}

void *aligned_alloc(size_t align, size_t size) {
    return memalign(align, size);
}

int posix_memalign(void **result, size_t align, size_t size) {
    return (*result = memalign(align, size)) ? 0 : ENOMEM;
}

void free(void *block) {
    (void)block;
}

size_t malloc_usable_size(void *block) {
    return block ? ((size_t *)block)[-1] : 0;
}

void *calloc(size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) return NULL;
    return malloc(bytes);
}

void *realloc(void *block, size_t size) {
    size_t old = malloc_usable_size(block);
    void *result = malloc(size);
    if (result && block) memcpy(result, block, old < size ? old : size);
    return result;
}
