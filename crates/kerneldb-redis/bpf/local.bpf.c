/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The local fast path's programs. One runs for every process of the cgroup and notices connections to the
 * server. One is on those connections' sockets, behind a trampoline as in server.bpf.c.
 */
#include <bedplate/kdb.h>
#include <bpf/bpf_endian.h>
#include "local.h"

SEC("sockops")
int srv_sockops(struct bpf_sock_ops *ops)
{
	srv_note_local(ops);
	return 1;
}

SEC("sk_msg")
int srv_local_sender(struct sk_msg_md *msg)
{
	return srv_local(msg);
}

SEC("sk_msg")
int srv_local_sender_on(struct sk_msg_md *msg)
{
	return srv_local_on(msg);
}

SEC("sk_msg")
int srv_local_sender_exec(struct sk_msg_md *msg)
{
	return srv_local_exec(msg);
}

SEC("sk_msg")
int srv_local_entry(struct sk_msg_md *msg)
{
	bpf_tail_call(msg, &srv_senders, 1);
	return SK_PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
