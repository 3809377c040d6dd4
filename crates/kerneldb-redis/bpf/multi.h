/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * MULTI, EXEC and DISCARD. Between MULTI and EXEC the requests wait, as they were sent, in a buffer of the
 * connection. EXEC runs them in one transaction, from a second input: all of them or none. If it meets an
 * obstacle (a lock conflict, an error, a procedure that refuses, too long a reply, keys of several partitions), it rolls the
 * transaction back. Then the event loop gets the queue and EXEC as if it had queued them itself. Such an
 * EXEC has no effect here. The event loop also gets the queue with any request that the kernel cannot queue.
 *
 * Only the event loop knows WATCH; it then keeps the connection.
 */
#ifndef BEDPLATE_SERVER_MULTI_H
#define BEDPLATE_SERVER_MULTI_H

#include "call.h"
#include "several.h"

/* MULTI: claims a queue. */
__noinline int srv_start_multi(struct srv_input *in, struct srv_output *out)
{
	struct srv_queue *q;
	struct srv_conn *conn;

	if (!in || !out)
		return SRV_DEFER;
	conn = SRV_LOOKUP(srv_conns, in->conn);
	if (!conn)
		return SRV_DEFER;
	in->queue = srv_claim_queue();
	q = SRV_LOOKUP(srv_queues, in->queue - 1);
	if (!q)
		return SRV_DEFER;
	q->len = 0;
	q->count = 0;
	q->writes = 0;
	q->procedures = 0;
	q->partition = SRV_NO_PARTITION;
	conn->queue = in->queue;
	SRV_SAY(in, out, "+OK\r\n");
	return SRV_DONE;
}

/* Frees the queue after EXEC and DISCARD. */
__noinline int srv_end_multi(struct srv_conn *conn, __u32 queue)
{
	struct srv_queue *q = SRV_LOOKUP(srv_queues, queue - 1);

	if (!conn || !q)
		return 0;
	conn->queue = 0;
	SRV_RELEASE(q);
	return 0;
}

/* Whether a request is certainly valid. If it is not, the event loop gets it and replies with the error. */
static __always_inline int srv_can_queue(struct srv_input *in, struct srv_command *c)
{
	if (c->nargs == 1)
		return c->command == SRV_CALL_PING;
	if (c->command == SRV_CALL_CALL)
		return 1;
	if (!srv_has_arity(c->command, c->nargs) || c->arglen[1] < 1 || c->arglen[1] > KDB_KEY_MAX)
		return 0;
	if (c->nargs == 2 || !SRV_IS(c->command, SRV_SEVERAL))
		return 1;
	/* All keys have to be in one partition, and only that of the first key is known here. */
	return kdb_config.partitions == 1 && srv_keys_are_here(in, c);
}

/* Queues the request in->cmd. */
static __always_inline int srv_enqueue(struct srv_input *in, struct srv_output *out, struct srv_queue *q)
{
	struct srv_command *c = SRV_COMMAND(in);
	__u32 n = c->next - in->pos, at = q->len, partition = 0;

	if (!srv_can_queue(in, c))
		return SRV_DEFER;
	if (c->command == SRV_CALL_CALL)
		partition = srv_call_partition(in, c);
	else if (kdb_config.partitions > 1)
		partition = kdb_partition_of(c->hash);
	/* The event loop queues the request itself, so nothing may have changed before. */
	if (partition == SRV_NO_PARTITION)
		return SRV_DEFER;
	opaque(n);
	opaque(at);
	if (n < 1 || n > SRV_QUEUE_BYTES || at > SRV_QUEUE_BYTES || at + n > SRV_QUEUE_BYTES || q->count == 0xffff)
		return SRV_DEFER;
	bpf_probe_read_kernel(&q->bytes[at], n, &SRV_AT(in, in->pos));
	q->len = at + n;
	q->count++;
	if (c->nargs > 1) {
		q->writes |= !SRV_IS(c->command, SRV_READERS);
		q->procedures += c->command == SRV_CALL_CALL;
		if (q->partition == SRV_NO_PARTITION)
			q->partition = partition;
		else if (q->partition != partition)
			q->partition = SRV_PARTITIONS;
	}
	SRV_SAY(in, out, "+QUEUED\r\n");
	return SRV_DONE;
}

/*
 * EXEC: opens the transaction and lays the queue out as the commands of a second input, which the EXEC
 * program of their partition runs.
 */
__noinline int srv_start_exec(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx)
{
	struct srv_queue *q;
	struct srv_conn *conn;
	struct srv_input *ex;
	__u32 n, claimed, partition;

	USE_ARENA();
	if (!in || !out || !ctx)
		return SRV_DEFER;
	conn = SRV_LOOKUP(srv_conns, in->conn);
	q = SRV_LOOKUP(srv_queues, in->queue - 1);
	if (!conn || !q || (in->flags & SRV_CONN_SYNC) || ctx->state != KDB_TX_NONE ||
	    q->partition == SRV_PARTITIONS || in->jumps + 2 + 2 * q->procedures > SRV_JUMPS)
		return SRV_DEFER;
	partition = q->partition == SRV_NO_PARTITION ? kdb_config.partition : q->partition;
	claimed = srv_claim_input();
	ex = SRV_LOOKUP(srv_inputs, claimed - 1);
	if (!ex)
		return SRV_DEFER;
	n = q->len;
	opaque(n);
	if (n > SRV_QUEUE_BYTES)
		n = 0;
	if (n)
		bpf_probe_read_kernel(ex->bytes, n, q->bytes);
	srv_begin(ex, conn, in->conn, n, in->limit);
	ex->opos = in->opos;
	ex->out = in->out;
	ex->outer = in->claimed;
	ex->cookie = in->cookie;
	ex->jumps = in->jumps + 2; /* there and back */
	ex->queue = 0;
	ex->lookups = 0;
	ex->misses = 0;
	__builtin_memset(ex->calls, 0, sizeof(ex->calls));
	srv_say_count(ex, out, '*', q->count);
	if ((q->writes ? kdb_begin(ctx) : kdb_begin_ro(ctx)) != KDB_OK) {
		SRV_RELEASE(ex);
		return SRV_DEFER;
	}
	in->jumps++; /* for the way back */
	if (srv_jump(in, claimed, SRV_EXEC(partition)) == SRV_JUMP)
		return SRV_JUMP;
	/* The connection is being closed, which ends the transaction, too. */
	SRV_RELEASE(ex);
	return SRV_DEFER;
}

/* Counts what an EXEC has executed, when it has committed. */
__noinline int srv_count_exec(struct srv_input *ex)
{
	struct srv_stats *stats = srv_count();

	if (!ex || !stats)
		return 0;
	stats->lookups += ex->lookups;
	stats->misses += ex->misses;
	for (int call = 0; call < SRV_CALLS; call++)
		stats->calls[call] += ex->calls[call];
	return 0;
}

/* Ends EXEC in the program of its partition: commits if all commands succeeded. `in` continues in any case. */
__noinline int srv_end_exec(struct srv_input *in, struct srv_input *ex)
{
	struct srv_conn *conn;
	struct kdb_ctx *ctx;
	int r = KDB_ERR_STATE;

	USE_ARENA();
	if (!in || !ex)
		return 0;
	conn = SRV_LOOKUP(srv_conns, in->conn);
	ctx = SRV_LOOKUP(kdb_contexts, in->session);
	if (!conn || !ctx)
		return 0;
	in->jumps = ex->jumps;
	if (ex->pos == ex->len) {
		if (ctx->state == KDB_TX_ACTIVE)
			r = kdb_commit(ctx);
		else if (ctx->state == KDB_TX_READ_ONLY)
			r = kdb_commit_ro(ctx);
	}
	if (r == KDB_OK) {
		in->opos = ex->opos;
		in->pos = SRV_COMMAND(in)->next;
		in->commands++;
		in->cmd++;
		srv_end_multi(conn, in->queue);
		in->queue = 0;
		srv_count_exec(ex);
		srv_called(in, SRV_CALL_EXEC);
	} else {
		kdb_rollback(ctx);
		in->stop = 1;
	}
	conn->input = in->claimed;
	in->jump = SRV_ON(kdb_config.partition) + 1;
	SRV_RELEASE(ex);
	return 0;
}

/* Executes a request between MULTI and the end of EXEC. */
__noinline int srv_do_multi(struct srv_input *in, struct srv_output *out, struct kdb_ctx *ctx)
{
	struct srv_conn *conn;
	struct srv_command *c;
	struct srv_queue *q;

	USE_ARENA();
	if (!in || !out || !ctx)
		return SRV_DEFER;
	c = SRV_COMMAND(in);
	if (c->nargs == 1 && c->command == SRV_CALL_EXEC)
		return srv_start_exec(in, out, ctx);
	if (c->nargs == 1 && c->command == SRV_CALL_DISCARD) {
		conn = SRV_LOOKUP(srv_conns, in->conn);
		srv_end_multi(conn, in->queue);
		in->queue = 0;
		SRV_SAY(in, out, "+OK\r\n");
		srv_called(in, SRV_CALL_DISCARD);
		return SRV_DONE;
	}
	q = SRV_LOOKUP(srv_queues, in->queue - 1);
	return q ? srv_enqueue(in, out, q) : SRV_DEFER;
}

#endif
