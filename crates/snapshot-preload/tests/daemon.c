// Maps memory, becomes a daemon or clears its environment, maps more, and forks children that check both while it and its own
// parent write. It prints the defect that it found, or "as it was".
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 8 << 20, PAGE = 4096 };

static unsigned char *map(unsigned char value) {
    unsigned char *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) exit(2);
    memset(at, value, BYTES);
    return at;
}

static int is(const unsigned char *at, unsigned char value) {
    for (size_t i = 0; i < BYTES; i += 64)
        if (at[i] != value) return 0;
    return 1;
}

// A child sees the content from the fork, whatever its parent writes afterwards.
static int child_sees(unsigned char *before, unsigned char *after, unsigned char value) {
    int go[2];
    if (pipe(go)) return 0;
    pid_t pid = fork();
    if (pid == 0) {
        char byte;
        if (read(go[0], &byte, 1) != 1) _exit(3);
        _exit(is(before, value) && is(after, value) ? 0 : 1);
    }
    memset(before, value + 1, BYTES);
    memset(after, value + 1, BYTES);
    if (write(go[1], "", 1) != 1) return 0;
    int status;
    waitpid(pid, &status, 0);
    close(go[0]);
    close(go[1]);
    return status == 0 && is(before, value + 1) && is(after, value + 1);
}

static void live(unsigned char *before) {
    unsigned char *after = map(1);
    const char *what = "as it was\n";
    if (!is(before, 1)) what = "what it inherited has changed\n";
    for (int value = 1; value < 5; value++)
        if (!child_sees(before, after, value)) what = "a child saw something else\n";
    // The memory is unmapped and mapped again.
    if (munmap(before, BYTES) || munmap(after, BYTES) || !is(map(9), 9)) what = "memory is lost\n";
    if (write(1, what, strlen(what)) < 0) exit(4);
}

int main(int argc, char **argv) {
    unsigned char *before = map(1);
    int done[2];
    if (argc != 2 || pipe(done)) return 2;
    if (!strcmp(argv[1], "daemon")) {
        // The parent exits at once. A reader of the output waits for the daemon.
        if (daemon(0, 1)) return 2;
        live(before);
        return 0;
    }
    if (!strcmp(argv[1], "clearenv")) {
        // Servers do this to show their state in the title of their process.
        if (clearenv()) return 2;
        live(before);
        return 0;
    }
    if (fork() == 0) {
        close(done[0]);
        if (setsid() < 0) return 2;
        live(before);
        return 0;
    }
    close(done[1]);
    // The parent continues, and writes until the other process has ended.
    for (unsigned char value = 100; value < 250; value++) memset(before, value, BYTES);
    char byte;
    return read(done[0], &byte, 1) == 0 ? 0 : 3;
}
