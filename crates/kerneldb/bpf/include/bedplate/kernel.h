/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The kernel types that the programs need, declared by hand: the distribution's linux/bpf.h is older than
 * the features used, and a dumped vmlinux.h is three megabytes of one machine's kernel. Kernel structures
 * that programs read are declared with only the fields used; CO-RE relocates them.
 */
#ifndef BEDPLATE_KERNEL_H
#define BEDPLATE_KERNEL_H

#include <linux/bpf.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 4, 0)
/* Newer headers define it. */
struct bpf_iter_num {
	__u64 __opaque[1];
} __attribute__((aligned(8)));
#endif

#include <bpf/bpf_helpers.h>

/* Map types and flags newer than the distribution's header. */
#define KDB_MAP_TYPE_ARENA 33

#ifndef __ksym
#define __ksym __attribute__((section(".ksyms")))
#endif
#ifndef __weak
#define __weak __attribute__((weak))
#endif

/* Arena pointers are a separate address space; the compiler inserts the casts the verifier wants. */
#define __arena __attribute__((address_space(1)))

extern void bpf_local_irq_save(unsigned long *flags) __ksym __weak;
extern void bpf_local_irq_restore(unsigned long *flags) __ksym __weak;

/*
 * The condition of a loop that ends by itself, for the verifier (may_goto). It is far cheaper than
 * bpf_for. After 65,536 steps of one function call the kernel may leave the loop when a quarter of a
 * second has passed. It is therefore only for loops with fewer steps than that.
 */
#define few_steps                                                                              \
	({                                                                                     \
		__label__ out;                                                                 \
		int go = 1;                                                                    \
		asm volatile goto("may_goto %l[out]" : : : : out);                             \
		if (0) {                                                                       \
		out:                                                                           \
			go = 0;                                                                \
		}                                                                              \
		go;                                                                            \
	})

#define barrier() asm volatile("" ::: "memory")
#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile typeof(x) *)&(x) = (v))

#endif
