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
#define SRV_NAME(a, b, c, d, e, f, g, h)                                                           \
	((__u64)(a) | (__u64)(b) << 8 | (__u64)(c) << 16 | (__u64)(d) << 24 | (__u64)(e) << 32 |  \
	 (__u64)(f) << 40 | (__u64)(g) << 48 | (__u64)(h) << 56)
#define SRV_GET SRV_NAME('g', 'e', 't', 0, 0, 0, 0, 0)
#define SRV_SET SRV_NAME('s', 'e', 't', 0, 0, 0, 0, 0)
#define SRV_DEL SRV_NAME('d', 'e', 'l', 0, 0, 0, 0, 0)
#define SRV_PING SRV_NAME('p', 'i', 'n', 'g', 0, 0, 0, 0)
#define SRV_BEGIN SRV_NAME('b', 'e', 'g', 'i', 'n', 0, 0, 0)
#define SRV_COMMIT SRV_NAME('c', 'o', 'm', 'm', 'i', 't', 0, 0)
#define SRV_ROLLBACK SRV_NAME('r', 'o', 'l', 'l', 'b', 'a', 'c', 'k')

/* The command being executed. */
#define SRV_COMMAND(in) (&(in)->cmds[(in)->cmd & (SRV_BATCH - 1)])

/* Copies argument 1 into the key buffer, padded with zeros; 0, or -1 if it is no key. */
static __always_inline int srv_take_key(struct srv_input *in, const struct srv_command *c)
{
	__u32 len = c->arglen[1], p = c->arg[1];
	__u64 last;

	if (len < 1 || len > KDB_KEY_MAX)
		return -1;
	in->io.klen = len;
	last = srv_word(in, p + ((len - 1) & ~7u)) & ~0ull >> (-len & 7) * 8;
	if (len > 8 && len <= 32) {
		*(__u64 *)&in->io.key[0] = srv_word(in, p);
		if (len > 16)
			*(__u64 *)&in->io.key[8] = srv_word(in, p + 8);
		if (len > 24)
			*(__u64 *)&in->io.key[16] = srv_word(in, p + 16);
	} else if (len > 8) {
		bpf_probe_read_kernel(in->io.key, len, &SRV_AT(in, p));
	}
	*(__u64 *)&in->io.key[(len - 1) & 0xf8] = last;
	return 0;
}

/* Copies argument 2 into the value buffer; 0, or -1 if it is too long. */
static __always_inline int srv_take_value(struct srv_input *in, const struct srv_command *c)
{
	__u32 len = c->arglen[2], p = c->arg[2];

	in->io.vlen = len;
	if (len <= SRV_SHORT) {
#pragma unroll
		for (int i = 0; i < SRV_SHORT / 8; i++) {
			if (i * 8 >= len)
				break;
			*(__u64 *)&in->io.val[i * 8] = srv_word(in, p + i * 8);
		}
		return 0;
	}
	opaque(len);
	if (len < 1 || len > SRV_CARRIER_MAX)
		return -1;
	bpf_probe_read_kernel(in->io.val, len, &SRV_AT(in, p));
	return 0;
}

/* Says whether the hash of the key in the I/O buffer is known. */
static __always_inline void srv_set_hash(struct srv_input *in, const struct srv_command *c)
{
	in->io.flags = in->batch > 1 ? KDB_IO_HASHED : 0;
	in->io.hash = c->hash;
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

__noinline int srv_do_get(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx)
{
	struct srv_command *c;
	__u32 state;
	int r;

	USE_ARENA();
	if (!in || !out || !ctx)
		return SRV_UP;
	c = SRV_COMMAND(in);
	if (srv_take_key(in, c))
		return SRV_UP;
	srv_set_hash(in, c);
	state = ctx->state;
	if (state == KDB_TX_NONE)
		r = kdb_get_auto(ctx, &in->io);
	else if (state == KDB_TX_ACTIVE)
		r = kdb_get(ctx, &in->io);
	else if (state == KDB_TX_READ_ONLY)
		r = kdb_get_ro(ctx, &in->io);
	else
		return SRV_UP;
	if (r == KDB_OK)
		return srv_say_bulk(in, out) ? SRV_UP : SRV_DONE;
	if (r != KDB_NOT_FOUND)
		return srv_failed(in, out, ctx, r);
	SRV_SAY(in, out, "$-1\r\n");
	return SRV_DONE;
}

__noinline int srv_do_set(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx)
{
	struct srv_command *c;
	__u32 state;
	int r;

	USE_ARENA();
	if (!in || !out || !ctx)
		return SRV_UP;
	c = SRV_COMMAND(in);
	if (srv_take_key(in, c) || srv_take_value(in, c))
		return SRV_UP;
	srv_set_hash(in, c);
	in->io.expire_ms = 0;
	state = ctx->state;
	if (state == KDB_TX_NONE && !(in->flags & SRV_CONN_SYNC))
		r = kdb_set_auto(ctx, &in->io);
	else if (state == KDB_TX_ACTIVE && !srv_short_of_memory())
		r = kdb_set(ctx, &in->io);
	else
		return SRV_UP;
	if (r != KDB_OK)
		return srv_failed(in, out, ctx, r);
	SRV_SAY(in, out, "+OK\r\n");
	return SRV_DONE;
}

__noinline int srv_do_del(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx)
{
	struct srv_command *c;
	__u32 state;
	int r;

	USE_ARENA();
	if (!in || !out || !ctx)
		return SRV_UP;
	c = SRV_COMMAND(in);
	if (srv_take_key(in, c))
		return SRV_UP;
	srv_set_hash(in, c);
	state = ctx->state;
	if (state == KDB_TX_NONE && !(in->flags & SRV_CONN_SYNC))
		r = kdb_del_auto(ctx, &in->io);
	else if (state == KDB_TX_ACTIVE)
		r = kdb_del(ctx, &in->io);
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

/* Executes the command in->cmd and moves in->pos behind it; or SRV_UP. */
static __always_inline int srv_command(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx)
{
	struct srv_command *c = SRV_COMMAND(in);
	__u64 name = c->name;
	int r = SRV_UP;

	if (in->opos + SRV_REPLY_MIN > in->limit)
		return SRV_UP;
	switch (c->nargs) {
	case 1:
		if (name == SRV_PING) {
			SRV_SAY(in, out, "+PONG\r\n");
			r = SRV_DONE;
		} else if (name == SRV_BEGIN && ctx->state == KDB_TX_NONE) {
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
			r = srv_do_get(in, out, ctx);
		else if (name == SRV_DEL)
			r = srv_do_del(in, out, ctx);
		break;
	case 3:
		if (name == SRV_SET)
			r = srv_do_set(in, out, ctx);
		break;
	}
	if (r == SRV_DONE) {
		in->pos = c->next;
		in->commands++;
	}
	return r;
}

/* Parses up to SRV_BATCH commands from in->pos on; none if the first one is not for the kernel. */
__noinline int srv_parse(struct srv_input *in)
{
	struct srv_command *c;
	__u32 i, p;

	if (!in)
		return 0;
	in->batch = 0;
	in->parsed = in->pos;
	for (in->step = 0; (i = READ_ONCE(in->step)) < SRV_BATCH && few_steps; in->step = i + 1) {
		p = READ_ONCE(in->parsed);
		if (p >= in->len)
			break;
		c = &in->cmds[i & (SRV_BATCH - 1)];
		p = SRV_AT(in, p) == '*' ? srv_parse_array(in, c, p) : srv_parse_inline(in, c, p);
		if (!p)
			break;
		c->next = p;
		c->name = srv_name(in, c);
		WRITE_ONCE(in->parsed, p);
		WRITE_ONCE(in->batch, i + 1);
	}
	return 0;
}

/* Looks ahead for all parsed commands, so that their cache misses overlap. */
__noinline int srv_ahead(struct srv_input *in)
{
	struct srv_command *c;
	__u32 i;

	USE_ARENA();
	if (!in)
		return 0;
#define SRV_EACH(c)                                                                                \
	for (in->step = 0; (i = READ_ONCE(in->step)) < in->batch && few_steps; in->step = i + 1)   \
		if ((c = &in->cmds[i & (SRV_BATCH - 1)]))
	SRV_EACH(c) {
		if (c->nargs < 2 || srv_take_key(in, c))
			continue;
		c->hash = kdb_hash(&in->io);
		kdb_ahead_bucket(c->hash);
	}
	SRV_EACH(c)
		kdb_ahead_entry(c->hash);
	SRV_EACH(c)
		kdb_ahead_value(c->hash);
	return 0;
}

/* Runs the commands in `in`; the replies are then in its output. */
static __always_inline void srv_run(struct srv_input *in)
{
	struct kdb_ctx *ctx = SRV_LOOKUP(kdb_contexts, in->session);
	struct srv_output *out = SRV_LOOKUP(srv_outputs, in->out - 1);
	int stop = 0;

	USE_ARENA();
	if (!ctx || !out)
		return;
	while (in->pos < in->len && !stop && few_steps) {
		srv_parse(in);
		if (!in->batch)
			break;
		if (in->batch > 1)
			srv_ahead(in);
		for (in->cmd = 0; READ_ONCE(in->cmd) < in->batch && few_steps; in->cmd++) {
			if (srv_command(in, out, ctx) != SRV_DONE) {
				stop = 1;
				break;
			}
		}
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
