/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Gives the turn on a connection to the event loop (layout.h states the rules). Nothing here can fail for lack
 * of room: a signal is a bit, and everything else was claimed before the first command had an effect.
 */
#ifndef BEDPLATE_SERVER_HANDOVER_H
#define BEDPLATE_SERVER_HANDOVER_H

#include "claim.h"

/* Raises a connection's signal. This and the functions below are not inlined, because their callers need the
 * stack for the engine. */
__noinline int srv_signal(__u32 idx)
{
	__u64 bit = 1ull << (idx % SRV_SIGNAL_BITS), record = idx;
	__u64 *word = SRV_LOOKUP(srv_signals, idx / SRV_SIGNAL_BITS);

	if (word && !(__sync_fetch_and_or(word, bit) & bit))
		bpf_ringbuf_output(&srv_bell, &record, sizeof(record), 0);
	return 0;
}

/* Gives a connection up: the event loop closes it. */
__noinline int srv_break(struct srv_conn *conn, __u32 idx, __u32 why)
{
	struct srv_stats *stats = srv_count();

	if (!conn || conn->broken)
		return 0;
	conn->broken = why;
	if (stats)
		stats->broken++;
	srv_signal(idx);
	return 0;
}

static __always_inline void srv_count_passed(__u32 bytes)
{
	struct srv_stats *stats = srv_count();

	if (stats) {
		stats->passed++;
		stats->passed_bytes += bytes;
	}
}

/* Leaves the replies made in `in`, and the number of request bytes they answer, to the event loop. The
 * caller must call srv_begin_turn() next. */
static __always_inline void srv_leave_replies(struct srv_conn *conn, struct srv_input *in)
{
	if (!in->opos)
		return;
	conn->skip = in->pos;
	conn->replies_len = in->opos;
	conn->replies = in->out;
	in->out = 0; /* the event loop owns it now */
}

/* Ends the verdict's turn: begins the event loop's turn and passes it `len` bytes. */
__noinline int srv_begin_turn(struct srv_conn *conn, __u32 idx, __u32 len)
{
	if (!conn)
		return 0;
	__sync_fetch_and_add(&conn->turn, SRV_TURN_BYTE * len + SRV_TURN_SERVER);
	srv_signal(idx);
	return 0;
}

/* Whether it is the event loop's turn. If so, passes `len` bytes to the event loop. */
static __always_inline int srv_pass_in_turn(struct srv_conn *conn, __u32 len)
{
	__u64 turn = *(volatile __u64 *)&conn->turn;

	return turn & SRV_TURN_SERVER &&
	       __sync_val_compare_and_swap(&conn->turn, turn, turn + SRV_TURN_BYTE * len) == turn;
}

#endif
