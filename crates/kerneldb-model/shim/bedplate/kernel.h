/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Replaces the engine's header of the same name when the engine is compiled for the model checker: a 64-bit
 * process instead of the eBPF machine. Arena offsets are the low half of addresses here, too, because the
 * arena of the model lies at a multiple of 4 GiB.
 *
 * The compiler's thread instrumentation (-fsanitize=thread) calls the model's runtime before every access to
 * memory and instead of every atomic instruction. The headers of the engine need no change for that.
 */
#ifndef BEDPLATE_KERNEL_H
#define BEDPLATE_KERNEL_H

#include <linux/types.h>
#include <stddef.h>

/* Implemented by the model, in src/runtime.rs. */
__u64 kdb_model_arena(void) __attribute__((const));
const volatile struct kdb_config *kdb_model_config(void) __attribute__((const));
void *kdb_model_context(__u32 index);
void *kdb_model_io(__u32 index);
void *kdb_model_state(__u32 index);
__u32 kdb_model_cpu(void);
__u64 kdb_model_time_ns(void);
void kdb_model_irq_save(void);
void kdb_model_irq_restore(void);
void kdb_model_retry(void);

/* Every variant of the engine defines the same maps; nothing uses their memory. */
#define SEC(name) __attribute__((weak))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_F_MMAPABLE 1024
#define KDB_MAP_TYPE_ARENA 33

#define __arena
#define __noinline static __attribute__((noinline, unused))
#define __always_inline inline __attribute__((always_inline, unused))

#define bpf_map_lookup_elem(map, key)                                                          \
	((typeof((map)->value))_Generic((map)->value,                                          \
		struct kdb_ctx *: kdb_model_context,                                           \
		struct kdb_io *: kdb_model_io,                                                 \
		struct kdb_state *: kdb_model_state)(*(key)))
#define bpf_get_smp_processor_id() kdb_model_cpu()
#define bpf_ktime_get_ns() kdb_model_time_ns()
/* Only eviction draws numbers, and which ones does not matter for the protocols. */
#define bpf_get_prandom_u32() 0u
#define bpf_local_irq_save(flags) ((void)(flags), kdb_model_irq_save())
#define bpf_local_irq_restore(flags) ((void)(flags), kdb_model_irq_restore())

/* A loop with this many steps waits for another processor: the model lets others run before the next
 * step. */
#define MODEL_WAITING_LOOP 512

#define bpf_for(i, from, to)                                                                   \
	for ((i) = (from); (i) < (to); (i)++, (to) >= MODEL_WAITING_LOOP ? kdb_model_retry() : (void)0)
#define bpf_loop(count, step, context, flags)                                                  \
	for (__u32 bpf_loop_i = 0; bpf_loop_i < (count) && !step(bpf_loop_i, context); bpf_loop_i++)  \
		kdb_model_retry()
#define few_steps 1

#define barrier() asm volatile("" ::: "memory")
#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile typeof(x) *)&(x) = (v))

#endif
