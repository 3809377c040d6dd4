/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Transactions: strict two-phase locking with no-wait for read-write ones, snapshots for read-only ones
 * (ROMV), paper 4.2.
 *
 * A write is installed at SET time under a marker. COMMIT therefore has one commit point, however many keys were
 * written: the store of the timestamp into the context, under the latch. Stamping the versions and releasing the locks
 * comes after it, per partition (kdb_release() in the programs of every partition in ctx->partitions).
 */
#ifndef BEDPLATE_ENGINE_TX_H
#define BEDPLATE_ENGINE_TX_H

#include "lock.h"

/* Reads the value that a transaction sees under its lock: its own write, else the newest committed one. */
__noinline int locked_read(struct kdb_ctx *ctx, struct kdb_io *io, __u32 index)
{
	struct kdb_state *state = kdb_state();
	struct kdb_scan scan = {};
	__u64 ts = 0;
	__u32 slot;

	USE_ARENA();
	if (!ctx || !io || !state)
		return KDB_ERR_STATE;
	struct kdb_lock *l = lock_at(ctx, index);
	if (l->slot) {
		slot = l->slot - 1;
	} else {
		version_scan(l->entry, &scan);
		observe(state, io, &scan);
		if (scan.newest == NO_SLOT)
			return KDB_NOT_FOUND;
		slot = scan.newest;
		ts = scan.newest_ts;
	}
	struct kdb_version __arena *v = slot_at(l->entry, slot);
	__u32 block = v->block, len = v->len;
	if (!is_live(state, block, len))
		return KDB_NOT_FOUND;
	note_read(io, l->entry);
	io_result(io, ts, block, len);
	return KDB_OK;
}

#ifdef KDB_DEFECT_READ_LOCK
/* Whether the transaction has locked the key exclusively. */
static __always_inline int locked_exclusively(struct kdb_ctx *ctx, struct kdb_io *io)
{
	struct kdb_pos pos;

	pos.hash = io->hash;
	index_find(io, &pos);
	return pos.entry && (LOAD(&entry_at(pos.entry)->lock) & KDB_LOCK_OWNER_MASK) == ctx->session + 1;
}
#endif

static __always_inline int locking_get(struct kdb_state *state, struct kdb_ctx *ctx, struct kdb_io *io)
{
	__u32 index = 0;
	int status = check_key(io);

	if (status)
		return status;
#ifdef KDB_DEFECT_READ_LOCK
	/* A test compiles the programs with this defect. Its checker of histories must notice that reads take no lock. */
	if (!locked_exclusively(ctx, io))
		return read_version(io, TS_LATEST, 0);
#endif
	status = tx_lock(ctx, io, MODE_SHARED, 0, &index);
	if (status)
		return tx_fail_io(state, ctx, io, status);
	status = locked_read(ctx, io, index);
	kdb_stats(state)->gets++;
	if (status == KDB_NOT_FOUND)
		kdb_stats(state)->get_misses++;
	return status;
}

/* GET: key found, key not found, Error. */
__noinline int kdb_get(struct kdb_ctx *ctx, struct kdb_io *io)
{
	struct kdb_state *state = kdb_state();
	int status;

	USE_ARENA();
	if (!ctx || !io || !state)
		return KDB_ERR_STATE;
	status = tx_enter(state, ctx, KDB_TX_ACTIVE);
	return status ? status : tx_leave(ctx, locking_get(state, ctx, io));
}

/* GET of a registered snapshot. */
static __always_inline int snapshot_get(struct kdb_state *state, struct kdb_ctx *ctx, struct kdb_io *io)
{
	int status = check_key(io);

	if (status)
		return status;
	status = read_version(io, ctx->snapshot_ts, 1);
#ifndef KDB_DEFECT_READ_VALIDATION /* Only a test compiles the programs with this defect; see KDB_DEFECT_READ_LOCK. */
	if (snapshot_revoked(state, ctx))
		return tx_too_old(state, ctx);
#endif
	kdb_stats(state)->gets++;
	if (status == KDB_NOT_FOUND)
		kdb_stats(state)->get_misses++;
	return status;
}

/* GET (read-only): key found, key not found. */
__noinline int kdb_get_ro(struct kdb_ctx *ctx, struct kdb_io *io)
{
	struct kdb_state *state = kdb_state();
	int status;

	USE_ARENA();
	if (!ctx || !io || !state)
		return KDB_ERR_STATE;
	status = tx_enter(state, ctx, KDB_TX_READ_ONLY);
	if (status)
		return status;
	return tx_leave(ctx, SINGLE_VERSION ? locking_get(state, ctx, io) : snapshot_get(state, ctx, io));
}

/* Puts a prepared version into the locked entry, under the transaction's marker. */
__noinline int tx_install(struct kdb_ctx *ctx, struct kdb_io *io, __u32 index, struct kdb_write *w,
				 __u32 flags)
{
	struct kdb_state *state = kdb_state();
	struct kdb_scan scan = {};
	__u32 block = 0, len = 0, slot;
	int status;

	USE_ARENA();
	if (!ctx || !io || !w || !state)
		return KDB_ERR_STATE;
	struct kdb_lock *l = lock_at(ctx, index);
	version_scan(l->entry, &scan);
	slot = l->slot ? l->slot - 1 : scan.newest;
	if (slot != NO_SLOT) {
		struct kdb_version __arena *v = slot_at(l->entry, slot);
		block = v->block;
		len = v->len;
	}
	/* Also if the condition holds, because the reply reveals that before this transaction commits. */
	if (!l->slot && (flags & (KDB_IO_IF_ABSENT | KDB_IO_IF_PRESENT | KDB_IO_IF_EQUAL)))
		observe(state, io, &scan);
	status = check_condition(state, io, flags, block, len);
	if (status)
		return status;
	__u64 expiry = kept_expiry(io, flags, block, len);
	if (l->slot) {
		/* No other session reads an uncommitted version's value, so its cell may be written again. */
		status = write_place(io, w, l->entry, scan.cells & ~cell_bit(len), expiry);
		if (status)
			return status;
		struct kdb_version __arena *v = slot_at(l->entry, slot);
		v->block = w->block;
		v->len = w->len;
		value_free(block, len);
		return KDB_OK;
	}
	if (scan.free == NO_SLOT) {
		status = version_room(l->entry, &scan);
		if (status)
			return status;
	}
	status = write_place(io, w, l->entry, scan.cells, expiry);
	if (status)
		return status;
	struct kdb_version __arena *v = slot_at(l->entry, scan.free);
	v->block = w->block;
	v->len = w->len;
	barrier();
	STORE(&v->ts, marker_of(ctx));
	if (slot != NO_SLOT)
		usage_note(l->entry);
	l->slot = scan.free + 1;
	return KDB_OK;
}

/* The change of a locked entry, with its log record. Interrupts are off and nothing may come in between, because a
 * record that was begun holds back all later ones. */
__noinline int tx_change(struct kdb_ctx *ctx, struct kdb_io *io, struct kdb_write *w, __u32 index, __u32 flags)
{
	unsigned long irq;
	int status = KDB_OK;

	USE_ARENA();
	if (!ctx || !io || !w)
		return KDB_ERR_STATE;
	bpf_local_irq_save(&irq);
	if (kdb_config.wal && !(ctx->flags & KDB_CTX_NO_WAL)) {
		if (wal_reserve(&w->rec, wal_bytes(&w->rec, io, w->vlen))) {
			wal_fill(&w->rec, io, w->kind == WRITE_TOMBSTONE ? KDB_REC_DEL : KDB_REC_PUT, w->vlen, 0);
			rec_at(&w->rec)->stamp = marker_of(ctx) & ~KDB_MARKER;
			rec_at(&w->rec)->index = ctx->nwrites;
		} else {
			status = KDB_ERR_WAL_FULL;
		}
	}
	if (!status)
		status = tx_install(ctx, io, index, w, flags);
	if (w->rec.off && !status) {
		ctx->nwrites++;
		wal_complete(&w->rec);
	} else {
		wal_void(&w->rec);
	}
	bpf_local_irq_restore(&irq);
	return status;
}

/* Revokes old snapshots for a write of an entry that the transaction has locked and that has no room for another
 * version; returns whether another attempt is worthwhile. */
__noinline int tx_reclaim(struct kdb_ctx *ctx, __u32 index)
{
	struct kdb_scan scan = {};

	USE_ARENA();
	if (!ctx)
		return 0;
	version_scan(lock_at(ctx, index)->entry, &scan);
	return version_reclaim(lock_at(ctx, index)->entry, &scan);
}

/* A write of an active transaction. */
static __always_inline int tx_write_entered(struct kdb_state *state, struct kdb_ctx *ctx, struct kdb_io *io,
					    int delete, __u32 extra)
{
	struct kdb_write *w;
	__u32 flags, bytes, index = 0;
	int status;

	status = check_key(io);
	if (status)
		return status;
	flags = io->flags | extra;
	w = write_of(io);
	if (!delete && io->vlen > KDB_VAL_MAX)
		return KDB_ERR_TOO_LARGE;
	bytes = tx_write_bytes(io, delete);
	status = ctx->bytes + bytes > KDB_TX_BYTES ? KDB_ERR_TX_TOO_LARGE : check_writable(state);
	if (!status)
		status = write_prepare(io, w, delete, flags);
	if (status)
		return tx_fail_io(state, ctx, io, status);
	status = tx_lock(ctx, io, MODE_EXCLUSIVE, write_cell(w), &index);
	if (!status)
		status = tx_change(ctx, io, w, index, flags);
	if (status == KDB_ERR_NO_VERSION && tx_reclaim(ctx, index))
		status = tx_change(ctx, io, w, index, flags);
	if (status) {
		value_free(w->block, w->len);
		return status < KDB_ERR_CONFLICT ? status : tx_fail_io(state, ctx, io, status);
	}
	ctx->bytes += bytes;
	io->commit_ts = 0;
	wal_ahead(&w->rec);
	if (delete)
		kdb_stats(state)->dels++;
	else
		kdb_stats(state)->sets++;
	return KDB_OK;
}

static __always_inline int tx_write(struct kdb_ctx *ctx, struct kdb_io *io, int delete, __u32 extra)
{
	struct kdb_state *state = kdb_state();
	int status;

	USE_ARENA();
	if (!ctx || !io || !state)
		return KDB_ERR_STATE;
	status = tx_enter(state, ctx, KDB_TX_ACTIVE);
	return status ? status : tx_leave(ctx, tx_write_entered(state, ctx, io, delete, extra));
}

/* SET: OK, Error; with KDB_IO_IF_*, also KDB_MISMATCH and KDB_NOT_FOUND. */
__noinline int kdb_set(struct kdb_ctx *ctx, struct kdb_io *io)
{
	return tx_write(ctx, io, 0, 0);
}

/* DELETE: OK, key not found, Error. */
__noinline int kdb_del(struct kdb_ctx *ctx, struct kdb_io *io)
{
	return tx_write(ctx, io, 1, KDB_IO_IF_PRESENT);
}

/* Compare-and-set: OK, key not found, KDB_MISMATCH, Error. */
__noinline int kdb_cas(struct kdb_ctx *ctx, struct kdb_io *io)
{
	return tx_write(ctx, io, 0, KDB_IO_IF_PRESENT | KDB_IO_IF_EQUAL | KDB_IO_KEEP_TTL);
}

/* Stamps (commit) or drops (roll-back) one written version and releases its exclusive lock. */
__noinline int release_exclusive(struct kdb_ctx *ctx, __u32 index)
{
	struct kdb_state *state = kdb_state();
	struct kdb_scan scan = {};
	unsigned long irq;

	USE_ARENA();
	if (!ctx || !state)
		return 0;
	struct kdb_lock *l = lock_at(ctx, index);
	__u32 entry = l->entry, slot = l->slot;

	bpf_local_irq_save(&irq);
	if (slot && ctx->commit_ts) {
		struct kdb_version __arena *v = slot_at(entry, slot - 1);
		__u32 old_block = 0, old_len = 0;

		version_scan(entry, &scan);
		if (scan.newest != NO_SLOT) {
			old_block = slot_at(entry, scan.newest)->block;
			old_len = slot_at(entry, scan.newest)->len;
		}
		STORE(&v->ts, ctx->commit_ts);
		account(state, entry_at(entry)->klen, old_block, old_len, v->block, v->len);
	} else if (slot) {
		version_drop(state, entry, slot - 1);
	}
	entry_prune(entry, &scan);
	unlock_exclusive(entry);
	bpf_local_irq_restore(&irq);
	return 0;
}

/* Releases one lock of this program's partition. */
static __always_inline void release_lock(struct kdb_ctx *ctx, __u32 index)
{
	struct kdb_lock *l = lock_at(ctx, index);

	if (l->mode == MODE_EXCLUSIVE)
		release_exclusive(ctx, index);
	else
		release_shared(l->entry);
}

#define PARTITION_BIT (1u << (kdb_config.partition & 31))

/* Finishes the transaction in this program's partition. */
__noinline int release(struct kdb_ctx *ctx)
{
	__u32 i, n;

	USE_ARENA();
	if (!ctx)
		return 0;
	/* Without the bit the reaper has released the locks of this partition already. */
	n = ctx->partitions & PARTITION_BIT ? ctx->nlocks : 0;
	bpf_for(i, 0, n) {
		if (lock_at(ctx, i)->partition == kdb_config.partition)
			release_lock(ctx, i);
	}
	ctx->partitions &= ~PARTITION_BIT;
	if (!ctx->partitions) {
		ctx->nlocks = 0;
		barrier();
		ctx->state = KDB_TX_NONE;
	}
	return 0;
}

/* After COMMIT or ROLL BACK of a transaction in several partitions: finishes it in this program's partition. */
__noinline int kdb_release(struct kdb_ctx *ctx)
{
	USE_ARENA();
	if (!ctx || (ctx->state != KDB_TX_COMMITTED && ctx->state != KDB_TX_ROLLING_BACK))
		return KDB_ERR_STATE;
	release(ctx);
	return KDB_OK;
}

/* The commit point, with its log record. Interrupts are off, as in tx_change(). */
__noinline int tx_commit_point(struct kdb_ctx *ctx)
{
	struct kdb_state *state = kdb_state();
	struct kdb_wal_rec rec = {};
	unsigned long irq;
	int status = KDB_OK;

	USE_ARENA();
	if (!ctx || !state)
		return KDB_ERR_STATE;
	bpf_local_irq_save(&irq);
	if (kdb_config.wal && !(ctx->nwrites ? wal_begin_commit(&rec, marker_of(ctx) & ~KDB_MARKER, ctx->nwrites)
					     : wal_begin_bare(&rec, KDB_REC_SKIP, 0, 0))) {
		status = KDB_ERR_WAL_FULL;
	} else if (latch_acquire(state)) {
		__u64 ts = state->clock + 1;

		WRITE_ONCE(ctx->commit_ts, ts);
		latch_publish(state, ts);
		if (rec.off) {
			rec_at(&rec)->stamp = ts;
			wal_complete(&rec);
		}
	} else {
		status = KDB_ERR_BUSY;
		wal_void(&rec);
	}
	bpf_local_irq_restore(&irq);
	return status;
}

/* COMMIT: OK, Error. After KDB_ERR_WAL_FULL and KDB_ERR_BUSY the transaction is active and COMMIT may be repeated.
 * After any other Error state the transaction is failed and must be rolled back. */
__noinline int kdb_commit(struct kdb_ctx *ctx)
{
	struct kdb_state *state = kdb_state();
	int status;

	USE_ARENA();
	if (!ctx || !state)
		return KDB_ERR_STATE;
	status = tx_enter(state, ctx, KDB_TX_ACTIVE);
	if (status)
		return status;
	if (tx_has_writes(ctx)) {
		status = check_writable(state);
		if (!status)
			status = tx_commit_point(ctx);
		if (status)
			return tx_leave(ctx, tx_fail(state, ctx, status));
	}
	ctx->state = KDB_TX_COMMITTED;
	kdb_stats(state)->commits++;
	release(ctx);
	return tx_leave(ctx, KDB_OK);
}

/* COMMIT (read-only): OK. */
__noinline int kdb_commit_ro(struct kdb_ctx *ctx)
{
	struct kdb_state *state = kdb_state();
	int status;

	USE_ARENA();
	if (!ctx || !state)
		return KDB_ERR_STATE;
	status = tx_enter(state, ctx, KDB_TX_READ_ONLY);
	if (status)
		return status;
	kdb_stats(state)->commits_ro++;
	if (SINGLE_VERSION) {
		ctx->state = KDB_TX_COMMITTED;
		release(ctx);
	} else {
		snapshot_release(state, ctx);
		ctx->state = KDB_TX_NONE;
	}
	return tx_leave(ctx, KDB_OK);
}

/* ROLL BACK: OK, also without a transaction; KDB_ERR_BUSY if the reaper does not leave the context in time. */
__noinline int kdb_rollback(struct kdb_ctx *ctx)
{
	struct kdb_state *state = kdb_state();

	USE_ARENA();
	if (!ctx || !state)
		return KDB_ERR_STATE;
	if (ctx->state == KDB_TX_NONE)
		return KDB_OK;
	if (!ctx_take(state, ctx))
		return KDB_ERR_BUSY;
	if (ctx->state == KDB_TX_READ_ONLY && !SINGLE_VERSION) {
		snapshot_release(state, ctx);
		ctx->state = KDB_TX_NONE;
		return tx_leave(ctx, KDB_OK);
	}
	if (ctx->state == KDB_TX_COMMITTED || ctx->state == KDB_TX_ROLLING_BACK) {
		/* The session's owner died half way through: finish the commit or roll-back. */
		release(ctx);
		return tx_leave(ctx, KDB_OK);
	}
	/* The log's reader also forgets the writes without this record, but later. */
	if (kdb_config.wal && ctx->nwrites && ctx->error != KDB_ERR_TX_TIMED_OUT)
		wal_abort(marker_of(ctx) & ~KDB_MARKER, ctx->nwrites);
	ctx->state = KDB_TX_ROLLING_BACK;
	kdb_stats(state)->rollbacks++;
	release(ctx);
	return tx_leave(ctx, KDB_OK);
}

#endif
