/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Values in the map of their size class, keyed by the id of their version.
 *
 * A value never changes: a SET puts a new one under a new id. The map copies io->val straight into its
 * element; the bytes behind the value's end are arbitrary.
 */
#ifndef BEDPLATE_HASHMAP_VALUES_H
#define BEDPLATE_HASHMAP_VALUES_H

#include "maps.h"

#define HM_ENOMEM (-12)
#define HM_EBUSY (-16)
/* An element's memory besides key and value. hm_alloc_bytes() is the kernel allocator's size for the sum. */
#define HM_ELEM_OVERHEAD 56u

static __always_inline __u64 hm_alloc_bytes(__u32 bytes)
{
	if (bytes <= 96)
		return 96;
	if (bytes <= 128)
		return 128;
	if (bytes <= 192)
		return 192;
	for (__u32 size = 256; size < 131072; size *= 2) {
		if (bytes <= size)
			return size;
	}
	return 131072;
}

static __always_inline __u64 hm_value_cost(__u32 len)
{
#define HM_COST(n, bytes)    \
	if (len <= bytes)    \
		return hm_alloc_bytes(bytes + 8 + HM_ELEM_OVERHEAD);
	HM_CLASSES(HM_COST)
	return 131072;
}

/* A processor's cache of free elements may be empty for a moment; the kernel refills it at once. */
#define HM_TRIES 16

/* Puts io->val[0..len] under `vid`: KDB_OK, KDB_ERR_NO_MEMORY. */
__noinline int hm_value_put(struct kdb_io *io, __u64 vid, __u32 len)
{
	__u64 key = vid, cost;
	long err;

	if (!io || len > KDB_VAL_MAX)
		return KDB_ERR_TOO_LARGE;
	io = hm_io(io);
	if (!io)
		return KDB_ERR_TOO_LARGE;
	cost = hm_value_cost(len);
	if (!hm_charge(cost))
		return KDB_ERR_NO_MEMORY;
#define HM_PUT(n, bytes)                                                                       \
	if (len <= bytes) {                                                                    \
		for (int i = 0; i < HM_TRIES; i++) {                                           \
			err = bpf_map_update_elem(&kdb_values_##n, &key, io->val, BPF_NOEXIST); \
			if (!err)                                                              \
				return KDB_OK;                                                 \
		}                                                                              \
		goto fail;                                                                     \
	}
	HM_CLASSES(HM_PUT)
fail:
	hm_uncharge(cost);
	return KDB_ERR_NO_MEMORY;
}

/* Removes a value. */
__noinline int hm_value_drop(__u64 vid, __u32 len)
{
	__u64 key = vid;

#define HM_DROP(n, bytes)                                                                      \
	if (len <= bytes) {                                                                    \
		for (int i = 0; i < HM_TRIES; i++) {                                           \
			if (bpf_map_delete_elem(&kdb_values_##n, &key) != HM_EBUSY)            \
				break;                                                         \
		}                                                                              \
		goto done;                                                                     \
	}
	HM_CLASSES(HM_DROP)
done:
	hm_uncharge(hm_value_cost(len));
	return 0;
}

/* Copies a value to io->val. Returns 0 if the value is not there any more. */
__noinline int hm_value_read(struct kdb_io *io, __u64 vid, __u32 len)
{
	__u64 key = vid;
	void *value;

	if (!io)
		return 0;
#define HM_READ(n, bytes)                                                                      \
	if (len <= bytes) {                                                                    \
		value = bpf_map_lookup_elem(&kdb_values_##n, &key);                            \
		if (!value)                                                                    \
			return 0;                                                              \
		if (bytes <= 32) {                                                             \
			for (int j = 0; j < bytes / 8; j++)                                    \
				((__u64 *)io->val)[j] = ((__u64 *)value)[j];                   \
			return 1;                                                              \
		}                                                                              \
		return !bpf_probe_read_kernel(io->val, len, value);                            \
	}
	HM_CLASSES(HM_READ)
	return 0;
}

struct comparison {
	struct kdb_io *io;
	void *value;
	__u64 last;  /* mask of the last word */
	__u32 words;
	int equal;
};

/* Compares one word. Each class has a step, because the verifier has to know how long the value is. */
#define HM_DEFINE_EQUALS(n, bytes)                                                             \
	static long equals_step_##n(__u32 i, struct comparison *c)                             \
	{                                                                                      \
		__u32 off = i * 8;                                                             \
		opaque(off);                                                                   \
		if (off > bytes - 8)                                                           \
			return 1;                                                              \
		__u64 mask = i + 1 == c->words ? c->last : ~0ull;                              \
		c->equal = !((*(__u64 *)(c->value + off) ^ *word_of(&c->io->expect[off])) & mask); \
		return !c->equal;                                                              \
	}
HM_CLASSES(HM_DEFINE_EQUALS)

/* Compares a value with io->expect[0..len]. */
__noinline int hm_value_equals(struct kdb_io *io, __u64 vid, __u32 len)
{
	__u64 key = vid;
	__u32 tail = len & 7;
	struct comparison c = { .io = io, .words = (len + 7) / 8, .equal = 1 };

	if (!io || len > KDB_VAL_MAX)
		return 0;
	c.last = tail ? (1ull << (tail * 8)) - 1 : ~0ull;
#define HM_EQUALS(n, bytes)                                                                    \
	if (len <= bytes) {                                                                    \
		c.value = bpf_map_lookup_elem(&kdb_values_##n, &key);                          \
		if (!c.value)                                                                  \
			return 0;                                                              \
		bpf_loop(c.words, equals_step_##n, &c, 0);                                     \
		return c.equal;                                                                \
	}
	HM_CLASSES(HM_EQUALS)
	return 0;
}

#endif
