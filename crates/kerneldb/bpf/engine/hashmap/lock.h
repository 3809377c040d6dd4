/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The locks of read-write transactions: inline in the entries (paper 4.2), strict two-phase, no-wait.
 * The session's context lists their modes and the entries' ids, kdb_hash_held their keys.
 */
#ifndef BEDPLATE_HASHMAP_LOCK_H
#define BEDPLATE_HASHMAP_LOCK_H

#include "../session.h"
#include "auto.h"

/* The key of a lock; its memory is that of a map key (kdb_config.key_bytes). */
static __always_inline struct hm_key *held_key(struct kdb_ctx *ctx, __u32 i)
{
	__u32 index = ctx->session * KDB_TX_LOCKS + (i & (KDB_TX_LOCKS - 1));
	return bpf_map_lookup_elem(&kdb_hash_held, &index);
}

/* Index of an entry in the transaction's lock list, or nlocks. */
__noinline __u32 held_index(struct kdb_ctx *ctx, __u64 id)
{
	__u32 i, n;

	if (!ctx)
		return 0;
	n = ctx->nlocks;
	for (i = 0; i < KDB_TX_LOCKS; i++) {
		if (i >= n)
			break;
		if (lock_at(ctx, i)->id == id)
			return i;
	}
	return n;
}

/* Adds a lock to the list. */
static __always_inline int held_add(struct kdb_ctx *ctx, struct kdb_io *io, __u32 n, __u64 id, __u32 mode)
{
	struct hm_key *key = held_key(ctx, n);
	struct kdb_lock *l;

	opaque(n);
	l = lock_at(ctx, n);

	if (!key)
		return KDB_ERR_STATE;
	key->len = io->map_klen;
#pragma unroll
	for (__u32 off = 0; off < KDB_KEY_BUF; off += 4) {
		if (off < kdb_config.key_bytes)
			*(volatile __u32 *)&key->bytes[off] = *(const __u32 *)&io->key[off];
	}
	l->id = id;
	l->mode = mode;
	l->slot = 0;
	l->partition = 0;
	ctx->nlocks = n + 1;
	ctx->partitions = 1;
	return KDB_OK;
}

/* One attempt at locking the key's entry; *out is the lock's index. */
__noinline int tx_lock_once(struct kdb_ctx *ctx, struct kdb_io *io, __u32 mode, __u32 *out)
{
	struct hm_entry *e;
	__u32 n;

	if (!ctx || !io || !out)
		return KDB_ERR_STATE;
	io = hm_io(io);
	if (!io)
		return KDB_ERR_STATE;
	e = hm_find(io);
	if (!e)
		return HM_ABSENT;
	n = ctx->nlocks;
	__u64 mine = mode == MODE_EXCLUSIVE ? owner_word(ctx, n) : KDB_LOCK_READER;
	__u64 word = LOAD(&e->lock), id = LOAD(&e->id);
	__u64 owner = word & KDB_LOCK_OWNER_MASK, readers = word & KDB_LOCK_READERS_MASK;

	if ((word & KDB_LOCK_DEAD) || owner == KDB_LOCK_AUTO)
		return HM_AGAIN;
	if (owner == ctx->session + 1) {
		/* The transaction holds the lock, so the entry is still the key's. */
		*out = (word >> KDB_LOCK_IDX_SHIFT) & 0xffff;
		return lock_at(ctx, *out)->id == id && hm_is_io(e, io) ? KDB_OK : HM_AGAIN;
	}
	if (owner)
		return SINGLE_VERSION && ctx->state == KDB_TX_READ_ONLY ? HM_OWNED : KDB_ERR_CONFLICT;
	if (readers) {
		__u32 held = held_index(ctx, id);
		if (held < n) {
			if (!hm_is_io(e, io))
				return HM_AGAIN;
			*out = held;
			if (mode == MODE_SHARED)
				return KDB_OK;
			/* Upgrades the lock if this is the only reader. */
			if (readers != KDB_LOCK_READER)
				return KDB_ERR_CONFLICT;
			if (CAS(&e->lock, word, owner_word(ctx, held)) != word)
				return HM_AGAIN;
			lock_at(ctx, held)->mode = MODE_EXCLUSIVE;
			return KDB_OK;
		}
		if (mode == MODE_EXCLUSIVE)
			return KDB_ERR_CONFLICT;
	}
	if (n >= KDB_TX_LOCKS)
		return KDB_ERR_TOO_MANY_LOCKS;
	if (CAS(&e->lock, word, mode == MODE_EXCLUSIVE ? mine : word + KDB_LOCK_READER) != word)
		return HM_AGAIN;
	if (!hm_is_io(e, io)) {
		/* The element serves another key by now. */
		if (mode == MODE_EXCLUSIVE)
			hm_unlock(e);
		else
			__sync_fetch_and_add(&e->lock, -KDB_LOCK_READER);
		return HM_AGAIN;
	}
	*out = n;
	return held_add(ctx, io, n, LOAD(&e->id), mode);
}

/* One step of tx_lock(): a lock, an entry that the next step will lock, or an error. */
static __always_inline int tx_lock_step(struct kdb_ctx *ctx, struct kdb_io *io, __u32 mode, __u32 *out)
{
	int status = tx_lock_once(ctx, io, mode, out);

	if (status != HM_ABSENT)
		return status;
	if (ctx->nlocks >= KDB_TX_LOCKS)
		return KDB_ERR_TOO_MANY_LOCKS;
	status = hm_create(ctx, io);
	return status ? status : HM_AGAIN;
}

struct lock_wait {
	struct kdb_ctx *ctx;
	struct kdb_io *io;
	__u32 *out;
	__u32 mode;
	int status;
};

static long lock_wait_step(__u32 i, struct lock_wait *wait)
{
	wait->status = tx_lock_step(wait->ctx, wait->io, wait->mode, wait->out);
	return wait->status != HM_AGAIN && wait->status != HM_OWNED;
}

/* Locks the key for the transaction and creates its entry if need be, so that absence is locked, too. */
__noinline int tx_lock(struct kdb_ctx *ctx, struct kdb_io *io, __u32 mode, __u32 *out)
{
	struct lock_wait wait = { .ctx = ctx, .io = io, .mode = mode, .out = out };

	if (!ctx || !io || !out)
		return KDB_ERR_STATE;
	wait.status = tx_lock_step(ctx, io, mode, out);
	if (wait.status == HM_AGAIN || wait.status == HM_OWNED)
		bpf_loop(SINGLE_VERSION ? 4096 : 512, lock_wait_step, &wait, 0);
	if (wait.status == HM_OWNED)
		return KDB_ERR_CONFLICT;
	return wait.status == HM_AGAIN ? KDB_ERR_BUSY : wait.status;
}

/* Stamps (commit) or drops (roll-back) the version written under one lock, and releases the lock. */
__noinline int release_one(struct kdb_ctx *ctx, __u32 index)
{
	struct kdb_state *state = kdb_state();
	struct hm_work *work;
	struct hm_entry *e;
	struct hm_meta old;
	unsigned long irq;
	__u32 slot;

	if (!ctx || !state)
		return 0;
	work = hm_work_of(ctx);
	void *key = held_key(ctx, index);
	if (!work || !key)
		return 0;
	e = bpf_map_lookup_elem(&kdb_index, key);
	if (!e)
		return 0;
	struct kdb_lock *l = lock_at(ctx, index);
	irqs_off(&irq);
	if (l->mode == MODE_SHARED) {
		/* A read of an absent key leaves an empty entry, which the last reader queues. */
		if (CAS(&e->lock, KDB_LOCK_READER, KDB_LOCK_AUTO) != KDB_LOCK_READER) {
			__sync_fetch_and_add(&e->lock, -KDB_LOCK_READER);
			goto out;
		}
	} else if (l->slot) {
		slot = l->slot - 1;
		opaque(slot);
		if (!ctx->commit_ts) {
			hm_drop(e, slot);
		} else if (slot < kdb_config.slots) {
			struct hm_meta *new = hm_meta(e, slot);

			hm_scan(e, &work->scan);
			meta_load(&old, e, READ_ONCE(work->scan.newest));
			STORE(hm_ts(e, slot), ctx->commit_ts);
			hm_account(state, e->klen, &old, new);
		}
	}
	hm_entry_prune(state, e, work, key);
	hm_unlock(e);
out:
	irqs_on(&irq);
	return 0;
}

/* Releases all locks. */
__noinline int release_locks(struct kdb_ctx *ctx)
{
	__u32 i, n;

	if (!ctx)
		return 0;
	n = ctx->nlocks;
	for (i = 0; i < KDB_TX_LOCKS; i++) {
		if (i >= n)
			break;
		release_one(ctx, i);
	}
	ctx->partitions = 0;
	ctx->nlocks = 0;
	return 0;
}

/* Finishes the transaction. */
static __always_inline int release(struct kdb_ctx *ctx)
{
	release_locks(ctx);
	barrier();
	ctx->state = KDB_TX_NONE;
	return 0;
}

#endif
