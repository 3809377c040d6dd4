/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The maps of the hash-map engine (paper 4.1, figure 4): one index, one value map per size class.
 *
 * Maps allocate their elements on demand (BPF_F_NO_PREALLOC), because the spread of values over size classes is not
 * known beforehand: eight preallocated maps would each need the whole memory limit. User space sets sizes at load time:
 * the index' key and value to the longest key and the number of versions.
 *
 * A deleted element may serve another key at once, even while a program still holds a pointer to it. So every pointer
 * into the index is checked against the key after the entry was locked or read. The ids of versions never repeat, and
 * the lock word of a deleted entry is dead until it is overwritten.
 *
 * The oldest kernel is 6.1 (maps that allocate in any context); neither arenas nor interrupt control are needed. Loops
 * are therefore plain ones with a small bound, or bpf_loop(), because bpf_for is newer.
 */
#ifndef BEDPLATE_HASHMAP_MAPS_H
#define BEDPLATE_HASHMAP_MAPS_H

#include "../maps.h"

#define HM_MAX_SLOTS 8u    /* the paper's bound: timestamps in one cache line */

/*
 * X(n, bytes): value map n. An element takes 64 bytes besides its value (key included). It comes from the kernel's
 * power-of-two allocator, so the classes lie just below powers of two; 1024 bytes is a common size.
 */
#define HM_CLASSES(X)                                                                          \
	X(0, 32) X(1, 192) X(2, 448) X(3, 1024) X(4, 4032) X(5, 16320) X(6, 65472) X(7, 65536)

#define HM_DEFINE_VALUES(n, bytes)                        \
	struct {                                          \
		__uint(type, BPF_MAP_TYPE_HASH);          \
		__uint(map_flags, BPF_F_NO_PREALLOC);     \
		__uint(max_entries, 1);                   \
		__uint(key_size, 8);                      \
		__uint(value_size, bytes);                \
	} kdb_values_##n SEC(".maps");
HM_CLASSES(HM_DEFINE_VALUES)

/* A key as maps see it: its length and the key, padded with zeros to kdb_config.key_bytes. */
struct hm_key {
	__u32 len;
	__u8 bytes[KDB_KEY_BUF];
};

/* The fields of a version slot besides its timestamp. */
struct hm_meta {
	__u64 vid;       /* key in the value map; 0 = tombstone */
	__u64 expire_ms; /* 0 = never */
	__u32 len;       /* bytes of the value; determines the size class */
	__u32 _pad;
};

/*
 * Index entry: head; timestamps of all slots, next to each other because every operator scans them
 * (paper 4.1); meta of all slots; the key again.
 */
struct hm_entry {
	__u64 lock;      /* KDB_LOCK_* */
	__u64 changes;   /* bumped before a committed version leaves; readers re-check it */
	__u64 id;        /* never repeats */
	__u32 klen;
	__u32 gc_queued;
};
#define HM_ENTRY_MAX                                                                           \
	(sizeof(struct hm_entry) + HM_MAX_SLOTS * (8 + sizeof(struct hm_meta)) + KDB_KEY_BUF)

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(struct hm_key));
	__uint(value_size, HM_ENTRY_MAX);
} kdb_index SEC(".maps");

/* Result of a scan of an entry's slots. */
struct hm_scan {
	__u64 newest_ts;
	__u32 newest;
	__u32 free;
	__u32 others;    /* committed versions besides the newest */
	__u32 _pad;
};

/*
 * Working memory of a session's operators. It is in a map and not on the stack, because the verifier treats values that
 * it reads from there as unknown, and so does not follow every combination of slots.
 */
struct hm_work {
	__u64 ids;       /* number of ids that this session has given out */
	__u64 needed;    /* pruning: slots that snapshots need, one bit each */
	__u64 best_ts;
	__u64 best;
	struct hm_scan scan;
	struct hm_meta version;  /* the version being written */
	struct hm_key key;       /* collector only */
	__u32 _pad;
	__u8 image[HM_ENTRY_MAX] __attribute__((aligned(8))); /* a new entry; zero except for head and key */
};

/* Element 0 is the collector's, element n + 1 that of session n. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct hm_work);
} kdb_hash_work SEC(".maps");

/* Keys that transactions have locked: KDB_TX_LOCKS per session. Pointers cannot be kept. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, sizeof(struct hm_key));
} kdb_hash_held SEC(".maps");

/* Keys with something to collect. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 1);
	__uint(key_size, 0);
	__uint(value_size, sizeof(struct hm_key));
} kdb_hash_queue SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kdb_hash_state);
} kdb_hash_state SEC(".maps");

/* The log (paper 4.3). */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} kdb_hash_log SEC(".maps");

/*
 * Returns the I/O buffer, which is not NULL, as an element of its map, or NULL. Before Linux 6.2, only memory that the
 * verifier knows to be a map's may serve as a map's key or value. The verifier does not know that of an argument of a
 * global function.
 */
static __always_inline struct kdb_io *hm_io(struct kdb_io *io)
{
	__u32 index;

	if (!kdb_config.map_args)
		return io;
	index = io->index;
	return bpf_map_lookup_elem(&kdb_ios, &index);
}

static __always_inline struct kdb_hash_state *hm_state(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&kdb_hash_state, &zero);
}

static __always_inline struct hm_work *hm_work_of(struct kdb_ctx *ctx)
{
	__u32 index = ctx->session + 1;
	return bpf_map_lookup_elem(&kdb_hash_work, &index);
}

/* Bits of the ids that one session gives out: enough for two years at a million a second. Sessions take 17 bits. */
#define HM_ID_BITS 46

/* An id for a version or an entry: unique without an atomic, as one session runs one operator at once. */
static __always_inline __u64 hm_new_id(struct kdb_ctx *ctx, struct hm_work *work)
{
	return (__u64)(ctx->session + 1) << HM_ID_BITS | (++work->ids & ((1ull << HM_ID_BITS) - 1));
}

/* Takes `bytes` of the memory limit; returns 0 if there is not that much left. */
static __always_inline int hm_charge(__u64 bytes)
{
	struct kdb_hash_state *s = hm_state();

	if (!s)
		return 0;
	if (__sync_fetch_and_add(&s->used, bytes) + bytes <= s->limit)
		return 1;
	__sync_fetch_and_add(&s->used, -bytes);
	return 0;
}

static __always_inline void hm_uncharge(__u64 bytes)
{
	struct kdb_hash_state *s = hm_state();

	if (s)
		__sync_fetch_and_add(&s->used, -bytes);
}

#endif
