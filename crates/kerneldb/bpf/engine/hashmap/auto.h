/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Auto-commit operators: GET, SET, DELETE and compare-and-set as transactions of their own.
 *
 * GET takes no lock. A writer first puts the value and reserves log space, then locks, checks, installs and
 * commits. A failed write leaves nothing behind.
 */
#ifndef BEDPLATE_HASHMAP_AUTO_H
#define BEDPLATE_HASHMAP_AUTO_H

#include "version.h"
#include "wal.h"

/* GET (auto-commit): key found, key not found. */
__noinline int kdb_get_auto(struct kdb_ctx *ctx, struct kdb_io *io)
{
	struct kdb_state *state = kdb_state();
	int status;

	if (!ctx || !io || !state)
		return KDB_ERR_STATE;
	status = hm_prepare_key(io);
	if (status)
		return status;
	status = hm_read(io, TS_LATEST);
	kdb_stats(state)->gets++;
	if (status == KDB_NOT_FOUND)
		kdb_stats(state)->get_misses++;
	return status;
}

/* Whether a write may go ahead, given the version it would replace (vid 0: none). */
static __always_inline int check_condition(struct kdb_state *state, struct kdb_io *io, __u32 flags,
					   const struct hm_meta *old)
{
	int live = hm_is_live(state, old->vid, old->expire_ms);

	if ((flags & KDB_IO_IF_EXPIRED) && (live || !old->vid))
		return KDB_MISMATCH;
	if ((flags & KDB_IO_IF_ABSENT) && live)
		return KDB_MISMATCH;
	if ((flags & KDB_IO_IF_PRESENT) && !live)
		return KDB_NOT_FOUND;
	if ((flags & KDB_IO_IF_EQUAL) && (old->len != io->elen || !hm_value_equals(io, old->vid, old->len)))
		return KDB_MISMATCH;
	return KDB_OK;
}

/* The expiry that the new value has with KDB_IO_KEEP_TTL, given the version that it replaces. Not inlined, because the
 * verifier would look at the callers several times. */
__noinline __u64 hm_kept_expiry(__u32 flags, __u64 vid, __u64 expire_ms)
{
	struct kdb_state *state = kdb_state();

	if (flags & KDB_IO_IF_PRESENT)
		return expire_ms;
	return state && hm_is_live(state, vid, expire_ms) ? expire_ms : 0;
}

static __always_inline void meta_load(struct hm_meta *out, struct hm_entry *e, __u32 slot)
{
	out->vid = 0;
	out->expire_ms = 0;
	out->len = 0;
	opaque(slot);
	if (slot < kdb_config.slots) {
		struct hm_meta *meta = hm_meta(e, slot);
		out->vid = meta->vid;
		out->expire_ms = meta->expire_ms;
		out->len = meta->len;
	}
}

static __always_inline void meta_store(struct hm_meta *meta, const struct hm_meta *version)
{
	STORE(&meta->vid, version->vid);
	STORE(&meta->expire_ms, version->expire_ms);
	STORE(&meta->len, version->len);
}

/* One attempt at an auto-commit write of work->version; HM_ABSENT: there is no entry. Interrupts are off. */
static __always_inline int auto_once(struct kdb_state *state, struct kdb_io *io, struct hm_work *work,
				     __u32 flags)
{
	struct hm_entry *e = hm_find(io);
	struct hm_meta *new = &work->version, old;
	__u32 free, newest;
	__u64 ts, word;
	int status;

	if (!e)
		return HM_ABSENT;
	word = CAS(&e->lock, 0, KDB_LOCK_AUTO);
	if (word) {
		/* Another auto-commit writer will release the lock in a moment; a transaction will not. */
		if ((word & KDB_LOCK_DEAD) || (word & KDB_LOCK_OWNER_MASK) == KDB_LOCK_AUTO)
			return HM_AGAIN;
		return KDB_ERR_CONFLICT;
	}
	if (!hm_is_io(e, io)) {
		/* The element serves another key by now. */
		hm_unlock(e);
		return HM_AGAIN;
	}
	hm_scan(e, &work->scan);
	newest = READ_ONCE(work->scan.newest);
	meta_load(&old, e, newest);
	status = check_condition(state, io, flags, &old);
	if (!status && (flags & KDB_IO_REPLAY) && READ_ONCE(work->scan.newest_ts) > io->commit_ts)
		status = KDB_MISMATCH;
	if (!status && (flags & KDB_IO_UNCHANGED) && READ_ONCE(work->scan.newest_ts) != io->commit_ts)
		status = KDB_MISMATCH;
	if (status)
		goto unlock;
	if (READ_ONCE(work->scan.free) >= kdb_config.slots)
		hm_prune(state, e, work);
	free = READ_ONCE(work->scan.free);
	opaque(free);
	if (free >= kdb_config.slots) {
		status = KDB_ERR_NO_VERSION;
		goto unlock;
	}
	if ((flags & KDB_IO_KEEP_TTL) && new->vid)
		WRITE_ONCE(new->expire_ms, hm_kept_expiry(flags, old.vid, old.expire_ms));
	meta_store(hm_meta(e, free), new);
	barrier();
	if (flags & KDB_IO_REPLAY) {
		ts = io->commit_ts;
		STORE(hm_ts(e, free), ts);
	} else {
		if (!latch_acquire(state)) {
			status = KDB_ERR_BUSY;
			goto unlock;
		}
		ts = state->clock + 1;
		STORE(hm_ts(e, free), ts);
		latch_publish(state, ts);
	}
	io->commit_ts = ts;
	hm_account(state, io->klen, &old, new);
	newest = READ_ONCE(work->scan.newest);
	opaque(newest);
	if (new->vid && !READ_ONCE(work->scan.others) && !READ_ONCE(state->active_snapshots)) {
		/* The common case: at most one older version, which no snapshot needs. */
		if (newest < kdb_config.slots) {
			STORE(&e->changes, e->changes + 1);
			barrier();
			hm_drop(e, newest);
			kdb_stats(state)->versions_pruned++;
		}
	} else {
		hm_entry_prune(state, e, work, hm_io_key(io));
	}
	hm_unlock(e);
	return KDB_OK;
unlock:
	if (READ_ONCE(work->scan.newest) >= kdb_config.slots)
		hm_queue(e, hm_io_key(io));
	hm_unlock(e);
	return status;
}

static __always_inline int auto_try(struct kdb_ctx *ctx, struct kdb_io *io, __u32 flags)
{
	struct kdb_state *state = kdb_state();
	struct hm_work *work = hm_work_of(ctx);
	unsigned long irq;
	int status;

	io = hm_io(io);
	if (!io || !state || !work)
		return KDB_ERR_STATE;
	irqs_off(&irq);
	status = auto_once(state, io, work, flags);
	irqs_on(&irq);
	return status;
}

struct attempt {
	struct kdb_ctx *ctx;
	struct kdb_io *io;
	__u32 flags;
	int status;
};

/* One attempt, after creating the entry if the last one found none. It is one function, because calls nest
 * deeply here. */
static long auto_step(__u32 i, struct attempt *attempt)
{
	int status = attempt->status;

	if (status == HM_ABSENT) {
		status = KDB_NOT_FOUND;
		if (!(attempt->flags & (KDB_IO_IF_PRESENT | KDB_IO_IF_EXPIRED | KDB_IO_UNCHANGED)))
			status = hm_create(attempt->ctx, attempt->io);
		if (status)
			goto out;
	}
	status = auto_try(attempt->ctx, attempt->io, attempt->flags);
	if (status == KDB_ERR_NO_VERSION && hm_reclaim(attempt->ctx, attempt->io))
		status = HM_AGAIN;
out:
	attempt->status = status;
	return status >= KDB_OK;
}

/* Locks the key, creating its entry if need be, and writes work->version. */
__noinline int auto_run(struct kdb_ctx *ctx, struct kdb_io *io, __u32 flags)
{
	struct attempt attempt = { .ctx = ctx, .io = io, .flags = flags, .status = HM_AGAIN };

	if (!ctx || !io)
		return KDB_ERR_STATE;
	bpf_loop(512, auto_step, &attempt, 0);
	return attempt.status < KDB_OK ? KDB_ERR_BUSY : attempt.status;
}

/* The same with a log record. */
__noinline int auto_logged(struct kdb_ctx *ctx, struct kdb_io *io, __u32 flags, __u32 type)
{
	struct hm_work *work;
	struct kdb_rec_long head = { .rec.flags = KDB_REC_LONG };
	struct bpf_dynptr rec;
	__u32 bytes = sizeof(head), vlen;
	int status;

	if (!ctx || !io)
		return KDB_ERR_STATE;
	work = hm_work_of(ctx);
	if (!work)
		return KDB_ERR_STATE;
	vlen = type == KDB_REC_AUTO_PUT ? work->version.len : 0;
	if (type != KDB_REC_SKIP)
		bytes = hm_rec_bytes(io, vlen);
	if (bpf_ringbuf_reserve_dynptr(&kdb_hash_log, bytes, 0, &rec)) {
		bpf_ringbuf_discard_dynptr(&rec, BPF_RB_NO_WAKEUP);
		return KDB_ERR_WAL_FULL;
	}
	status = auto_run(ctx, io, flags);
	if (status) {
		bpf_ringbuf_discard_dynptr(&rec, BPF_RB_NO_WAKEUP);
		return status;
	}
	head.rec.size = bytes;
	head.rec.type = type;
	head.rec.stamp = io->commit_ts;
	if (type != KDB_REC_SKIP) {
		head.rec.klen = io->klen;
		head.rec.vlen = vlen;
		head.word = work->version.expire_ms;
	}
	hm_rec_fill(&rec, &head, io);
	bpf_ringbuf_submit_dynptr(&rec, hm_log_flags(bytes));
	return KDB_OK;
}

/* Puts the value to write, and describes it in work->version. */
static __always_inline int prepare_version(struct kdb_ctx *ctx, struct kdb_io *io, struct hm_work *work,
					   int delete, __u32 flags)
{
	struct hm_meta *version = &work->version;
	__u32 vlen = delete ? 0 : io->vlen;
	__u64 vid;

	WRITE_ONCE(version->vid, 0);
	WRITE_ONCE(version->len, vlen);
	WRITE_ONCE(version->expire_ms, delete || (flags & KDB_IO_KEEP_TTL) ? 0 : io->expire_ms);
	if (vlen > KDB_VAL_MAX)
		return KDB_ERR_TOO_LARGE;
	if (delete)
		return KDB_OK;
	vid = hm_new_id(ctx, work);
	int status = hm_value_put(io, vid, vlen);
	if (!status)
		WRITE_ONCE(version->vid, vid);
	return status;
}

static __always_inline int auto_write(struct kdb_ctx *ctx, struct kdb_io *io, int delete, __u32 extra)
{
	struct kdb_state *state = kdb_state();
	struct hm_work *work;
	__u32 flags;
	int status;

	if (!ctx || !io || !state)
		return KDB_ERR_STATE;
	work = hm_work_of(ctx);
	if (!work)
		return KDB_ERR_STATE;
	status = hm_prepare_key(io);
	if (status)
		return status;
	status = check_writable(state);
	if (status)
		return status;
	flags = io->flags | extra;
	status = prepare_version(ctx, io, work, delete, flags);
	if (status)
		return count_error(state, status);
	if (kdb_config.wal && !(flags & KDB_IO_REPLAY)) {
		__u32 type = delete ? KDB_REC_AUTO_DEL : KDB_REC_AUTO_PUT;
		status = auto_logged(ctx, io, flags, ctx->flags & KDB_CTX_NO_WAL ? KDB_REC_SKIP : type);
	} else {
		status = auto_run(ctx, io, flags);
	}
	if (!delete)
		kdb_stats(state)->sets++;
	else if (!(flags & (KDB_IO_IF_EXPIRED | KDB_IO_UNCHANGED)))
		kdb_stats(state)->dels++;
	if (!status)
		return KDB_OK;
	if (work->version.vid)
		hm_value_drop(work->version.vid, work->version.len);
	return count_error(state, status);
}

/* SET (auto-commit): OK, Error; with KDB_IO_IF_*, also KDB_MISMATCH and KDB_NOT_FOUND. */
__noinline int kdb_set_auto(struct kdb_ctx *ctx, struct kdb_io *io)
{
	return auto_write(ctx, io, 0, 0);
}

/* DELETE (auto-commit): OK, key not found, Error; with KDB_IO_IF_EXPIRED and KDB_IO_UNCHANGED, which also delete a key whose expiry
 * has passed, KDB_MISMATCH as well. */
__noinline int kdb_del_auto(struct kdb_ctx *ctx, struct kdb_io *io)
{
	if (!io)
		return KDB_ERR_STATE;
	return auto_write(ctx, io, 1, io->flags & (KDB_IO_IF_EXPIRED | KDB_IO_UNCHANGED) ? 0 : KDB_IO_IF_PRESENT);
}

/* Compare-and-set (auto-commit): OK, key not found, KDB_MISMATCH, Error. */
__noinline int kdb_cas_auto(struct kdb_ctx *ctx, struct kdb_io *io)
{
	return auto_write(ctx, io, 0, KDB_IO_IF_PRESENT | KDB_IO_IF_EQUAL | KDB_IO_KEEP_TTL);
}

#endif
