/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* Exchanging the content of a message that is about to be sent. */
#ifndef BEDPLATE_SERVER_MESSAGE_H
#define BEDPLATE_SERVER_MESSAGE_H

#include "maps.h"

/*
 * Makes room for `len` bytes in one piece at the start of the message: either its own first bytes or, if
 * it is shorter than that, a new page in front of them. Then srv_trim() drops what was there before.
 */
static __always_inline int srv_open(struct sk_msg_md *msg, __u32 from, __u32 len)
{
	if (len > from && bpf_msg_push_data(msg, 0, len, 0))
		return -1;
	return bpf_msg_pull_data(msg, 0, len, 0) ? -1 : 0;
}

static __always_inline int srv_trim(struct sk_msg_md *msg, __u32 from, __u32 len)
{
	if (len > from)
		return bpf_msg_pop_data(msg, len, from, 0) ? -1 : 0;
	return len < from && bpf_msg_pop_data(msg, len, from - len, 0) ? -1 : 0;
}

/* Copies `len` bytes at `src`, which has room for SRV_REPLY_BUF or, if `small`, SRV_INLINE_BYTES. */
#define SRV_FILL(msg, src, len, mask)                                                              \
	({                                                                                         \
		__u32 whole = (len) / 64, at, k;                                                   \
		bpf_for(k, 0, whole) {                                                             \
			__u32 q = (k * 64) & (mask) & ~63u;                                        \
			__u64 *d = (void *)(long)(msg)->data, *s = (void *)&(src)[q];              \
			asm volatile("" : "+r"(d));                                                \
			d = (void *)d + q;                                                         \
			if ((void *)(d + 8) > (void *)(long)(msg)->data_end)                       \
				break;                                                             \
			d[0] = s[0]; d[1] = s[1]; d[2] = s[2]; d[3] = s[3];                        \
			d[4] = s[4]; d[5] = s[5]; d[6] = s[6]; d[7] = s[7];                        \
		}                                                                                  \
		at = whole * 64;                                                                   \
		bpf_for(k, at, (len)) {                                                            \
			__u32 q = k & (mask);                                                      \
			__u8 *d = (void *)(long)(msg)->data;                                       \
			asm volatile("" : "+r"(d));                                                \
			d += q;                                                                    \
			if ((void *)(d + 1) > (void *)(long)(msg)->data_end)                       \
				break;                                                             \
			*d = (src)[q];                                                             \
		}                                                                                  \
	})

#endif
