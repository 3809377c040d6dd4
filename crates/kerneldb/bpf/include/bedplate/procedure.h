/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Procedures: functions that run beside the data, in the kernel, and that clients call by name.
 *
 *	#include <bedplate/procedure.h>
 *
 *	// CALL take KEY AMOUNT: subtracts, unless the result would be negative.
 *	KDB_PROCEDURE(take)
 *	{
 *		__s64 amount, balance;
 *
 *		KDB_TRY(kdb_expect(p, 2));
 *		KDB_TRY(kdb_argument_integer(p, 1, &amount));
 *		KDB_TRY(kdb_key_argument(p, 0));
 *		if (KDB_TRY(kdb_read(p)) == KDB_NOT_FOUND)
 *			return kdb_refuse(p, "ERR no such account");
 *		KDB_TRY(kdb_value_integer(p, &balance));
 *		if (balance < amount)
 *			return kdb_refuse(p, "ERR the balance is too low");
 *		KDB_TRY(kdb_write_integer(p, balance - amount));
 *		return kdb_reply_integer(p, balance - amount);
 *	}
 *
 * A procedure runs in the caller's transaction. If the caller has none open, the procedure has a transaction of its own, which
 * is committed if the procedure returns KDB_OK and is rolled back otherwise. If a procedure refuses a call, or ends in an Error
 * state, after it has written, the caller's transaction fails as a whole. So a procedure has all of its effects on the database
 * or none. Maps and variables of the object's own are outside of this. A call may run the procedure more than once: after a conflict,
 * and if the kernel has rolled back a run on the connection.
 *
 * A database of up to 4 GiB has one partition, and so has every one on hash maps. With several, a procedure runs in the partition of
 * its first argument as a key. It may use keys of all partitions, but operators on keys of other ones are slower (visit.h), and a call may
 * have KDB_VISITS_MAX of them.
 *
 * `p` is the call. It has one key and one value at a time, in the call's I/O buffer (struct kdb_io). The functions below set the
 * key and the value, run an operator, and read its result. Each returns an enum kdb_status, or KDB_REFUSED. A procedure has to
 * end after KDB_REFUSED and after every Error state. KDB_TRY does that.
 */
#ifndef BEDPLATE_PROCEDURE_H
#define BEDPLATE_PROCEDURE_H

#include <bedplate/abi.h>
#ifdef KDB_ENGINE_HASHMAP
#include <bedplate/kdb.h>
#else
#include <bedplate/connection.h>
#endif
#ifdef KDB_SEVERAL_PARTITIONS
#include <bedplate/visit.h>
#endif
#include <bedplate/numbers.h>

/* The license of the object's programs: the kernel lets them call its functions. */
#define KDB_LICENSE(text) char LICENSE[] SEC("license") = text

/* Identifies these headers. An object has code of the engine, so a database that was built with other headers refuses it. */
const volatile __u64 kdb_abi SEC(".rodata.abi") = KDB_ABI;

/* A call, as the functions below take it. */
struct kdb_proc {
	struct kdb_ctx *ctx;      /* the session; ctx->app is for all procedures, and zero at first */
	struct kdb_call *call;
	struct kdb_io *io;        /* key and value; both are empty when the call begins */
	int read_only;            /* a constant of the procedure */
#ifdef KDB_SEVERAL_PARTITIONS
	struct kdb_origin origin;
#endif
};

#ifdef KDB_SEVERAL_PARTITIONS
#define KDB_ORIGIN(...) .origin = { __VA_ARGS__ }
#else
#define KDB_ORIGIN(...)
#endif

struct kdb_proc_arguments {
	__u64 session;
	__u64 io;
};

/* Finds the session and the buffers of a call; -1 if there are none. */
static __always_inline int kdb_find_call(struct kdb_proc *p, __u32 session, __u32 io)
{
	USE_ARENA();
	p->ctx = bpf_map_lookup_elem(&kdb_contexts, &session);
	p->call = bpf_map_lookup_elem(&kdb_calls, &io);
	p->io = bpf_map_lookup_elem(&kdb_ios, &io);
	if (!p->ctx || !p->call || !p->io)
		return -1;
	/* The hash-map engine looks the buffer up again. */
	p->io->index = io;
	return 0;
}

/* The status that the caller gets: those below KDB_REFUSED are results of steps. */
#define KDB_STATUS(status) ((status) < KDB_REFUSED ? KDB_OK : (status))

#ifdef KDB_ENGINE_HASHMAP
/* User space runs all calls of a database on hash maps. */
#define KDB_ON_CONNECTIONS(name, only_reads)
#else
/* The program of a procedure on connections (connection.h). */
#define KDB_ON_CONNECTIONS(name, only_reads)                                                           \
	SEC("sk_skb/verdict") int name##_on_connection(struct __sk_buff *skb)                          \
	{                                                                                              \
		struct kdb_proc p = { .read_only = only_reads, KDB_ORIGIN(.skb = skb) };               \
		struct kdb_connection *connection = kdb_connection_of(skb);                            \
		if (!connection || kdb_find_call(&p, connection->session, connection->call_buffer))    \
			return SK_DROP;                                                                \
		int status = name##_body(&p);                                                          \
		p.call->status = KDB_STATUS(status);                                                   \
		bpf_tail_call(skb, &kdb_call_returns, p.call->return_program);                         \
		return SK_DROP;                                                                        \
	}
#endif

/* Two programs with the same body: one for user space, and on the arena engine one on connections. */
#define KDB_PROCEDURE_IN(section, name, only_reads)                                                    \
	static __always_inline int name##_body(struct kdb_proc *p);                                    \
	SEC(section) int name(struct kdb_proc_arguments *arguments)                                    \
	{                                                                                              \
		struct kdb_proc p = { .read_only = only_reads, KDB_ORIGIN(.user_call = (void *)arguments) }; \
		if (kdb_find_call(&p, arguments->session, arguments->io))                              \
			return KDB_ERR_STATE;                                                          \
		int status = name##_body(&p);                                                          \
		return KDB_STATUS(status);                                                             \
	}                                                                                              \
	KDB_ON_CONNECTIONS(name, only_reads)                                                           \
	static __always_inline int name##_body(struct kdb_proc *p)

/* Defines a procedure. It returns KDB_OK, kdb_refuse(), or an Error state. */
#define KDB_PROCEDURE(name) KDB_PROCEDURE_IN("raw_tp/procedure", name, 0)

/* Defines a procedure that only reads: its writes end in KDB_ERR_STATE. Outside of a transaction it has a snapshot, so it takes no
 * locks. */
#define KDB_READ_ONLY_PROCEDURE(name) KDB_PROCEDURE_IN("raw_tp/read_only_procedure", name, 1)

/* The status of a step. Ends the procedure if the step was refused or ended in an Error state. */
#define KDB_TRY(step)                                                                                  \
	({                                                                                             \
		int status_ = (step);                                                                  \
		if (status_ >= KDB_REFUSED)                                                            \
			return status_;                                                                \
		status_;                                                                               \
	})

/* Refuses the call. The caller gets the text, a string literal of up to 127 bytes, as an error. By custom it begins with a code in
 * upper case. */
#define kdb_refuse(p, literal)                                                                         \
	({                                                                                             \
		_Static_assert(sizeof(literal) <= KDB_CALL_TEXT, "the reason of a refusal is too long"); \
		__builtin_memcpy((p)->call->text, literal, sizeof(literal) - 1);                       \
		(p)->call->text_len = sizeof(literal) - 1;                                             \
		KDB_REFUSED;                                                                           \
	})

/* ---- Arguments -------------------------------------------------------------------------------- */

/* Number of arguments. */
static __always_inline __u32 kdb_arguments(struct kdb_proc *p)
{
	return p->call->arguments;
}

/* Refuses the call unless it has `count` arguments. */
#define kdb_expect(p, count)                                                                           \
	((p)->call->arguments == (count) ? KDB_OK                                                      \
					 : kdb_refuse(p, "ERR wrong number of arguments for the procedure"))

/* Where argument i is, and its length in bytes; 0 if there is no such argument. */
static __always_inline __u32 kdb_argument_at(struct kdb_proc *p, __u32 i, __u32 *len)
{
	*len = 0;
	if (i >= KDB_CALL_ARGUMENTS || i >= p->call->arguments)
		return 0;
	*len = p->call->argument[i & (KDB_CALL_ARGUMENTS - 1)].len & (2 * KDB_CALL_BYTES - 1);
	return p->call->argument[i & (KDB_CALL_ARGUMENTS - 1)].at & (KDB_CALL_BYTES - 1);
}

/* Parses a decimal integer as Redis writes them: no blanks, no plus sign, no leading zeros. It is read from the value if
 * `from_value`, else from the arguments. 0 and the number is in call->number, or -1. */
__noinline int kdb_parse(struct kdb_call *call, struct kdb_io *io, __u32 at, __u32 len, int from_value)
{
	__u64 n = 0;
	__u32 i, first = 0;

	if (!call || !io || len < 1 || len > 20)
		return -1;
	for (i = 0; i < 20; i++) {
		__u8 c;

		if (i >= len)
			break;
		c = from_value ? io->val[(at + i) & (KDB_VAL_MAX - 1)] : call->bytes[(at + i) & (KDB_CALL_BYTES - 1)];
		if (i == 0 && c == '-' && len > 1) {
			first = 1;
			continue;
		}
		if (c < '0' || c > '9' || (i == first && c == '0' && len > 1))
			return -1;
		if (n > (~0ull - 9) / 10)
			return -1;
		n = n * 10 + (c - '0');
	}
	if (n > (~0ull >> 1) + first)
		return -1;
	call->number = first ? -n : n;
	return 0;
}

/* Reads argument i as an integer, or refuses the call. */
#define kdb_argument_integer(p, i, result)                                                             \
	({                                                                                             \
		__u32 len_, at_ = kdb_argument_at(p, i, &len_);                                        \
		int bad_ = kdb_parse((p)->call, (p)->io, at_, len_, 0);                                \
		*(result) = (p)->call->number;                                                         \
		bad_ ? kdb_refuse(p, "ERR value is not an integer or out of range") : KDB_OK;          \
	})

/* ---- The key ---------------------------------------------------------------------------------- */

/* Appends argument bytes to the key. */
__noinline int kdb_key_extend(struct kdb_call *call, struct kdb_io *io, __u32 at, __u32 len)
{
	__u32 klen;

	if (!call || !io)
		return KDB_ERR_STATE;
	klen = io->klen;
	if (klen > KDB_KEY_MAX || len > KDB_KEY_MAX || klen + len > KDB_KEY_MAX)
		return KDB_ERR_TOO_LARGE;
	/* The verifier needs each bound where the value is used. */
	opaque(klen);
	opaque(len);
	bpf_probe_read_kernel(&io->key[klen & KDB_KEY_MAX], len & KDB_KEY_MAX, &call->bytes[at & (KDB_CALL_BYTES - 1)]);
	io->klen = klen + len;
	return KDB_OK;
}

/* Appends a number to the key, as 8 bytes in the order of bytes in which keys sort as numbers. */
__noinline int kdb_key_extend_integer(struct kdb_io *io, __u64 number)
{
	__u32 klen, i;

	if (!io)
		return KDB_ERR_STATE;
	klen = io->klen;
	if (klen > KDB_KEY_MAX - 8)
		return KDB_ERR_TOO_LARGE;
	opaque(klen);
	for (i = 0; i < 8; i++)
		io->key[(klen & KDB_KEY_MAX) + i] = number >> (56 - 8 * i);
	io->klen = klen + 8;
	return KDB_OK;
}

/* Sets the key to a string literal, the beginning of a longer key or all of it. */
#define kdb_key(p, literal)                                                                            \
	({                                                                                             \
		_Static_assert(sizeof(literal) <= KDB_KEY_BUF, "the key is too long");                 \
		__builtin_memcpy((p)->io->key, literal, sizeof(literal) - 1);                          \
		(p)->io->klen = sizeof(literal) - 1;                                                   \
		KDB_OK;                                                                                \
	})

/* Appends argument i to the key. */
static __always_inline int kdb_key_append(struct kdb_proc *p, __u32 i)
{
	__u32 len, at = kdb_argument_at(p, i, &len);

	return kdb_key_extend(p->call, p->io, at, len);
}

/* Appends a number to the key: 8 bytes, the most significant one first. */
static __always_inline int kdb_key_append_integer(struct kdb_proc *p, __u64 number)
{
	return kdb_key_extend_integer(p->io, number);
}

/* Appends a number to the key, as decimal text. */
__noinline int kdb_key_extend_decimal(struct kdb_io *io, __u64 number)
{
	__u32 klen, digits = kdb_decimal_digits(number);

	if (!io)
		return KDB_ERR_STATE;
	klen = io->klen;
	if (klen > KDB_KEY_MAX || klen + digits > KDB_KEY_MAX)
		return KDB_ERR_TOO_LARGE;
	io->klen = klen + digits;
	kdb_put_decimal(io->key, KDB_KEY_MAX, klen + digits, number);
	return KDB_OK;
}

/* Appends a number to the key, as decimal text. Such keys do not sort as numbers; kdb_key_append_integer() is for those that do. */
static __always_inline int kdb_key_append_decimal(struct kdb_proc *p, __u64 number)
{
	return kdb_key_extend_decimal(p->io, number);
}

/* Appends a string literal to the key. */
#define kdb_key_append_text(p, literal)                                                                \
	({                                                                                             \
		_Static_assert(sizeof(literal) <= KDB_KEY_BUF, "the key is too long");                 \
		KDB_APPEND_TEXT((p)->io->key, (p)->io->klen, KDB_KEY_MAX, literal);                    \
	})

/* Sets the key to argument i. */
static __always_inline int kdb_key_argument(struct kdb_proc *p, __u32 i)
{
	p->io->klen = 0;
	return kdb_key_append(p, i);
}

/* ---- The value -------------------------------------------------------------------------------- */

/* Sets the value to argument bytes. */
__noinline int kdb_value_fill(struct kdb_call *call, struct kdb_io *io, __u32 at, __u32 len)
{
	if (!call || !io)
		return KDB_ERR_STATE;
	if (len > KDB_VAL_MAX)
		return KDB_ERR_TOO_LARGE;
	opaque(len);
	if (len <= KDB_VAL_MAX)
		bpf_probe_read_kernel(io->val, len, &call->bytes[at & (KDB_CALL_BYTES - 1)]);
	io->vlen = len;
	return KDB_OK;
}

/* Sets the value to a decimal number. */
__noinline int kdb_value_format(struct kdb_io *io, __s64 number)
{
	__u64 n = number < 0 ? -(__u64)number : number;
	__u32 len = (number < 0) + kdb_decimal_digits(n);

	if (!io)
		return KDB_ERR_STATE;
	io->val[0] = '-';
	io->vlen = len;
	kdb_put_decimal(io->val, 31, len, n);
	return KDB_OK;
}

/* Sets the value to argument i. */
static __always_inline int kdb_value_argument(struct kdb_proc *p, __u32 i)
{
	__u32 len, at = kdb_argument_at(p, i, &len);

	return kdb_value_fill(p->call, p->io, at, len);
}

/* Sets the value to a string literal. */
#define kdb_value(p, literal)                                                                          \
	({                                                                                             \
		__builtin_memcpy((p)->io->val, literal, sizeof(literal) - 1);                          \
		(p)->io->vlen = sizeof(literal) - 1;                                                   \
		KDB_OK;                                                                                \
	})

/* Appends a number to the value, as decimal text. */
__noinline int kdb_value_extend_decimal(struct kdb_io *io, __u64 number)
{
	__u32 vlen, digits = kdb_decimal_digits(number);

	if (!io)
		return KDB_ERR_STATE;
	vlen = io->vlen;
	if (vlen > KDB_VAL_MAX || vlen + digits > KDB_VAL_MAX)
		return KDB_ERR_TOO_LARGE;
	io->vlen = vlen + digits;
	kdb_put_decimal(io->val, KDB_VAL_MAX - 1, vlen + digits, number);
	return KDB_OK;
}

/* Appends a number to the value, as decimal text. */
static __always_inline int kdb_value_append_decimal(struct kdb_proc *p, __u64 number)
{
	return kdb_value_extend_decimal(p->io, number);
}

/* Bytes of the longest string that is appended to a value at once, with its zero byte. */
#define KDB_STRING_MAX 256u

/* Appends a string of the kernel's memory to the value: at most KDB_STRING_MAX - 1 bytes, and none if the address is not valid. */
static __always_inline int kdb_value_append_string(struct kdb_proc *p, const void *address)
{
	__u32 vlen = p->io->vlen;
	long len;

	opaque(vlen);
	if (vlen > KDB_VAL_MAX - KDB_STRING_MAX)
		return KDB_ERR_TOO_LARGE;
	len = bpf_probe_read_kernel_str(&p->io->val[vlen], KDB_STRING_MAX, address);
	/* The length includes the zero byte; a negative one says that there is no such memory. */
	if (len > 1)
		p->io->vlen = vlen + len - 1;
	return KDB_OK;
}

/* Appends a string literal of at most KDB_STRING_MAX - 1 bytes to the value. */
#define kdb_value_append_text(p, literal)                                                              \
	({                                                                                             \
		_Static_assert(sizeof(literal) <= KDB_STRING_MAX, "the text is too long");             \
		KDB_APPEND_TEXT((p)->io->val, (p)->io->vlen, KDB_VAL_MAX, literal);                    \
	})

/* Reads the value as an integer, or refuses the call. */
#define kdb_value_integer(p, result)                                                                   \
	({                                                                                             \
		int bad_ = kdb_parse((p)->call, (p)->io, 0, (p)->io->vlen, 1);                         \
		*(result) = (p)->call->number;                                                         \
		bad_ ? kdb_refuse(p, "ERR value is not an integer or out of range") : KDB_OK;          \
	})

/* ---- Operators -------------------------------------------------------------------------------- */

/* Begins an operator: the engine wants keys padded with zeros to whole words. */
static __always_inline void kdb_prepare(struct kdb_proc *p, __u32 flags, __u64 expire_ms)
{
	struct kdb_io *io = p->io;
	__u32 klen = io->klen;

	*(__u64 *)&io->key[(klen - 1) & 0xf8] &= ~0ull >> (-klen & 7) * 8;
#ifdef KDB_SEVERAL_PARTITIONS
	flags |= KDB_IO_HASHED;
#endif
	io->flags = flags;
	io->expire_ms = expire_ms;
}

static __always_inline int kdb_observe(struct kdb_proc *p, int status)
{
	if (p->io->observed_ts > p->call->observed_ts)
		p->call->observed_ts = p->io->observed_ts;
	return status;
}

/* Runs an operator of a call. The key is in this program's partition, or the operator says that it is not. */
static __always_inline int kdb_run_operator(struct kdb_ctx *ctx, struct kdb_io *io, __u32 operator)
{
	int status;

	switch (operator) {
	case KDB_WRITE:
		return kdb_set(ctx, io);
	case KDB_DELETE:
		return kdb_del(ctx, io);
	case KDB_RELEASE:
		return kdb_release(ctx);
	case KDB_READ_FOR_UPDATE:
		/* No key fulfils both conditions, so the key is locked and nothing is written. */
		status = kdb_set(ctx, io);
		if (status >= KDB_REFUSED)
			return status;
	}
	status = ctx->state == KDB_TX_READ_ONLY ? kdb_get_ro(ctx, io) : kdb_get(ctx, io);
	if (status != KDB_OK)
		io->vlen = 0;
	return status;
}

/* Runs an operator on the call's key, wherever the key is. */
static __always_inline int kdb_operate(struct kdb_proc *p, __u32 operator)
{
#ifdef KDB_SEVERAL_PARTITIONS
	__u32 partition = kdb_key_partition(p->io);

	p->call->partition = partition;
	if (partition != kdb_config.partition)
		return kdb_observe(p, kdb_visit(p->call, &p->origin, operator, partition));
#endif
	return kdb_observe(p, kdb_run_operator(p->ctx, p->io, operator));
}

/* Reads the key's value: KDB_OK and the value is in p->io, or KDB_NOT_FOUND and the value is empty. */
static __always_inline int kdb_read(struct kdb_proc *p)
{
	kdb_prepare(p, 0, 0);
	return kdb_operate(p, KDB_READ);
}

/* Writes the value. `flags`: KDB_IO_IF_ABSENT, KDB_IO_IF_PRESENT, KDB_IO_KEEP_TTL. `expire_ms`: when the key expires, in
 * milliseconds since the Unix epoch; 0 = never. KDB_MISMATCH or KDB_NOT_FOUND if the condition does not hold. */
static __always_inline int kdb_write_with(struct kdb_proc *p, __u32 flags, __u64 expire_ms)
{
	if (p->read_only)
		return KDB_ERR_STATE;
	kdb_prepare(p, flags, expire_ms);
	return kdb_operate(p, KDB_WRITE);
}

/* Reads the key's value as kdb_read() does, but locks the key for writing at once. Two transactions that read a key and then write
 * it would otherwise both have it locked for reading, and neither could write. */
static __always_inline int kdb_read_for_update(struct kdb_proc *p)
{
	if (p->read_only)
		return KDB_ERR_STATE;
	p->io->vlen = 0;
	kdb_prepare(p, KDB_IO_IF_ABSENT | KDB_IO_IF_PRESENT, 0);
	return kdb_operate(p, KDB_READ_FOR_UPDATE);
}

/* Writes the value; the key does not expire. */
static __always_inline int kdb_write(struct kdb_proc *p)
{
	return kdb_write_with(p, 0, 0);
}

/* Writes a decimal number; the key keeps its expiry. */
static __always_inline int kdb_write_integer(struct kdb_proc *p, __s64 number)
{
	kdb_value_format(p->io, number);
	return kdb_write_with(p, KDB_IO_KEEP_TTL, 0);
}

/* Deletes the key: KDB_OK, or KDB_NOT_FOUND. */
static __always_inline int kdb_delete(struct kdb_proc *p)
{
	if (p->read_only)
		return KDB_ERR_STATE;
	kdb_prepare(p, 0, 0);
	return kdb_operate(p, KDB_DELETE);
}

/* ---- Time and replies ------------------------------------------------------------------------- */

/* Milliseconds since the Unix epoch. */
static __always_inline __u64 kdb_now_ms(void)
{
	struct kdb_state *state = kdb_state();

	return bpf_ktime_get_ns() / 1000000 + (state ? READ_ONCE(state->clock_offset_ms) : 0);
}

/* Replies an integer. Without any of these the reply is OK. */
static __always_inline int kdb_reply_integer(struct kdb_proc *p, __s64 number)
{
	p->call->reply = KDB_REPLY_INTEGER;
	p->call->integer = number;
	return KDB_OK;
}

/* Replies the value that the call has when the procedure ends. So the procedure sets no other value afterwards. */
static __always_inline int kdb_reply_value(struct kdb_proc *p)
{
	p->call->reply = KDB_REPLY_VALUE;
	return KDB_OK;
}

/* Replies nil. */
static __always_inline int kdb_reply_nil(struct kdb_proc *p)
{
	p->call->reply = KDB_REPLY_NIL;
	return KDB_OK;
}

#endif
