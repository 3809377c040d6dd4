/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* Commands that reply with a number about one key: EXISTS, TOUCH, STRLEN, TTL, PTTL. */
#ifndef BEDPLATE_SERVER_INSPECT_H
#define BEDPLATE_SERVER_INSPECT_H

#include "commands.h"

/* The reply of TTL or PTTL for a value that was read. */
static __always_inline __s64 srv_ttl(const struct srv_input *in, __u32 command)
{
	__u64 left, now = srv_now_ms();

	if (!in->io.expire_ms)
		return -1;
	left = in->io.expire_ms > now ? in->io.expire_ms - now : 0;
	return command == SRV_CALL_TTL ? (left + 500) / 1000 : left;
}

/* Executes one of these commands. */
__noinline int srv_do_inspect(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx)
{
	struct srv_command *c;
	__s64 number;
	int r;

	USE_ARENA();
	if (!in || !out || !ctx)
		return SRV_DEFER;
	c = SRV_COMMAND(in);
	if (srv_take_key(in, c))
		return SRV_DEFER;
	srv_set_hash(in, c);
	if (c->command == SRV_CALL_EXISTS || c->command == SRV_CALL_TTL || c->command == SRV_CALL_PTTL)
		in->io.flags |= KDB_IO_NO_USE;
	r = srv_read(in, ctx);
	/* The event loop reads again, and waits for the disk. */
	if (!srv_may_reveal(in))
		return SRV_DEFER;
	if (r != KDB_OK && r != KDB_NOT_FOUND)
		return srv_failed(in, out, ctx, r);
	srv_count_lookups(in, 1, r == KDB_OK);
	if (c->command == SRV_CALL_STRLEN)
		number = r == KDB_OK ? in->io.vlen : 0;
	else if (c->command == SRV_CALL_TTL || c->command == SRV_CALL_PTTL)
		number = r == KDB_OK ? srv_ttl(in, c->command) : -2;
	else
		number = r == KDB_OK;
	srv_say_integer(in, out, number);
	return SRV_DONE;
}

#endif
