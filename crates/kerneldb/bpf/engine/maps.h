/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The maps that every program of a database shares, and their safe accessors. User space creates them
 * once and lets every further object reuse them, so that programs come and go while the data stays
 * (paper 4.1). Sizes are set when the first object is loaded.
 */
#ifndef BEDPLATE_ENGINE_MAPS_H
#define BEDPLATE_ENGINE_MAPS_H

#include <bedplate/kernel.h>
#include <bedplate/layout.h>

/* Constants of this load: the verifier knows their values, so disabled features cost nothing. */
const volatile struct kdb_config kdb_config SEC(".rodata.kdb") = {};

/* Session contexts (the paper's `contexts` map). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kdb_ctx);
} kdb_contexts SEC(".maps");

/* I/O buffers for operators called by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kdb_io);
} kdb_ios SEC(".maps");

/* Calls of procedures; as many as I/O buffers. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kdb_call);
} kdb_calls SEC(".maps");

/* Clock, snapshots, durability, statistics (the paper's `timestamps` map). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kdb_state);
} kdb_states SEC(".maps");

static __always_inline struct kdb_state *kdb_state(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&kdb_states, &zero);
}

static __always_inline struct kdb_cpu_stats *kdb_stats(struct kdb_state *state)
{
	return &state->stats[bpf_get_smp_processor_id() & (KDB_MAX_CPUS - 1)];
}

/* Whole words of a byte buffer that is aligned to them; a cast in place would be loaded byte by byte. */
static __always_inline const __u64 *word_of(const __u8 *bytes)
{
	return (const __u64 *)bytes;
}

/* Makes the compiler forget what it knows of x, so that a bounds check is not moved or merged. */
#define opaque(x) asm volatile("" : "+r"(x))

#endif
