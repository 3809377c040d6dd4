/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The Redis-protocol server in the kernel (paper 5.2): programs on the sockets that the event loop
 * accepted and put into srv_socks.
 *
 * A socket map's programs are bound to a socket when it is inserted. Therefore only trampolines are
 * attached; the server proper is behind program arrays and can be exchanged while connections stay.
 *
 * A program can use one arena only, so this object is loaded once for every partition. The programs of the
 * first partition begin a run; the keys decide which programs continue it (run.h).
 */
#include <bedplate/kdb.h>
#include "receive.h"
#include "send.h"

SEC("sk_skb/verdict")
int srv_verdict(struct __sk_buff *skb)
{
	return srv_receive(skb);
}

SEC("sk_skb/verdict")
int srv_verdict_on(struct __sk_buff *skb)
{
	return srv_receive_on(skb);
}

SEC("sk_skb/verdict")
int srv_verdict_exec(struct __sk_buff *skb)
{
	return srv_receive_exec(skb);
}

SEC("sk_skb/verdict")
int srv_verdict_paused(struct __sk_buff *skb)
{
	return srv_receive_paused(skb);
}

SEC("sk_msg")
int srv_sender(struct sk_msg_md *msg)
{
	return srv_send(msg);
}

/* A packet without a program behind it would get no answer, and the connection would hang. Dropping it is
 * right only because the loader fills the arrays before the first socket is inserted. */
SEC("sk_skb/verdict")
int srv_verdict_entry(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &srv_verdicts, 0);
	return SK_DROP;
}

SEC("sk_msg")
int srv_sender_entry(struct sk_msg_md *msg)
{
	bpf_tail_call(msg, &srv_senders, 0);
	return SK_DROP;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
