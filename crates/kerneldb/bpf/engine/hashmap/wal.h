/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The producers' side of the log: the kernel's ring buffer (paper 4.3).
 *
 * Space is reserved before anything changes, so a full ring fails the operation, and no change stays
 * unlogged. The record is filled and submitted after the change, when its timestamp is known. Records are
 * those of the arena engine's rings, always of the long form. The reader is woken once per
 * kdb_config.wal_notify bytes.
 */
#ifndef BEDPLATE_HASHMAP_WAL_H
#define BEDPLATE_HASHMAP_WAL_H

#include "common.h"

#define PAD8(n) (((n) + 7) & ~7u)

static __always_inline __u64 hm_log_flags(__u32 bytes)
{
	struct kdb_hash_state *state = hm_state();
	__u64 notify = kdb_config.wal_notify, before;

	if (!state || !notify)
		return BPF_RB_NO_WAKEUP;
	before = __sync_fetch_and_add(&state->log_bytes, bytes);
	return before / notify != (before + bytes) / notify ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
}

/* Bytes of the record for a change of io's key. */
static __always_inline __u32 hm_rec_bytes(struct kdb_io *io, __u32 vlen)
{
	return sizeof(struct kdb_rec_long) + PAD8(io->klen & 0xff) + PAD8(vlen & 0x1ffff);
}

/* Fills a reserved record: head, key, value. */
static __always_inline void hm_rec_fill(struct bpf_dynptr *rec, struct kdb_rec_long *head, struct kdb_io *io)
{
	__u32 klen = head->rec.klen, vlen = head->rec.vlen;

	bpf_dynptr_write(rec, 0, head, sizeof(*head), 0);
	opaque(klen);
	if (klen == 0 || klen > KDB_KEY_MAX)
		return;
	bpf_dynptr_write(rec, sizeof(*head), io->key, klen, 0);
	opaque(vlen);
	if (vlen == 0 || vlen > KDB_VAL_MAX)
		return;
	bpf_dynptr_write(rec, sizeof(*head) + PAD8(klen), io->val, vlen, 0);
}

#endif
