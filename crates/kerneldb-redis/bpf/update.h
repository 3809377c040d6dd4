/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Commands that write a value which depends on the one before, or on a condition. Outside of a transaction such a
 * command reads, and then writes under the condition that the value is still the one that it has read. It makes
 * SRV_ATTEMPTS attempts. Then the event loop executes it, in a transaction.
 */
#ifndef BEDPLATE_SERVER_UPDATE_H
#define BEDPLATE_SERVER_UPDATE_H

#include "commands.h"

/* Attempts at a command. Their variables are in `in`, because the engine needs the stack. */
#define SRV_ATTEMPTS 3
#define SRV_EACH_ATTEMPT(in)                                                                       \
	for ((in)->attempt = 0; READ_ONCE((in)->attempt) < SRV_ATTEMPTS && few_steps; (in)->attempt++)

/* Whether the kernel may execute a command that writes and whose reply depends on what it reads. It must not if
 * replies wait for the disk, in a read-only or a failed transaction, and in a transaction while memory is short. */
static __always_inline int srv_may_update(const struct srv_input *in, const struct kdb_ctx *ctx)
{
	if (in->flags & SRV_CONN_SYNC)
		return 0;
	return ctx->state == KDB_TX_NONE || (ctx->state == KDB_TX_ACTIVE && !srv_short_of_memory());
}

/* Writes the key and the value in `in`. */
static __always_inline int srv_write(struct srv_input *in, struct kdb_ctx *ctx)
{
	return ctx->state == KDB_TX_NONE ? kdb_set_auto(ctx, &in->io) : kdb_set(ctx, &in->io);
}

/* Deletes the key in `in`. */
static __always_inline int srv_delete(struct srv_input *in, struct kdb_ctx *ctx)
{
	return ctx->state == KDB_TX_NONE ? kdb_del_auto(ctx, &in->io) : kdb_del(ctx, &in->io);
}

/* Whether a write had no effect because of its condition. */
static __always_inline int srv_not_met(int status)
{
	return status == KDB_MISMATCH || status == KDB_NOT_FOUND;
}

/* Makes the value that was read the condition of the next write. */
__noinline int srv_expect_value(struct srv_input *in)
{
	__u32 len;

	if (!in)
		return 0;
	len = in->io.vlen;
	in->io.elen = len;
	in->io.flags |= KDB_IO_IF_PRESENT | KDB_IO_IF_EQUAL;
	if (len <= SRV_SHORT) {
#pragma unroll
		for (int i = 0; i < SRV_SHORT / 8; i++)
			*(__u64 *)&in->io.expect[i * 8] = *word_of(&in->io.val[i * 8]);
		return 0;
	}
	opaque(len);
	if (len >= 1 && len <= KDB_VAL_MAX)
		bpf_probe_read_kernel(in->io.expect, len, in->io.val);
	return 0;
}

/* Makes it the condition of the next write that there is no value, as was read. */
static __always_inline void srv_expect_none(struct srv_input *in)
{
	in->io.flags |= KDB_IO_IF_ABSENT;
}

/* The amount that INCR, DECR, INCRBY or DECRBY adds: in->amount; 0, or -1. */
__noinline int srv_take_amount(struct srv_input *in, struct srv_command *c)
{
	if (!in || !c)
		return -1;
	if (c->nargs == 2) {
		in->amount = c->command == SRV_CALL_DECR ? -1 : 1;
		return 0;
	}
	if (srv_take_integer(in, c->arg[2], c->arglen[2]))
		return -1;
	in->amount = in->number;
	if (c->command != SRV_CALL_DECRBY)
		return 0;
	in->amount = -(__u64)in->number;
	/* The opposite of the least number does not exist. */
	return in->amount == in->number && in->number ? -1 : 0;
}

/* Adds in->amount to in->number and makes the sum the value; 0, or -1 if it is no number of 64 bits. */
__noinline int srv_add(struct srv_input *in)
{
	__u64 sum, size;
	__u32 digits, minus;

	if (!in)
		return -1;
	sum = (__u64)in->number + (__u64)in->amount;
	/* The sum has overflowed if both numbers have the other sign. */
	if ((__s64)((sum ^ in->number) & (sum ^ in->amount)) < 0)
		return -1;
	in->number = sum;
	minus = (__s64)sum < 0;
	size = minus ? -sum : sum;
	digits = kdb_decimal_digits(size);
	in->io.val[0] = '-';
	kdb_put_decimal(in->io.val, 31, minus + digits, size);
	in->io.vlen = minus + digits;
	return 0;
}

/* One attempt at INCR and its kind, after the key was taken: an enum kdb_status, or -1 if the command is the event
 * loop's. */
static __always_inline int srv_add_once(struct srv_input *in, struct kdb_ctx *ctx)
{
	int r = srv_read(in, ctx);

	if (r == KDB_OK) {
		srv_expect_value(in);
		if (srv_integer(in, in->io.vlen))
			return -1;
	} else if (r == KDB_NOT_FOUND) {
		srv_expect_none(in);
		in->number = 0;
	} else {
		return r;
	}
	if (srv_add(in))
		return -1;
	in->io.expire_ms = 0;
	in->io.flags |= KDB_IO_KEEP_TTL;
	return srv_write(in, ctx);
}

/* INCR, DECR, INCRBY, DECRBY. */
__noinline int srv_do_add(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx)
{
	struct srv_command *c;
	int r;

	USE_ARENA();
	if (!in || !out || !ctx)
		return SRV_DEFER;
	c = SRV_COMMAND(in);
	if (!srv_may_update(in, ctx) || srv_take_key(in, c) || srv_take_amount(in, c))
		return SRV_DEFER;
	SRV_EACH_ATTEMPT(in) {
		srv_set_hash(in, c);
		r = srv_add_once(in, ctx);
		if (r == KDB_OK) {
			srv_say_integer(in, out, in->number);
			return SRV_DONE;
		}
		if (!srv_not_met(r))
			return r < 0 ? SRV_DEFER : srv_failed(in, out, ctx, r);
	}
	return SRV_DEFER;
}

/* The options and the time of a command that sets a value or an expiry: in->options and in->new_expire_ms. 0, or -1. */
__noinline int srv_take_options_and_time(struct srv_input *in, struct srv_command *c)
{
	__u32 command, time = SRV_TIME;
	int r = 0;

	if (!in || !c)
		return -1;
	command = c->command;
	in->options = 0;
	in->io.expire_ms = 0;
	if (command == SRV_CALL_SET || command == SRV_CALL_GETEX) {
		r = srv_take_options(in, c, command == SRV_CALL_SET ? 3 : 2);
	} else if (command == SRV_CALL_SETNX) {
		in->options = SRV_OPTION_NX;
	} else if (SRV_IS(command, SRV_TIMED)) {
		if (command != SRV_CALL_PSETEX && command != SRV_CALL_PEXPIRE)
			time |= SRV_TIME_SECONDS;
		if (command == SRV_CALL_EXPIREAT)
			time |= SRV_TIME_ABSOLUTE;
		r = srv_take_expiry(in, c->arg[2], c->arglen[2], time);
	}
	in->new_expire_ms = in->io.expire_ms;
	return r;
}

/* The key, the value and the condition of SET, SETNX, SETEX and PSETEX; 0, or -1. */
__noinline int srv_take_store(struct srv_input *in, struct srv_command *c)
{
	__u32 value;

	if (!in || !c)
		return -1;
	value = c->command == SRV_CALL_SETEX || c->command == SRV_CALL_PSETEX ? 3 : 2;
	if (srv_take_key(in, c) || srv_take_value_at(in, c->arg[value], c->arglen[value]))
		return -1;
	srv_set_hash(in, c);
	if (in->options & SRV_OPTION_NX)
		in->io.flags |= KDB_IO_IF_ABSENT;
	if (in->options & SRV_OPTION_XX)
		in->io.flags |= KDB_IO_IF_PRESENT;
	if (in->options & SRV_OPTION_KEEPTTL)
		in->io.flags |= KDB_IO_KEEP_TTL;
	return 0;
}

/* SET with options, SETNX, SETEX, PSETEX. The caller must have called srv_take_options_and_time(). */
__noinline int srv_do_store(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx)
{
	struct srv_command *c;
	int r;

	USE_ARENA();
	if (!in || !out || !ctx)
		return SRV_DEFER;
	c = SRV_COMMAND(in);
	if (!srv_may_update(in, ctx) || srv_take_store(in, c))
		return SRV_DEFER;
	r = srv_write(in, ctx);
	if (r != KDB_OK && !srv_not_met(r))
		return srv_failed(in, out, ctx, r);
	if (c->command == SRV_CALL_SETNX)
		srv_say_integer(in, out, r == KDB_OK);
	else if (r == KDB_OK)
		SRV_SAY(in, out, "+OK\r\n");
	else
		srv_say_null(in, out);
	return SRV_DONE;
}

/* Whether GETEX leaves the expiry of the key that was read as it is. */
static __always_inline int srv_keeps_expiry(const struct srv_input *in)
{
	return !(in->options & (SRV_OPTION_EXPIRY | SRV_OPTION_PERSIST)) ||
	       (in->options & SRV_OPTION_PERSIST && !in->io.expire_ms);
}

#define SRV_NO_WRITE 0
#define SRV_WRITE 1
#define SRV_DELETE 2

/* Appends the reply with what an exchange has read, where `r` is the status of that, and prepares its write:
 * SRV_NO_WRITE, SRV_WRITE, SRV_DELETE, or -1. */
__noinline int srv_prepare_exchange(struct srv_input *in, struct srv_output *out, struct srv_command *c, int r)
{
	if (!in || !out || !c)
		return -1;
	in->opos = in->reply_start;
	in->found = r == KDB_OK;
	if (!in->found) {
		srv_say_null(in, out);
		srv_expect_none(in);
	} else {
		if (srv_say_bulk(in, out, &in->io))
			return -1;
		srv_expect_value(in);
	}
	if (c->command == SRV_CALL_GETDEL)
		return in->found ? SRV_DELETE : SRV_NO_WRITE;
	if (c->command == SRV_CALL_GETEX && (!in->found || srv_keeps_expiry(in)))
		return SRV_NO_WRITE;
	if (c->command != SRV_CALL_GETEX && srv_take_value(in, c))
		return -1;
	in->io.expire_ms = in->new_expire_ms;
	if (in->options & SRV_OPTION_KEEPTTL)
		in->io.flags |= KDB_IO_KEEP_TTL;
	return SRV_WRITE;
}

/* Ends an attempt at an exchange that had this status: SRV_DONE, or SRV_DEFER, or -1 if there has to be another
 * attempt. */
__noinline int srv_end_exchange(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx, int status)
{
	if (!in || !out || !ctx)
		return SRV_DEFER;
	if (status == KDB_OK) {
		srv_count_lookups(in, 1, in->found);
		return SRV_DONE;
	}
	in->opos = in->reply_start;
	if (srv_not_met(status))
		return -1;
	return status < 0 ? SRV_DEFER : srv_failed(in, out, ctx, status);
}

/* GETSET, GETDEL, GETEX, SET with GET: reply with the value before. The caller must have called
 * srv_take_options_and_time(). */
__noinline int srv_do_exchange(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx)
{
	int r, write;

	USE_ARENA();
	if (!in || !out || !ctx)
		return SRV_DEFER;
	if (!srv_may_update(in, ctx) || srv_take_key(in, SRV_COMMAND(in)))
		return SRV_DEFER;
	in->reply_start = in->opos;
	SRV_EACH_ATTEMPT(in) {
		srv_set_hash(in, SRV_COMMAND(in));
		r = srv_read(in, ctx);
		if (r != KDB_OK && r != KDB_NOT_FOUND)
			return srv_failed(in, out, ctx, r);
		write = srv_prepare_exchange(in, out, SRV_COMMAND(in), r);
		if (write == SRV_DELETE)
			r = srv_delete(in, ctx);
		else if (write == SRV_WRITE)
			r = srv_write(in, ctx);
		else
			r = write == SRV_NO_WRITE ? KDB_OK : -1;
		r = srv_end_exchange(in, out, ctx, r);
		if (r >= 0)
			return r;
	}
	return SRV_DEFER;
}

/* EXPIRE, PEXPIRE, EXPIREAT. The caller must have called srv_take_options_and_time(). */
__noinline int srv_do_expire(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx)
{
	struct srv_command *c;
	int r;

	USE_ARENA();
	if (!in || !out || !ctx)
		return SRV_DEFER;
	c = SRV_COMMAND(in);
	if (!srv_may_update(in, ctx) || srv_take_key(in, c))
		return SRV_DEFER;
	SRV_EACH_ATTEMPT(in) {
		srv_set_hash(in, c);
		r = srv_read(in, ctx);
		if (r == KDB_NOT_FOUND) {
			SRV_SAY(in, out, ":0\r\n");
			return SRV_DONE;
		}
		if (r != KDB_OK)
			return srv_failed(in, out, ctx, r);
		srv_expect_value(in);
		in->io.expire_ms = in->new_expire_ms;
		r = srv_write(in, ctx);
		if (r == KDB_OK) {
			SRV_SAY(in, out, ":1\r\n");
			return SRV_DONE;
		}
		if (!srv_not_met(r))
			return srv_failed(in, out, ctx, r);
	}
	return SRV_DEFER;
}

#endif
