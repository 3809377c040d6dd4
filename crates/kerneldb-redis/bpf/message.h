/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* Exchanges the content of a message that is about to be sent. */
#ifndef BEDPLATE_SERVER_MESSAGE_H
#define BEDPLATE_SERVER_MESSAGE_H

#include "maps.h"

/*
 * Makes room for `len` bytes in one piece at the start of the message. The room is the message's own first
 * bytes or, if it is shorter than that, a new page in front of them. Then srv_trim() drops the old bytes.
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

/* Address of byte `q` of the message, with `bytes` writable bytes. If the message is too short, `or_else`
 * leaves the loop or block around the statement expression. */
#define SRV_DATA(msg, q, bytes, or_else)                                                           \
	({                                                                                         \
		void *d = (void *)(long)(msg)->data;                                               \
		opaque(d);                                                                         \
		d += (q);                                                                          \
		if (d + (bytes) > (void *)(long)(msg)->data_end)                                   \
			or_else;                                                                   \
		d;                                                                                 \
	})

/* Copies the word at offset `at`. The compiler must not leave the mask out where it knows more about `at` than the verifier. */
#define SRV_PUT(msg, src, at, type, mask)                                                          \
	({                                                                                         \
		__u32 q = (at);                                                                    \
		opaque(q);                                                                         \
		q &= (mask);                                                                       \
		const type *s = (const type *)&(src)[q];                                           \
		type *to = SRV_DATA(msg, q, sizeof(type), break);                                  \
		opaque(s);                                                                         \
		*to = *s;                                                                          \
	})

/*
 * Copies `len` bytes at `src` to the start of the message. The room at src is `mask` + 1 bytes, a power of
 * two, and enough behind them that a word may begin at each of them. The last word overlaps the one before;
 * only replies shorter than a word are copied in shorter pieces.
 */
#define SRV_FILL(msg, src, len, mask)                                                              \
	do {                                                                                       \
		__u32 whole = (len) / 64, rest = (len) & 63, k;                                    \
		if (whole) {                                                                       \
			bpf_for(k, 0, whole) {                                                     \
				__u32 q = (k * 64) & (mask) & ~63u;                                \
				__u64 *s = (void *)&(src)[q], *d = SRV_DATA(msg, q, 64, break);    \
				d[0] = s[0]; d[1] = s[1]; d[2] = s[2]; d[3] = s[3];                \
				d[4] = s[4]; d[5] = s[5]; d[6] = s[6]; d[7] = s[7];                \
			}                                                                          \
		}                                                                                  \
		for (int w = 0; w < 7; w++) {                                                      \
			if (w * 8 + 8 > rest)                                                      \
				break;                                                             \
			SRV_PUT(msg, src, (len) - rest + w * 8, __u64, mask);                      \
		}                                                                                  \
		if ((len) >= 8) {                                                                  \
			SRV_PUT(msg, src, (len) - 8, __u64, mask);                                 \
		} else if ((len) >= 4) {                                                           \
			SRV_PUT(msg, src, 0, __u32, mask);                                         \
			SRV_PUT(msg, src, (len) - 4, __u32, mask);                                 \
		} else { /* RESP3's null is the shortest reply, 3 bytes */                         \
			SRV_PUT(msg, src, 0, __u16, mask);                                         \
			SRV_PUT(msg, src, (len) - 1, __u8, mask);                                  \
		}                                                                                  \
	} while (0)

#endif
