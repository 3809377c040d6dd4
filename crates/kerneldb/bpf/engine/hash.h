/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * SipHash-1-3 of the key in an I/O buffer, under the database's secret 128-bit key.
 *
 * Clients choose keys, and operators walk hash chains in interrupt context. The hash is therefore a keyed
 * pseudo-random function: a client that does not know the secret cannot construct keys that collide. A fast hash
 * with a secret seed (the paper uses XXH64, 6.7) is not enough, because its collisions can be built to hold for
 * every seed. User space computes the same hash (src/hash.rs).
 */
#ifndef BEDPLATE_ENGINE_HASH_H
#define BEDPLATE_ENGINE_HASH_H

#include "maps.h"

struct kdb_sip {
	__u64 v0, v1, v2, v3;
};

static __always_inline __u64 sip_rotate(__u64 x, int bits)
{
	return (x << bits) | (x >> (64 - bits));
}

static __always_inline void sip_round(struct kdb_sip *s)
{
	s->v0 += s->v1;
	s->v2 += s->v3;
	s->v1 = sip_rotate(s->v1, 13) ^ s->v0;
	s->v3 = sip_rotate(s->v3, 16) ^ s->v2;
	s->v0 = sip_rotate(s->v0, 32);
	s->v2 += s->v1;
	s->v0 += s->v3;
	s->v1 = sip_rotate(s->v1, 17) ^ s->v2;
	s->v3 = sip_rotate(s->v3, 21) ^ s->v0;
	s->v2 = sip_rotate(s->v2, 32);
}

static __always_inline void sip_begin(struct kdb_sip *s)
{
	s->v0 = kdb_config.hash_key[0] ^ 0x736f6d6570736575ull;
	s->v1 = kdb_config.hash_key[1] ^ 0x646f72616e646f6dull;
	s->v2 = kdb_config.hash_key[0] ^ 0x6c7967656e657261ull;
	s->v3 = kdb_config.hash_key[1] ^ 0x7465646279746573ull;
}

static __always_inline void sip_word(struct kdb_sip *s, __u64 word)
{
	s->v3 ^= word;
	sip_round(s);
	s->v0 ^= word;
}

static __always_inline __u64 sip_end(struct kdb_sip *s)
{
	s->v2 ^= 0xff;
	sip_round(s);
	sip_round(s);
	sip_round(s);
	return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

/* The same as kdb_hash() for a key of two words. */
static __always_inline __u64 kdb_hash_16(__u64 first, __u64 second)
{
	struct kdb_sip s;

	sip_begin(&s);
	sip_word(&s, first);
	sip_word(&s, second);
	sip_word(&s, 16ull << 56);
	return sip_end(&s);
}

/* The hash of io's key, whose length the caller has checked. */
__noinline __u64 kdb_hash(struct kdb_io *io)
{
	struct kdb_sip s;
	__u32 len, words, i;
	__u64 rest;

	if (!io)
		return 0;
	len = io->klen;
	words = len / 8;
	sip_begin(&s);
#pragma clang loop unroll(disable)
	for (i = 0; i < KDB_KEY_BUF / 8; i++) {
		if (i >= words)
			break;
		sip_word(&s, *word_of(&io->key[(i * 8) & (KDB_KEY_BUF - 8)]));
	}
	rest = *word_of(&io->key[(words * 8) & (KDB_KEY_BUF - 8)]) & ((1ull << (len & 7) * 8) - 1);
	sip_word(&s, rest | (__u64)len << 56);
	return sip_end(&s);
}

/* The top bits choose the partition; the lower half chooses bucket and tag. */
static __always_inline __u32 kdb_partition_of(__u64 hash)
{
	return (__u32)(((hash >> 48) * kdb_config.partitions) >> 16);
}

#endif
