// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
/*
 * Voter's VOTE procedure (paper 5.2) as an application of kerneldb, in direct style: one serializable
 * transaction with three GETs and two SETs.
 *
 * Tables are key prefixes, as in the paper; every key has 16 bytes: the table's letter and seven zeros,
 * then a number.
 *
 *   S area code              → state, 8 bytes
 *   C contestant             → name, 16 bytes
 *   P phone number           → votes of this number so far, 8 bytes
 *   V phone number << 8 | n  → vote: state, contestant, 16 bytes
 */
#include <bedplate/kdb.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* What user space passes in io->val. */
struct vote_args {
	__u64 votes;       /* how many to cast in this call */
	__u64 seed;        /* of the generator of phone numbers and contestants; not 0 */
	__u64 area_codes;  /* area codes are 0..area_codes */
	__u64 contestants; /* contestants are 1..=contestants */
	__u64 max_votes;   /* per phone number, at most 255 */
};

/* What it finds there afterwards. */
struct vote_result {
	__u64 accepted;
	__u64 bad_contestant;
	__u64 over_limit;
	__u64 rolled_back;
	__u64 last_error;  /* enum kdb_status of the last that was rolled back by an Error state */
};

enum vote { ACCEPTED, BAD_CONTESTANT, OVER_LIMIT, ROLLED_BACK };

static __always_inline void key_of(struct kdb_io *io, char table, __u64 number)
{
	*(__u64 *)&io->key[0] = table;
	*(__u64 *)&io->key[8] = number;
	io->klen = 16;
	io->flags = 0;
	io->expire_ms = 0;
}

/* Arguments of VOTE, in the session's application fields. */
enum app { PHONE, AREA, CONTESTANT, MAX_VOTES };

/* One call of VOTE. Any Error state rolls back, as does a vote that breaks a rule. */
__noinline int vote(struct kdb_ctx *ctx, struct kdb_io *io)
{
	__u64 state, phone, contestant, count = 0;
	int status, outcome = ROLLED_BACK;

	if (!ctx || !io)
		return ROLLED_BACK;
	phone = ctx->app[PHONE];
	contestant = ctx->app[CONTESTANT];
	status = kdb_begin(ctx);
	if (status != KDB_OK)
		return ROLLED_BACK;
	key_of(io, 'S', ctx->app[AREA]);
	status = kdb_get(ctx, io);
	if (status != KDB_OK)
		goto rollback;
	state = *(__u64 *)&io->val[0];
	key_of(io, 'C', contestant);
	status = kdb_get(ctx, io);
	if (status == KDB_NOT_FOUND)
		outcome = BAD_CONTESTANT;
	if (status != KDB_OK)
		goto rollback;
	key_of(io, 'P', phone);
	status = kdb_get(ctx, io);
	if (status == KDB_OK)
		count = *(__u64 *)&io->val[0];
	else if (status != KDB_NOT_FOUND)
		goto rollback;
	if (count >= ctx->app[MAX_VOTES]) {
		outcome = OVER_LIMIT;
		goto rollback;
	}
	*(__u64 *)&io->val[0] = count + 1;
	io->vlen = 8;
	key_of(io, 'P', phone);
	status = kdb_set(ctx, io);
	if (status != KDB_OK)
		goto rollback;
	*(__u64 *)&io->val[0] = state;
	*(__u64 *)&io->val[8] = contestant;
	io->vlen = 16;
	key_of(io, 'V', phone << 8 | count);
	status = kdb_set(ctx, io);
	if (status != KDB_OK)
		goto rollback;
	if (kdb_commit(ctx) == KDB_OK)
		return ACCEPTED;
rollback:
	kdb_rollback(ctx);
	return outcome;
}

static __always_inline __u64 draw(__u64 *state)
{
	__u64 x = *state;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	*state = x;
	return x >> 16;
}

struct entry_args {
	__u64 session;
	__u64 io;
};

/* Casts `votes` votes; the paper's generator: about 1 % of them for a contestant that does not exist. */
SEC("raw_tp")
int voter(struct entry_args *entry)
{
	__u32 session = entry->session, io_index = entry->io, i, n;
	struct kdb_ctx *ctx = bpf_map_lookup_elem(&kdb_contexts, &session);
	struct kdb_io *io = bpf_map_lookup_elem(&kdb_ios, &io_index);
	struct vote_result result = {};
	struct vote_args args;
	__u64 rng;

	if (!ctx || !io || io->vlen != sizeof(args))
		return KDB_ERR_STATE;
	args = *(struct vote_args *)&io->val[0];
	if (!args.area_codes || !args.contestants)
		return KDB_ERR_STATE;
	n = args.votes;
	rng = args.seed;
	ctx->app[MAX_VOTES] = args.max_votes;
	bpf_for(i, 0, n) {
		__u64 area = draw(&rng) % args.area_codes;

		ctx->app[AREA] = area;
		ctx->app[PHONE] = area * 10000000 + draw(&rng) % 10000000;
		ctx->app[CONTESTANT] = draw(&rng) % args.contestants + 1;
		if (draw(&rng) % 100 == 0)
			ctx->app[CONTESTANT] = args.contestants + 1;
		switch (vote(ctx, io)) {
		case ACCEPTED:
			result.accepted++;
			break;
		case BAD_CONTESTANT:
			result.bad_contestant++;
			break;
		case OVER_LIMIT:
			result.over_limit++;
			break;
		default:
			result.rolled_back++;
			result.last_error = ctx->error;
		}
	}
	*(struct vote_result *)&io->val[0] = result;
	io->vlen = sizeof(result);
	return KDB_OK;
}
