/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Copies between I/O buffers (map values, bounds known to the verifier) and the arena. Lengths are
 * rounded up to whole words: buffers have 64 bytes of slack, blocks are multiples of 16.
 */
#ifndef BEDPLATE_ENGINE_COPY_H
#define BEDPLATE_ENGINE_COPY_H

#include "arena.h"

#define WORDS(bytes) (((bytes) + 7) / 8)

static __always_inline void copy_in_64(__u32 dst, const __u64 *src)
{
	__u64 __arena *d = AT(__u64, dst);
#pragma unroll
	for (int j = 0; j < 8; j++)
		d[j] = src[j];
}

/* io->val[0..len] -> arena. */
__noinline int copy_value_in(struct kdb_io *io, __u32 dst, __u32 len)
{
	__u32 i;

	USE_ARENA();
	if (!io || len > KDB_VAL_MAX)
		return 0;
	__u32 full = len / 64;
	if (full) {
		bpf_for(i, 0, full) {
			__u32 off = (i * 64) & (KDB_VAL_MAX - 1);
			copy_in_64(dst + off, (const __u64 *)&io->val[off]);
		}
	}
	__u32 base = full * 64;
	if (base > KDB_VAL_MAX)
		return 0;
	__u32 words = WORDS(len - base);
	const __u64 *src = (const __u64 *)&io->val[base];
	__u64 __arena *d = AT(__u64, dst + base);
	for (int j = 0; j < 8; j++) {
		if (j >= words)
			break;
		d[j] = src[j];
	}
	return 0;
}

/* arena -> io->val[0..len]. */
__noinline int copy_value_out(struct kdb_io *io, __u32 src, __u32 len)
{
	__u32 i;

	USE_ARENA();
	if (!io || len > KDB_VAL_MAX)
		return 0;
	__u32 full = len / 64;
	if (full) {
		bpf_for(i, 0, full) {
			__u32 off = (i * 64) & (KDB_VAL_MAX - 1);
			__u64 *d = (__u64 *)&io->val[off];
			__u64 __arena *s = AT(__u64, src + off);
#pragma unroll
			for (int j = 0; j < 8; j++)
				d[j] = s[j];
		}
	}
	__u32 base = full * 64;
	if (base > KDB_VAL_MAX)
		return 0;
	__u32 words = WORDS(len - base);
	__u64 *d = (__u64 *)&io->val[base];
	__u64 __arena *s = AT(__u64, src + base);
	for (int j = 0; j < 8; j++) {
		if (j >= words)
			break;
		d[j] = s[j];
	}
	return 0;
}

/* io->key -> arena, padded with zeros to whole words. */
static __always_inline void copy_key_in(struct kdb_io *io, __u32 dst)
{
	__u32 i, words = WORDS(io->klen);

	*AT(__u64, dst) = *word_of(&io->key[0]);
	if (words < 2)
		return;
	*AT(__u64, dst + 8) = *word_of(&io->key[8]);
	if (words == 2)
		return;
	bpf_for(i, 2, words) {
		__u32 off = (i * 8) & (KDB_KEY_BUF - 8);
		*AT(__u64, dst + off) = *word_of(&io->key[off]);
	}
}

/* Whether the arena key at `off` equals io->key; lengths are known to be equal. */
static __always_inline int key_equal(struct kdb_io *io, __u32 off)
{
	__u32 i, words = WORDS(io->klen);

	if (*AT(__u64, off) != *word_of(&io->key[0]))
		return 0;
	if (words == 1)
		return 1;
	if (*AT(__u64, off + 8) != *word_of(&io->key[8]))
		return 0;
	if (words == 2)
		return 1;
	int equal = 1;
	bpf_for(i, 2, words) {
		__u32 o = (i * 8) & (KDB_KEY_BUF - 8);
		if (*AT(__u64, off + o) != *word_of(&io->key[o])) {
			equal = 0;
			break;
		}
	}
	return equal;
}

#endif
