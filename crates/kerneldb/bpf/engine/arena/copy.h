/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Copies between I/O buffers (map values, bounds known to the verifier) and the arena, word by word.
 * Lengths are rounded up to whole words: values in I/O buffers have 64 bytes of slack, blocks are
 * multiples of 16 and cells multiples of 8.
 *
 * The steps are large and contain no calls, so that the processor handles the cache misses of many
 * lines at once.
 */
#ifndef BEDPLATE_ENGINE_COPY_H
#define BEDPLATE_ENGINE_COPY_H

#include "arena.h"

#define WORDS(bytes) (((bytes) + 7) / 8)
#define COPY_STEP 256u

/*
 * Loops over i = from .. to - 1, at most a few thousand steps. The count is in memory. The verifier
 * treats a value that it reads from there as unknown, so that one round stands for all.
 */
#define EACH_STEP(io, i, from, to)                                                             \
	for ((io)->step = (from); ((i) = READ_ONCE((io)->step)) < (to) && few_steps;           \
	     WRITE_ONCE((io)->step, (i) + 1))

/* Copies `n` words; `n` is a constant. */
#define COPY_WORDS(d, s, n)                                                                    \
	({                                                                                     \
		_Pragma("unroll") for (int copied = 0; copied < (n); copied++)                 \
			(d)[copied] = (s)[copied];                                             \
	})

/* Copies `n` words, a power of two, if they are part of `words`; moves d and s behind them. */
#define COPY_PART(d, s, words, n)                                                              \
	({                                                                                     \
		if ((words) & (n)) {                                                           \
			COPY_WORDS(d, s, n);                                                   \
			(d) += (n);                                                            \
			(s) += (n);                                                            \
		}                                                                              \
	})

/* Copies the rest after the large steps: fewer than 32 words. */
#define COPY_REST(d, s, words)                                                                 \
	({                                                                                     \
		COPY_PART(d, s, words, 16);                                                    \
		COPY_PART(d, s, words, 8);                                                     \
		COPY_PART(d, s, words, 4);                                                     \
		COPY_PART(d, s, words, 2);                                                     \
		COPY_PART(d, s, words, 1);                                                     \
	})

/* io->val[0..len] -> arena. */
__noinline int copy_value_in(struct kdb_io *io, __u32 dst, __u32 len)
{
	__u32 words, step, i;

	USE_ARENA();
	if (!io || len > KDB_VAL_MAX)
		return 0;
	words = WORDS(len);
	EACH_STEP(io, i, 0, words / 32) {
		step = (i * COPY_STEP) & (KDB_VAL_MAX - 1);
		const __u64 *s = word_of(&io->val[step]);
		__u64 __arena *d = AT(__u64, dst + step);
		COPY_WORDS(d, s, 32);
	}
	step = words / 32 * COPY_STEP;
	if (step > KDB_VAL_MAX)
		return 0;
	const __u64 *s = word_of(&io->val[step]);
	__u64 __arena *d = AT(__u64, dst + step);
	COPY_REST(d, s, words & 31);
	return 0;
}

/* arena -> io->val[0..len]. */
__noinline int copy_value_out(struct kdb_io *io, __u32 src, __u32 len)
{
	__u32 words, step, i;

	USE_ARENA();
	if (!io || len > KDB_VAL_MAX)
		return 0;
	words = WORDS(len);
	EACH_STEP(io, i, 0, words / 32) {
		step = (i * COPY_STEP) & (KDB_VAL_MAX - 1);
		__u64 *d = (__u64 *)&io->val[step];
		__u64 __arena *s = AT(__u64, src + step);
		COPY_WORDS(d, s, 32);
	}
	step = words / 32 * COPY_STEP;
	if (step > KDB_VAL_MAX)
		return 0;
	__u64 *d = (__u64 *)&io->val[step];
	__u64 __arena *s = AT(__u64, src + step);
	COPY_REST(d, s, words & 31);
	return 0;
}

/* io->val[0..len] -> arena, for at most KDB_CELL_MAX bytes. */
static __always_inline void copy_small_in(struct kdb_io *io, __u32 dst, __u32 len)
{
	const __u64 *s = word_of(&io->val[0]);
	__u64 __arena *d = AT(__u64, dst);

	for (int i = 0; i < WORDS(KDB_CELL_MAX); i++) {
		if (i * 8 >= len)
			break;
		d[i] = s[i];
	}
}

/* Copies the words of a key behind its first two: rare, so out of line. */
__noinline int copy_key_rest(struct kdb_io *io, __u32 dst, __u32 words)
{
	__u32 i;

	USE_ARENA();
	if (!io)
		return 0;
	EACH_STEP(io, i, 2, words) {
		__u32 off = (i * 8) & (KDB_KEY_BUF - 8);
		*AT(__u64, dst + off) = *word_of(&io->key[off]);
	}
	return 0;
}

__noinline int key_rest_equal(struct kdb_io *io, __u32 key, __u32 words)
{
	__u32 i;

	USE_ARENA();
	if (!io)
		return 0;
	EACH_STEP(io, i, 2, words) {
		__u32 off = (i * 8) & (KDB_KEY_BUF - 8);
		if (*AT(__u64, key + off) != *word_of(&io->key[off]))
			return 0;
	}
	return 1;
}

/* io->key -> arena, padded with zeros to whole words. */
static __always_inline void copy_key_in(struct kdb_io *io, __u32 dst)
{
	__u32 words = WORDS(io->klen);

	*AT(__u64, dst) = *word_of(&io->key[0]);
	if (words >= 2)
		*AT(__u64, dst + 8) = *word_of(&io->key[8]);
	if (words > 2)
		copy_key_rest(io, dst, words);
}

/* Whether the arena key at `off` equals io->key; lengths are known to be equal. */
static __always_inline int key_equal(struct kdb_io *io, __u32 off)
{
	__u32 words = WORDS(io->klen);

	if (*AT(__u64, off) != *word_of(&io->key[0]))
		return 0;
	if (words >= 2 && *AT(__u64, off + 8) != *word_of(&io->key[8]))
		return 0;
	return words <= 2 || key_rest_equal(io, off, words);
}

#endif
