/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Finds one command in the request bytes: a RESP array of up to four bulk strings, or an inline
 * command of up to four words without quotes. Whatever is more, incomplete or wrong is not judged
 * here: it goes to the event loop, whose parser knows the whole protocol.
 *
 * Positions are below SRV_CHUNK and every access is masked to that, so that the verifier sees bounds;
 * a position is compared with the packet's length before its byte is believed.
 */
#ifndef BEDPLATE_SERVER_PARSE_H
#define BEDPLATE_SERVER_PARSE_H

#include "maps.h"

#define SRV_AT(in, p) ((in)->bytes[SRV_HEAD + ((p) & (SRV_CHUNK - 1))])

/* Reads a decimal of one to five digits and its CR LF at `p`: value << 32 | position after it, or 0. */
__noinline __u64 srv_number(struct srv_input *in, __u32 p)
{
	__u32 v = 0;

	if (!in)
		return 0;
	for (int i = 0; i < 6; i++) {
		__u8 c = SRV_AT(in, p + i);
		if (c == '\r') {
			__u32 next = p + i + 2;
			if (i == 0 || next > in->len || SRV_AT(in, p + i + 1) != '\n')
				return 0;
			return (__u64)v << 32 | next;
		}
		if (c < '0' || c > '9')
			return 0;
		v = v * 10 + (c - '0');
	}
	return 0;
}

/* Parses the RESP array at in->pos into in->arg; returns the position after it, or 0. */
__noinline __u32 srv_parse_array(struct srv_input *in)
{
	__u32 p, nargs, i;
	__u64 n;

	if (!in)
		return 0;
	n = srv_number(in, in->pos + 1);
	nargs = n >> 32;
	p = (__u32)n;
	if (!n || nargs < 1 || nargs > 4)
		return 0;
	in->nargs = nargs;
	bpf_for(i, 0, nargs) {
		__u32 len, k = i & 3;

		if (p >= in->len || SRV_AT(in, p) != '$')
			return 0;
		n = srv_number(in, p + 1);
		len = n >> 32;
		p = (__u32)n;
		if (!n || len > SRV_CARRIER_MAX || p + len + 2 > in->len)
			return 0;
		in->arg[k] = p;
		in->arglen[k] = len;
		p += len;
		if (SRV_AT(in, p) != '\r' || SRV_AT(in, p + 1) != '\n')
			return 0;
		p += 2;
	}
	return p;
}

/* Parses the line at in->pos into words; returns the position after it, or 0. */
__noinline __u32 srv_parse_inline(struct srv_input *in)
{
	__u32 i, p, len, nargs = 0, start = 0, end = 0;

	if (!in)
		return 0;
	p = in->pos;
	len = in->len;
	bpf_for(i, 0, 512) {
		__u32 at = p + i;
		__u8 c;

		if (at >= len)
			return 0;
		c = SRV_AT(in, at);
		if (c == '"' || c == '\'')
			return 0;
		if (c > ' ') {
			if (!start)
				start = at + 1;
			continue;
		}
		if (start) {
			if (nargs >= 4)
				return 0;
			in->arg[nargs & 3] = start - 1;
			in->arglen[nargs & 3] = at + 1 - start;
			nargs++;
			start = 0;
		}
		if (c == '\n') {
			end = at + 1;
			break;
		}
		if (c != ' ' && c != '\t' && c != '\r')
			return 0;
	}
	if (!nargs)
		return 0;
	in->nargs = nargs;
	return end;
}

#endif
