/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The commands that the kernel answers: their names, and which of them read, write, and may have many arguments.
 * A command is an enum srv_call (layout.h).
 */
#ifndef BEDPLATE_SERVER_NAMES_H
#define BEDPLATE_SERVER_NAMES_H

#include "layout.h"

/* A word of up to eight lower-case letters as it lies in memory. */
#define SRV_NAME(a, b, c, d, e, f, g, h)                                                           \
	((__u64)(a) | (__u64)(b) << 8 | (__u64)(c) << 16 | (__u64)(d) << 24 | (__u64)(e) << 32 |  \
	 (__u64)(f) << 40 | (__u64)(g) << 48 | (__u64)(h) << 56)

/* The command with this name (SRV_NAME), or SRV_CALLS. */
static __always_inline __u32 srv_find(__u64 name)
{
	switch (name) {
	case SRV_NAME('g', 'e', 't', 0, 0, 0, 0, 0):
		return SRV_CALL_GET;
	case SRV_NAME('s', 'e', 't', 0, 0, 0, 0, 0):
		return SRV_CALL_SET;
	case SRV_NAME('d', 'e', 'l', 0, 0, 0, 0, 0):
		return SRV_CALL_DEL;
	case SRV_NAME('p', 'i', 'n', 'g', 0, 0, 0, 0):
		return SRV_CALL_PING;
	case SRV_NAME('b', 'e', 'g', 'i', 'n', 0, 0, 0):
		return SRV_CALL_BEGIN;
	case SRV_NAME('c', 'o', 'm', 'm', 'i', 't', 0, 0):
		return SRV_CALL_COMMIT;
	case SRV_NAME('r', 'o', 'l', 'l', 'b', 'a', 'c', 'k'):
		return SRV_CALL_ROLLBACK;
	case SRV_NAME('m', 'u', 'l', 't', 'i', 0, 0, 0):
		return SRV_CALL_MULTI;
	case SRV_NAME('e', 'x', 'e', 'c', 0, 0, 0, 0):
		return SRV_CALL_EXEC;
	case SRV_NAME('d', 'i', 's', 'c', 'a', 'r', 'd', 0):
		return SRV_CALL_DISCARD;
	case SRV_NAME('c', 'a', 'l', 'l', 0, 0, 0, 0):
		return SRV_CALL_CALL;
	case SRV_NAME('i', 'n', 'c', 'r', 0, 0, 0, 0):
		return SRV_CALL_INCR;
	case SRV_NAME('d', 'e', 'c', 'r', 0, 0, 0, 0):
		return SRV_CALL_DECR;
	case SRV_NAME('i', 'n', 'c', 'r', 'b', 'y', 0, 0):
		return SRV_CALL_INCRBY;
	case SRV_NAME('d', 'e', 'c', 'r', 'b', 'y', 0, 0):
		return SRV_CALL_DECRBY;
	case SRV_NAME('e', 'x', 'i', 's', 't', 's', 0, 0):
		return SRV_CALL_EXISTS;
	case SRV_NAME('t', 'o', 'u', 'c', 'h', 0, 0, 0):
		return SRV_CALL_TOUCH;
	case SRV_NAME('s', 't', 'r', 'l', 'e', 'n', 0, 0):
		return SRV_CALL_STRLEN;
	case SRV_NAME('t', 't', 'l', 0, 0, 0, 0, 0):
		return SRV_CALL_TTL;
	case SRV_NAME('p', 't', 't', 'l', 0, 0, 0, 0):
		return SRV_CALL_PTTL;
	case SRV_NAME('e', 'x', 'p', 'i', 'r', 'e', 0, 0):
		return SRV_CALL_EXPIRE;
	case SRV_NAME('p', 'e', 'x', 'p', 'i', 'r', 'e', 0):
		return SRV_CALL_PEXPIRE;
	case SRV_NAME('e', 'x', 'p', 'i', 'r', 'e', 'a', 't'):
		return SRV_CALL_EXPIREAT;
	case SRV_NAME('s', 'e', 't', 'n', 'x', 0, 0, 0):
		return SRV_CALL_SETNX;
	case SRV_NAME('s', 'e', 't', 'e', 'x', 0, 0, 0):
		return SRV_CALL_SETEX;
	case SRV_NAME('p', 's', 'e', 't', 'e', 'x', 0, 0):
		return SRV_CALL_PSETEX;
	case SRV_NAME('g', 'e', 't', 's', 'e', 't', 0, 0):
		return SRV_CALL_GETSET;
	case SRV_NAME('g', 'e', 't', 'd', 'e', 'l', 0, 0):
		return SRV_CALL_GETDEL;
	case SRV_NAME('g', 'e', 't', 'e', 'x', 0, 0, 0):
		return SRV_CALL_GETEX;
	case SRV_NAME('m', 'g', 'e', 't', 0, 0, 0, 0):
		return SRV_CALL_MGET;
	case SRV_NAME('m', 's', 'e', 't', 0, 0, 0, 0):
		return SRV_CALL_MSET;
	case SRV_NAME('u', 'n', 'l', 'i', 'n', 'k', 0, 0):
		return SRV_CALL_UNLINK;
	default:
		return SRV_CALLS;
	}
}

/* Sets of commands are words with a bit for each one. */
_Static_assert(SRV_CALLS < 64, "a set has a bit for each command and for SRV_CALLS");
#define SRV_BIT(name) (1ull << SRV_CALL_##name)
#define SRV_IS(command, set) ((set) >> (command) & 1)

/* Commands whose first argument is a key: those that only read, and those that may write. */
#define SRV_READERS                                                                                \
	(SRV_BIT(GET) | SRV_BIT(EXISTS) | SRV_BIT(TOUCH) | SRV_BIT(STRLEN) | SRV_BIT(TTL) | SRV_BIT(PTTL) | SRV_BIT(MGET))
#define SRV_WRITERS                                                                                \
	(SRV_BIT(SET) | SRV_BIT(DEL) | SRV_BIT(UNLINK) | SRV_BIT(INCR) | SRV_BIT(DECR) | SRV_BIT(INCRBY) |          \
	 SRV_BIT(DECRBY) | SRV_BIT(EXPIRE) | SRV_BIT(PEXPIRE) | SRV_BIT(EXPIREAT) |             \
	 SRV_BIT(SETNX) | SRV_BIT(SETEX) | SRV_BIT(PSETEX) | SRV_BIT(GETSET) | SRV_BIT(GETDEL) | SRV_BIT(GETEX) |  \
	 SRV_BIT(MSET))
/* Those with a time as argument 2. */
#define SRV_TIMED                                                                                  \
	(SRV_BIT(SETEX) | SRV_BIT(PSETEX) | SRV_BIT(EXPIRE) | SRV_BIT(PEXPIRE) | SRV_BIT(EXPIREAT))
/* Those that update.h executes, by what they do. */
#define SRV_ADDERS (SRV_BIT(INCR) | SRV_BIT(DECR) | SRV_BIT(INCRBY) | SRV_BIT(DECRBY))
#define SRV_STORERS (SRV_BIT(SET) | SRV_BIT(SETNX) | SRV_BIT(SETEX) | SRV_BIT(PSETEX))
#define SRV_EXCHANGERS (SRV_BIT(GETSET) | SRV_BIT(GETDEL) | SRV_BIT(GETEX))
/* Those with any number of keys. */
#define SRV_SEVERAL                                                                                \
	(SRV_BIT(MGET) | SRV_BIT(MSET) | SRV_BIT(EXISTS) | SRV_BIT(TOUCH) | SRV_BIT(DEL) | SRV_BIT(UNLINK))
/* Those that may have more than four arguments, the name included. */
#define SRV_LONG (SRV_SEVERAL | SRV_BIT(SET) | SRV_BIT(CALL))

/* By their numbers of arguments, the name included. SET and GETEX have options as well. */
#define SRV_TWO                                                                                    \
	(SRV_BIT(GET) | SRV_BIT(INCR) | SRV_BIT(DECR) | SRV_BIT(STRLEN) | SRV_BIT(TTL) | SRV_BIT(PTTL) |           \
	 SRV_BIT(GETDEL) | SRV_BIT(GETEX))
#define SRV_THREE                                                                                  \
	(SRV_BIT(SET) | SRV_BIT(INCRBY) | SRV_BIT(DECRBY) | SRV_BIT(EXPIRE) | SRV_BIT(PEXPIRE) | SRV_BIT(EXPIREAT) | \
	 SRV_BIT(SETNX) | SRV_BIT(GETSET) | SRV_BIT(GETEX))
#define SRV_FOUR (SRV_BIT(SETEX) | SRV_BIT(PSETEX) | SRV_BIT(SET) | SRV_BIT(GETEX))

/* Most arguments of a command, the name included. */
#define SRV_ARGUMENTS (KDB_CALL_ARGUMENTS + 2)

/* Whether a command on keys has a number of arguments that it may have. If it has not, the event loop replies with
 * the error. */
static __always_inline int srv_has_arity(__u32 command, __u32 nargs)
{
	if (SRV_IS(command, SRV_SEVERAL) && nargs >= 2)
		return command != SRV_CALL_MSET || nargs & 1;
	if (nargs == 2)
		return SRV_IS(command, SRV_TWO);
	if (nargs == 3)
		return SRV_IS(command, SRV_THREE);
	if (nargs == 4)
		return SRV_IS(command, SRV_FOUR);
	return nargs > 4 && command == SRV_CALL_SET;
}

#endif
