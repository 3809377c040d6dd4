/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Writes replies behind one another into the output buffer. Callers keep in->opos within
 * SRV_REPLY_MAX and make sure that SRV_REPLY_MIN bytes are left, which every short reply fits in.
 */
#ifndef BEDPLATE_SERVER_REPLY_H
#define BEDPLATE_SERVER_REPLY_H

#include <bedplate/numbers.h>
#include "parse.h"

#define SRV_REPLY_MIN 128u
#define SRV_SHORT 64u /* values up to this length are copied without a call */
_Static_assert(KDB_TX_LOCKS == 128 && KDB_TX_BYTES == 16777216 && KDB_CHAIN_MAX == 256,
	        "srv_say_error says so");

/* Address of byte `o` of the replies, as a word; the buffer is twice as long as the replies. */
#define SRV_TO(out, o)                                                                             \
	({                                                                                         \
		__u64 *to = (__u64 *)&(out)->bytes[(o) & (SRV_REPLY_MAX - 1)];                     \
		opaque(to);                                                                        \
		to;                                                                                \
	})

/* Appends a string literal of at most SRV_REPLY_MIN - 8 bytes. */
#define SRV_SAY(in, out, text)                                                                     \
	({                                                                                         \
		__u8 *to = &(out)->bytes[(in)->opos & (SRV_REPLY_MAX - 1)];                        \
		__builtin_memcpy(to, text, sizeof(text) - 1);                                      \
		(in)->opos += sizeof(text) - 1;                                                    \
	})

/* Appends null. It is the only reply of the kernel's commands that differs between RESP2 and RESP3. */
static __always_inline void srv_say_null(struct srv_input *in, struct srv_output *out)
{
	if (in->flags & SRV_CONN_RESP3)
		SRV_SAY(in, out, "_\r\n");
	else
		SRV_SAY(in, out, "$-1\r\n");
}

/* Appends `mark`, a number of at most five digits, and CR LF. */
static __always_inline void srv_say_count(struct srv_input *in, struct srv_output *out, char mark, __u32 n)
{
	__u32 digits = n >= 10000 ? 5 : n >= 1000 ? 4 : n >= 100 ? 3 : n >= 10 ? 2 : 1;
	__u64 text = SRV_CRLF;

	for (int i = 5; i > 0; i--) {
		if (i > digits)
			continue;
		text = text << 8 | ('0' + n % 10);
		n /= 10;
	}
	*SRV_TO(out, in->opos) = text << 8 | mark;
	in->opos += 3 + digits;
}

/* Appends an integer. */
__noinline int srv_say_integer(struct srv_input *in, struct srv_output *out, __s64 number)
{
	__u64 size = number < 0 ? -(__u64)number : number;
	__u32 o;

	if (!in || !out)
		return 0;
	o = in->opos;
	out->bytes[o++ & (SRV_REPLY_MAX - 1)] = ':';
	if (number < 0)
		out->bytes[o++ & (SRV_REPLY_MAX - 1)] = '-';
	o += kdb_decimal_digits(size);
	*SRV_TO(out, o) = SRV_CRLF;
	kdb_put_decimal(out->bytes, SRV_REPLY_MAX - 1, o, size);
	in->opos = o + 2;
	return 0;
}

/* Appends the command layer's reply to an error that has failed the transaction (exec.rs, error_reply). A full log
 * ring does not fail it. */
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
	case KDB_ERR_WAL_FAILED:
		SRV_SAY(in, out, "-MISCONF the write-ahead log cannot be written: the database is read-only\r\n");
		break;
	case KDB_ERR_CHAIN:
		SRV_SAY(in, out, "-ERR the key's hash chain is full: 256 keys have the same bucket\r\n");
		break;
	case KDB_ERR_TOO_MANY_LOCKS:
		SRV_SAY(in, out, "-ERR the transaction touches more than 128 keys\r\n");
		break;
	case KDB_ERR_TX_TOO_LARGE:
		SRV_SAY(in, out, "-ERR the transaction writes more than 16777216 bytes\r\n");
		break;
	case KDB_ERR_SNAPSHOT_TOO_OLD:
		SRV_SAY(in, out, "-TXFAILED the snapshot is too old: a writer needed its versions\r\n");
		break;
	case KDB_ERR_TX_TIMED_OUT:
		SRV_SAY(in, out, "-TXFAILED the transaction exceeded its time limit and was rolled back\r\n");
		break;
	case KDB_ERR_BUSY:
		SRV_SAY(in, out, "-TRYAGAIN busy, retry\r\n");
		break;
	default:
		SRV_SAY(in, out, "-TXFAILED the transaction has failed and can only be rolled back\r\n");
	}
	return 0;
}

/* Appends the value in an I/O buffer as a bulk string. Returns 0, or -1 if it does not fit; then nothing is
 * appended. It stores whole words; the next reply overwrites the excess bytes. */
__noinline int srv_say_bulk(struct srv_input *in, struct srv_output *out, struct kdb_io *io)
{
	__u64 head;
	__u32 o, n;

	if (!in || !out || !io)
		return -1;
	o = in->opos;
	n = io->vlen;
	if (n > SRV_REPLY_MAX || o + n + 16 > in->limit)
		return -1;
	if (n < 10) {
		head = '$' | ('0' + n) << 8 | SRV_CRLF << 16;
		*SRV_TO(out, o) = head;
		o += 4;
	} else if (n < 100) {
		head = '$' | ('0' + n / 10) << 8 | ('0' + n % 10) << 16;
		*SRV_TO(out, o) = head | (__u64)SRV_CRLF << 24;
		o += 5;
	} else {
		__u32 digits = n >= 10000 ? 5 : n >= 1000 ? 4 : 3, v = n;

		head = SRV_CRLF;
		for (int i = 5; i > 0; i--) {
			if (i > digits)
				continue;
			head = head << 8 | ('0' + v % 10);
			v /= 10;
		}
		*SRV_TO(out, o) = head << 8 | '$';
		o += 3 + digits;
	}
	if (n <= SRV_SHORT) {
#pragma unroll
		for (int i = 0; i < SRV_SHORT / 8; i++) {
			if (i * 8 >= n)
				break;
			*SRV_TO(out, o + i * 8) = *word_of(&io->val[i * 8]);
		}
	} else {
		opaque(n);
		if (n < 1 || n > SRV_REPLY_MAX - 1)
			return -1;
		bpf_probe_read_kernel(SRV_TO(out, o), n, io->val);
	}
	o += n;
	*SRV_TO(out, o) = SRV_CRLF;
	in->opos = o + 2;
	return 0;
}

#endif
