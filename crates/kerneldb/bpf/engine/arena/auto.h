/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Auto-commit operators: GET, SET, DELETE and compare-and-set as transactions of their own.
 *
 * GET takes no lock. A writer prepares a large value's block first. With interrupts off it then fills the log
 * record, locks, checks, installs and commits. A failed write leaves nothing behind.
 */
#ifndef BEDPLATE_ENGINE_AUTO_H
#define BEDPLATE_ENGINE_AUTO_H

#include "revoke.h"
#include "write.h"

#define READ_AGAIN (-1)

/*
 * Whether the clock has reached `ts`. A version is stamped a few instructions before the clock moves. A session
 * that has seen the version must not later begin a snapshot without it. Writers own the clock's cache line, so the
 * function first tries a value that this CPU has seen before.
 */
static __always_inline int clock_reached(struct kdb_state *state, __u64 ts)
{
	struct kdb_cpu_stats *stats = kdb_stats(state);

	if (ts <= stats->clock_seen)
		return 1;
	stats->clock_seen = READ_ONCE(state->clock);
	return ts <= stats->clock_seen;
}

/* One attempt at reading the newest version at or before `snapshot`. */
static __always_inline int read_once(struct kdb_state *state, struct kdb_io *io, __u64 snapshot, int registered)
{
	struct kdb_found found = {};
	struct kdb_pos pos;

	pos.hash = io->hash;
	index_find(io, &pos);
	if (!pos.entry) {
		if (!pos_unchanged(&pos))
			return READ_AGAIN;
		io->observed_ts = removal_seen(state, pos.hash);
		return pos.chain == CHAIN_TOO_LONG ? KDB_ERR_CHAIN : KDB_NOT_FOUND;
	}
	__u64 changes = LOAD(&entry_at(pos.entry)->changes);
	barrier();
	if (!version_find(pos.entry, snapshot, &found))
		return READ_AGAIN;
	/* A registered snapshot does not need tombstones: one may have left during the search, after the version
	 * that it hid. If nothing left during the search, the version that was found stays as long as the snapshot
	 * needs it. */
	barrier();
	if (registered && LOAD(&entry_at(pos.entry)->changes) != changes)
		return READ_AGAIN;
	int live = found.ts && is_live(state, found.block, found.len);
	io->observed_ts = found.ts ? found.ts : removal_seen(state, pos.hash);
	if (live) {
		note_read(io, pos.entry);
		io_result(io, found.ts, found.block, found.len);
	}
	barrier();
	if (!registered && (LOAD(&entry_at(pos.entry)->changes) != changes || !clock_reached(state, found.ts)))
		return READ_AGAIN;
	if (!(registered && live) && !pos_unchanged(&pos))
		return READ_AGAIN;
	return live ? KDB_OK : KDB_NOT_FOUND;
}

/* Reads the newest version at or before `snapshot`. For a `registered` snapshot it validates the search, but not
 * the copy. */
__noinline int read_version(struct kdb_io *io, __u64 snapshot, int registered)
{
	struct kdb_state *state = kdb_state();
	int status;
	__u32 i;

	USE_ARENA();
	if (!io || !state)
		return KDB_ERR_BUSY;
	status = read_once(state, io, snapshot, registered);
	if (status != READ_AGAIN)
		return status;
	bpf_for(i, 0, 4096) {
		kdb_stats(state)->read_retries++;
		status = read_once(state, io, snapshot, registered);
		if (status != READ_AGAIN)
			return status;
	}
	return KDB_ERR_BUSY;
}

/* GET (auto-commit): key found, key not found. */
__noinline int kdb_get_auto(struct kdb_ctx *ctx, struct kdb_io *io)
{
	struct kdb_state *state = kdb_state();
	int status;

	USE_ARENA();
	if (!ctx || !io || !state)
		return KDB_ERR_STATE;
	status = check_key(io);
	if (status)
		return status;
	status = read_version(io, TS_LATEST, 0);
	kdb_stats(state)->gets++;
	if (status == KDB_NOT_FOUND)
		kdb_stats(state)->get_misses++;
	return status;
}


/* Compares the value in the arena with io->expect[0..elen]. */
__noinline int value_equals(struct kdb_io *io, __u32 data)
{
	__u32 i, words, tail;
	int equal = 1;

	USE_ARENA();
	if (!io || io->elen > KDB_VAL_MAX)
		return 0;
	words = io->elen / 8;
	tail = io->elen & 7;
	bpf_for(i, 0, words) {
		__u32 off = (i * 8) & (KDB_VAL_MAX - 1);
		if (*AT(__u64, data + off) != *word_of(&io->expect[off])) {
			equal = 0;
			break;
		}
	}
	if (equal && tail) {
		__u32 off = words * 8;
		if (off > KDB_VAL_MAX)
			return 0;
		__u64 mask = (1ull << (tail * 8)) - 1;
		if ((*AT(__u64, data + off) ^ *word_of(&io->expect[off])) & mask)
			equal = 0;
	}
	return equal;
}

/* Whether the write may go ahead, given the version it would replace. */
static __always_inline int check_condition(struct kdb_state *state, struct kdb_io *io, __u32 flags,
					   __u32 block, __u32 len)
{
	int live = is_live(state, block, len);

	if ((flags & KDB_IO_IF_EXPIRED) && (live || !block))
		return KDB_MISMATCH;
	if ((flags & KDB_IO_IF_ABSENT) && live)
		return KDB_MISMATCH;
	if ((flags & KDB_IO_IF_PRESENT) && !live)
		return KDB_NOT_FOUND;
	if (flags & KDB_IO_IF_EQUAL) {
		if (!live)
			return KDB_NOT_FOUND;
		if ((len & KDB_LEN_MASK) != io->elen || !value_equals(io, block))
			return KDB_MISMATCH;
	}
	return KDB_OK;
}

#define LOCK_AGAIN (-1)

/* One attempt at locking the key's entry for an auto-commit writer, creating it if need be. */
static __always_inline int auto_lock_once(struct kdb_io *io, __u32 flags, __u32 vlen, __u32 *out)
{
	struct kdb_pos pos;

	pos.hash = io->hash;
	index_find(io, &pos);
	if (!pos.entry) {
		if (!pos_unchanged(&pos))
			return LOCK_AGAIN;
		if (pos.chain == CHAIN_TOO_LONG)
			return KDB_ERR_CHAIN;
		if (flags & (KDB_IO_IF_PRESENT | KDB_IO_IF_EXPIRED | KDB_IO_UNCHANGED))
			return KDB_NOT_FOUND;
		if (pos.chain == CHAIN_FULL)
			return KDB_ERR_CHAIN;
		__u32 entry = entry_create(io, io->hash, KDB_LOCK_AUTO, vlen);
		if (!entry)
			return KDB_ERR_NO_MEMORY;
		if (!entry_link(&pos, entry)) {
			STORE(&entry_at(entry)->lock, KDB_LOCK_DEAD);
			entry_free(entry);
			return LOCK_AGAIN;
		}
		__sync_fetch_and_add(&super()->entries, 1);
		*out = entry;
		return KDB_OK;
	}
	struct kdb_entry __arena *e = entry_at(pos.entry);
	__u64 word = CAS(&e->lock, 0, KDB_LOCK_AUTO);
	if (word) {
		/* Another auto-commit writer will release the lock in a moment; a transaction will not. */
		if ((word & KDB_LOCK_DEAD) || (word & KDB_LOCK_OWNER_MASK) == KDB_LOCK_AUTO)
			return LOCK_AGAIN;
		return KDB_ERR_CONFLICT;
	}
	if (entry_matches(pos.entry, io, tag_of(io->hash))) {
		*out = pos.entry;
		return KDB_OK;
	}
	unlock_exclusive(pos.entry);
	return LOCK_AGAIN;
}

__noinline int auto_lock(struct kdb_io *io, __u32 flags, __u32 vlen, __u32 *out)
{
	int status;
	__u32 i;

	USE_ARENA();
	if (!io || !out)
		return KDB_ERR_STATE;
	status = auto_lock_once(io, flags, vlen, out);
	if (status != LOCK_AGAIN)
		return status;
	bpf_for(i, 0, 512) {
		status = auto_lock_once(io, flags, vlen, out);
		if (status != LOCK_AGAIN)
			return status;
	}
	return KDB_ERR_BUSY;
}

/* Locks, checks, installs and commits a prepared write. Interrupts are off. */
__noinline int auto_commit(struct kdb_io *io, struct kdb_write *w, __u32 flags)
{
	struct kdb_state *state = kdb_state();
	struct kdb_scan scan = {};
	__u32 entry = 0, old_block = 0, old_len = 0;
	__u64 ts;
	int status;

	USE_ARENA();
	if (!io || !w || !state)
		return KDB_ERR_STATE;
	status = auto_lock(io, flags, write_cell(w), &entry);
	if (status) {
		if (status == KDB_NOT_FOUND)
			io->observed_ts = removal_seen(state, io->hash);
		return status;
	}
	version_scan(entry, &scan);
	if (scan.newest != NO_SLOT) {
		struct kdb_version __arena *v = slot_at(entry, scan.newest);
		old_block = v->block;
		old_len = v->len;
	}
	status = check_condition(state, io, flags, old_block, old_len);
	if (!status && (flags & KDB_IO_REPLAY) && scan.newest_ts > io->commit_ts)
		status = KDB_MISMATCH;
	if (!status && (flags & KDB_IO_UNCHANGED) && scan.newest_ts != io->commit_ts)
		status = KDB_MISMATCH;
	if (status) {
		observe(state, io, &scan);
		goto unlock;
	}
	if (scan.free == NO_SLOT) {
		status = version_room(entry, &scan);
		if (status == KDB_ERR_NO_VERSION && version_reclaim(entry, &scan))
			status = version_room(entry, &scan);
		if (status)
			goto unlock;
	}
	status = write_place(io, w, entry, scan.cells, kept_expiry(io, flags, old_block, old_len));
	if (status)
		goto unlock;
	struct kdb_version __arena *v = slot_at(entry, scan.free);
	v->block = w->block;
	v->len = w->len;
	barrier();
	if (flags & KDB_IO_REPLAY) {
		ts = io->commit_ts;
		STORE(&v->ts, ts);
	} else {
		if (!latch_acquire(state)) {
			status = KDB_ERR_BUSY;
			goto unlock;
		}
		ts = state->clock + 1;
		STORE(&v->ts, ts);
		latch_publish(state, ts);
	}
	if (w->rec.off) {
		rec_at(&w->rec)->stamp = ts;
		wal_complete(&w->rec);
	}
	io->commit_ts = ts;
	if (scan.newest != NO_SLOT)
		usage_note(entry);
	account(state, io->klen, old_block, old_len, w->block, w->len);
	if (w->block && !scan.others && !READ_ONCE(state->active_snapshots)) {
		/* The common case: at most one older version, which no snapshot needs. */
		if (scan.newest < NO_SLOT) {
			entry_at(entry)->changes++;
			barrier();
			version_drop(state, entry, scan.newest);
			kdb_stats(state)->versions_pruned++;
		}
	} else {
		entry_prune(entry, &scan);
	}
	unlock_exclusive(entry);
	return KDB_OK;
unlock:
	if (scan.newest == NO_SLOT)
		gc_queue(entry);
	unlock_exclusive(entry);
	return status;
}

/* Reserves and fills the log record. Interrupts are off, for a short time only, because large values are not
 * copied. */
static __always_inline int auto_log(struct kdb_ctx *ctx, struct kdb_io *io, struct kdb_write *w, __u32 flags)
{
	if (!kdb_config.wal || (flags & KDB_IO_REPLAY))
		return KDB_OK;
	if (ctx->flags & KDB_CTX_NO_WAL) {
		w->rec.more = 0;
		if (!wal_reserve(&w->rec, sizeof(struct kdb_rec)))
			return KDB_ERR_WAL_FULL;
		wal_fill_bare(&w->rec, KDB_REC_SKIP, 0, 0);
		return KDB_OK;
	}
	if (!wal_reserve(&w->rec, wal_bytes(&w->rec, io, w->kind == WRITE_SMALL ? w->vlen : 0)))
		return KDB_ERR_WAL_FULL;
	wal_fill(&w->rec, io, w->kind == WRITE_TOMBSTONE ? KDB_REC_AUTO_DEL : KDB_REC_AUTO_PUT, w->vlen, w->block);
	return KDB_OK;
}

static __always_inline int auto_write(struct kdb_ctx *ctx, struct kdb_io *io, int delete, __u32 extra)
{
	struct kdb_state *state = kdb_state();
	struct kdb_write *w;
	unsigned long irq;
	__u32 flags;
	int status;

	USE_ARENA();
	if (!ctx || !io || !state)
		return KDB_ERR_STATE;
	status = check_key(io);
	if (status)
		return status;
	status = check_writable(state);
	if (status)
		return status;
	flags = io->flags | extra;
	w = write_of(io);
	status = write_prepare(io, w, delete, flags);
	if (status)
		return count_error(state, status);
	bpf_local_irq_save(&irq);
	status = auto_log(ctx, io, w, flags);
	if (!status)
		status = auto_commit(io, w, flags);
	if (status) {
		wal_void(&w->rec);
		value_free(w->block, w->len);
	}
	bpf_local_irq_restore(&irq);
	wal_ahead(&w->rec);
	if (status)
		return count_error(state, status);
	if (!delete)
		kdb_stats(state)->sets++;
	else if (!(flags & (KDB_IO_IF_EXPIRED | KDB_IO_UNCHANGED)))
		kdb_stats(state)->dels++;
	return KDB_OK;
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
