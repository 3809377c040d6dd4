/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The commands that the kernel answers. A command is either done here completely, reply included, or
 * it has had no effect and goes to the event loop with everything behind it (SRV_UP), to be executed
 * there: commands that wait for the disk, keys of other partitions, and errors of auto-commit writes,
 * which are worth another try. An error inside of a transaction is final and is therefore the reply.
 */
#ifndef BEDPLATE_SERVER_COMMANDS_H
#define BEDPLATE_SERVER_COMMANDS_H

#include "claim.h"
#include "parse.h"
#include "reply.h"

#define SRV_DONE 0
#define SRV_UP 1

/* A word of up to eight lower-case letters as it lies in memory. */
#define SRV_WORD(a, b, c, d, e, f, g, h)                                                           \
	((__u64)(a) | (__u64)(b) << 8 | (__u64)(c) << 16 | (__u64)(d) << 24 | (__u64)(e) << 32 |  \
	 (__u64)(f) << 40 | (__u64)(g) << 48 | (__u64)(h) << 56)
#define SRV_GET SRV_WORD('g', 'e', 't', 0, 0, 0, 0, 0)
#define SRV_SET SRV_WORD('s', 'e', 't', 0, 0, 0, 0, 0)
#define SRV_DEL SRV_WORD('d', 'e', 'l', 0, 0, 0, 0, 0)
#define SRV_PING SRV_WORD('p', 'i', 'n', 'g', 0, 0, 0, 0)
#define SRV_BEGIN SRV_WORD('b', 'e', 'g', 'i', 'n', 0, 0, 0)
#define SRV_COMMIT SRV_WORD('c', 'o', 'm', 'm', 'i', 't', 0, 0)
#define SRV_ROLLBACK SRV_WORD('r', 'o', 'l', 'l', 'b', 'a', 'c', 'k')

/* Argument 0 in lower case, or 0 if it is longer than eight bytes. */
static __always_inline __u64 srv_name(struct srv_input *in)
{
	__u32 len = in->arglen[0];
	__u64 w;

	if (len < 1 || len > 8)
		return 0;
	w = *(__u64 *)&SRV_AT(in, in->arg[0]) | 0x2020202020202020ull;
	return len == 8 ? w : w & ((1ull << (8 * len)) - 1);
}

/* Copies argument 1 into the key buffer, padded with zeros; 0, or -1 if it is no key. */
static __always_inline int srv_take_key(struct srv_input *in, struct kdb_io *io)
{
	__u32 len = in->arglen[1];

	if (len < 1 || len > KDB_KEY_MAX)
		return -1;
	io->klen = len;
	*(__u64 *)&io->key[(len - 1) & 0xf8] = 0;
	bpf_probe_read_kernel(io->key, len, &SRV_AT(in, in->arg[1]));
	return 0;
}

/* What follows an error: the reply if the transaction has failed with it, else another try. */
static __always_inline int srv_failed(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx, int status)
{
	if (ctx->state != KDB_TX_FAILED)
		return SRV_UP;
	srv_say_error(in, out, status);
	return SRV_DONE;
}

/* Whether the partition may run out of memory: in a transaction that would be final, so the event loop,
 * which can provide more, has to run the command. */
static __always_inline int srv_short_of_memory(void)
{
	struct kdb_arena __arena *arena = super();

	return LOAD(&arena->committed) - LOAD(&arena->brk) < (1u << 20);
}

/* Whether all locks of the transaction are in this program's partition. */
static __always_inline int srv_is_local(struct kdb_ctx *ctx)
{
	return !(ctx->partitions & ~(1u << (kdb_config.partition & 31)));
}

__noinline int srv_do_get(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx, struct kdb_io *io)
{
	__u32 state;
	int r;

	USE_ARENA();
	if (!in || !out || !ctx || !io)
		return SRV_UP;
	if (srv_take_key(in, io))
		return SRV_UP;
	io->flags = 0;
	state = ctx->state;
	if (state == KDB_TX_NONE)
		r = kdb_get_auto(ctx, io);
	else if (state == KDB_TX_ACTIVE)
		r = kdb_get(ctx, io);
	else if (state == KDB_TX_READ_ONLY)
		r = kdb_get_ro(ctx, io);
	else
		return SRV_UP;
	if (r == KDB_OK)
		return srv_say_bulk(in, out, io) ? SRV_UP : SRV_DONE;
	if (r != KDB_NOT_FOUND)
		return srv_failed(in, out, ctx, r);
	SRV_SAY(in, out, "$-1\r\n");
	return SRV_DONE;
}

__noinline int srv_do_set(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx, struct kdb_io *io)
{
	__u32 state, n;
	int r;

	USE_ARENA();
	if (!in || !out || !ctx || !io)
		return SRV_UP;
	if (srv_take_key(in, io))
		return SRV_UP;
	n = in->arglen[2];
	io->flags = 0;
	io->expire_ms = 0;
	io->vlen = n;
	if (n) {
		asm volatile("" : "+r"(n));
		if (n > SRV_CARRIER_MAX)
			return SRV_UP;
		bpf_probe_read_kernel(io->val, n, &SRV_AT(in, in->arg[2]));
	}
	state = ctx->state;
	if (state == KDB_TX_NONE && !(in->flags & SRV_CONN_SYNC))
		r = kdb_set_auto(ctx, io);
	else if (state == KDB_TX_ACTIVE && !srv_short_of_memory())
		r = kdb_set(ctx, io);
	else
		return SRV_UP;
	if (r != KDB_OK)
		return srv_failed(in, out, ctx, r);
	SRV_SAY(in, out, "+OK\r\n");
	return SRV_DONE;
}

__noinline int srv_do_del(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx, struct kdb_io *io)
{
	__u32 state;
	int r;

	USE_ARENA();
	if (!in || !out || !ctx || !io)
		return SRV_UP;
	if (srv_take_key(in, io))
		return SRV_UP;
	io->flags = 0;
	state = ctx->state;
	if (state == KDB_TX_NONE && !(in->flags & SRV_CONN_SYNC))
		r = kdb_del_auto(ctx, io);
	else if (state == KDB_TX_ACTIVE)
		r = kdb_del(ctx, io);
	else
		return SRV_UP;
	if (r == KDB_OK)
		SRV_SAY(in, out, ":1\r\n");
	else if (r == KDB_NOT_FOUND)
		SRV_SAY(in, out, ":0\r\n");
	else
		return srv_failed(in, out, ctx, r);
	return SRV_DONE;
}

/* COMMIT and ROLLBACK. */
__noinline int srv_do_end(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx, int commit)
{
	__u32 state;
	int r;

	USE_ARENA();
	if (!in || !out || !ctx)
		return SRV_UP;
	state = ctx->state;
	if (!srv_is_local(ctx))
		return SRV_UP;
	if (!commit && (state == KDB_TX_ACTIVE || state == KDB_TX_READ_ONLY))
		r = kdb_rollback(ctx);
	else if (commit && state == KDB_TX_READ_ONLY)
		r = kdb_commit_ro(ctx);
	else if (commit && state == KDB_TX_ACTIVE && !(in->flags & SRV_CONN_SYNC))
		r = kdb_commit(ctx);
	else
		return SRV_UP;
	if (r != KDB_OK) {
		if (ctx->state != KDB_TX_FAILED)
			return SRV_UP;
		kdb_rollback(ctx);
		srv_say_error(in, out, r);
		return SRV_DONE;
	}
	SRV_SAY(in, out, "+OK\r\n");
	return SRV_DONE;
}

/* Runs the command at in->pos and moves in->pos behind it; or SRV_UP. */
static __always_inline int srv_command(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx, struct kdb_io *io)
{
	__u32 next, state;
	__u64 name;
	int r = SRV_UP;

	USE_ARENA();
	if (!in || !out || !ctx || !io)
		return SRV_UP;
	if (in->opos + SRV_REPLY_MIN > in->limit)
		return SRV_UP;
	next = SRV_AT(in, in->pos) == '*' ? srv_parse_array(in) : srv_parse_inline(in);
	if (!next)
		return SRV_UP;
	name = srv_name(in);
	state = ctx->state;
	switch (in->nargs) {
	case 1:
		if (name == SRV_PING) {
			SRV_SAY(in, out, "+PONG\r\n");
			r = SRV_DONE;
		} else if (name == SRV_BEGIN && state == KDB_TX_NONE) {
			if (kdb_begin(ctx) == KDB_OK) {
				SRV_SAY(in, out, "+OK\r\n");
				r = SRV_DONE;
			}
		} else if (name == SRV_COMMIT || name == SRV_ROLLBACK) {
			r = srv_do_end(in, out, ctx, name == SRV_COMMIT);
		}
		break;
	case 2:
		if (name == SRV_GET)
			r = srv_do_get(in, out, ctx, io);
		else if (name == SRV_DEL)
			r = srv_do_del(in, out, ctx, io);
		break;
	case 3:
		if (name == SRV_SET)
			r = srv_do_set(in, out, ctx, io);
		break;
	}
	if (r == SRV_DONE) {
		in->pos = next;
		in->commands++;
	}
	return r;
}

/* Runs the commands in `in`; the replies are then in its output. */
static __always_inline void srv_run(struct srv_input *in)
{
	struct kdb_ctx *ctx = SRV_LOOKUP(kdb_contexts, in->session);
	struct srv_output *out = SRV_LOOKUP(srv_outputs, in->out - 1);
	struct kdb_io *io = SRV_LOOKUP(kdb_ios, in->io - 1);
	int i;

	if (!ctx || !out || !io)
		return;
	bpf_for(i, 0, 2048) {
		if (in->pos >= in->len || srv_command(in, out, ctx, io) != SRV_DONE)
			break;
	}
}

/* Makes `in` ready for `len` bytes of a connection's requests. */
static __always_inline void srv_begin(struct srv_input *in, struct srv_conn *conn, __u32 idx, __u32 len, __u32 limit)
{
	in->pos = 0;
	in->len = len;
	in->opos = 0;
	in->limit = limit;
	in->commands = 0;
	in->flags = conn->flags;
	in->conn = idx;
	in->session = conn->session;
}

#endif
