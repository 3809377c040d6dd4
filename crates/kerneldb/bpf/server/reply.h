/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Writes replies (RESP2) behind one another into the output buffer. Callers keep in->opos within
 * SRV_REPLY_MAX and make sure that SRV_REPLY_MIN bytes are left, which every short reply fits in.
 */
#ifndef BEDPLATE_SERVER_REPLY_H
#define BEDPLATE_SERVER_REPLY_H

#include "maps.h"

#define SRV_REPLY_MIN 128u
_Static_assert(KDB_TX_LOCKS == 128, "srv_say_error says so");

/* Appends a string literal of at most SRV_REPLY_MIN - 8 bytes. */
#define SRV_SAY(in, out, text)                                                                     \
	({                                                                                         \
		__u8 *to = &(out)->bytes[(in)->opos & (SRV_REPLY_MAX - 1)];                        \
		__builtin_memcpy(to, text, sizeof(text) - 1);                                      \
		(in)->opos += sizeof(text) - 1;                                                    \
	})

/* Appends what the command layer says about an error of the engine (exec.rs, error_reply). */
__noinline int srv_say_error(struct srv_input *in, struct srv_output *out, int status)
{
	if (!in || !out)
		return -1;
	switch (status) {
	case KDB_ERR_CONFLICT:
		SRV_SAY(in, out, "-CONFLICT conflict with another transaction\r\n");
		break;
	case KDB_ERR_NO_MEMORY:
		SRV_SAY(in, out, "-OOM command not allowed when used memory > 'maxmemory'.\r\n");
		break;
	case KDB_ERR_NO_VERSION:
		SRV_SAY(in, out, "-TRYAGAIN all versions of the key are in use by read-only transactions\r\n");
		break;
	case KDB_ERR_WAL_FULL:
		SRV_SAY(in, out, "-TRYAGAIN the write-ahead log ring is full\r\n");
		break;
	case KDB_ERR_WAL_FAILED:
		SRV_SAY(in, out, "-MISCONF the write-ahead log cannot be written: the database is read-only\r\n");
		break;
	case KDB_ERR_TOO_MANY_LOCKS:
		SRV_SAY(in, out, "-ERR the transaction touches more than 128 keys\r\n");
		break;
	case KDB_ERR_BUSY:
		SRV_SAY(in, out, "-TRYAGAIN busy, retry\r\n");
		break;
	default:
		SRV_SAY(in, out, "-TXFAILED the transaction has failed and can only be rolled back\r\n");
	}
	return 0;
}

/* Appends a bulk string; 0, or -1 (and nothing is appended) if it does not fit. */
__noinline int srv_say_bulk(struct srv_input *in, struct srv_output *out, struct kdb_io *io)
{
	__u32 o, n, digits, v;

	if (!in || !out || !io)
		return -1;
	o = in->opos;
	n = io->vlen;
	if (n > SRV_REPLY_MAX || o + n + 16 > in->limit)
		return -1;
	digits = n >= 10000 ? 5 : n >= 1000 ? 4 : n >= 100 ? 3 : n >= 10 ? 2 : 1;
	out->bytes[o & (SRV_REPLY_MAX - 1)] = '$';
	v = n;
	for (int i = 5; i > 0; i--) {
		if (i > digits)
			continue;
		out->bytes[(o + i) & (SRV_REPLY_MAX - 1)] = '0' + v % 10;
		v /= 10;
	}
	o += 1 + digits;
	out->bytes[o & (SRV_REPLY_MAX - 1)] = '\r';
	out->bytes[(o + 1) & (SRV_REPLY_MAX - 1)] = '\n';
	o += 2;
	if (n) {
		asm volatile("" : "+r"(n));
		if (n > SRV_REPLY_MAX - 1)
			return -1;
		bpf_probe_read_kernel(&out->bytes[o & (SRV_REPLY_MAX - 1)], n, io->val);
	}
	o += n;
	out->bytes[o & (SRV_REPLY_MAX - 1)] = '\r';
	out->bytes[(o + 1) & (SRV_REPLY_MAX - 1)] = '\n';
	in->opos = o + 2;
	return 0;
}

#endif
