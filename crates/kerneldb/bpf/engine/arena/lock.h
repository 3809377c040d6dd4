/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The locks of read-write transactions: inline in the entries (paper 4.2), strict two-phase, no-wait. The
 * session's context lists the locks that it holds. The lock word has the owner's session and the index in
 * that list.
 */
#ifndef BEDPLATE_ENGINE_LOCK_H
#define BEDPLATE_ENGINE_LOCK_H

#include "../session.h"
#include "auto.h"

/* Index of the entry in the transaction's lock list, or nlocks. */
__noinline __u32 held_index(struct kdb_ctx *ctx, __u32 entry)
{
	__u32 i, n;

	if (!ctx)
		return 0;
	n = ctx->nlocks;
	bpf_for(i, 0, n) {
		struct kdb_lock *l = lock_at(ctx, i);
		if (l->entry == entry && l->partition == kdb_config.partition)
			return i;
	}
	return n;
}

/* Releases a shared lock. A read of an absent key leaves an empty entry, which the last reader queues.
 * Interrupts are off while that reader holds the entry exclusively: auto-commit writers depend on that. */
__noinline int release_shared(__u32 entry)
{
	struct kdb_entry __arena *e = entry_at(entry);
	struct kdb_scan scan = {};
	unsigned long irq;
	__u32 i;

	USE_ARENA();
	bpf_local_irq_save(&irq);
	bpf_for(i, 0, 1 << 20) {
		__u64 word = LOAD(&e->lock);
		__u64 after = word == KDB_LOCK_READER ? KDB_LOCK_AUTO : word - KDB_LOCK_READER;

		if (CAS(&e->lock, word, after) != word)
			continue;
		if (after == KDB_LOCK_AUTO) {
			entry_prune(entry, &scan);
			unlock_exclusive(entry);
		}
		break;
	}
	bpf_local_irq_restore(&irq);
	return 0;
}

/* Adds a lock that was just acquired to the transaction's list. */
static __always_inline int lock_taken(struct kdb_ctx *ctx, __u32 entry, __u32 mode, __u32 *out)
{
	__u32 n = ctx->nlocks;
	struct kdb_lock *l = lock_at(ctx, n);

	l->entry = entry;
	l->partition = kdb_config.partition;
	l->mode = mode;
	l->slot = 0;
	ctx->nlocks = n + 1;
	ctx->partitions |= 1u << (kdb_config.partition & 31);
	*out = n;
	return KDB_OK;
}

/* Creates the entry of an absent key, locked, so that its absence is locked as well. */
static __always_inline int lock_absent(struct kdb_ctx *ctx, struct kdb_io *io, struct kdb_pos *pos, __u32 mode,
				       __u32 vlen, __u32 *out)
{
	/* The lock is exclusive until the entry is linked, because a stale pointer to this memory could
	 * share it. */
	__u64 initial = mode == MODE_EXCLUSIVE ? owner_word(ctx, ctx->nlocks) : KDB_LOCK_AUTO;
	unsigned long irq;
	__u32 entry;
	int linked;

	if (!pos_unchanged(pos))
		return LOCK_AGAIN;
	if (pos->chain != CHAIN_HAS_ROOM)
		return KDB_ERR_CHAIN;
	if (ctx->nlocks >= KDB_TX_LOCKS)
		return KDB_ERR_TOO_MANY_LOCKS;
	entry = entry_create(io, io->hash, initial, vlen);
	if (!entry)
		return KDB_ERR_NO_MEMORY;
	bpf_local_irq_save(&irq);
	linked = entry_link(pos, entry);
	if (linked && mode == MODE_SHARED)
		STORE(&entry_at(entry)->lock, KDB_LOCK_READER);
	bpf_local_irq_restore(&irq);
	if (!linked) {
		STORE(&entry_at(entry)->lock, KDB_LOCK_DEAD);
		entry_free(entry);
		return LOCK_AGAIN;
	}
	__sync_fetch_and_add(&super()->entries, 1);
	return lock_taken(ctx, entry, mode, out);
}

#define LOCK_WRONG (-2) /* the entry *out is locked, but it is not the key's */
#define LOCK_OWNED (-3) /* a transaction has the lock; a reader of the only version waits a little for it */

/* One attempt at locking the key's entry. It is a separate function so that the loop around it is simple. */
__noinline int tx_lock_once(struct kdb_ctx *ctx, struct kdb_io *io, __u32 mode, __u32 vlen, __u32 *out)
{
	struct kdb_pos pos;

	USE_ARENA();
	if (!ctx || !io || !out)
		return KDB_ERR_STATE;
	pos.hash = io->hash;
	index_find(io, &pos);
	if (!pos.entry)
		return lock_absent(ctx, io, &pos, mode, vlen, out);
	struct kdb_entry __arena *e = entry_at(pos.entry);
	__u64 word = LOAD(&e->lock);
	__u64 owner = word & KDB_LOCK_OWNER_MASK;
	__u64 readers = word & KDB_LOCK_READERS_MASK;

	if ((word & KDB_LOCK_DEAD) || owner == KDB_LOCK_AUTO)
		return LOCK_AGAIN;
	if (owner == ctx->session + 1) {
		*out = (word >> KDB_LOCK_IDX_SHIFT) & 0xffff;
		return KDB_OK;
	}
	if (owner)
		return SINGLE_VERSION && ctx->state == KDB_TX_READ_ONLY ? LOCK_OWNED : KDB_ERR_CONFLICT;
	if (readers) {
		__u32 held = held_index(ctx, pos.entry);
		if (held < ctx->nlocks) {
			*out = held;
			if (mode == MODE_SHARED)
				return KDB_OK;
			/* Upgrades the lock if this is the only reader. */
			if (readers != KDB_LOCK_READER)
				return KDB_ERR_CONFLICT;
			if (CAS(&e->lock, word, owner_word(ctx, held)) != word)
				return LOCK_AGAIN;
			lock_at(ctx, held)->mode = MODE_EXCLUSIVE;
			return KDB_OK;
		}
		if (mode == MODE_EXCLUSIVE)
			return KDB_ERR_CONFLICT;
	}
	if (ctx->nlocks >= KDB_TX_LOCKS)
		return KDB_ERR_TOO_MANY_LOCKS;
	__u64 want = mode == MODE_EXCLUSIVE ? owner_word(ctx, ctx->nlocks) : word + KDB_LOCK_READER;
	if (CAS(&e->lock, word, want) != word)
		return LOCK_AGAIN;
	if (entry_matches(pos.entry, io, tag_of(io->hash)))
		return lock_taken(ctx, pos.entry, mode, out);
	/* The memory serves another key by now. */
	*out = pos.entry;
	return LOCK_WRONG;
}

/*
 * Locks the key's entry for the transaction, creating it if need be; *out is the lock's index. `vlen`:
 * bytes of the value that may be written.
 */
__noinline int tx_lock(struct kdb_ctx *ctx, struct kdb_io *io, __u32 mode, __u32 vlen, __u32 *out)
{
	__u32 i, tries = SINGLE_VERSION ? 4096 : 512;
	int status = LOCK_AGAIN;

	USE_ARENA();
	if (!ctx || !io || !out)
		return KDB_ERR_STATE;
	bpf_for(i, 0, tries) {
		status = tx_lock_once(ctx, io, mode, vlen, out);
		if (status >= KDB_OK)
			return status;
		if (status == LOCK_WRONG && mode == MODE_EXCLUSIVE)
			unlock_exclusive(*out);
		else if (status == LOCK_WRONG)
			release_shared(*out);
	}
	return status == LOCK_OWNED ? KDB_ERR_CONFLICT : KDB_ERR_BUSY;
}

#endif
