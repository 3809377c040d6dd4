/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Arguments of the command that is executed: keys, values, integers, points in time and options. A function that cannot
 * take an argument returns -1, and the event loop gets the command: it knows every form and every error.
 */
#ifndef BEDPLATE_SERVER_ARGUMENTS_H
#define BEDPLATE_SERVER_ARGUMENTS_H

#include "claim.h"
#include "names.h"
#include "parse.h"
#include "reply.h"

/* The command being executed. */
#define SRV_COMMAND(in) (&(in)->cmds[(in)->cmd & (SRV_BATCH - 1)])

/* Copies the `len` bytes at `p` into the key buffer, padded with zeros; 0, or -1 if they are no key. */
static __always_inline int srv_take_key_at(struct srv_input *in, __u32 p, __u32 len)
{
	__u64 last;

	if (len < 1 || len > KDB_KEY_MAX)
		return -1;
	in->io.klen = len;
	last = srv_word(in, p + ((len - 1) & ~7u)) & ~0ull >> (-len & 7) * 8;
	if (len > 8 && len <= 32) {
		*(__u64 *)&in->io.key[0] = srv_word(in, p);
		if (len > 16)
			*(__u64 *)&in->io.key[8] = srv_word(in, p + 8);
		if (len > 24)
			*(__u64 *)&in->io.key[16] = srv_word(in, p + 16);
	} else if (len > 8) {
		bpf_probe_read_kernel(in->io.key, len, &SRV_AT(in, p));
	}
	*(__u64 *)&in->io.key[(len - 1) & 0xf8] = last;
	return 0;
}

/* The same with argument 1. */
static __always_inline int srv_take_key(struct srv_input *in, const struct srv_command *c)
{
	return srv_take_key_at(in, c->arg[1], c->arglen[1]);
}

/* Copies the `len` bytes at `p` into the value buffer; 0, or -1 if they are too long. */
static __always_inline int srv_take_value_at(struct srv_input *in, __u32 p, __u32 len)
{
	in->io.vlen = len;
	if (len <= SRV_SHORT) {
#pragma unroll
		for (int i = 0; i < SRV_SHORT / 8; i++) {
			if (i * 8 >= len)
				break;
			*(__u64 *)&in->io.val[i * 8] = srv_word(in, p + i * 8);
		}
		return 0;
	}
	opaque(len);
	if (len < 1 || len > SRV_CARRIER_MAX)
		return -1;
	bpf_probe_read_kernel(in->io.val, len, &SRV_AT(in, p));
	return 0;
}

/* The same with argument 2. */
static __always_inline int srv_take_value(struct srv_input *in, const struct srv_command *c)
{
	return srv_take_value_at(in, c->arg[2], c->arglen[2]);
}

/*
 * Finds argument `i` of a command: in->argument_at and in->argument_len. The arguments from 3 on have to be visited
 * in order. Those behind the first four are found by the length in front of each; the parser has seen that they are
 * complete. 0, or -1.
 */
__noinline int srv_argument(struct srv_input *in, struct srv_command *c, __u32 i)
{
	__u64 number;

	if (!in || !c)
		return -1;
	if (i < 4) {
		in->argument_at = c->arg[i & 3];
		in->argument_len = c->arglen[i & 3];
	} else {
		number = srv_number(in, in->argument_end + 1);
		in->argument_at = (__u32)number;
		in->argument_len = number >> 32;
	}
	in->argument_end = in->argument_at + in->argument_len + 2;
	return in->argument_at ? 0 : -1;
}

#define SRV_INTEGER_BYTES 20u /* of the longest decimal of 64 bits and its sign */

/*
 * Reads the integer whose `len` characters are in io.expect: in->number. Only the form that Redis writes is taken: no
 * plus sign, no zero in front, no space. 0, or -1.
 */
__noinline int srv_integer(struct srv_input *in, __u32 len)
{
	__u32 negative, i, digit;
	__u64 n = 0;

	if (!in || len < 1 || len > SRV_INTEGER_BYTES)
		return -1;
	negative = in->io.expect[0] == '-';
	/* 19 digits do not overflow 64 bits without a sign. */
	if (len - negative < 1 || len - negative > 19)
		return -1;
	if (in->io.expect[negative & 1] == '0' && len > 1)
		return -1;
	for (in->step = negative; (i = READ_ONCE(in->step)) < len && few_steps; in->step = i + 1) {
		opaque(i); /* a compiler that knows `len` would leave the mask out */
		digit = in->io.expect[i & 31] - '0';
		if (digit > 9)
			return -1;
		n = n * 10 + digit;
	}
	if (n > (1ull << 63) - 1 + negative)
		return -1;
	in->number = negative ? -n : n;
	return 0;
}

/* Reads the integer of `len` characters at `p`: in->number. It overwrites io.expect. 0, or -1. */
__noinline int srv_take_integer(struct srv_input *in, __u32 p, __u32 len)
{
	if (!in)
		return -1;
	for (int i = 0; i < 3; i++)
		*(__u64 *)&in->io.expect[i * 8] = srv_word(in, p + i * 8);
	return srv_integer(in, len);
}

/* Milliseconds since the Unix epoch; 0 = unknown. */
static __always_inline __u64 srv_now_ms(void)
{
	struct kdb_state *state = kdb_state();

	return state ? now_ms(state) : 0;
}

#define SRV_TIME_MAX 1000000000000000ll /* ms; the event loop deals with later times and longer spans */

/* Kinds of times in commands and options, as bits. */
#define SRV_TIME 1u
#define SRV_TIME_SECONDS 2u
#define SRV_TIME_ABSOLUTE 4u

/* The expiry that the `len` characters at `p` mean: in->io.expire_ms. Returns 0. Returns -1 if it is no valid time,
 * or if the time has passed. */
__noinline int srv_take_expiry(struct srv_input *in, __u32 p, __u32 len, __u32 time)
{
	__s64 at, now = srv_now_ms();

	if (!in || !now || srv_take_integer(in, p, len))
		return -1;
	at = in->number;
	if (at <= 0 || at > (time & SRV_TIME_SECONDS ? SRV_TIME_MAX / 1000 : SRV_TIME_MAX))
		return -1;
	at = (time & SRV_TIME_SECONDS ? at * 1000 : at) + (time & SRV_TIME_ABSOLUTE ? 0 : now);
	if (at <= now)
		return -1;
	in->io.expire_ms = at;
	return 0;
}

/* The options of SET and GETEX, for in->options. */
#define SRV_OPTION_NX 1u
#define SRV_OPTION_XX 2u
#define SRV_OPTION_GET 4u
#define SRV_OPTION_KEEPTTL 8u
#define SRV_OPTION_PERSIST 16u
#define SRV_OPTION_EXPIRY 32u /* EX, PX, EXAT or PXAT: in->io.expire_ms */

/* Argument in->argument_at as a word of lower-case letters, or 0. */
static __always_inline __u64 srv_option_name(struct srv_input *in)
{
	__u32 len = in->argument_len;

	if (len < 1 || len > 8)
		return 0;
	return (srv_word(in, in->argument_at) | 0x2020202020202020ull) & ~0ull >> (64 - 8 * len);
}

/* The option that a name is, if it has no argument of its own; or 0. */
static __always_inline __u32 srv_option(__u64 name, __u32 is_set)
{
	if (name == SRV_NAME('p', 'e', 'r', 's', 'i', 's', 't', 0))
		return is_set ? 0 : SRV_OPTION_PERSIST;
	if (!is_set)
		return 0;
	if (name == SRV_NAME('n', 'x', 0, 0, 0, 0, 0, 0))
		return SRV_OPTION_NX;
	if (name == SRV_NAME('x', 'x', 0, 0, 0, 0, 0, 0))
		return SRV_OPTION_XX;
	if (name == SRV_NAME('g', 'e', 't', 0, 0, 0, 0, 0))
		return SRV_OPTION_GET;
	return name == SRV_NAME('k', 'e', 'e', 'p', 't', 't', 'l', 0) ? SRV_OPTION_KEEPTTL : 0;
}

/* The kind of the option with a time that has this name, or 0. */
static __always_inline __u32 srv_time(__u64 name)
{
	if (name == SRV_NAME('e', 'x', 0, 0, 0, 0, 0, 0))
		return SRV_TIME | SRV_TIME_SECONDS;
	if (name == SRV_NAME('p', 'x', 0, 0, 0, 0, 0, 0))
		return SRV_TIME;
	if (name == SRV_NAME('e', 'x', 'a', 't', 0, 0, 0, 0))
		return SRV_TIME | SRV_TIME_SECONDS | SRV_TIME_ABSOLUTE;
	return name == SRV_NAME('p', 'x', 'a', 't', 0, 0, 0, 0) ? SRV_TIME | SRV_TIME_ABSOLUTE : 0;
}

/* Whether options contradict each other, or are too rare for the kernel. */
static __always_inline int srv_options_conflict(__u32 options)
{
	__u32 conditions = options & (SRV_OPTION_NX | SRV_OPTION_XX | SRV_OPTION_GET);
	__u32 expiries = options & (SRV_OPTION_EXPIRY | SRV_OPTION_KEEPTTL | SRV_OPTION_PERSIST);

	return conditions & (conditions - 1) || expiries & (expiries - 1);
}

/* Reads the options from argument `first` on: in->options, and in->io.expire_ms, which is 0 if they have no time. 0,
 * or -1, also if an option is repeated. */
__noinline int srv_take_options(struct srv_input *in, struct srv_command *c, __u32 first)
{
	__u32 i, option, time = 0, options = 0;
	__u64 name;

	if (!in || !c)
		return -1;
	in->io.expire_ms = 0;
	bpf_for(i, first, SRV_ARGUMENTS) {
		if (i >= c->nargs)
			break;
		if (srv_argument(in, c, i))
			return -1;
		if (time) {
			/* The argument of the option before. */
			if (srv_take_expiry(in, in->argument_at, in->argument_len, time))
				return -1;
			time = 0;
			continue;
		}
		name = srv_option_name(in);
		time = srv_time(name);
		option = time ? SRV_OPTION_EXPIRY : srv_option(name, c->command == SRV_CALL_SET);
		if (!option || options & option)
			return -1;
		options |= option;
	}
	if (time || srv_options_conflict(options))
		return -1;
	in->options = options;
	return 0;
}

#endif
