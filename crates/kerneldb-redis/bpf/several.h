/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Commands on several keys: MGET, MSET, EXISTS, TOUCH, DEL, UNLINK. Outside of a client's transaction such a command
 * is a transaction of its own. If that fails, it is rolled back, and the event loop executes the command.
 */
#ifndef BEDPLATE_SERVER_SEVERAL_H
#define BEDPLATE_SERVER_SEVERAL_H

#include "update.h"

/* Whether all arguments that have to be keys are keys, of this program's partition. */
__noinline int srv_keys_are_here(struct srv_input *in, struct srv_command *c)
{
	__u32 i, stride;

	if (!in || !c)
		return 0;
	stride = c->command == SRV_CALL_MSET ? 2 : 1;
	bpf_for(i, 1, SRV_ARGUMENTS) {
		if (i >= c->nargs)
			break;
		if (srv_argument(in, c, i))
			return 0;
		if (stride == 2 && !(i & 1))
			continue;
		if (in->argument_len < 1 || in->argument_len > KDB_KEY_MAX)
			return 0;
		if (kdb_config.partitions == 1)
			continue;
		if (srv_take_key_at(in, in->argument_at, in->argument_len) || kdb_partition_of(kdb_hash(&in->io)) != kdb_config.partition)
			return 0;
	}
	return 1;
}

/* Begins the command's own transaction, if it needs one: in->own_transaction. 0, or -1. */
__noinline int srv_begin_several(struct srv_input *in, struct kdb_ctx *ctx, __u32 command)
{
	__u32 state;

	USE_ARENA();
	if (!in || !ctx)
		return -1;
	state = ctx->state;
	in->own_transaction = state == KDB_TX_NONE;
	if (SRV_IS(command, SRV_READERS)) {
		if (in->own_transaction)
			return kdb_begin_ro(ctx) == KDB_OK ? 0 : -1;
		return state == KDB_TX_ACTIVE || state == KDB_TX_READ_ONLY ? 0 : -1;
	}
	if (in->flags & SRV_CONN_SYNC || srv_short_of_memory())
		return -1;
	if (in->own_transaction)
		return kdb_begin(ctx) == KDB_OK ? 0 : -1;
	if (state != KDB_TX_ACTIVE)
		return -1;
	/* The event loop may have to repeat the command. A deletion would not have the same result again, unless the
	 * event loop repeats the whole EXEC. */
	return command == SRV_CALL_MSET || in->outer ? 0 : -1;
}

/* Ends the command's own transaction, if it has one; 0, or -1. Inlined, because the engine needs the call stack, too. */
static __always_inline int srv_end_several(struct srv_input *in, struct kdb_ctx *ctx, int succeeded)
{
	int r = KDB_ERR_STATE;

	if (!in->own_transaction)
		return succeeded ? 0 : -1;
	in->own_transaction = 0;
	if (succeeded)
		r = ctx->state == KDB_TX_READ_ONLY ? kdb_commit_ro(ctx) : kdb_commit(ctx);
	if (r == KDB_OK)
		return 0;
	kdb_rollback(ctx);
	return -1;
}

/* Takes the key at in->argument, for MSET also the value behind it; 0, or -1. */
__noinline int srv_take_pair(struct srv_input *in, struct srv_command *c)
{
	if (!in || !c || srv_argument(in, c, in->argument) || srv_take_key_at(in, in->argument_at, in->argument_len))
		return -1;
	in->io.flags = KDB_IO_REPEATS;
	in->io.expire_ms = 0;
	if (c->command != SRV_CALL_MSET)
		return 0;
	return srv_argument(in, c, in->argument + 1) ? -1 : srv_take_value_at(in, in->argument_at, in->argument_len);
}

/*
 * Counts a key that has a value in in->found, and appends MGET's reply for it, where `r` is the status of the
 * operator: an enum kdb_status, or -1 if the command is the event loop's.
 */
__noinline int srv_add_key_result(struct srv_input *in, struct srv_output *out, struct srv_command *c, int r)
{
	if (!in || !out || !c)
		return -1;
	if (SRV_IS(c->command, SRV_READERS) && !srv_may_reveal(in))
		return -1;
	if (c->command == SRV_CALL_MSET || (r != KDB_OK && r != KDB_NOT_FOUND))
		return r;
	in->found += r == KDB_OK;
	if (c->command != SRV_CALL_MGET)
		return KDB_OK;
	if (r == KDB_OK)
		return srv_say_bulk(in, out, &in->io) ? -1 : KDB_OK;
	if (in->opos + SRV_REPLY_MIN > in->limit)
		return -1;
	srv_say_null(in, out);
	return KDB_OK;
}

/* Appends the reply to a command that was executed, if it is not complete, and counts the keys that it has looked
 * for. */
__noinline int srv_finish_several(struct srv_input *in, struct srv_output *out, struct srv_command *c)
{
	if (!in || !out || !c)
		return SRV_DEFER;
	if (c->command == SRV_CALL_MSET)
		SRV_SAY(in, out, "+OK\r\n");
	else if (c->command != SRV_CALL_MGET)
		srv_say_integer(in, out, in->found);
	if (SRV_IS(c->command, SRV_READERS))
		srv_count_lookups(in, c->nargs - 1, in->found);
	return SRV_DONE;
}

/* Executes a command on several keys. Its variables are in `in`, because the engine needs the stack. */
__noinline int srv_do_several(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx)
{
	int r = KDB_OK;

	USE_ARENA();
	if (!in || !out || !ctx)
		return SRV_DEFER;
	if (!srv_keys_are_here(in, SRV_COMMAND(in)) || srv_begin_several(in, ctx, SRV_COMMAND(in)->command))
		return SRV_DEFER;
	in->reply_start = in->opos;
	in->found = 0;
	if (SRV_COMMAND(in)->command == SRV_CALL_MGET)
		srv_say_count(in, out, '*', SRV_COMMAND(in)->nargs - 1);
	for (in->argument = 1; READ_ONCE(in->argument) < SRV_COMMAND(in)->nargs && few_steps; in->argument++) {
		r = -1;
		if (srv_take_pair(in, SRV_COMMAND(in)))
			break;
		if (SRV_COMMAND(in)->command == SRV_CALL_MSET) {
			in->argument++;
			r = kdb_set(ctx, &in->io);
		} else if (SRV_IS(SRV_COMMAND(in)->command, SRV_READERS)) {
			r = srv_read(in, ctx);
		} else {
			r = kdb_del(ctx, &in->io);
		}
		r = srv_add_key_result(in, out, SRV_COMMAND(in), r);
		if (r != KDB_OK)
			break;
	}
	if (srv_end_several(in, ctx, r == KDB_OK && in->argument >= SRV_COMMAND(in)->nargs)) {
		in->opos = in->reply_start;
		return r < 0 ? SRV_DEFER : srv_failed(in, out, ctx, r);
	}
	return srv_finish_several(in, out, SRV_COMMAND(in));
}

#endif
