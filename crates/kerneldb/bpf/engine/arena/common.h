/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Functions that the operators share: the check of the key, expiry, the collector's queue, accounts.
 *
 * Order of locks: entry lock (trylock, no-wait), then commit latch. The latch is held for a handful of
 * instructions with interrupts off, so that neither an interrupt nor preemption can meet it held by
 * its own CPU.
 */
#ifndef BEDPLATE_ENGINE_COMMON_H
#define BEDPLATE_ENGINE_COMMON_H

#include "version.h"
#include "wal.h"

static __always_inline int check_key(struct kdb_io *io)
{
	if (io->klen == 0 || io->klen > KDB_KEY_MAX)
		return KDB_ERR_TOO_LARGE;
	io->observed_ts = 0;
	if (!(io->flags & KDB_IO_HASHED))
		io->hash = kdb_hash(io);
	if (kdb_config.partitions > 1 && kdb_partition_of(io->hash) != kdb_config.partition)
		return KDB_ERR_PARTITION;
	return KDB_OK;
}

/* Expiry of a block in ms, 0 = never. */
static __always_inline __u64 block_expiry(__u32 block, __u32 len)
{
	return len & KDB_LEN_EXPIRES ? ALOAD64(head_at(block, len)) : 0;
}

static __always_inline int is_live(struct kdb_state *state, __u32 block, __u32 len)
{
	if (!block)
		return 0;
	if (!(len & KDB_LEN_EXPIRES))
		return 1;
	return now_ms(state) < block_expiry(block, len);
}

/* Sets io->observed_ts for an outcome that depends on the newest committed version of io's key. */
static __always_inline void observe(struct kdb_state *state, struct kdb_io *io, const struct kdb_scan *scan)
{
	io->observed_ts = scan->newest == NO_SLOT ? removal_seen(state, io->hash) : scan->newest_ts;
}

/* Queues an entry for the background collector. The caller holds its exclusive lock, or has not linked it yet. */
static __always_inline void gc_queue(__u32 entry)
{
	struct kdb_entry __arena *e = entry_at(entry);
	struct kdb_arena __arena *s = super();
	__u32 i;

	if (e->gc_queued)
		return;
	e->gc_queued = 1;
	bpf_for(i, 0, 1 << 20) {
		__u64 head = LOAD(&s->gc_head);
		STORE(&e->gc_next, head);
		if (CAS(&s->gc_head, head, (__u64)entry) == head)
			return;
	}
}

/* Prunes an entry after a commit or roll-back, before its exclusive lock is released. `scan` is memory for its
 * state. This is no function of its own, because a program has at most eight of them on the stack. */
static __always_inline void entry_prune(__u32 entry, struct kdb_scan *scan)
{
	version_scan(entry, scan);
	version_prune(entry, scan);
	if (scan->others || scan->newest == NO_SLOT || !slot_at(entry, scan->newest)->block)
		gc_queue(entry);
}

static __always_inline void unlock_exclusive(__u32 entry)
{
	barrier();
	STORE(&entry_at(entry)->lock, 0);
}

/* The part of account() for values that expire. Not inlined, because its callers need the stack. */
__noinline int account_expiry(__u32 old_block, __u32 old_len, __u32 new_block, __u32 new_len)
{
	struct kdb_state *state = kdb_state();
	struct kdb_cpu_stats *stats;

	USE_ARENA();
	if (!state)
		return 0;
	stats = kdb_stats(state);
	if (old_block && old_len & KDB_LEN_EXPIRES) {
		stats->expiring_keys--;
		stats->expired += !is_live(state, old_block, old_len);
	}
	if (new_block && new_len & KDB_LEN_EXPIRES)
		stats->expiring_keys++;
	return 0;
}

/* Accounts a committed change from the old newest version to the new one. Interrupts are off. */
static __always_inline void account(struct kdb_state *state, __u32 klen, __u32 old_block, __u32 old_len,
				    __u32 new_block, __u32 new_len)
{
	struct kdb_cpu_stats *stats = kdb_stats(state);

	if (old_block) {
		stats->live_keys--;
		stats->value_bytes -= klen + (old_len & KDB_LEN_MASK);
	}
	if (new_block) {
		stats->live_keys++;
		stats->value_bytes += klen + (new_len & KDB_LEN_MASK);
	}
	if ((old_len | new_len) & KDB_LEN_EXPIRES)
		account_expiry(old_block, old_len, new_block, new_len);
}

/* Copies a version's value out, with its length, expiry and commit timestamp. */
static __always_inline void io_result(struct kdb_io *io, __u64 ts, __u32 block, __u32 len)
{
	io->commit_ts = ts;
	io->vlen = len & KDB_LEN_MASK;
	io->expire_ms = block_expiry(block, len);
	copy_value_out(io, block, len & KDB_LEN_MASK);
}

/* Notes that a client has read the key of an entry. */
static __always_inline void note_read(struct kdb_io *io, __u32 entry)
{
	io->usage = LOAD(&entry_at(entry)->usage);
	if (!(io->flags & KDB_IO_NO_USE))
		usage_note(entry);
}

#endif
