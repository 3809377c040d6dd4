/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Placement of new values: small ones in a cell of their entry, others in a block.
 *
 * A block is allocated and filled before the entry is locked. Only under the lock is it known which
 * cell is free, and whether the value inherits an expiry (which only blocks have). Small values are
 * therefore placed under the lock.
 */
#ifndef BEDPLATE_ENGINE_WRITE_H
#define BEDPLATE_ENGINE_WRITE_H

#include "common.h"

enum kdb_write_kind {
	WRITE_TOMBSTONE,
	WRITE_BLOCK,    /* the value is in its block */
	WRITE_SMALL,    /* the value is still in the I/O buffer */
};

/* A write that was prepared before locking. After write_place() it describes the new version. */
struct kdb_write {
	__u32 kind;     /* enum kdb_write_kind */
	__u32 head;     /* KDB_LEN_HEAD: a block of the value has a head whether it expires or not; 0 */
	__u32 vlen;
	__u32 block;    /* 0 = delete, or not placed yet */
	__u32 len;      /* with KDB_LEN_* */
	struct kdb_wal_rec rec;
};
_Static_assert(sizeof(struct kdb_write) <= sizeof(((struct kdb_io *)0)->write), "a write fits into its I/O buffer");

/* The write of an operator, empty. */
static __always_inline struct kdb_write *write_of(struct kdb_io *io)
{
	for (int i = 0; i < 6; i++)
		io->write[i] = 0;
	return (struct kdb_write *)io->write;
}

/* Allocates a block with io->val and an expiry in ms (0 = never). */
static __always_inline int write_block(struct kdb_io *io, struct kdb_write *w, __u64 expiry)
{
	__u32 len = w->vlen | w->head | (expiry ? KDB_LEN_HEAD | KDB_LEN_EXPIRES : 0);
	__u32 head = head_in_block(len);
	__u32 block = block_alloc(w->vlen + head ?: 1);

	if (!block)
		return KDB_ERR_NO_MEMORY;
	w->block = block + head;
	w->len = len;
	if (expiry)
		ASTORE64(head_at(w->block, len), expiry);
	copy_value_in(io, w->block, w->vlen);
	return KDB_OK;
}

/* Prepares a write before the entry is locked. With KDB_IO_KEEP_TTL the expiry is set later. */
__noinline int write_prepare(struct kdb_io *io, struct kdb_write *w, int delete, __u32 flags)
{
	__u64 expiry;

	USE_ARENA();
	if (!io || !w)
		return KDB_ERR_STATE;
	if (delete)
		return KDB_OK;
	if (io->vlen > KDB_VAL_MAX)
		return KDB_ERR_TOO_LARGE;
	w->vlen = io->vlen;
	w->head = kdb_config.wal || (flags & KDB_IO_KEEP_TTL) ? KDB_LEN_HEAD : 0;
	w->rec.more = io->expire_ms || (flags & KDB_IO_KEEP_TTL) ? REC_MORE : 0;
	expiry = flags & KDB_IO_KEEP_TTL ? 0 : io->expire_ms;
	if (w->vlen <= KDB_CELL_MAX && !expiry) {
		w->kind = WRITE_SMALL;
		return KDB_OK;
	}
	w->kind = WRITE_BLOCK;
	return write_block(io, w, expiry);
}

/* The expiry that the new value has with KDB_IO_KEEP_TTL, given the version that it replaces. Not inlined, because the
 * callers need the stack. */
__noinline __u64 old_expiry(__u32 flags, __u32 block, __u32 len)
{
	struct kdb_state *state = kdb_state();

	USE_ARENA();
	if (!(flags & KDB_IO_IF_PRESENT) && !(state && is_live(state, block, len)))
		return 0;
	return block_expiry(block, len);
}

/* The expiry that the new value has, given the version that it replaces. */
static __always_inline __u64 kept_expiry(struct kdb_io *io, __u32 flags, __u32 block, __u32 len)
{
	return flags & KDB_IO_KEEP_TTL ? old_expiry(flags, block, len) : io->expire_ms;
}

/* Bytes that a new entry's cells should have room for. */
static __always_inline __u32 write_cell(const struct kdb_write *w)
{
	return w->kind == WRITE_TOMBSTONE ? 0 : w->kind == WRITE_BLOCK ? KDB_VAL_MAX : w->vlen;
}

/* Places the value; `cells` are in use, one bit each. The caller holds the entry's exclusive lock. */
__noinline int write_place(struct kdb_io *io, struct kdb_write *w, __u32 entry, __u32 cells, __u64 expiry)
{
	USE_ARENA();
	if (!io || !w)
		return KDB_ERR_STATE;
	if (w->kind == WRITE_TOMBSTONE)
		return KDB_OK;
	if (w->rec.off && w->rec.more)
		rec_word(&w->rec, expiry);
	if (w->kind == WRITE_BLOCK) {
		if (expiry) {
			ASTORE64(head_at(w->block, w->len), expiry);
			w->len |= KDB_LEN_EXPIRES;
		}
		return KDB_OK;
	}
	__u32 klen = LOAD(&entry_at(entry)->klen);
	__u32 bytes = cell_bytes(klen, LOAD(&entry_at(entry)->class_));
	if (expiry || w->vlen > bytes || (cells & 3) == 3)
		return write_block(io, w, expiry);
	__u32 cell = cells & 1;
	__u32 at = entry + entry_fixed(klen) + cell * bytes;
	w->block = at;
	w->len = w->vlen | KDB_LEN_INLINE | cell << KDB_LEN_CELL_SHIFT;
	copy_small_in(io, at, w->vlen);
	return KDB_OK;
}

#endif
