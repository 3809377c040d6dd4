/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The receiving half: runs for every packet of a connection, answers it as far as it can, and lets the
 * packet itself carry the replies. The packet is redirected to its own socket's send side with its
 * length unchanged (TCP counts the bytes received by it); the sending half then exchanges its content
 * for the reply.
 */
#ifndef BEDPLATE_SERVER_RECEIVE_H
#define BEDPLATE_SERVER_RECEIVE_H

#include "commands.h"
#include "handover.h"
#include "sock.h"

#define SRV_SMALLEST_LIMIT 4096u /* no reply is started with less room in the send buffer */
#define SRV_SEND_OVERHEAD 1280   /* what TCP accounts for a small segment beyond its bytes */

/*
 * How many bytes of replies the socket's send buffer surely takes. The carrier is sent without
 * waiting, and what does not fit would be lost, so a quarter of the buffer stays free.
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
 * Makes sure that the packet is sent as one piece, as the sending half needs it: its bytes are either
 * all in its head or all in one fragment (the usual case: then nothing is copied), or are put together.
 */
static __always_inline int srv_one_piece(struct __sk_buff *ctx, __u32 len)
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

/* Runs the commands in `in`; the replies are then in `out`. */
static __always_inline void srv_run(struct srv_input *in, struct srv_output *out, __u32 session)
{
	struct kdb_ctx *ctx = bpf_map_lookup_elem(&kdb_contexts, &session);
	struct kdb_io *io;
	int i;

	if (!ctx)
		return;
	io = SRV_CLAIM(kdb_ios, struct kdb_io, srv_config.ios);
	if (!io)
		return;
	bpf_for(i, 0, 2048) {
		if (in->pos >= in->len || srv_command(in, out, ctx, io) != SRV_DONE)
			break;
	}
	SRV_RELEASE(io);
}

/*
 * Queues the replies in `out`. Up to SRV_INLINE short ones wait in the connection's own buffers; a
 * longer one keeps `out` until it is sent. Returns whether `out` is free again.
 */
static __always_inline int srv_queue(struct srv_input *in, struct srv_output *out, struct srv_conn *conn,
				     __u32 idx, __u32 carrier)
{
	struct srv_reply *r = &conn->fifo[conn->queued & (SRV_FIFO - 1)];
	__u32 len = in->opos, slot = SRV_NO_SLOT;

	if (len <= SRV_INLINE_BYTES && conn->queued - conn->sent < SRV_INLINE) {
		__u32 at = idx * SRV_INLINE + (conn->queued & (SRV_INLINE - 1));
		struct srv_small *small = bpf_map_lookup_elem(&srv_smalls, &at);

		asm volatile("" : "+r"(len));
		if (small && len <= SRV_INLINE_BYTES)
			bpf_probe_read_kernel(small->bytes, len, out->bytes);
		else
			slot = out->claimed - 1;
	} else {
		slot = out->claimed - 1;
	}
	r->slot = slot;
	r->carrier = carrier;
	r->len = len;
	conn->queued_bytes += len;
	conn->commands += in->commands;
	__sync_fetch_and_add(&conn->queued, 1);
	return slot == SRV_NO_SLOT;
}

static __always_inline int srv_receive(struct __sk_buff *skb)
{
	struct srv_stats *stats = srv_count();
	__u64 cookie = bpf_get_socket_cookie(skb);
	__u32 *found = bpf_map_lookup_elem(&srv_cookies, &cookie);
	__u32 idx, len = skb->len, limit;
	struct srv_output *out;
	struct srv_input *in;
	struct srv_conn *conn;
	int action = SK_DROP;

	if (!found || !len)
		return SK_DROP; /* the connection is being closed */
	idx = *found;
	conn = bpf_map_lookup_elem(&srv_conns, &idx);
	if (!conn || conn->broken)
		return SK_DROP;
	conn->last_ns = bpf_ktime_get_coarse_ns();
	if (stats) {
		stats->packets++;
		stats->bytes += len;
	}
	if (*(volatile __u64 *)&conn->done != conn->handed)
		goto up;
	barrier();
	/* Everything that can fail is done before the first command has an effect. */
	if (len > SRV_CARRIER_MAX || conn->queued - conn->sent >= SRV_FIFO)
		goto up;
	limit = srv_room(skb, conn);
	if (!limit) {
		if (stats)
			stats->back_pressure++;
		goto up;
	}
	if (srv_one_piece(skb, len))
		goto up;
	in = SRV_CLAIM(srv_inputs, struct srv_input, srv_config.inputs);
	if (!in)
		goto no_buffer;
	out = SRV_CLAIM(srv_outputs, struct srv_output, srv_config.outputs);
	if (!out) {
		SRV_RELEASE(in);
		goto no_buffer;
	}
	in->pos = 0;
	in->len = len;
	in->opos = 0;
	in->limit = limit;
	in->commands = 0;
	in->flags = conn->flags;
	asm volatile("" : "+r"(len));
	if (len < 1 || len > SRV_CARRIER_MAX || bpf_skb_load_bytes(skb, 0, &in->bytes[SRV_HEAD], len)) {
		SRV_RELEASE(out);
		SRV_RELEASE(in);
		goto up;
	}
	srv_run(in, out, conn->session);
	if (in->opos) {
		__u32 replied = in->opos, commands = in->commands;

		if (srv_queue(in, out, conn, idx, len))
			SRV_RELEASE(out);
		action = bpf_sk_redirect_map(skb, &srv_socks, idx, 0);
		if (stats) {
			stats->replies++;
			stats->commands += commands;
			stats->reply_bytes += replied;
		}
	} else {
		SRV_RELEASE(out);
	}
	if (in->pos < in->len)
		srv_hand_rest(in, conn, idx);
	SRV_RELEASE(in);
	return action;
no_buffer:
	if (stats)
		stats->no_buffer++;
up:
	srv_hand_packet(skb, conn, idx);
	return SK_DROP;
}

#endif
