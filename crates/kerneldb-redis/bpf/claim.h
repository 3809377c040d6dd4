/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Claims buffers from the shared pools by compare-and-swap. A per-CPU nesting counter would be wrong, because
 * a run that is preempted in process context may end after a run that started later on the same CPU.
 * A run first tries its own CPU's part of a pool, so claims rarely touch another CPU's cache lines.
 */
#ifndef BEDPLATE_SERVER_CLAIM_H
#define BEDPLATE_SERVER_CLAIM_H

#include "maps.h"

/* The loader sets them; they are constants to the verifier. */
const volatile struct srv_config srv_config SEC(".rodata.srv") = {};

/*
 * Defines a function that claims an element of a map and returns index + 1, or 0 if all are in use. It is
 * not inlined, because its callers need the stack for the engine.
 */
#define SRV_CLAIMER(name, map, type, count)                                                        \
	__noinline __u32 name(void)                                                                \
	{                                                                                          \
		__u32 n = (count), base = bpf_get_smp_processor_id() * (n / srv_config.cpus), i;   \
		__u32 claimed = 0;                                                                 \
		type *first = bpf_map_lookup_elem(&map, &base);                                    \
		/* Nearly always free, and then not worth a loop. */                               \
		if (first && __sync_val_compare_and_swap(&first->claimed, 0, base + 1) == 0)       \
			return base + 1;                                                           \
		bpf_for(i, 1, n) {                                                                 \
			__u32 at = base + i;                                                       \
			at = at >= n ? at - n : at;                                                \
			type *e = bpf_map_lookup_elem(&map, &at);                                  \
			if (!e)                                                                    \
				break;                                                             \
			if (!*(volatile __u32 *)&e->claimed &&                                     \
			    __sync_val_compare_and_swap(&e->claimed, 0, at + 1) == 0) {            \
				claimed = at + 1;                                                  \
				break;                                                             \
			}                                                                          \
		}                                                                                  \
		return claimed;                                                                    \
	}

SRV_CLAIMER(srv_claim_input, srv_inputs, struct srv_input, srv_config.inputs)
SRV_CLAIMER(srv_claim_queue, srv_queues, struct srv_queue, srv_config.queues)
SRV_CLAIMER(srv_claim_output, srv_outputs, struct srv_output, srv_config.outputs)
SRV_CLAIMER(srv_claim_call_buffer, kdb_ios, struct kdb_io, srv_config.call_buffers)

/* An element of a map by its index. */
#define SRV_LOOKUP(map, index)                                                                     \
	({                                                                                         \
		__u32 at = (index);                                                                \
		bpf_map_lookup_elem(&map, &at);                                                    \
	})

/* Frees a claimed element. The exchange orders all earlier accesses before it. */
#define SRV_RELEASE(e) __sync_lock_test_and_set(&(e)->claimed, 0)

/* Makes `in` ready for `len` bytes of a connection's requests. */
static __always_inline void srv_begin(struct srv_input *in, struct srv_conn *conn, __u32 idx, __u32 len, __u32 limit)
{
	in->pos = 0;
	in->len = len;
	in->opos = 0;
	in->limit = limit;
	in->commands = 0;
	in->flags = conn->flags;
	in->conn = idx;
	in->session = conn->session;
	in->batch = 0;
	in->cmd = 0;
	in->jumps = 0;
	in->ending = 0;
	in->stop = 0;
	in->queue = conn->queue;
	in->outer = 0;
	in->cookie = 0;
	in->call_buffer = 0;
	in->procedure = 0;
}

/* Claims a request buffer and an output, which a run of commands needs. Returns index + 1, or 0. */
__noinline __u32 srv_claim(void)
{
	__u32 index = srv_claim_input();
	struct srv_input *in = SRV_LOOKUP(srv_inputs, index - 1);

	if (!in)
		return 0;
	in->out = srv_claim_output();
	if (in->out)
		return index;
	SRV_RELEASE(in);
	return 0;
}

/* Gives the buffers back; the output only if `in->out` is not 0. */
__noinline int srv_release(struct srv_input *in)
{
	if (!in)
		return 0;
	struct srv_output *out = SRV_LOOKUP(srv_outputs, in->out - 1);
	if (out)
		SRV_RELEASE(out);
	SRV_RELEASE(in);
	return 0;
}

static __always_inline struct srv_stats *srv_count(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&srv_counters, &zero);
}

#endif
