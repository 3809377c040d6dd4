// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
/*
 * An application: the VOTE procedure of the Voter benchmark (paper 5.2), twice: in continuation-passing
 * style by tail calls, and in direct style. Arguments: session, I/O buffer, phone number, contestant, and
 * the most votes a phone may cast. The result is an enum vote_result, or an enum kdb_status from 16 on.
 *
 * Tables are key prefixes: 'a' area code -> state, 'c' contestant -> name, 'p' phone -> votes so far,
 * 'v' phone and number of its vote -> contestant.
 */
#include <bedplate/kdb.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct vote_args {
	__u64 session;
	__u64 io;
	__u64 phone;
	__u64 contestant;
	__u64 limit;
};

enum vote_result {
	VOTE_OK = 0,
	VOTE_NO_AREA = 1,
	VOTE_NO_CONTESTANT = 2,
	VOTE_OVER_LIMIT = 3,
};

/* The programs of the procedure, by step. */
enum {
	STEP_AREA,
	STEP_CONTESTANT,
	STEP_PHONE,
	STEP_COUNT,
	STEP_VOTE,
	STEP_COMMIT,
	STEP_ROLLBACK,
	STEPS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, STEPS);
	__type(key, __u32);
	__type(value, __u32);
} voter_programs SEC(".maps");

static __always_inline void current(struct vote_args *args, struct kdb_ctx **ctx, struct kdb_io **io)
{
	__u32 session = args->session, buffer = args->io;

	*ctx = bpf_map_lookup_elem(&kdb_contexts, &session);
	*io = bpf_map_lookup_elem(&kdb_ios, &buffer);
}

#define KDB_SECTION "raw_tp"
#define KDB_CONTEXT struct vote_args
#define KDB_CURRENT(c, ctx, io) current(c, &ctx, &io)
#define KDB_PROGRAMS voter_programs
#include <bedplate/cps.h>

static __always_inline void set_key(struct kdb_io *io, __u8 table, __u64 id, __u32 bytes)
{
	__u64 *key = (__u64 *)io->key;

	key[0] = (__u64)table | id << 8;
	key[1] = 0;
	io->klen = 1 + bytes;
	io->flags = 0;
	io->expire_ms = 0;
}

#define key_area(c, io) set_key(io, 'a', (c)->phone / 10000000, 4)
#define key_contestant(c, io) set_key(io, 'c', (c)->contestant, 4)
#define key_phone(c, io) set_key(io, 'p', (c)->phone, 7)

static __always_inline void key_vote(struct vote_args *c, struct kdb_io *io, __u64 number)
{
	set_key(io, 'v', c->phone, 7);
	((__u64 *)io->key)[1] = number;
	io->klen = 16;
}

static __always_inline __u64 value(const struct kdb_io *io)
{
	return *(const __u64 *)io->val;
}

static __always_inline void set_value(struct kdb_io *io, __u64 number)
{
	*(__u64 *)io->val = number;
	io->vlen = 8;
}

/* The procedure's result, kept across tail calls. */
#define RESULT ctx->app[0]
#define VOTES ctx->app[1]
#define GIVE_UP(why)                                                                                   \
	RESULT = (why);                                                                                \
	KDB_TAIL(STEP_ROLLBACK)

KDB_BEGIN(voter_begin, { key_area(c, io); KDB_TAIL(STEP_AREA); }, { GIVE_UP(status); })
KDB_GET(voter_area, { key_contestant(c, io); KDB_TAIL(STEP_CONTESTANT); }, { GIVE_UP(VOTE_NO_AREA); },
	{ GIVE_UP(status); })
KDB_GET(voter_contestant, { key_phone(c, io); KDB_TAIL(STEP_PHONE); }, { GIVE_UP(VOTE_NO_CONTESTANT); },
	{ GIVE_UP(status); })

static __always_inline int over_limit(struct vote_args *c, struct kdb_ctx *ctx, struct kdb_io *io,
				      __u64 votes)
{
	if (votes >= c->limit)
		return 1;
	VOTES = votes + 1;
	key_phone(c, io);
	set_value(io, votes + 1);
	return 0;
}

KDB_GET(voter_phone,
	{
		if (over_limit(c, ctx, io, value(io))) {
			GIVE_UP(VOTE_OVER_LIMIT);
		} else {
			KDB_TAIL(STEP_COUNT);
		}
	},
	{
		if (over_limit(c, ctx, io, 0)) {
			GIVE_UP(VOTE_OVER_LIMIT);
		} else {
			KDB_TAIL(STEP_COUNT);
		}
	},
	{ GIVE_UP(status); })
KDB_SET(voter_count,
	{
		key_vote(c, io, VOTES);
		set_value(io, c->contestant);
		KDB_TAIL(STEP_VOTE);
	},
	{ GIVE_UP(status); })
KDB_SET(voter_vote, { KDB_TAIL(STEP_COMMIT); }, { GIVE_UP(status); })
/* The last continuations are inlined: they only return the result. */
KDB_COMMIT(voter_commit, { return VOTE_OK; }, { GIVE_UP(status); })
KDB_ROLLBACK(voter_rollback, { return RESULT; })

/* The same in direct style. */
static __always_inline int vote(struct vote_args *c, struct kdb_ctx *ctx, struct kdb_io *io)
{
	__u64 votes = 0;
	int status;

	status = kdb_begin(ctx);
	if (status)
		return status;
	key_area(c, io);
	status = kdb_get(ctx, io);
	if (status)
		return status == KDB_NOT_FOUND ? VOTE_NO_AREA : status;
	key_contestant(c, io);
	status = kdb_get(ctx, io);
	if (status)
		return status == KDB_NOT_FOUND ? VOTE_NO_CONTESTANT : status;
	key_phone(c, io);
	status = kdb_get(ctx, io);
	if (status == KDB_OK)
		votes = value(io);
	else if (status != KDB_NOT_FOUND)
		return status;
	if (over_limit(c, ctx, io, votes))
		return VOTE_OVER_LIMIT;
	status = kdb_set(ctx, io);
	if (status)
		return status;
	key_vote(c, io, votes + 1);
	set_value(io, c->contestant);
	status = kdb_set(ctx, io);
	if (status)
		return status;
	return kdb_commit(ctx);
}

SEC("raw_tp")
int voter_direct(struct vote_args *c)
{
	struct kdb_ctx *ctx;
	struct kdb_io *io;
	int result;

	USE_ARENA();
	current(c, &ctx, &io);
	if (!ctx || !io)
		return KDB_ERR_STATE;
	result = vote(c, ctx, io);
	if (result)
		kdb_rollback(ctx);
	return result;
}
