/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The local fast path answers the commands of a client on this machine inside its own send call, on
 * the client's socket, without TCP. The reply goes straight to the socket's receiving side.
 *
 * It may only run while the connection is at rest: then no other side works on the session, and the reply
 * cannot overtake an earlier one. A connection is at rest if
 *   - the verdict has dealt with every byte that the client has sent over TCP,
 *   - it is not the event loop's turn, and the kernel has given every reply to TCP,
 *   - the client has read every byte that the server has ever sent, and
 *   - the client has read every earlier reply of this path.
 * The client cannot send meanwhile, because its socket is locked. The event loop cannot take the connection
 * apart, because it needs srv_conn.lock. If any of this is uncertain, the message passes, and the server answers.
 */
#ifndef BEDPLATE_SERVER_LOCAL_H
#define BEDPLATE_SERVER_LOCAL_H

#include "handover.h"
#include "message.h"
#include "run.h"
#include "sock.h"

#define SRV_USER_DATA_FLAGS 7ul /* low bits of sk_user_data */

/* TCP's sequence number at which a client's stream began. */
struct srv_base {
	__u32 seq;
	__u32 valid;
};

struct { __uint(type, BPF_MAP_TYPE_SOCKHASH); __uint(max_entries, 1); __type(key, __u64); __type(value, __u64); } srv_locals SEC(".maps"); /* set by the loader */
struct { __uint(type, BPF_MAP_TYPE_SK_STORAGE); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, int); __type(value, struct srv_base); } srv_bases SEC(".maps");

/* Whether the client has read all replies of this path. */
static __always_inline int srv_has_read(struct tcp_sock *tp)
{
	unsigned long data = (unsigned long)((struct sock *)tp)->sk_user_data;
	struct sk_psock *psock = (void *)(data & ~SRV_USER_DATA_FLAGS);
	void *first, *head;

	if (!psock)
		return 0;
	head = (void *)psock + bpf_core_field_offset(struct sk_psock, ingress_msg);
	first = BPF_CORE_READ(psock, ingress_msg.next);
	return first == head;
}

/* Whether the connection is at rest. The caller must hold its lock. */
static __always_inline int srv_at_rest(struct srv_conn *conn, const struct srv_peer *peer, struct tcp_sock *tp,
				       struct srv_base *base)
{
	__u32 sent = tp->write_seq - base->seq;
	__u64 out_seq;

	if (!(conn->flags & SRV_CONN_OPEN) || conn->broken)
		return 0;
	for (int i = 0; i < sizeof(*peer) / 8; i++) {
		if (((__u64 *)&conn->peer)[i] != ((__u64 *)peer)[i])
			return 0;
	}
	if ((__u32)*(volatile __u64 *)&conn->bytes_in != sent)
		return 0;
	barrier();
	if (*(volatile __u64 *)&conn->turn & SRV_TURN_SERVER ||
	    *(volatile __u64 *)&conn->queued != *(volatile __u64 *)&conn->sent)
		return 0;
	out_seq = *(volatile __u64 *)&conn->out_seq;
	if (tp->copied_seq != (out_seq ? (__u32)out_seq : tp->rcv_nxt))
		return 0;
	return srv_has_read(tp);
}

/* The connection of a client's socket: its index + 1, or 0. */
__noinline __u32 srv_local_conn(struct sk_msg_md *msg, struct srv_peer *peer)
{
	__u32 *found;

	if (!peer)
		return 0;
	__builtin_memset(peer, 0, sizeof(*peer));
	if (msg->family == SRV_AF_INET6) {
		peer->client_ip[0] = msg->local_ip6[0];
		peer->client_ip[1] = msg->local_ip6[1];
		peer->client_ip[2] = msg->local_ip6[2];
		peer->client_ip[3] = msg->local_ip6[3];
		peer->server_ip[0] = msg->remote_ip6[0];
		peer->server_ip[1] = msg->remote_ip6[1];
		peer->server_ip[2] = msg->remote_ip6[2];
		peer->server_ip[3] = msg->remote_ip6[3];
		barrier(); /* the branches must not share loads, because the verifier refuses computed offsets in msg */
	} else {
		peer->client_ip[2] = SRV_MAPPED;
		peer->client_ip[3] = msg->local_ip4;
		peer->server_ip[2] = SRV_MAPPED;
		peer->server_ip[3] = msg->remote_ip4;
	}
	peer->client_port = msg->local_port;
	peer->server_port = bpf_ntohl(msg->remote_port);
	found = bpf_map_lookup_elem(&srv_peers, peer);
	return found ? *found + 1 : 0;
}

/*
 * The first half: if the connection is at rest, locks it and returns the claimed input's index + 1.
 * Otherwise it returns 0, and the message passes.
 */
__noinline __u32 srv_local_take(struct sk_msg_md *msg)
{
	struct srv_peer peer;
	__u32 idx, size = msg->size, claimed;
	struct bpf_sock *sk = msg->sk;
	struct srv_base *base;
	struct srv_conn *conn;
	struct srv_input *in;
	struct tcp_sock *tp;
	void *data;

	if (!sk || size < 1 || size > SRV_CARRIER_MAX)
		return 0;
	base = bpf_sk_storage_get(&srv_bases, sk, 0, 0);
	tp = bpf_skc_to_tcp_sock(sk);
	if (!base || !base->valid || !tp)
		return 0;
	idx = srv_local_conn(msg, &peer) - 1;
	conn = bpf_map_lookup_elem(&srv_conns, &idx);
	if (!conn || __sync_val_compare_and_swap(&conn->lock, 0, 1) != 0)
		return 0;
	if (!srv_at_rest(conn, &peer, tp, base) || bpf_msg_pull_data(msg, 0, size, 0))
		goto unlock;
	claimed = srv_claim();
	in = SRV_LOOKUP(srv_inputs, claimed - 1);
	if (!in)
		goto unlock;
	srv_begin(in, conn, idx, size, SRV_REPLY_MAX);
	data = (void *)(long)msg->data;
	opaque(size);
	if (size >= 1 && size <= SRV_CARRIER_MAX && !bpf_probe_read_kernel(in->bytes, size, data))
		return claimed;
	srv_release(in);
unlock:
	__sync_lock_test_and_set(&conn->lock, 0);
	return 0;
}

/* Exchanges the message for the replies and sends it to the client's receiving side. */
static __always_inline int srv_local_reply(struct sk_msg_md *msg, struct srv_input *in, struct srv_conn *conn)
{
	struct srv_output *out = SRV_LOOKUP(srv_outputs, in->out - 1);
	__u32 size = in->len, len = in->opos;
	struct bpf_sock *sk = msg->sk;
	struct tcp_sock *tp;
	__u64 cookie;

	tp = sk ? bpf_skc_to_tcp_sock(sk) : 0;
	if (!out || !tp)
		return SK_DROP;
	cookie = ((struct sock *)tp)->__sk_common.skc_cookie.counter;
	if (len > SRV_REPLY_MAX || srv_open(msg, size, len))
		goto broken;
	SRV_FILL(msg, out->bytes, len, SRV_REPLY_MAX - 1);
	if (srv_trim(msg, size, len))
		goto broken;
	return bpf_msg_redirect_hash(msg, &srv_locals, &cookie, BPF_F_INGRESS);
broken:
	srv_break(conn, in->conn, SRV_NO_PAGES);
	return SK_DROP;
}

/*
 * Handles a message of which only some commands were executed. The message goes to the server unchanged. The
 * event loop gets the replies made so far and sends them before the others. This path cannot give them to
 * the client. The kernel unlocks the client's socket before it delivers a redirected message, so the reply
 * to the rest might overtake them.
 */
static __always_inline int srv_local_partly(struct srv_input *in, struct srv_conn *conn)
{
	srv_leave_replies(conn, in);
	srv_begin_turn(conn, in->conn, 0);
	return SK_PASS;
}

/* The second half: replies, hands over the rest, unlocks. */
__noinline int srv_local_give(struct sk_msg_md *msg, struct srv_input *in)
{
	struct srv_stats *stats = srv_count();
	struct srv_conn *conn;
	int action = SK_PASS;

	if (!in)
		return SK_PASS;
	conn = SRV_LOOKUP(srv_conns, in->conn);
	if (!conn)
		return SK_PASS;
	/* If nothing was executed, the server does it all. */
	if (in->opos) {
		conn->last_ns = bpf_ktime_get_coarse_ns();
		conn->commands += in->commands;
		if (stats) {
			stats->commands += in->commands;
			stats->local += in->commands;
			if (in->pos == in->len) {
				stats->local_bytes += in->len;
				stats->local_reply_bytes += in->opos;
			}
		}
		action = in->pos < in->len ? srv_local_partly(in, conn) : srv_local_reply(msg, in, conn);
	}
	srv_end_run(in, conn);
	srv_release(in);
	__sync_lock_test_and_set(&conn->lock, 0);
	return action;
}

static __always_inline int srv_local(struct sk_msg_md *msg)
{
	struct srv_input *in = SRV_LOOKUP(srv_inputs, srv_local_take(msg) - 1);

	if (!in)
		return SK_PASS;
	srv_run(in);
	SRV_GO_ON(msg, srv_local_jumps, in);
	return srv_local_give(msg, in);
}

/* The input of the run under way. */
__noinline __u32 srv_local_taken(struct sk_msg_md *msg)
{
	struct srv_peer peer;
	struct srv_conn *conn = SRV_LOOKUP(srv_conns, srv_local_conn(msg, &peer) - 1);

	return conn ? conn->input : 0;
}

/* Continues where another program has left off. */
static __always_inline int srv_local_on(struct sk_msg_md *msg)
{
	struct srv_input *in = SRV_LOOKUP(srv_inputs, srv_local_taken(msg) - 1);

	if (!in)
		return SK_DROP;
	srv_run(in);
	SRV_GO_ON(msg, srv_local_jumps, in);
	return srv_local_give(msg, in);
}

/* Runs the queue of MULTI. */
static __always_inline int srv_local_exec(struct sk_msg_md *msg)
{
	struct srv_input *ex = SRV_LOOKUP(srv_inputs, srv_local_taken(msg) - 1), *in;

	if (!ex)
		return SK_DROP;
	in = SRV_LOOKUP(srv_inputs, ex->outer - 1);
	if (!in)
		return SK_DROP;
	srv_run(ex);
	srv_end_exec(in, ex);
	SRV_GO_ON(msg, srv_local_jumps, in);
	return srv_local_give(msg, in);
}

/*
 * Takes the socket of a client that has shut its sending side down off the path, unless it has replies of
 * this path to read. That is necessary because a read of a socket in a map returns EAGAIN, even if the socket
 * is blocking, when something other than data wakes it. The acknowledgement of the shutdown does so.
 */
static __always_inline void srv_leave_local(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;
	struct tcp_sock *tp;
	__u64 cookie;

	if (ops->args[0] != BPF_TCP_ESTABLISHED || ops->args[1] != BPF_TCP_FIN_WAIT1 || !sk)
		return;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp || !srv_has_read(tp))
		return;
	cookie = bpf_get_socket_cookie(ops);
	bpf_map_delete_elem(&srv_locals, &cookie);
}

/* Records a connection that a process of this network namespace has opened to the server. */
static __always_inline void srv_note_local(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;
	struct srv_base *base;
	struct tcp_sock *tp;
	__u64 cookie;

	if (ops->op == BPF_SOCK_OPS_STATE_CB)
		srv_leave_local(ops);
	if (ops->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB || (ops->family != SRV_AF_INET && ops->family != SRV_AF_INET6) ||
	    bpf_ntohl(ops->remote_port) != srv_config.port || !sk || bpf_get_netns_cookie(ops) != srv_config.netns)
		return;
	tp = bpf_skc_to_tcp_sock(sk);
	base = bpf_sk_storage_get(&srv_bases, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!tp || !base)
		return;
	base->seq = tp->write_seq;
	base->valid = 1;
	cookie = bpf_get_socket_cookie(ops);
	if (!bpf_sock_hash_update(ops, &srv_locals, &cookie, BPF_ANY))
		bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
}

#endif
