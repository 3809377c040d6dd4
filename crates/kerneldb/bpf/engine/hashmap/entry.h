/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Index entries: keys as maps see them, finding and creating entries, their parts.
 *
 * Offsets depend on the number of slots and the longest key, which are constants of the load.
 */
#ifndef BEDPLATE_HASHMAP_ENTRY_H
#define BEDPLATE_HASHMAP_ENTRY_H

#include "values.h"

#define HM_AGAIN (-1)
#define HM_ABSENT (-2)
#define HM_OWNED (-3) /* a transaction has the lock; a reader of the only version waits a little for it */
#define NO_SLOT HM_MAX_SLOTS

#define HM_TS_OFF sizeof(struct hm_entry)
#define HM_META_OFF (HM_TS_OFF + kdb_config.slots * 8)
#define HM_KEY_OFF (HM_META_OFF + kdb_config.slots * sizeof(struct hm_meta))

#define LOAD(p) (*(volatile typeof(*(p)) *)(p))
#define STORE(p, v) (*(volatile typeof(*(p)) *)(p) = (v))
#define CAS(p, old, new) __sync_val_compare_and_swap(p, old, new)

/* For slots below kdb_config.slots only. */
static __always_inline __u64 *hm_ts(struct hm_entry *e, __u32 slot)
{
	return (__u64 *)((void *)e + HM_TS_OFF + slot * 8);
}

static __always_inline struct hm_meta *hm_meta(struct hm_entry *e, __u32 slot)
{
	return (struct hm_meta *)((void *)e + HM_META_OFF + slot * sizeof(struct hm_meta));
}

static __always_inline __u64 *hm_key_word(struct hm_entry *e, __u32 off)
{
	return (__u64 *)((void *)e + HM_KEY_OFF + off);
}

static __always_inline __u64 hm_entry_cost(void)
{
	/* The length before the key is padded to a word. */
	__u32 map_key = 8 + kdb_config.key_bytes;
	return hm_alloc_bytes(HM_ELEM_OVERHEAD + map_key + HM_KEY_OFF + kdb_config.key_bytes);
}

/* Checks the key in an I/O buffer and turns it into a map key in place. */
__noinline int hm_prepare_key(struct kdb_io *io)
{
	__u32 klen;

	if (!io)
		return KDB_ERR_STATE;
	klen = io->klen;
	if (klen == 0 || klen > KDB_KEY_MAX || klen > kdb_config.key_bytes)
		return KDB_ERR_TOO_LARGE;
	io->map_klen = klen;
#pragma unroll
	for (__u32 off = 8; off < KDB_KEY_BUF; off += 8) {
		/* The caller has padded the key to whole words. */
		if (off < kdb_config.key_bytes && off >= klen)
			*(volatile __u64 *)&io->key[off] = 0;
	}
	return KDB_OK;
}

static __always_inline void *hm_io_key(struct kdb_io *io)
{
	return &io->map_klen;
}

static __always_inline struct hm_entry *hm_find(struct kdb_io *io)
{
	return bpf_map_lookup_elem(&kdb_index, hm_io_key(io));
}

/* Whether the entry is that of the key; `key` is padded to whole words. */
static __always_inline int hm_is(struct hm_entry *e, const __u8 *key, __u32 klen)
{
	__u32 i, words = (klen + 7) / 8;
	int equal = 1;

	if (LOAD(&e->klen) != klen)
		return 0;
	if (*hm_key_word(e, 0) != *word_of(&key[0]))
		return 0;
	if (words == 1)
		return 1;
	if (*hm_key_word(e, 8) != *word_of(&key[8]))
		return 0;
	if (words == 2 || kdb_config.key_bytes <= 16)
		return 1;
	for (i = 2; i < KDB_KEY_BUF / 8; i++) {
		__u32 off = i * 8;
		if (i >= words || off > kdb_config.key_bytes - 8)
			break;
		if (*hm_key_word(e, off) != *word_of(&key[off])) {
			equal = 0;
			break;
		}
	}
	return equal;
}

static __always_inline int hm_is_io(struct hm_entry *e, struct kdb_io *io)
{
	return hm_is(e, io->key, io->map_klen);
}

/* Creates an unlocked entry without versions; KDB_OK also if another session was faster. */
__noinline int hm_create(struct kdb_ctx *ctx, struct kdb_io *io)
{
	struct kdb_hash_state *state = hm_state();
	struct hm_work *work;
	long err = 0;

	if (!ctx || !io || !state)
		return KDB_ERR_STATE;
	io = hm_io(io);
	if (!io)
		return KDB_ERR_STATE;
	work = hm_work_of(ctx);
	if (!work)
		return KDB_ERR_STATE;
	if (!hm_charge(hm_entry_cost()))
		return KDB_ERR_NO_MEMORY;
	struct hm_entry *e = (struct hm_entry *)work->image;
	e->id = hm_new_id(ctx, work);
	e->klen = io->map_klen;
#pragma unroll
	for (__u32 off = 0; off < KDB_KEY_BUF; off += 8) {
		if (off < kdb_config.key_bytes)
			*(volatile __u64 *)hm_key_word(e, off) = *word_of(&io->key[off]);
	}
	for (int i = 0; i < HM_TRIES; i++) {
		err = bpf_map_update_elem(&kdb_index, hm_io_key(io), work->image, BPF_NOEXIST);
		if (!err) {
			__sync_fetch_and_add(&state->entries, 1);
			return KDB_OK;
		}
		if (err != HM_ENOMEM && err != HM_EBUSY)
			break;
	}
	hm_uncharge(hm_entry_cost());
	return err == -17 /* EEXIST */ ? KDB_OK : KDB_ERR_NO_MEMORY;
}

#endif
