/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * XXH64 of the key in an I/O buffer (paper 6.7), with the database's secret seed so that clients
 * cannot choose keys that collide. Keys are padded with zeros, so whole words can be read.
 */
#ifndef BEDPLATE_ENGINE_HASH_H
#define BEDPLATE_ENGINE_HASH_H

#include "maps.h"

#define XXH_P1 0x9E3779B185EBCA87ull
#define XXH_P2 0xC2B2AE3D27D4EB4Full
#define XXH_P3 0x165667B19E3779F9ull
#define XXH_P4 0x85EBCA77C2B2AE63ull
#define XXH_P5 0x27D4EB2F165667C5ull

static __always_inline __u64 xxh_rotl(__u64 x, int r)
{
	return (x << r) | (x >> (64 - r));
}

static __always_inline __u64 xxh_round(__u64 acc, __u64 word)
{
	return xxh_rotl(acc + word * XXH_P2, 31) * XXH_P1;
}

static __always_inline __u64 kdb_key_word(const struct kdb_io *io, __u32 off)
{
	return *word_of(&io->key[off & (KDB_KEY_BUF - 8)]);
}

/* The stripes of a key of 32 bytes and more: rare, so out of line. */
__noinline __u64 xxh_stripes(struct kdb_io *io, __u64 seed)
{
	__u64 a = seed + XXH_P1 + XXH_P2, b = seed + XXH_P2, c = seed, d = seed - XXH_P1;
	__u32 stripes, i;

	if (!io)
		return 0;
	stripes = io->klen / 32;
	for (i = 0; i < KDB_KEY_BUF / 32; i++) {
		if (i >= stripes)
			break;
		a = xxh_round(a, kdb_key_word(io, i * 32));
		b = xxh_round(b, kdb_key_word(io, i * 32 + 8));
		c = xxh_round(c, kdb_key_word(io, i * 32 + 16));
		d = xxh_round(d, kdb_key_word(io, i * 32 + 24));
	}
	__u64 h = xxh_rotl(a, 1) + xxh_rotl(b, 7) + xxh_rotl(c, 12) + xxh_rotl(d, 18);
	h = (h ^ xxh_round(0, a)) * XXH_P1 + XXH_P4;
	h = (h ^ xxh_round(0, b)) * XXH_P1 + XXH_P4;
	h = (h ^ xxh_round(0, c)) * XXH_P1 + XXH_P4;
	return (h ^ xxh_round(0, d)) * XXH_P1 + XXH_P4;
}

static __always_inline __u64 xxh_word(__u64 h, __u64 word)
{
	return xxh_rotl(h ^ xxh_round(0, word), 27) * XXH_P1 + XXH_P4;
}

static __always_inline __u64 xxh_avalanche(__u64 h)
{
	h ^= h >> 33;
	h *= XXH_P2;
	h ^= h >> 29;
	h *= XXH_P3;
	return h ^ (h >> 32);
}

/* The same as kdb_hash() for a key of two words. */
static __always_inline __u64 kdb_hash_16(__u64 first, __u64 second)
{
	__u64 h = kdb_config.seed + XXH_P5 + 16;

	return xxh_avalanche(xxh_word(xxh_word(h, first), second));
}

static __always_inline __u64 kdb_hash(struct kdb_io *io)
{
	__u32 len = io->klen, pos = 0;
	__u64 seed = kdb_config.seed, h;

	if (len >= 32) {
		h = xxh_stripes(io, seed);
		pos = len & ~31u;
	} else {
		h = seed + XXH_P5;
	}
	h += len;
	for (int i = 0; i < 3; i++) {
		if (pos + 8 > len)
			break;
		h = xxh_word(h, kdb_key_word(io, pos));
		pos += 8;
	}
	/* At most seven bytes are left, all in one word. */
	__u64 rest = kdb_key_word(io, pos);
	if (pos + 4 <= len) {
		h = xxh_rotl(h ^ (__u32)rest * XXH_P1, 23) * XXH_P2 + XXH_P3;
		rest >>= 32;
		pos += 4;
	}
	for (int i = 0; i < 3; i++) {
		if (pos >= len)
			break;
		h = xxh_rotl(h ^ (rest & 0xff) * XXH_P5, 11) * XXH_P1;
		rest >>= 8;
		pos++;
	}
	return xxh_avalanche(h);
}

/* Partitions take the top bits, buckets and tags the lower half. */
static __always_inline __u32 kdb_partition_of(__u64 hash)
{
	return (__u32)(((hash >> 48) * kdb_config.partitions) >> 16);
}

#endif
