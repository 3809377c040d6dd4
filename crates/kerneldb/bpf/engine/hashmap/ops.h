/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The hash-map engine: the paper's storage (4.1), transactions (4.2) and log (4.3) behind the same
 * operators as the arena engine. It is the baseline of the benchmarks, and the engine for kernels from
 * 6.1 on that have no arenas. A database of this engine has one partition and at most eight versions.
 */
#ifndef BEDPLATE_HASHMAP_OPS_H
#define BEDPLATE_HASHMAP_OPS_H

#include "tx.h"
#include "gc.h"

/* There is no arena to mention. Sources that are compiled for both engines use the macro. */
#define USE_ARENA() ((void)0)

#endif
