/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Transactions: strict two-phase locking with no-wait for read-write ones, snapshots for read-only ones
 * (ROMV), paper 4.2.
 *
 * A write is installed at SET time under a marker. COMMIT therefore has one commit point, however many keys were
 * written: the store of the timestamp into the context, under the latch. Stamping the versions and releasing the locks
 * comes after it.
 */
#ifndef BEDPLATE_HASHMAP_TX_H
#define BEDPLATE_HASHMAP_TX_H

#include "lock.h"

/* Reads the value that a transaction sees under its lock: its own write, else the newest committed one. */
__noinline int locked_read(struct kdb_ctx *ctx, struct kdb_io *io, __u32 index)
{
	struct kdb_state *state = kdb_state();
	struct hm_entry *e;
	struct hm_meta meta;
	struct hm_work *work;
	__u64 ts = 0;
	__u32 slot;

	if (!ctx || !io || !state)
		return KDB_ERR_STATE;
	io = hm_io(io);
	if (!io)
		return KDB_ERR_STATE;
	work = hm_work_of(ctx);
	e = hm_find(io);
	if (!work || !e)
		return KDB_ERR_STATE;
	slot = lock_at(ctx, index)->slot;
	if (slot) {
		slot--;
	} else {
		hm_scan(e, &work->scan);
		slot = READ_ONCE(work->scan.newest);
		ts = READ_ONCE(work->scan.newest_ts);
	}
	meta_load(&meta, e, slot);
	if (!hm_is_live(state, meta.vid, meta.expire_ms))
		return KDB_NOT_FOUND;
	if (!hm_value_read(io, meta.vid, meta.len))
		return KDB_ERR_STATE;
	io->commit_ts = ts;
	io->vlen = meta.len;
	io->expire_ms = meta.expire_ms;
	return KDB_OK;
}

static __always_inline int locking_get(struct kdb_state *state, struct kdb_ctx *ctx, struct kdb_io *io)
{
	__u32 index = 0;
	int status = hm_prepare_key(io);

	if (status)
		return status;
	status = tx_lock(ctx, io, MODE_SHARED, &index);
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

	if (!ctx || !io || !state)
		return KDB_ERR_STATE;
	status = tx_enter(state, ctx, KDB_TX_ACTIVE);
	return status ? status : tx_leave(ctx, locking_get(state, ctx, io));
}

/* GET of a registered snapshot. */
static __always_inline int snapshot_get(struct kdb_state *state, struct kdb_ctx *ctx, struct kdb_io *io)
{
	int status = hm_prepare_key(io);

	if (status)
		return status;
	status = hm_read(io, ctx->snapshot_ts);
	if (snapshot_revoked(state, ctx))
		return tx_too_old(state, ctx);
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

	if (!ctx || !io || !state)
		return KDB_ERR_STATE;
	status = tx_enter(state, ctx, KDB_TX_READ_ONLY);
	if (status)
		return status;
	return tx_leave(ctx, SINGLE_VERSION ? locking_get(state, ctx, io) : snapshot_get(state, ctx, io));
}

/* Puts work->version into the locked entry, under the transaction's marker. */
__noinline int tx_install(struct kdb_ctx *ctx, struct kdb_io *io, __u32 index, __u32 flags)
{
	struct kdb_state *state = kdb_state();
	struct hm_work *work;
	struct hm_entry *e;
	struct hm_meta old;
	__u32 slot;
	int status;

	if (!ctx || !io || !state)
		return KDB_ERR_STATE;
	io = hm_io(io);
	if (!io)
		return KDB_ERR_STATE;
	work = hm_work_of(ctx);
	e = hm_find(io);
	if (!work || !e)
		return KDB_ERR_STATE;
	struct hm_meta *new = &work->version;
	struct kdb_lock *l = lock_at(ctx, index);
	hm_scan(e, &work->scan);
	slot = l->slot ? l->slot - 1 : READ_ONCE(work->scan.newest);
	meta_load(&old, e, slot);
	status = check_condition(state, io, flags, &old);
	if (status)
		return status;
	if ((flags & KDB_IO_KEEP_TTL) && new->vid)
		WRITE_ONCE(new->expire_ms, hm_kept_expiry(flags, old.vid, old.expire_ms));
	if (l->slot) {
		/* No other session looks at an uncommitted version. */
		opaque(slot);
		if (slot >= kdb_config.slots)
			return KDB_ERR_STATE;
		meta_store(hm_meta(e, slot), new);
		if (old.vid)
			hm_value_drop(old.vid, old.len);
		return KDB_OK;
	}
	if (READ_ONCE(work->scan.free) >= kdb_config.slots)
		hm_prune(state, e, work);
	slot = READ_ONCE(work->scan.free);
	opaque(slot);
	if (slot >= kdb_config.slots)
		return KDB_ERR_NO_VERSION;
	meta_store(hm_meta(e, slot), new);
	barrier();
	STORE(hm_ts(e, slot), marker_of(ctx));
	l->slot = slot + 1;
	return KDB_OK;
}

/* Locks the key and installs work->version. */
__noinline int tx_apply(struct kdb_ctx *ctx, struct kdb_io *io, __u32 flags)
{
	__u32 index = 0;
	int status;

	if (!ctx || !io)
		return KDB_ERR_STATE;
	status = tx_lock(ctx, io, MODE_EXCLUSIVE, &index);
	if (status)
		return status;
	status = tx_install(ctx, io, index, flags);
	if (status == KDB_ERR_NO_VERSION && hm_reclaim(ctx, io))
		status = tx_install(ctx, io, index, flags);
	return status;
}

/* The same with a log record. */
__noinline int tx_logged(struct kdb_ctx *ctx, struct kdb_io *io, __u32 flags, __u32 type)
{
	struct kdb_rec_long head = { .rec.flags = KDB_REC_LONG };
	struct bpf_dynptr rec;
	struct hm_work *work;
	__u32 bytes, vlen;
	int status;

	if (!ctx || !io)
		return KDB_ERR_STATE;
	work = hm_work_of(ctx);
	if (!work)
		return KDB_ERR_STATE;
	vlen = work->version.len;
	bytes = hm_rec_bytes(io, vlen);
	if (bpf_ringbuf_reserve_dynptr(&kdb_hash_log, bytes, 0, &rec)) {
		bpf_ringbuf_discard_dynptr(&rec, BPF_RB_NO_WAKEUP);
		return KDB_ERR_WAL_FULL;
	}
	status = tx_apply(ctx, io, flags);
	if (status) {
		bpf_ringbuf_discard_dynptr(&rec, BPF_RB_NO_WAKEUP);
		return status;
	}
	head.rec.size = bytes;
	head.rec.type = type;
	head.rec.stamp = marker_of(ctx) & ~KDB_MARKER;
	head.rec.index = ctx->nwrites++;
	head.rec.klen = io->klen;
	head.rec.vlen = vlen;
	head.word = work->version.expire_ms;
	hm_rec_fill(&rec, &head, io);
	bpf_ringbuf_submit_dynptr(&rec, hm_log_flags(bytes));
	return KDB_OK;
}

/* A write of an active transaction. */
static __always_inline int tx_write_entered(struct kdb_state *state, struct kdb_ctx *ctx, struct kdb_io *io,
					    int delete, __u32 extra)
{
	struct hm_work *work;
	__u32 flags, bytes;
	int status;

	work = hm_work_of(ctx);
	if (!work)
		return KDB_ERR_STATE;
	status = hm_prepare_key(io);
	if (status)
		return status;
	if (!delete && io->vlen > KDB_VAL_MAX)
		return KDB_ERR_TOO_LARGE;
	flags = io->flags | extra;
	bytes = tx_write_bytes(io, delete);
	status = ctx->bytes + bytes > KDB_TX_BYTES ? KDB_ERR_TX_TOO_LARGE : check_writable(state);
	if (status)
		return tx_fail_io(state, ctx, io, status);
	status = prepare_version(ctx, io, work, delete, flags);
	if (status)
		return tx_fail_io(state, ctx, io, status);
	if (kdb_config.wal && !(ctx->flags & KDB_CTX_NO_WAL))
		status = tx_logged(ctx, io, flags, delete ? KDB_REC_DEL : KDB_REC_PUT);
	else
		status = tx_apply(ctx, io, flags);
	if (status) {
		if (work->version.vid)
			hm_value_drop(work->version.vid, work->version.len);
		return status < KDB_ERR_CONFLICT ? status : tx_fail_io(state, ctx, io, status);
	}
	ctx->bytes += bytes;
	io->commit_ts = 0;
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

/* The commit point. */
__noinline int commit_point(struct kdb_ctx *ctx)
{
	struct kdb_state *state = kdb_state();
	unsigned long irq;
	int status = KDB_ERR_BUSY;

	if (!ctx || !state)
		return KDB_ERR_STATE;
	irqs_off(&irq);
	if (latch_acquire(state)) {
		__u64 ts = state->clock + 1;

		WRITE_ONCE(ctx->commit_ts, ts);
		latch_publish(state, ts);
		status = KDB_OK;
	}
	irqs_on(&irq);
	return status;
}

/* The same with a log record. */
__noinline int commit_logged(struct kdb_ctx *ctx)
{
	struct kdb_rec_long head = { .rec.flags = KDB_REC_LONG };
	struct bpf_dynptr rec;
	int status;

	if (!ctx)
		return KDB_ERR_STATE;
	if (bpf_ringbuf_reserve_dynptr(&kdb_hash_log, sizeof(head), 0, &rec)) {
		bpf_ringbuf_discard_dynptr(&rec, BPF_RB_NO_WAKEUP);
		return KDB_ERR_WAL_FULL;
	}
	status = commit_point(ctx);
	if (status) {
		bpf_ringbuf_discard_dynptr(&rec, BPF_RB_NO_WAKEUP);
		return status;
	}
	head.rec.size = sizeof(head);
	head.rec.type = ctx->nwrites ? KDB_REC_COMMIT : KDB_REC_SKIP;
	head.rec.stamp = ctx->commit_ts;
	head.word = marker_of(ctx) & ~KDB_MARKER;
	head.rec.index = ctx->nwrites;
	bpf_dynptr_write(&rec, 0, &head, sizeof(head), 0);
	bpf_ringbuf_submit_dynptr(&rec, hm_log_flags(sizeof(head)));
	return KDB_OK;
}

/* COMMIT: OK, Error. After KDB_ERR_WAL_FULL and KDB_ERR_BUSY the transaction is active and COMMIT may be repeated.
 * After any other Error state the transaction is failed and must be rolled back. */
__noinline int kdb_commit(struct kdb_ctx *ctx)
{
	struct kdb_state *state = kdb_state();
	int status;

	if (!ctx || !state)
		return KDB_ERR_STATE;
	status = tx_enter(state, ctx, KDB_TX_ACTIVE);
	if (status)
		return status;
	if (tx_has_writes(ctx)) {
		status = check_writable(state);
		if (!status)
			status = kdb_config.wal ? commit_logged(ctx) : commit_point(ctx);
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

/* Finishes a COMMIT or ROLL BACK whose owner died half way through. */
__noinline int kdb_release(struct kdb_ctx *ctx)
{
	if (!ctx || (ctx->state != KDB_TX_COMMITTED && ctx->state != KDB_TX_ROLLING_BACK))
		return KDB_ERR_STATE;
	release(ctx);
	return KDB_OK;
}

/* ROLL BACK: OK, also without a transaction; KDB_ERR_BUSY if the reaper does not leave the context in time. */
__noinline int kdb_rollback(struct kdb_ctx *ctx)
{
	struct kdb_state *state = kdb_state();

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
	if (ctx->state != KDB_TX_COMMITTED) {
		/* The log's reader sees in the context that the writes are void, and forgets them. */
		ctx->state = KDB_TX_ROLLING_BACK;
		kdb_stats(state)->rollbacks++;
	}
	release(ctx);
	return tx_leave(ctx, KDB_OK);
}

/* Rolls back a transaction that has exceeded a limit, as kdb_reap() of the arena engine does, in one call. Where
 * programs cannot disable interrupts, an operator that interrupts this call waits in vain and fails with KDB_ERR_BUSY. */
__noinline int kdb_reap(struct kdb_ctx *ctx, __u64 tx_seq, __u64 last_ns)
{
	struct kdb_state *state = kdb_state();
	__u32 tx_state;

	if (!ctx || !state)
		return KDB_ERR_STATE;
	if (__sync_val_compare_and_swap(&ctx->in_use, KDB_CTX_FREE, KDB_CTX_REAPER) != KDB_CTX_FREE)
		return KDB_ERR_BUSY;
	tx_state = tx_reapable(ctx, tx_seq, last_ns);
	if (tx_state == KDB_TX_NONE)
		return tx_leave(ctx, KDB_MISMATCH);
	if (tx_state == KDB_TX_READ_ONLY && !SINGLE_VERSION)
		snapshot_release(state, ctx);
	ctx->error = KDB_ERR_TX_TIMED_OUT;
	ctx->state = KDB_TX_FAILED;
	kdb_stats(state)->tx_timed_out++;
	release_locks(ctx);
	return tx_leave(ctx, KDB_OK);
}

#endif
