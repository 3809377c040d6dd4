/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The sending half: runs for everything that leaves through a connection's socket. The content of a carrier
 * becomes the oldest reply that waits. Data that the event loop sends passes unchanged.
 *
 * Wrong bytes are never sent. The carrier must have the expected length, and TCP must have taken all
 * of the reply before it (write_seq tells). Otherwise the connection is broken.
 */
#ifndef BEDPLATE_SERVER_SEND_H
#define BEDPLATE_SERVER_SEND_H

#include "handover.h"
#include "message.h"
#include "sock.h"

/* Ends the event loop's turn with its last reply, if the event loop has asked for that and has read all passed
 * bytes. TCP must have room for all of the reply, because the event loop cannot send a rest after its
 * turn. The socket is locked until TCP has taken the reply, so the verdict does not run before that. */
static __always_inline void srv_give_back(struct srv_conn *conn, struct sock *sk, __u32 size)
{
	__u64 turn = conn->give;

	if (!size || conn->give_len != size || (__s64)sk->sk_sndbuf / 2 - sk->sk_wmem_queued < (__s64)size)
		return;
	if (__sync_val_compare_and_swap(&conn->turn, turn, turn & ~SRV_TURN_SERVER) == turn)
		*(volatile __u32 *)&conn->give_len = 0;
}

static __always_inline int srv_send(struct sk_msg_md *msg)
{
	struct bpf_sock *sk = msg->sk;
	struct tcp_sock *tp;
	struct srv_conn *conn;
	struct srv_reply *r;
	struct kdb_connection *found;
	__u32 idx, slot, len, size = msg->size, seq;
	__u64 cookie, sent;
	int failed;

	if (!sk)
		return SK_DROP;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return SK_DROP;
	cookie = ((struct sock *)tp)->__sk_common.skc_cookie.counter;
	seq = tp->write_seq;
	found = bpf_map_lookup_elem(&kdb_connections, &cookie);
	if (!found)
		return SK_DROP; /* being closed: this is a carrier without a reply */
	idx = found->index;
	conn = bpf_map_lookup_elem(&srv_conns, &idx);
	if (!conn || conn->broken)
		return SK_DROP;
	if (conn->next_seq && (__u32)conn->next_seq != seq) {
		/* If the peer has reset the connection, the event loop hears of that anyway. */
		if (((struct sock *)tp)->__sk_common.skc_state != SRV_TCP_CLOSE)
			srv_break(conn, idx, SRV_SHORT_SEND);
		return SK_DROP;
	}
	sent = conn->sent;
	if (sent == conn->queued) {
		/* The event loop sends. */
		conn->next_seq = 0;
		conn->out_seq = 1ull << 32 | (__u32)(seq + size);
		srv_give_back(conn, (struct sock *)tp, size);
		return SK_PASS;
	}
	r = &conn->fifo[sent & (SRV_FIFO - 1)];
	slot = r->slot;
	len = r->len;
	if (size != r->carrier || len < 1 || len > SRV_REPLY_MAX) {
		srv_break(conn, idx, SRV_CARRIER_SIZE);
		return SK_DROP;
	}
	failed = srv_open(msg, size, len);
	if (slot == SRV_NO_SLOT) {
		__u32 at = idx * SRV_INLINE + (sent & (SRV_INLINE - 1));
		struct srv_small *small = bpf_map_lookup_elem(&srv_smalls, &at);

		if (small && !failed)
			SRV_FILL(msg, small->bytes, len, SRV_INLINE_BYTES - 1);
	} else {
		struct srv_output *out = bpf_map_lookup_elem(&srv_outputs, &slot);

		if (out) {
			if (!failed)
				SRV_FILL(msg, out->bytes, len, SRV_REPLY_MAX - 1);
			SRV_RELEASE(out);
		}
	}
	conn->next_seq = conn->out_seq = 1ull << 32 | (__u32)(seq + len);
	conn->sent_bytes += len;
	/* This is a locked operation, so `sent` is visible before `want_drained` is read. The event loop does
	 * the two in the opposite order, so one of both sides always notices the other. */
	__sync_fetch_and_add(&conn->sent, 1);
	if (failed || srv_trim(msg, size, len)) {
		srv_break(conn, idx, SRV_NO_PAGES);
		return SK_DROP;
	}
	if (*(volatile __u32 *)&conn->want_drained && sent + 1 == *(volatile __u64 *)&conn->queued)
		srv_signal(idx);
	return SK_PASS;
}

#endif
