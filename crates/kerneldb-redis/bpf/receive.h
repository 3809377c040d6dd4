/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The receiving half: runs for every packet of a connection. If it can execute all commands of the packet, the
 * packet itself carries the replies. It is redirected to the sending side of its own socket with its
 * length unchanged, because TCP counts the received bytes by it. The sending half exchanges its content for the
 * replies. Otherwise the whole packet is passed to the event loop, which reads it from the socket.
 */
#ifndef BEDPLATE_SERVER_RECEIVE_H
#define BEDPLATE_SERVER_RECEIVE_H

#include "handover.h"
#include "run.h"
#include "sock.h"

#define SRV_SMALLEST_LIMIT 4096u /* no reply is started with less room in the send buffer */
#define SRV_SEND_OVERHEAD 1280   /* bytes that TCP accounts for a small segment beyond its data */

/*
 * Number of reply bytes that certainly fit into the socket's send buffer. The carrier is sent without
 * waiting, and bytes that do not fit would be lost, so a quarter of the buffer stays free.
 */
static __always_inline __u32 srv_room(struct __sk_buff *skb, struct srv_conn *conn)
{
	struct bpf_sock *sk = skb->sk;
	struct tcp_sock *tp;
	struct sock *s;
	__s64 room;

	if (!sk)
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	s = (struct sock *)tp;
	room = (__s64)s->sk_sndbuf / 4 * 3 - s->sk_wmem_queued - (__s64)(conn->queued_bytes - conn->sent_bytes) -
	       (__s64)(conn->queued + 1 - conn->sent) * SRV_SEND_OVERHEAD;
	if (room < (__s64)SRV_SMALLEST_LIMIT)
		return 0;
	return room > SRV_REPLY_MAX ? SRV_REPLY_MAX : (__u32)room;
}

/*
 * Makes sure that the packet is sent as one piece, as the sending half needs it. If its bytes are neither
 * all in its head nor all in one fragment (the usual case), this function copies them together.
 */
__noinline int srv_one_piece(struct __sk_buff *ctx, __u32 len)
{
	struct sk_buff *skb = bpf_cast_to_kern_ctx(ctx);
	__u32 in_frags = skb->data_len;

	if (!in_frags)
		return 0;
	if (in_frags == skb->len) {
		/* `end` is an offset from `head` on 64-bit kernels. */
		struct skb_shared_info *info = (void *)(skb->head + skb->end);

		if (BPF_CORE_READ(info, nr_frags) == 1 && !BPF_CORE_READ(info, frag_list))
			return 0;
	}
	return bpf_skb_pull_data(ctx, len) ? -1 : 0;
}

/*
 * Queues the replies in the output. Up to SRV_INLINE short ones wait in the connection's own buffers; a
 * longer one keeps the output until it is sent.
 */
static __always_inline void srv_queue(struct srv_input *in, struct srv_conn *conn)
{
	struct srv_output *out = SRV_LOOKUP(srv_outputs, in->out - 1);
	__u32 len = in->opos, slot = SRV_NO_SLOT;
	struct srv_reply *r;

	if (!out)
		return;
	r = &conn->fifo[conn->queued & (SRV_FIFO - 1)];

	if (len <= SRV_INLINE_BYTES && conn->queued - conn->sent < SRV_INLINE) {
		struct srv_small *small =
			SRV_LOOKUP(srv_smalls, in->conn * SRV_INLINE + (conn->queued & (SRV_INLINE - 1)));

		asm volatile("" : "+r"(len));
		if (small && len <= SRV_INLINE_BYTES)
			bpf_probe_read_kernel(small->bytes, len, out->bytes);
		else
			slot = out->claimed - 1;
	} else {
		slot = out->claimed - 1;
	}
	r->slot = slot;
	r->carrier = in->len;
	r->len = len;
	conn->queued_bytes += len;
	__sync_fetch_and_add(&conn->queued, 1);
	if (slot != SRV_NO_SLOT)
		in->out = 0; /* sk_msg owns it now */
}

/* The connection of a packet, or null while it is being closed. */
static __always_inline struct srv_conn *srv_conn_of(struct __sk_buff *skb, __u32 *idx)
{
	struct kdb_connection *found = kdb_connection_of(skb);

	if (!found)
		return 0;
	*idx = found->index;
	return SRV_LOOKUP(srv_conns, *idx);
}

/* Counts a packet that has arrived. */
static __always_inline void srv_count_packet(struct srv_conn *conn, __u32 len)
{
	struct srv_stats *stats = srv_count();

	conn->last_ns = bpf_ktime_get_coarse_ns();
	if (stats) {
		stats->packets++;
		stats->bytes += len;
	}
}

/* Counts a packet that was passed to the event loop. It is the last thing that a run does with the connection. */
static __always_inline void srv_end_passed(struct srv_conn *conn, __u32 len)
{
	srv_count_passed(len);
	barrier();
	*(volatile __u64 *)&conn->bytes_in = conn->bytes_in + len;
}

#define SRV_PASSED 0xffffffffu /* result of srv_take(): the packet is the event loop's */

/*
 * The first half: decides whether the packet is the kernel's, and claims every buffer that it may need
 * before the first command has an effect. Returns the claimed input's index + 1, or SRV_PASSED. Returns 0 if
 * the packet is to be dropped because its connection is being closed.
 */
__noinline __u32 srv_take(struct __sk_buff *skb)
{
	struct srv_stats *stats = srv_count();
	__u32 idx = 0, len = skb->len, limit, claimed;
	struct srv_conn *conn = srv_conn_of(skb, &idx);
	struct srv_input *in;

	if (!conn || conn->broken || !len)
		return 0;
	srv_count_packet(conn, len);
	if (srv_pass_in_turn(conn, len))
		goto passed;
	if (len > SRV_CARRIER_MAX || conn->queued - conn->sent >= SRV_FIFO)
		goto pass;
	limit = srv_room(skb, conn);
	if (!limit) {
		if (stats)
			stats->back_pressure++;
		goto pass;
	}
	if (srv_one_piece(skb, len))
		goto pass;
	claimed = srv_claim();
	in = SRV_LOOKUP(srv_inputs, claimed - 1);
	if (!in) {
		if (stats)
			stats->no_buffer++;
		goto pass;
	}
	srv_begin(in, conn, idx, len, limit);
	in->cookie = bpf_get_socket_cookie(skb);
	opaque(len);
	if (len >= 1 && len <= SRV_CARRIER_MAX && !bpf_skb_load_bytes(skb, 0, in->bytes, len))
		return claimed;
	srv_release(in);
pass:
	srv_begin_turn(conn, idx, len);
passed:
	srv_end_passed(conn, len);
	return SRV_PASSED;
}

/* Receives a packet while there is no database: passes it to the event loop. This needs no arena. */
static __always_inline int srv_receive_paused(struct __sk_buff *skb)
{
	__u32 idx = 0, len = skb->len;
	struct srv_conn *conn = srv_conn_of(skb, &idx);

	if (!conn || conn->broken || !len)
		return SK_DROP;
	srv_count_packet(conn, len);
	if (!srv_pass_in_turn(conn, len))
		srv_begin_turn(conn, idx, len);
	srv_end_passed(conn, len);
	return SK_PASS;
}

/* The second half, when the commands have run: sends their replies off, or passes the packet. */
__noinline int srv_give(struct __sk_buff *skb, struct srv_input *in)
{
	struct srv_stats *stats = srv_count();
	struct srv_conn *conn;
	int action = SK_PASS;

	if (!in)
		return SK_DROP;
	conn = SRV_LOOKUP(srv_conns, in->conn);
	if (!conn)
		return SK_DROP;
	conn->commands += in->commands;
	if (stats)
		stats->commands += in->commands;
	if (in->ending && *(volatile __u32 *)&conn->flags & SRV_CONN_OPEN) {
		/* The kernel has refused the tail call that releases locks. The event loop must not repeat a command that was committed. */
		srv_break(conn, in->conn, SRV_NO_JUMP);
		action = SK_DROP;
	} else if (in->pos < in->len) {
		srv_leave_replies(conn, in);
		srv_begin_turn(conn, in->conn, in->len);
		srv_count_passed(in->len);
	} else {
		srv_queue(in, conn);
		action = bpf_sk_redirect_map(skb, &srv_socks, in->conn, 0);
		if (stats) {
			stats->replies++;
			stats->reply_bytes += in->opos;
		}
	}
	srv_end_run(in, conn);
	/* From here on the local path may take the connection, so this run must be finished with it. */
	barrier();
	*(volatile __u64 *)&conn->bytes_in = conn->bytes_in + in->len;
	srv_release(in);
	return action;
}

/* Continues with the procedure that a call has found. Returns if there is none; a procedure that was removed meanwhile
 * leaves the call to the event loop. */
#define SRV_RUN_PROCEDURE(skb, in)                                                                \
	do {                                                                                       \
		if ((in)->procedure) {                                                             \
			bpf_tail_call(skb, &kdb_call_programs, (in)->procedure - 1);               \
			srv_abandon_call(in);                                                      \
		}                                                                                  \
	} while (0)

/* The commands run between the halves, with as little of the stack in use as possible. */
static __always_inline int srv_receive(struct __sk_buff *skb)
{
	__u32 claimed = srv_take(skb);
	struct srv_input *in;

	if (claimed == SRV_PASSED)
		return SK_PASS;
	in = SRV_LOOKUP(srv_inputs, claimed - 1);
	if (!in)
		return SK_DROP;
	srv_run(in);
	SRV_RUN_PROCEDURE(skb, in);
	SRV_GO_ON(skb, srv_jumps, in);
	return srv_give(skb, in);
}

/* The input of the run under way. */
__noinline __u32 srv_taken(struct __sk_buff *skb)
{
	__u32 idx = 0;
	struct srv_conn *conn = srv_conn_of(skb, &idx);

	return conn ? conn->input : 0;
}

/* Continues where another program has left off. */
static __always_inline int srv_receive_on(struct __sk_buff *skb)
{
	struct srv_input *in = SRV_LOOKUP(srv_inputs, srv_taken(skb) - 1);

	if (!in)
		return SK_DROP;
	srv_end_call(in);
	srv_run(in);
	SRV_RUN_PROCEDURE(skb, in);
	SRV_GO_ON(skb, srv_jumps, in);
	return srv_give(skb, in);
}

/* Runs the queue of MULTI. */
static __always_inline int srv_receive_exec(struct __sk_buff *skb)
{
	struct srv_input *ex = SRV_LOOKUP(srv_inputs, srv_taken(skb) - 1), *in;

	if (!ex)
		return SK_DROP;
	in = SRV_LOOKUP(srv_inputs, ex->outer - 1);
	if (!in)
		return SK_DROP;
	srv_end_call(ex);
	srv_run(ex);
	SRV_RUN_PROCEDURE(skb, ex);
	srv_end_exec(in, ex);
	SRV_GO_ON(skb, srv_jumps, in);
	return srv_give(skb, in);
}

#endif
