/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The sockets of the kernel as far as the server looks into them. Field offsets are relocated when the programs
 * are loaded (CO-RE), so only names matter here.
 */
#ifndef BEDPLATE_SERVER_SOCK_H
#define BEDPLATE_SERVER_SOCK_H

#include <bpf/bpf_core_read.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sock_common {
	volatile unsigned char skc_state;
	struct { __s64 counter; } skc_cookie;
};

struct sock {
	struct sock_common __sk_common;
	int sk_wmem_queued;
	int sk_sndbuf;
	void *sk_user_data;
};

struct tcp_sock {
	__u32 write_seq;
	__u32 copied_seq;
	__u32 rcv_nxt;
};

struct list_head {
	struct list_head *next;
};

struct sk_psock {
	struct list_head ingress_msg;
};

struct sk_buff {
	unsigned int data_len;
	unsigned int end;
	unsigned char *head;
	unsigned int len;
};

struct skb_shared_info {
	__u8 nr_frags;
	struct sk_buff *frag_list;
};

#pragma clang attribute pop

extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak;

#define SRV_AF_INET 2u
#define SRV_AF_INET6 10u
#define SRV_MAPPED 0xffff0000u /* third word of an IPv4 address in IPv6 form */
#define SRV_TCP_CLOSE 7 /* TCP_CLOSE */

#endif
