/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Interrupts and locks.
 *
 * Order of locks: entry lock (trylock, no-wait), then commit latch. Where the kernel lets programs
 * disable interrupts, auto-commit operations hold both with interrupts off, so that neither an
 * interrupt nor preemption meets them held by its own processor. Elsewhere a waiter gives up after a
 * bounded time (KDB_ERR_CONFLICT, KDB_ERR_BUSY). bpf_spin_lock cannot be used: tracing programs may
 * not use maps that have one.
 */
#ifndef BEDPLATE_HASHMAP_COMMON_H
#define BEDPLATE_HASHMAP_COMMON_H

#include "../commit.h"
#include "../snapshot.h"
#include "entry.h"

static __always_inline void irqs_off(unsigned long *flags)
{
	if (kdb_config.irqs)
		bpf_local_irq_save(flags);
}

static __always_inline void irqs_on(unsigned long *flags)
{
	if (kdb_config.irqs)
		bpf_local_irq_restore(flags);
}

#endif
