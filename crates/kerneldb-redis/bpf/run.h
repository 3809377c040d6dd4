/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Runs the commands of a packet: parses some, looks ahead for them, executes them one by one.
 *
 * If a command is for another program (in->jump), that program is called and continues in the middle of the
 * batch. Its whole state is in `in`, which it finds by the connection. So every program begins where the
 * program before it stopped, and the last one finishes the run. A procedure (call.h) is such a program, too.
 */
#ifndef BEDPLATE_SERVER_RUN_H
#define BEDPLATE_SERVER_RUN_H

#include "inspect.h"
#include "multi.h"
#include "several.h"
#include "update.h"

/* Executes a command on a key of this program's partition. */
static __always_inline int srv_do_on_key(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx,
					 struct srv_command *c)
{
	__u32 command = c->command, nargs = c->nargs;

	if (command == SRV_CALL_GET)
		return srv_do_get(in, out, ctx);
	if (command == SRV_CALL_SET && nargs == 3)
		return srv_do_set(in, out, ctx);
	if (nargs > 2 && SRV_IS(command, SRV_SEVERAL))
		return srv_do_several(in, out, ctx);
	if (command == SRV_CALL_MGET)
		return srv_do_several(in, out, ctx);
	if (command == SRV_CALL_DEL || command == SRV_CALL_UNLINK)
		return srv_do_del(in, out, ctx);
	if (SRV_IS(command, SRV_READERS))
		return srv_do_inspect(in, out, ctx);
	if (SRV_IS(command, SRV_ADDERS))
		return srv_do_add(in, out, ctx);
	if (srv_take_options_and_time(in, c))
		return SRV_DEFER;
	if (SRV_IS(command, SRV_EXCHANGERS) || in->options & SRV_OPTION_GET)
		return srv_do_exchange(in, out, ctx);
	if (SRV_IS(command, SRV_STORERS))
		return srv_do_store(in, out, ctx);
	return srv_do_expire(in, out, ctx);
}

/* Executes a command without arguments. */
static __always_inline int srv_do_alone(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx, __u32 command)
{
	int r;

	if (command == SRV_CALL_PING) {
		SRV_SAY(in, out, "+PONG\r\n");
		return SRV_DONE;
	}
	if (command == SRV_CALL_BEGIN && ctx->state == KDB_TX_NONE) {
		if (kdb_begin(ctx) != KDB_OK)
			return SRV_DEFER;
		SRV_SAY(in, out, "+OK\r\n");
		return SRV_DONE;
	}
	if (command == SRV_CALL_COMMIT || command == SRV_CALL_ROLLBACK) {
		r = in->ending ? SRV_DONE : srv_do_end(in, out, ctx, command == SRV_CALL_COMMIT);
		return r == SRV_DONE ? srv_do_release(in, ctx) : r;
	}
	if (command == SRV_CALL_MULTI && ctx->state == KDB_TX_NONE)
		return srv_start_multi(in, out);
	return SRV_DEFER;
}

/* Executes the command in->cmd and moves in->pos behind it; or SRV_DEFER, or SRV_JUMP. */
static __always_inline int srv_command(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx)
{
	struct srv_command *c = SRV_COMMAND(in);
	__u32 command = c->command;
	int r = SRV_DEFER;

	if (srv_is_paused(in, command))
		return SRV_DEFER;
	/* A transaction that has ended needs no more room, and the event loop must not end it again. */
	if (!in->ending && in->opos + SRV_REPLY_MIN > in->limit)
		return SRV_DEFER;
	if (in->queue) {
		r = srv_do_multi(in, out, ctx);
	} else if (SRV_IS(command, SRV_READERS | SRV_WRITERS)) {
		if (!srv_has_arity(command, c->nargs))
			return SRV_DEFER;
		r = srv_go_to_key(in, c);
		if (r == SRV_DONE)
			r = srv_do_on_key(in, out, ctx, c);
		if (r == SRV_DONE)
			srv_called(in, command);
		else if (r == SRV_FAILED)
			r = SRV_DONE;
	} else if (command == SRV_CALL_CALL) {
		r = in->ending ? srv_go_on_with_call(in, ctx) : srv_begin_call(in, ctx);
	} else if (c->nargs == 1) {
		r = srv_do_alone(in, out, ctx, command);
		if (r == SRV_DONE)
			srv_called(in, command);
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
	in->cmd = 0;
	in->parsed = in->pos;
	for (in->step = 0; (i = READ_ONCE(in->step)) < SRV_BATCH && few_steps; in->step = i + 1) {
		p = READ_ONCE(in->parsed);
		if (p >= in->len)
			break;
		c = &in->cmds[i & (SRV_BATCH - 1)];
		if (SRV_AT(in, p) != '*')
			p = srv_parse_inline(in, c, p);
		else
			p = srv_parse_array(in, c, p) ?: srv_parse_long(in, c, p);
		if (!p)
			break;
		c->next = p;
		c->command = srv_command_named(in, c);
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
		c->hash = 0;
		if (c->nargs < 2 || c->command == SRV_CALL_CALL || srv_take_key(in, c))
			continue;
		c->hash = kdb_hash(&in->io);
		kdb_ahead_bucket(c->hash);
	}
	if (in->batch == 1)
		return 0;
	/* For a key of another partition this touches some other entry, which does no harm. */
	SRV_EACH(c)
		kdb_ahead_entry(c->hash);
	SRV_EACH(c)
		kdb_ahead_value(c->hash);
	return 0;
}

/* Runs the commands in `in` until they end, or one is not for this program; the replies are in its output. */
static __always_inline void srv_run(struct srv_input *in)
{
	struct kdb_ctx *ctx = SRV_LOOKUP(kdb_contexts, in->session);
	struct srv_output *out = SRV_LOOKUP(srv_outputs, in->out - 1);
	int r = SRV_DONE;

	USE_ARENA();
	in->jump = 0;
	if (!ctx || !out || in->stop)
		return;
	while (in->pos < in->len && few_steps) {
		if (READ_ONCE(in->cmd) >= in->batch) {
			srv_parse(in);
			if (!in->batch)
				break;
			if (srv_looked_ahead(in))
				srv_ahead(in);
		}
		r = srv_command(in, out, ctx);
		if (r != SRV_DONE)
			break;
		in->cmd++;
	}
}

/* Continues with another program if one was asked for. Returns if none was, or if the array lacks it. */
#define SRV_GO_ON(ctx, array, in)                                                                  \
	do {                                                                                       \
		if ((in)->jump)                                                                    \
			bpf_tail_call(ctx, &array, (in)->jump - 1);                                \
	} while (0)

#endif
