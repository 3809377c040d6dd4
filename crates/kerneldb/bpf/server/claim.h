/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Claiming buffers from the shared pools. By compare-and-swap, never by a per-CPU nesting counter: a
 * run that is preempted in process context may end after a run that started later on the same CPU.
 * A run first tries its own CPU's part of a pool, so claims rarely touch another CPU's cache lines.
 */
#ifndef BEDPLATE_SERVER_CLAIM_H
#define BEDPLATE_SERVER_CLAIM_H

#include "maps.h"

/* Set by the loader: constants to the verifier. */
const volatile struct srv_config srv_config SEC(".rodata.srv") = {};

#define SRV_CLAIM(map, type, count)                                                                \
	({                                                                                         \
		type *found = 0;                                                                   \
		__u32 n = (count), base = bpf_get_smp_processor_id() * (n / srv_config.cpus), i;          \
		bpf_for(i, 0, n) {                                                                 \
			__u32 at = base + i;                                                       \
			at = at >= n ? at - n : at;                                                \
			type *e = bpf_map_lookup_elem(&map, &at);                                  \
			if (!e)                                                                    \
				break;                                                             \
			if (!*(volatile __u32 *)&e->claimed &&                                     \
			    __sync_val_compare_and_swap(&e->claimed, 0, at + 1) == 0) {            \
				found = e;                                                         \
				break;                                                             \
			}                                                                          \
		}                                                                                  \
		found;                                                                             \
	})

/* Frees what SRV_CLAIM returned. The exchange orders all earlier accesses before it. */
#define SRV_RELEASE(e) __sync_lock_test_and_set(&(e)->claimed, 0)

static __always_inline struct srv_stats *srv_count(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&srv_counters, &zero);
}

#endif
