/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * CALL: runs a procedure that a user has loaded (bedplate/procedure.h, bedplate/connection.h). The program of the command begins
 * the call, the procedure's program runs it, and the command's program ends it.
 *
 * A call that does not end well has no effect here, because its transaction is rolled back; the event loop repeats it. So the kernel
 * does a call only if it can roll back all that the procedure may have done: in a transaction of its own, in EXEC, and in a read-only
 * transaction if the procedure only reads.
 */
#ifndef BEDPLATE_SERVER_CALL_H
#define BEDPLATE_SERVER_CALL_H

#include "commands.h"

#define SRV_PROCEDURE_REPLY_MIN 256u /* bytes of replies that are left for a refusal or an integer */

/* Frees the buffers of the call. */
__noinline int srv_release_call(struct srv_input *in)
{
	struct kdb_io *io;

	if (!in || !in->call_buffer)
		return 0;
	io = SRV_LOOKUP(kdb_ios, in->call_buffer - 1);
	in->call_buffer = 0;
	if (io)
		SRV_RELEASE(io);
	return 0;
}

/* The slot + 1 of the procedure that the command names, or 0. The name's copy is in call->text. */
static __always_inline __u32 srv_find_procedure(struct srv_input *in, const struct srv_command *c, struct kdb_call *call)
{
	struct kdb_procedure *procedure;
	__u32 len = c->arglen[1], *slot;

	opaque(len);
	/* Names are padded with zeros, so none ends in one. */
	if (len < 1 || len >= KDB_PROCEDURE_NAME || !SRV_AT(in, c->arg[1] + len - 1))
		return 0;
	__builtin_memset(call->text, 0, KDB_PROCEDURE_NAME);
	bpf_probe_read_kernel(call->text, len, &SRV_AT(in, c->arg[1]));
	slot = bpf_map_lookup_elem(&kdb_procedure_names, call->text);
	if (!slot)
		return 0;
	len = *slot;
	procedure = bpf_map_lookup_elem(&kdb_procedures, &len);
	if (!procedure)
		return 0;
	for (int i = 0; i < KDB_PROCEDURE_NAME; i += 8) {
		if (*word_of(&procedure->name[i]) != *word_of(&call->text[i]))
			return 0;
	}
	return len + 1;
}

/* Gives the command's arguments behind the name to the call; 0, or -1. */
__noinline int srv_take_arguments(struct srv_input *in, struct kdb_call *call)
{
	struct srv_command *c;
	__u32 i, p, at, len, count;
	__u64 number;

	if (!in || !call)
		return -1;
	c = SRV_COMMAND(in);
	count = c->nargs - 2;
	len = c->next - in->pos;
	opaque(len);
	if (count > KDB_CALL_ARGUMENTS || len < 1 || len > KDB_CALL_BYTES / 2)
		return -1;
	/* The call gets the command as it is; the arguments lie in between. */
	bpf_probe_read_kernel(call->bytes, len, &SRV_AT(in, in->pos));
	call->arguments = count;
	p = c->arg[1] + c->arglen[1] + 2;
	bpf_for(i, 0, KDB_CALL_ARGUMENTS) {
		if (i >= count)
			break;
		number = srv_number(in, p + 1);
		at = (__u32)number;
		len = number >> 32;
		call->argument[i & (KDB_CALL_ARGUMENTS - 1)].at = (at - in->pos) & (KDB_CALL_BYTES - 1);
		call->argument[i & (KDB_CALL_ARGUMENTS - 1)].len = len;
		p = at + len + 2;
	}
	return 0;
}

/* The partition of a call, which is that of its first argument as a key; or SRV_NO_PARTITION if that is no key. */
__noinline __u32 srv_call_partition(struct srv_input *in, struct srv_command *c)
{
	if (!in || !c)
		return SRV_NO_PARTITION;
	if (kdb_config.partitions == 1 || c->nargs < 3)
		return 0;
	if (srv_take_key_at(in, c->arg[2], c->arglen[2]))
		return SRV_NO_PARTITION;
	return kdb_partition_of(kdb_hash(&in->io));
}

/* How many visits of other partitions a call may make (bedplate/visit.h). EXEC has locks in one partition only. */
static __always_inline __u32 srv_visits(const struct srv_input *in)
{
	return in->outer ? 0 : kdb_visits_within(SRV_JUMPS - in->jumps);
}

/* Opens the transaction of the call, if it needs one; 0, or -1 if the call is the event loop's. */
static __always_inline int srv_open_call(struct srv_input *in, struct kdb_ctx *ctx, int read_only)
{
	in->own_transaction = ctx->state == KDB_TX_NONE;
	/* CLIENT PAUSE stops CALL as a command that writes, whatever the procedure does. */
	if (srv_is_paused(in, SRV_CALL_SET) || (!read_only && srv_short_of_memory()))
		return -1;
	if (in->own_transaction)
		return (read_only ? kdb_begin_ro(ctx) : kdb_begin(ctx)) == KDB_OK ? 0 : -1;
	if (in->outer)
		return ctx->state == KDB_TX_ACTIVE ? 0 : -1;
	return read_only && ctx->state == KDB_TX_READ_ONLY ? 0 : -1;
}

/* Begins the call in->cmd. SRV_JUMP and in->procedure, or SRV_DEFER. */
__noinline int srv_begin_call(struct srv_input *in, struct kdb_ctx *ctx)
{
	struct kdb_connection *connection;
	struct kdb_procedure *procedure;
	struct srv_command *c;
	struct kdb_call *call;
	struct kdb_io *io;
	__u32 slot, partition;

	USE_ARENA();
	/* The local fast path has no cookie. A call there would end on the wrong socket. */
	if (!in || !ctx || !srv_config.call_buffers || !in->cookie)
		return SRV_DEFER;
	c = SRV_COMMAND(in);
	if (c->nargs < 2 || in->flags & SRV_CONN_SYNC || SRV_AT(in, in->pos) != '*' ||
	    in->opos + SRV_PROCEDURE_REPLY_MIN > in->limit)
		return SRV_DEFER;
	partition = srv_call_partition(in, c);
	if (partition != kdb_config.partition) {
		if (partition == SRV_NO_PARTITION || in->outer)
			return SRV_DEFER;
		return srv_jump(in, in->claimed, SRV_ON(partition));
	}
	in->call_buffer = srv_claim_call_buffer();
	call = SRV_LOOKUP(kdb_calls, in->call_buffer - 1);
	io = SRV_LOOKUP(kdb_ios, in->call_buffer - 1);
	connection = bpf_map_lookup_elem(&kdb_connections, &in->cookie);
	if (!call || !io || !connection)
		goto defer;
	slot = srv_find_procedure(in, c, call);
	procedure = SRV_LOOKUP(kdb_procedures, slot - 1);
	if (!procedure || srv_take_arguments(in, call))
		goto defer;
	call->reply = KDB_REPLY_OK;
	call->observed_ts = 0;
	call->text_len = 0;
	call->number = 0;
	io->klen = 0;
	io->vlen = 0;
	if (srv_open_call(in, ctx, procedure->read_only))
		goto defer;
	/* Nobody else uses this field: the connection runs one call at a time, and its server is the only one with calls. */
	connection->call_buffer = in->call_buffer - 1;
	call->return_program = in->outer ? SRV_EXEC(partition) : SRV_ON(partition);
	if (srv_announce(in, in->claimed, 2)) {
		if (in->own_transaction)
			kdb_rollback(ctx);
		goto defer;
	}
	call->visits = srv_visits(in);
	in->procedure = (slot - 1) * KDB_MAX_PARTITIONS + partition + 1;
	return SRV_JUMP;
defer:
	srv_release_call(in);
	return SRV_DEFER;
}

/* Appends the reason of a refusal, as the event loop writes it. */
__noinline int srv_say_refusal(struct srv_input *in, struct srv_output *out, struct kdb_call *call)
{
	__u32 i, o, len;

	if (!in || !out || !call)
		return 0;
	o = in->opos;
	len = call->text_len;
	out->bytes[o++ & (SRV_REPLY_MAX - 1)] = '-';
	bpf_for(i, 0, KDB_CALL_TEXT) {
		__u8 c = call->text[i & (KDB_CALL_TEXT - 1)];

		if (i >= len)
			break;
		out->bytes[(o + i) & (SRV_REPLY_MAX - 1)] = c == '\r' || c == '\n' ? ' ' : c;
	}
	if (len > KDB_CALL_TEXT)
		len = KDB_CALL_TEXT;
	*SRV_TO(out, o + len) = SRV_CRLF;
	in->opos = o + len + 2;
	return 0;
}

/* Counts a refusal. */
__noinline int srv_count_refusal(void)
{
	struct srv_stats *stats = srv_count();

	if (stats)
		stats->refusals++;
	return 0;
}

/* Whether the reply fits. It has to be known before the call is committed. */
static __always_inline int srv_call_fits(const struct srv_input *in, const struct kdb_call *call, const struct kdb_io *io)
{
	return call->reply != KDB_REPLY_VALUE || (io->vlen <= SRV_REPLY_MAX - 1 && in->opos + io->vlen + 16 <= in->limit);
}

static __always_inline int srv_say_reply(struct srv_input *in, struct srv_output *out, struct kdb_call *call, struct kdb_io *io)
{
	switch (call->reply) {
	case KDB_REPLY_VALUE:
		srv_say_bulk(in, out, io);
		break;
	case KDB_REPLY_INTEGER:
		srv_say_integer(in, out, call->integer);
		break;
	case KDB_REPLY_NIL:
		srv_say_null(in, out);
		break;
	default:
		SRV_SAY(in, out, "+OK\r\n");
	}
	return 0;
}

/* Commits the call's own transaction, if it has one; 0, or -1. */
static __always_inline int srv_commit_call(struct srv_input *in, struct kdb_ctx *ctx)
{
	if (!in->own_transaction)
		return 0;
	if ((ctx->state == KDB_TX_READ_ONLY ? kdb_commit_ro(ctx) : kdb_commit(ctx)) != KDB_OK)
		return -1;
	in->own_transaction = 0;
	return 0;
}

/* Ends the call, if one is under way: replies, or lets the event loop repeat it. */
__noinline int srv_end_call(struct srv_input *in)
{
	struct srv_output *out;
	struct kdb_call *call;
	struct kdb_ctx *ctx;
	struct kdb_io *io;
	int done = 0;

	USE_ARENA();
	if (!in || !in->call_buffer)
		return 0;
	out = SRV_LOOKUP(srv_outputs, in->out - 1);
	call = SRV_LOOKUP(kdb_calls, in->call_buffer - 1);
	io = SRV_LOOKUP(kdb_ios, in->call_buffer - 1);
	ctx = SRV_LOOKUP(kdb_contexts, in->session);
	if (!ctx)
		return 0;
	in->procedure = 0;
	in->call_failed = 0;
	if (call)
		in->jumps += srv_visits(in) - call->visits;
	if (out && call && io) {
		if (call->status == KDB_OK && srv_call_fits(in, call, io) && !srv_commit_call(in, ctx)) {
			srv_say_reply(in, out, call, io);
			done = 1;
		} else if (call->status == KDB_REFUSED && !in->outer && (!in->own_transaction || kdb_rollback(ctx) == KDB_OK)) {
			in->own_transaction = 0;
			srv_say_refusal(in, out, call);
			srv_count_refusal();
			done = 1;
		}
	}
	if (!done && in->own_transaction)
		kdb_rollback(ctx);
	srv_release_call(in);
	if (ctx->state == KDB_TX_COMMITTED || ctx->state == KDB_TX_ROLLING_BACK) {
		/* The command goes on with srv_go_on_with_call(). */
		in->ending = 1;
		in->call_failed = !done;
	} else if (done) {
		in->pos = SRV_COMMAND(in)->next;
		in->cmd++;
		in->commands++;
		srv_called(in, SRV_CALL_CALL);
	} else {
		in->stop = 1;
	}
	return 0;
}

/* After a call whose transaction had locks in other partitions: releases them. SRV_DONE, SRV_JUMP, or SRV_DEFER if the event loop repeats the
 * call. */
static __always_inline int srv_go_on_with_call(struct srv_input *in, struct kdb_ctx *ctx)
{
	int r = srv_do_release(in, ctx);

	if (r != SRV_DONE)
		return r;
	return in->call_failed ? SRV_DEFER : srv_called(in, SRV_CALL_CALL);
}

/* Gives a call up whose procedure has been removed. */
static __always_inline void srv_abandon_call(struct srv_input *in)
{
	struct kdb_call *call = SRV_LOOKUP(kdb_calls, in->call_buffer - 1);

	if (call)
		call->status = KDB_ERR_STATE;
	srv_end_call(in);
}

#endif
