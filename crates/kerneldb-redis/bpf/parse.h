/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Finds one command in the request bytes: a RESP array of up to four bulk strings, a longer one if its command may
 * have more, or an inline command of up to four words without quotes. A request that is longer, incomplete or invalid
 * goes to the event loop, whose parser knows the whole protocol.
 *
 * Requests are read in words of eight bytes, which may lie beyond the packet, where the buffer has old
 * bytes. So a parsed command counts only once its end was compared with the packet's length.
 * Positions are below SRV_CHUNK and every access is masked to that, so that the verifier sees bounds.
 */
#ifndef BEDPLATE_SERVER_PARSE_H
#define BEDPLATE_SERVER_PARSE_H

#include "maps.h"
#include "names.h"

#define SRV_AT(in, p) ((in)->bytes[(p) & (SRV_CHUNK - 1)])

/* Eight bytes at `p`, the first in the lowest bits. */
static __always_inline __u64 srv_word(struct srv_input *in, __u32 p)
{
	return *word_of(&SRV_AT(in, p));
}

#define SRV_ONES 0x0101010101010101ull
#define SRV_CRLF ('\r' | '\n' << 8)

/*
 * Reads a decimal of one to five digits and its CR LF at `p`, all in one word: value << 32 | position after
 * it, or 0.
 */
__noinline __u64 srv_number(struct srv_input *in, __u32 p)
{
	__u64 word, ends, digits;
	__u32 n;

	if (!in)
		return 0;
	word = srv_word(in, p);
	ends = word ^ '\r' * SRV_ONES;
	ends = (ends - SRV_ONES) & ~ends & 0x80 * SRV_ONES;
	if (ends & 0x8000)
		n = 1;
	else if (ends & 0x800000)
		n = 2;
	else if (ends & 0x80000000)
		n = 3;
	else if (ends & 0x8000000000)
		n = 4;
	else if (ends & 0x800000000000)
		n = 5;
	else
		return 0;
	if ((__u8)(word >> (8 * n + 8)) != '\n')
		return 0;
	if (n > 1 && (__u8)word == '0')
		return 0;
	/* Pads the digits to eight with zeros in front. */
	digits = (word << (64 - 8 * n) | '0' * SRV_ONES >> 8 * n) - '0' * SRV_ONES;
	if ((digits | (digits + 0x76 * SRV_ONES)) & 0x80 * SRV_ONES)
		return 0;
	digits = (digits * 10 + (digits >> 8)) & 0x00ff00ff00ff00ff;
	digits = (digits * 100 + (digits >> 16)) & 0x0000ffff0000ffff;
	digits = (digits * 10000 + (digits >> 32)) & 0xffffffff;
	return digits << 32 | (p + n + 2);
}

/* Parses the bulk string at `p`: its bytes are at `*at`. Returns the position after it, or 0. */
static __always_inline __u32 srv_parse_bulk(struct srv_input *in, __u32 p, __u32 *at, __u32 *len)
{
	__u64 n;

	if (SRV_AT(in, p) != '$')
		return 0;
	n = srv_number(in, p + 1);
	*len = n >> 32;
	*at = p = (__u32)n;
	if (!n || *len > SRV_CARRIER_MAX || p + *len + 2 > in->len)
		return 0;
	p += *len;
	return (__u16)srv_word(in, p) == SRV_CRLF ? p + 2 : 0;
}

/* Parses the RESP array at `p`; returns the position after it, or 0. */
__noinline __u32 srv_parse_array(struct srv_input *in, struct srv_command *c, __u32 p)
{
	__u32 nargs;
	__u64 n;

	if (!in || !c)
		return 0;
	n = srv_word(in, p);
	nargs = (__u8)(n >> 8) - '0';
	if ((__u16)(n >> 16) != SRV_CRLF || nargs < 1 || nargs > 4)
		return 0;
	c->nargs = nargs;
	p += 4;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		if (i >= nargs)
			break;
		p = srv_parse_bulk(in, p, &c->arg[i], &c->arglen[i]);
		if (!p)
			return 0;
	}
	return p;
}

/* The command that argument 0 names: enum srv_call, or SRV_CALLS. */
__noinline __u32 srv_command_named(struct srv_input *in, const struct srv_command *c)
{
	__u32 len;

	if (!in || !c)
		return SRV_CALLS;
	len = c->arglen[0];
	if (len < 1 || len > 8)
		return SRV_CALLS;
	return srv_find((srv_word(in, c->arg[0]) | 0x2020202020202020ull) & ~0ull >> (64 - 8 * len));
}

/*
 * Parses an array with more arguments than srv_parse_array() has room for, if its command may have them. `c` gets the
 * first ones. Returns the position after it, or 0.
 */
__noinline __u32 srv_parse_long(struct srv_input *in, struct srv_command *c, __u32 p)
{
	__u32 i, nargs, at, len, end = 0;
	__u64 n;

	if (!in || !c)
		return 0;
	n = srv_number(in, p + 1);
	nargs = n >> 32;
	p = (__u32)n;
	if (!n || nargs <= 4 || nargs > SRV_ARGUMENTS)
		return 0;
	c->nargs = nargs;
	bpf_for(i, 0, SRV_ARGUMENTS) {
		p = srv_parse_bulk(in, p, &at, &len);
		if (!p)
			return 0;
		if (i < 4) {
			c->arg[i & 3] = at;
			c->arglen[i & 3] = len;
		}
		if (i == 0 && !SRV_IS(srv_command_named(in, c), SRV_LONG))
			return 0;
		if (i + 1 == nargs) {
			end = p;
			break;
		}
	}
	return end;
}

/* Parses the line at `p` into words; returns the position after it, or 0. */
__noinline __u32 srv_parse_inline(struct srv_input *in, struct srv_command *c, __u32 p)
{
	__u32 i, len, nargs = 0, start = 0, end = 0;

	if (!in || !c)
		return 0;
	len = in->len;
	bpf_for(i, 0, 512) {
		__u32 at = p + i;
		__u8 b;

		if (at >= len)
			return 0;
		b = SRV_AT(in, at);
		if (b == '"' || b == '\'')
			return 0;
		if (b > ' ') {
			if (!start)
				start = at + 1;
			continue;
		}
		if (start) {
			if (nargs >= 4)
				return 0;
			c->arg[nargs & 3] = start - 1;
			c->arglen[nargs & 3] = at + 1 - start;
			nargs++;
			start = 0;
		}
		if (b == '\n') {
			end = at + 1;
			break;
		}
		if (b != ' ' && b != '\t' && b != '\r')
			return 0;
	}
	if (!nargs)
		return 0;
	c->nargs = nargs;
	return end;
}

#endif
