/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Handing request bytes to the event loop. Bytes that find no room in the ring buffer are lost, and a
 * stream with a hole must not go on: the connection is then broken and the event loop closes it.
 */
#ifndef BEDPLATE_SERVER_HANDOVER_H
#define BEDPLATE_SERVER_HANDOVER_H

#include "claim.h"

_Static_assert(sizeof(struct srv_record) == sizeof(((struct srv_queue *)0)->head), "fits");

/* Like the others here not inlined: what calls it needs its stack for the engine. */
__noinline int srv_break(struct srv_conn *conn, __u32 idx, __u32 why)
{
	struct srv_stats *stats = srv_count();
	struct srv_record r = { .conn = idx, .kind = SRV_BROKEN };

	if (!conn || conn->broken)
		return 0;
	r.generation = conn->generation;
	conn->broken = why;
	if (stats)
		stats->broken++;
	/* Without room for this record the event loop finds `broken` when it looks around. */
	bpf_ringbuf_output(&srv_records, &r, sizeof(r), BPF_RB_FORCE_WAKEUP);
	return 0;
}

static __always_inline void srv_count_handed(__u32 bytes)
{
	struct srv_stats *stats = srv_count();

	if (stats) {
		stats->handed++;
		stats->handed_bytes += bytes;
	}
}

/* Within MULTI: hands the queue over first. */
__noinline int srv_hand_queue(struct srv_conn *conn, __u32 idx)
{
	struct srv_queue *q;
	struct srv_record *r;
	__u32 n;

	if (!conn || !conn->queue)
		return 0;
	q = SRV_LOOKUP(srv_queues, conn->queue - 1);
	if (!q)
		return 0;
	n = q->len;
	r = (struct srv_record *)q->head;
	r->conn = idx;
	r->generation = conn->generation;
	r->kind = SRV_QUEUED;
	r->len = n;
	r->handed = conn->handed + 1;
	*(volatile __u64 *)&conn->handed = conn->handed + 1;
	opaque(n);
	if (n > SRV_QUEUE_BYTES || bpf_ringbuf_output(&srv_records, r, n + SRV_HEAD, 0))
		srv_break(conn, idx, SRV_RECORDS_FULL);
	conn->queue = 0;
	SRV_RELEASE(q);
	return 0;
}

/* Hands over what is left in `in` from in->pos on. */
__noinline int srv_hand_rest(struct srv_input *in, struct srv_conn *conn, __u32 idx)
{
	struct srv_record *r;
	__u32 pos, n;

	if (!in || !conn)
		return 0;
	if (conn->queue)
		srv_hand_queue(conn, idx);
	pos = in->pos & (SRV_CHUNK - 1);
	n = in->len - in->pos;
	/* The bytes before `pos` are done with: the header goes right in front of the rest. */
	r = (struct srv_record *)&in->bytes[pos];
	r->conn = idx;
	r->generation = conn->generation;
	r->kind = SRV_BYTES;
	r->len = n;
	r->handed = conn->handed + 1;
	*(volatile __u64 *)&conn->handed = conn->handed + 1;
	srv_count_handed(n);
	if (n > SRV_CARRIER_MAX ||
	    bpf_ringbuf_output(&srv_records, r, n + SRV_HEAD, 0))
		srv_break(conn, idx, SRV_RECORDS_FULL);
	return 0;
}

/* One record with `n` bytes of the packet from `at` on, in a reservation of fixed size. */
#define SRV_HAND(skb, conn, idx, at, n, size)                                                      \
	({                                                                                         \
		int ok = -1;                                                                       \
		struct srv_record *r = bpf_ringbuf_reserve(&srv_records, sizeof(*r) + (size), 0);  \
		if (r) {                                                                           \
			r->conn = (idx);                                                           \
			r->generation = (conn)->generation;                                        \
			r->kind = SRV_BYTES;                                                       \
			r->len = (n);                                                              \
			r->handed = (conn)->handed + 1;                                            \
			ok = bpf_skb_load_bytes(skb, at, r + 1, n);                                \
			if (ok) {                                                                  \
				bpf_ringbuf_discard(r, 0);                                         \
			} else {                                                                   \
				*(volatile __u64 *)&(conn)->handed = (conn)->handed + 1;           \
				bpf_ringbuf_submit(r, 0);                                          \
			}                                                                          \
		}                                                                                  \
		ok;                                                                                \
	})

/* Hands over a whole packet. */
__noinline int srv_hand_packet(struct __sk_buff *skb, struct srv_conn *conn, __u32 idx)
{
	__u32 len = skb->len, at = 0, i;
	int ok = 0;

	if (!conn)
		return 0;
	if (conn->queue)
		srv_hand_queue(conn, idx);
	bpf_for(i, 0, 64) {
		__u32 n = len - at;

		if (at >= len || ok)
			break;
		if (n > SRV_CHUNK)
			n = SRV_CHUNK;
		asm volatile("" : "+r"(n));
		if (n < 1 || n > SRV_CHUNK)
			break;
		if (n <= 256)
			ok = SRV_HAND(skb, conn, idx, at, n, 256);
		else if (n <= 4096)
			ok = SRV_HAND(skb, conn, idx, at, n, 4096);
		else if (n <= 16384)
			ok = SRV_HAND(skb, conn, idx, at, n, 16384);
		else
			ok = SRV_HAND(skb, conn, idx, at, n, SRV_CHUNK);
		at += n;
		srv_count_handed(n);
	}
	if (ok || at < len)
		srv_break(conn, idx, SRV_RECORDS_FULL);
	return 0;
}

#endif
