// Runs the scenario that its arguments name.

#include <string.h>

#include "program.h"

#define NAMED_SCENARIO(name) {#name, name},

static const struct {
    const char *name;
    void (*run)(void);
} SCENARIOS[] = {FOR_EACH_SCENARIO(NAMED_SCENARIO)};

int main(int argc, char **argv) {
    CHECK(argc == 3);
    path = argv[2];
    // The test may have been started with more descriptors.
    closefrom(3);
    for (size_t at = 0; at < sizeof SCENARIOS / sizeof *SCENARIOS; at++)
        if (strcmp(SCENARIOS[at].name, argv[1]) == 0) {
            SCENARIOS[at].run();
            puts("as it is");
            return 0;
        }
    dprintf(2, "no such scenario: %s\n", argv[1]);
    return 1;
}
