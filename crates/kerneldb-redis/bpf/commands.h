/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The commands that the kernel answers. A command is either done here completely, reply included, or
 * it has no effect here. Then the event loop executes it, with everything behind it (SRV_DEFER). There is one
 * exception: an MSET in a client's transaction may have written some of its keys. The event loop writes all of them again.
 * The event loop executes commands that wait for the disk. It also retries auto-commit writes that
 * failed, and commands that met a full log ring. Any other error inside a transaction has failed the
 * transaction and is therefore the reply.
 *
 * A program works on the keys of one partition. A command on a key of another one has no effect either, and
 * is done by that partition's program, which in->jump names (SRV_JUMP, run.h).
 */
#ifndef BEDPLATE_SERVER_COMMANDS_H
#define BEDPLATE_SERVER_COMMANDS_H

#include "arguments.h"

#define SRV_DONE 0
#define SRV_DEFER 1
#define SRV_JUMP 2
#define SRV_FAILED 3 /* done, and the reply is the error that has failed the transaction */

/* The programs with which the loop in run.h continues, as indexes of srv_jumps. */
#define SRV_ON(partition) (2 * (partition))        /* the commands of `in` */
#define SRV_EXEC(partition) (2 * (partition) + 1)  /* a queue of MULTI (multi.h) */

/* Whether the hashes of all commands' keys are known. */
static __always_inline int srv_looked_ahead(const struct srv_input *in)
{
	return kdb_config.partitions > 1 || in->batch > 1;
}

/* Gives the key's hash to the operators, if it is known. The event loop repeats an operator that finds no memory. */
static __always_inline void srv_set_hash(struct srv_input *in, const struct srv_command *c)
{
	in->io.flags = KDB_IO_REPEATS | (srv_looked_ahead(in) ? KDB_IO_HASHED : 0);
	in->io.hash = c->hash;
}

/* Most tail calls for a packet. The kernel ends a chain after 33, the trampoline's included. */
#define SRV_JUMPS 32u

/*
 * Announces that another program continues with the input `run`, for `tail_calls` tail calls. Returns SRV_DEFER if those would be
 * too many for the packet, or if the connection is being closed. The programs find their input by the
 * connection. To close a connection, the event loop marks it as closed and then waits until it has no input.
 * This function does the two in the opposite order, so one of both sides always notices the other.
 */
static __always_inline int srv_announce(struct srv_input *in, __u32 run, __u32 tail_calls)
{
	struct srv_conn *conn;

	if (in->jumps + tail_calls > SRV_JUMPS)
		return SRV_DEFER;
	conn = SRV_LOOKUP(srv_conns, in->conn);
	if (!conn)
		return SRV_DEFER;
	in->jumps += tail_calls;
	__sync_lock_test_and_set(&conn->input, run);
	return *(volatile __u32 *)&conn->flags & SRV_CONN_OPEN ? SRV_DONE : SRV_DEFER;
}

/* Asks for the program at `to`, which continues with the input `run`; or SRV_DEFER. */
__noinline int srv_jump(struct srv_input *in, __u32 run, __u32 to)
{
	if (!in || srv_announce(in, run, 1))
		return SRV_DEFER;
	in->jump = to + 1;
	return SRV_JUMP;
}

/* Ends a run. It must be the last thing that the run does with the connection. */
static __always_inline void srv_end_run(struct srv_input *in, struct srv_conn *conn)
{
	if (in->jumps)
		__sync_lock_test_and_set(&conn->input, 0);
}

/* SRV_DONE if the key of a command is in this program's partition. */
static __always_inline int srv_go_to_key(struct srv_input *in, const struct srv_command *c)
{
	__u32 partition;

	if (kdb_config.partitions == 1)
		return SRV_DONE;
	partition = kdb_partition_of(c->hash);
	return partition == kdb_config.partition ? SRV_DONE : srv_jump(in, in->claimed, SRV_ON(partition));
}

/* Replies with an error if the transaction has failed with it; otherwise the event loop executes the command again.
 * The event loop also replies to later commands of a failed transaction (KDB_ERR_STATE), because only it knows that
 * transaction's error. */
static __always_inline int srv_failed(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx, int status)
{
	if (ctx->state != KDB_TX_FAILED || status == KDB_ERR_STATE)
		return SRV_DEFER;
	srv_say_error(in, out, status);
	return SRV_FAILED;
}

/*
 * Counts an execution of a command (enum srv_call) and returns SRV_DONE. Those of an EXEC count when it commits
 * (srv_count_exec). This and the next one are not inlined, because their callers need the stack for the engine.
 */
__noinline int srv_called(struct srv_input *in, __u32 call)
{
	struct srv_stats *stats;

	if (!in || call >= SRV_CALLS)
		return SRV_DONE;
	if (in->outer) {
		in->calls[call]++;
		return SRV_DONE;
	}
	stats = srv_count();
	if (stats)
		stats->calls[call]++;
	return SRV_DONE;
}

/* Counts keys that a command has looked for in order to reply with what it found. */
__noinline int srv_count_lookups(struct srv_input *in, __u32 keys, __u32 found)
{
	struct srv_stats *stats;

	if (!in)
		return 0;
	if (in->outer) {
		in->lookups += keys;
		in->misses += keys - found;
		return 0;
	}
	stats = srv_count();
	if (!stats)
		return 0;
	stats->lookups += keys;
	stats->misses += keys - found;
	return 0;
}

/* Whether more than `slabs` slabs are free for every size. It looks at one word of their bitmap only, so it may say no
 * although enough slabs are free. */
static __always_inline int srv_has_slabs(int slabs)
{
	__u32 hint = LOAD(&super()->hints[KDB_KIND_FREE]);
	__u64 word;

	if (hint >= kdb_config.bitmap_words)
		return 0;
	word = ALOAD64(bitmap_at(KDB_KIND_FREE) + hint * 8);
	for (int i = 0; i < slabs; i++)
		word &= word - 1;
	return word != 0;
}

/* Whether the partition may run out of memory. That would fail a transaction, so the event loop, which can
 * provide more memory, has to run the command. */
static __always_inline int srv_short_of_memory(void)
{
	struct kdb_arena __arena *arena = super();

	return LOAD(&arena->committed) - LOAD(&arena->brk) < (1u << 20) && !srv_has_slabs(16);
}

/* Whether a reply may reveal what the operator in `in` has observed. */
static __always_inline int srv_may_reveal(const struct srv_input *in)
{
	struct kdb_state *state;

	if (!kdb_config.wal || !(in->flags & SRV_CONN_SYNC))
		return 1;
	state = kdb_state();
	return state && in->io.observed_ts <= READ_ONCE(state->durable_ts);
}

/* Whether the command has to wait because all commands, or those that write, are paused. Not inlined, because the
 * caller needs the stack for the engine. */
__noinline int srv_is_paused(struct srv_input *in, __u32 command)
{
	struct srv_gate *gate = SRV_LOOKUP(srv_gates, 0);
	__u64 until, writes;

	/* The event loop must not end a transaction again that has ended. */
	if (!in || !gate || in->ending)
		return 0;
	until = *(volatile __u64 *)&gate->all_until_ns;
	writes = *(volatile __u64 *)&gate->writes_until_ns;
	if (writes > until && (command == SRV_CALL_COMMIT || command == SRV_CALL_EXEC ||
			       (!in->queue && SRV_IS(command, SRV_WRITERS))))
		until = writes;
	return until && bpf_ktime_get_ns() < until;
}

/* Reads the key in `in` in the session's state: an enum kdb_status. */
static __always_inline int srv_read(struct srv_input *in, struct kdb_ctx *ctx)
{
	switch (ctx->state) {
	case KDB_TX_NONE:
		return kdb_get_auto(ctx, &in->io);
	case KDB_TX_ACTIVE:
		return kdb_get(ctx, &in->io);
	case KDB_TX_READ_ONLY:
		return kdb_get_ro(ctx, &in->io);
	default:
		return KDB_ERR_STATE;
	}
}

__noinline int srv_do_get(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx)
{
	struct srv_command *c;
	int r;

	USE_ARENA();
	if (!in || !out || !ctx)
		return SRV_DEFER;
	c = SRV_COMMAND(in);
	if (srv_take_key(in, c))
		return SRV_DEFER;
	srv_set_hash(in, c);
	r = srv_read(in, ctx);
	/* The event loop reads again, which has the same result in a transaction, and waits for the disk. */
	if (!srv_may_reveal(in))
		return SRV_DEFER;
	if (r == KDB_OK) {
		if (srv_say_bulk(in, out, &in->io))
			return SRV_DEFER;
	} else if (r == KDB_NOT_FOUND) {
		srv_say_null(in, out);
	} else {
		return srv_failed(in, out, ctx, r);
	}
	srv_count_lookups(in, 1, r == KDB_OK);
	return SRV_DONE;
}

__noinline int srv_do_set(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx)
{
	struct srv_command *c;
	__u32 state;
	int r;

	USE_ARENA();
	if (!in || !out || !ctx)
		return SRV_DEFER;
	c = SRV_COMMAND(in);
	if (srv_take_key(in, c) || srv_take_value(in, c))
		return SRV_DEFER;
	srv_set_hash(in, c);
	in->io.expire_ms = 0;
	state = ctx->state;
	if (state == KDB_TX_NONE && !(in->flags & SRV_CONN_SYNC))
		r = kdb_set_auto(ctx, &in->io);
	else if (state == KDB_TX_ACTIVE && !srv_short_of_memory())
		r = kdb_set(ctx, &in->io);
	else
		return SRV_DEFER;
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
		return SRV_DEFER;
	c = SRV_COMMAND(in);
	if (srv_take_key(in, c))
		return SRV_DEFER;
	srv_set_hash(in, c);
	state = ctx->state;
	if (state == KDB_TX_NONE && !(in->flags & SRV_CONN_SYNC))
		r = kdb_del_auto(ctx, &in->io);
	/* The reply reveals whether the key existed, and a deletion cannot be repeated by the event loop. */
	else if (state == KDB_TX_ACTIVE && !(in->flags & SRV_CONN_SYNC))
		r = kdb_del(ctx, &in->io);
	else
		return SRV_DEFER;
	if (r == KDB_OK)
		SRV_SAY(in, out, ":1\r\n");
	else if (r == KDB_NOT_FOUND)
		SRV_SAY(in, out, ":0\r\n");
	else
		return srv_failed(in, out, ctx, r);
	return SRV_DONE;
}

/*
 * The last step of COMMIT or ROLLBACK: every partition releases its own locks. The reply is already
 * appended.
 */
__noinline int srv_do_release(struct srv_input *in, struct kdb_ctx *ctx)
{
	USE_ARENA();
	if (!in || !ctx)
		return SRV_DEFER;
	if (kdb_config.partitions > 1) {
		if (in->ending)
			kdb_release(ctx);
		in->ending = 0;
		if (ctx->state == KDB_TX_COMMITTED || ctx->state == KDB_TX_ROLLING_BACK) {
			in->ending = 1;
			for (int p = 0; p < KDB_MAX_PARTITIONS; p++) {
				if (ctx->partitions & (1u << p))
					return srv_jump(in, in->claimed, SRV_ON(p));
			}
		}
	}
	return SRV_DONE;
}

/* COMMIT and ROLLBACK; srv_do_release() follows. */
__noinline int srv_do_end(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx, int commit)
{
	__u32 state;
	int r;

	USE_ARENA();
	if (!in || !out || !ctx)
		return SRV_DEFER;
	state = ctx->state;
	/* Once the transaction has ended, srv_do_release() must not run out of tail calls. */
	if (ctx->partitions & ~(1ull << kdb_config.partition) && in->jumps + KDB_MAX_PARTITIONS > SRV_JUMPS)
		return SRV_DEFER;
	if (!commit && (state == KDB_TX_ACTIVE || state == KDB_TX_READ_ONLY))
		r = kdb_rollback(ctx);
	else if (commit && state == KDB_TX_READ_ONLY)
		r = kdb_commit_ro(ctx);
	else if (commit && state == KDB_TX_ACTIVE && !(in->flags & SRV_CONN_SYNC))
		r = kdb_commit(ctx);
	else
		return SRV_DEFER;
	if (r == KDB_OK) {
		SRV_SAY(in, out, "+OK\r\n");
	} else {
		/* The event loop waits for the reaper. */
		if (!commit || ctx->state != KDB_TX_FAILED || kdb_rollback(ctx) != KDB_OK)
			return SRV_DEFER;
		srv_say_error(in, out, r);
	}
	return SRV_DONE;
}

#endif
