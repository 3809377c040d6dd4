/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Handlers: procedures that run where an event of the kernel happens, in a transaction of their own.
 *
 *	#include <bedplate/handler.h>
 *
 *	// Counts packets, and drops them above a million. Drops a packet that cannot be counted.
 *	KDB_TC_HANDLER(count, KDB_TC_DROP)
 *	{
 *		__s64 packets = 0;
 *
 *		KDB_TRY(kdb_key(p, "packets"));
 *		if (KDB_TRY(kdb_read_for_update(p)) == KDB_OK)
 *			KDB_TRY(kdb_value_integer(p, &packets));
 *		if (packets >= 1000000)
 *			*verdict = KDB_TC_DROP;
 *		return kdb_write_integer(p, packets + 1);
 *	}
 *
 * The body has the call `p`, as a procedure has (procedure.h), without arguments and without a reply. It also has its event:
 *
 *	KDB_TC_HANDLER(name, on_failure)      struct __sk_buff *skb, int *verdict: a packet at an interface, in either direction
 *	KDB_XDP_HANDLER(name, on_failure)     struct xdp_md *xdp, int *verdict: a packet before the kernel has a buffer for it
 *	KDB_TRACEPOINT_HANDLER(name, event)   unsigned long long *args: the arguments of the tracepoint
 *	KDB_TIMER_HANDLER(name)               nothing
 *
 * The transaction is committed if the body returns KDB_OK. It is rolled back if the body refuses the event or ends in an Error
 * state. After a conflict with another transaction, and after KDB_ERR_BUSY, the body runs again, up to KDB_HANDLER_ATTEMPTS times
 * in all. After the last attempt the event counts as failed. A body must not change anything but the database and `verdict`, because
 * it may run several times.
 *
 * `verdict` decides about a packet. It is "pass" at first. After a failure it is `on_failure`, whatever the body has set. A packet that
 * is refused by kdb_refuse() gets the verdict that the body has set.
 *
 * Interrupts are off while a body runs. So no other handler of the processor begins before the transaction has ended, and each
 * processor needs one session for all handlers. A handler whose event happens inside of another handler (a tracepoint) does not run,
 * and the event counts as failed. No handler runs in a non-maskable interrupt either, because it may have interrupted an operator of
 * the engine.
 *
 * A handler cannot wait. Where a client's transaction holds a lock for long, or the log's ring is full, or memory is short, the event
 * fails at once.
 */
#ifndef BEDPLATE_HANDLER_H
#define BEDPLATE_HANDLER_H

#include <bedplate/procedure.h>

/* Verdicts of tc handlers. KDB_TC_PASS lets further programs of the interface decide. */
#define KDB_TC_PASS (-1)
#define KDB_TC_DROP 2

/* Verdicts of XDP handlers. */
#define KDB_XDP_PASS XDP_PASS
#define KDB_XDP_DROP XDP_DROP

/* The buffers of handlers, one element for each processor. The database creates the map once, for all libraries. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kdb_handler_slot);
} kdb_handler_slots SEC(".maps");

/* A timer that is never started; see kdb_in_nmi(). */
struct kdb_nmi_probe {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kdb_nmi_probe);
} kdb_nmi_probes SEC(".maps");

#define KDB_EOPNOTSUPP 95

/* Whether this processor is in a non-maskable interrupt. No helper tells it. But bpf_timer_start() is not supported there, and the
 * kernel checks that before it refuses these flags. */
static __always_inline int kdb_in_nmi(void)
{
	__u32 zero = 0;
	struct kdb_nmi_probe *probe = bpf_map_lookup_elem(&kdb_nmi_probes, &zero);

	return !probe || bpf_timer_start(&probe->timer, 0, ~0ull) == -KDB_EOPNOTSUPP;
}

/* The status of an event whose handler cannot begin because another one runs on the processor. */
#define KDB_HANDLER_NESTED (-1)

#ifdef KDB_SEVERAL_PARTITIONS

/* Ends a transaction in the other partitions. The call's transaction is committed or rolled back. */
static __always_inline void kdb_handler_release(struct kdb_proc *p)
{
	__u32 partition;

	bpf_for(partition, 0, KDB_MAX_PARTITIONS) {
		if ((p->ctx->state == KDB_TX_COMMITTED || p->ctx->state == KDB_TX_ROLLING_BACK) &&
		    (p->ctx->partitions >> partition) & 1)
			kdb_visit(p->call, &p->origin, KDB_RELEASE, partition);
	}
}

/* The body of a visitor. It runs on the processor of the handler, with interrupts off. */
static __always_inline int kdb_handler_visited(void)
{
	__u32 cpu = bpf_get_smp_processor_id(), session = kdb_config.handler_sessions + cpu;
	struct kdb_handler_slot *slot = bpf_map_lookup_elem(&kdb_handler_slots, &cpu);
	struct kdb_ctx *ctx = bpf_map_lookup_elem(&kdb_contexts, &session);

	USE_ARENA();
	if (slot && ctx)
		slot->call.visit_status = kdb_run_operator(ctx, &slot->io, slot->call.operator);
	return 0;
}

/* The visitors of a handler. Its program array takes programs for the same events only. */
#define KDB_HANDLER_VISITORS(name, section, context)                                                   \
	struct {                                                                                       \
		__uint(type, BPF_MAP_TYPE_PROG_ARRAY);                                                 \
		__uint(max_entries, KDB_MAX_PARTITIONS);                                               \
		__type(key, __u32);                                                                    \
		__type(value, __u32);                                                                  \
	} name##_visitors SEC(".maps");                                                                \
	SEC(section) int name##_visitor(context *event)                                                \
	{                                                                                              \
		return kdb_handler_visited();                                                          \
	}                                                                                              \
	__noinline int name##_visit(context *event __arg_ctx, __u32 partition)                         \
	{                                                                                              \
		bpf_tail_call(event, &name##_visitors, partition);                                     \
		return 0;                                                                              \
	}
#define KDB_HANDLER_ORIGIN(name, argument) KDB_ORIGIN(.event = (argument), .visit = (void *)name##_visit)

#else
#define kdb_handler_release(p)
#define KDB_HANDLER_VISITORS(name, section, context)
#define KDB_HANDLER_ORIGIN(name, argument)
#endif

/* Takes the processor's session and buffers, and begins a transaction. Returns the buffers, or NULL and a status. Interrupts are
 * off. `*tail_calls` are left for the event. */
static __always_inline struct kdb_handler_slot *kdb_handler_begin(struct kdb_proc *p, int *status, __u32 *tail_calls)
{
	__u32 cpu = bpf_get_smp_processor_id(), session = kdb_config.handler_sessions + cpu;
	struct kdb_handler_slot *slot = bpf_map_lookup_elem(&kdb_handler_slots, &cpu);
	struct kdb_ctx *ctx = bpf_map_lookup_elem(&kdb_contexts, &session);

	*status = KDB_ERR_STATE;
	if (!slot || !ctx)
		return 0;
	if (READ_ONCE(slot->in_use)) {
		*status = KDB_HANDLER_NESTED;
		return 0;
	}
	WRITE_ONCE(slot->in_use, 1);
	barrier();
	p->ctx = ctx;
	p->call = &slot->call;
	p->io = &slot->io;
	slot->call.visits = *tail_calls;
	/* A roll-back that met the reaper may have left a transaction. */
	if (ctx->state != KDB_TX_NONE) {
		kdb_rollback(ctx);
		kdb_handler_release(p);
		*tail_calls = slot->call.visits;
	}
	*status = kdb_begin(ctx);
	if (*status) {
		barrier();
		WRITE_ONCE(slot->in_use, 0);
		return 0;
	}
	slot->call.arguments = 0;
	slot->call.text_len = 0;
	slot->io.klen = 0;
	slot->io.vlen = 0;
#ifdef KDB_SEVERAL_PARTITIONS
	slot->call.visits = kdb_visits_within(slot->call.visits);
#endif
	p->read_only = 0;
	return slot;
}

/* Ends the transaction of a body that has returned `status`; returns the status of the event. Interrupts are off. */
static __always_inline int kdb_handler_end(struct kdb_proc *p, struct kdb_handler_slot *slot, int status, __u32 *tail_calls)
{
	struct kdb_ctx *ctx = p->ctx;

	if (status < KDB_REFUSED)
		status = kdb_commit(ctx);
	if (status)
		kdb_rollback(ctx);
#ifdef KDB_SEVERAL_PARTITIONS
	slot->call.visits += *tail_calls - kdb_visits_within(*tail_calls);
	kdb_handler_release(p);
	*tail_calls = slot->call.visits;
#endif
	barrier();
	WRITE_ONCE(slot->in_use, 0);
	return status;
}

/* Counts an attempt; returns whether it was the event's last one. Interrupts are off. `attempts` is the number of attempts that the event may
 * have. */
static __always_inline int kdb_handler_count(struct kdb_handler *handler, int status, __u32 attempt, __u32 attempts)
{
	struct kdb_handler_counts *counts = &handler->counts[bpf_get_smp_processor_id() & (KDB_MAX_CPUS - 1)];

	if ((status == KDB_ERR_CONFLICT || status == KDB_ERR_BUSY) && attempt + 1 < attempts) {
		counts->retries++;
		return 0;
	}
	counts->runs++;
	if (status == KDB_OK) {
		counts->committed++;
	} else if (status == KDB_REFUSED) {
		counts->refused++;
	} else {
		counts->failed++;
		if (status == KDB_HANDLER_NESTED)
			counts->nested++;
		counts->last_error = status == KDB_HANDLER_NESTED ? KDB_ERR_BUSY : status;
	}
	return 1;
}

static long kdb_handler_pause_step(__u32 i, void *unused)
{
	return 0;
}

/* Waits for a random time before the next attempt, because the processor that has caused the conflict tries again, too. The longest
 * wait doubles with each attempt, from 64 to 1024 empty steps, which are some nanoseconds each. */
static __always_inline void kdb_handler_pause(__u32 attempt)
{
	bpf_loop(bpf_get_prandom_u32() & ((64u << (attempt & 7)) - 1), kdb_handler_pause_step, 0, 0);
}

/* Runs `body` as a transaction. It is a call of the body with &p_, the event, and &chosen_, the verdict. `argument` is the program's. The
 * value is the verdict: `pass` or what the body has set; `on_failure` after a failure. */
#define KDB_HANDLER_RUN(name, argument, pass, on_failure, body)                                        \
	({                                                                                             \
		__u32 zero_ = 0, attempt_, tail_calls_ = KDB_TAIL_CALLS;                               \
		struct kdb_handler *handler_ = bpf_map_lookup_elem(&name##_handler, &zero_);           \
		int verdict_ = (on_failure);                                                           \
		USE_ARENA();                                                                           \
		bpf_for(attempt_, 0, KDB_HANDLER_ATTEMPTS) {                                           \
			struct kdb_handler_slot *slot_;                                                \
			struct kdb_proc p_ = { KDB_HANDLER_ORIGIN(name, argument) };                   \
			unsigned long irq_;                                                            \
			__u32 left_ = tail_calls_, most_ = KDB_HANDLER_ATTEMPTS;                       \
			int chosen_ = (pass), status_, last_;                                          \
			if (!handler_)                                                                 \
				break;                                                                 \
			bpf_local_irq_save(&irq_);                                                     \
			slot_ = kdb_handler_begin(&p_, &status_, &tail_calls_);                        \
			if (slot_) {                                                                   \
				status_ = body;                                                        \
				status_ = kdb_handler_end(&p_, slot_, status_, &tail_calls_);          \
			}                                                                              \
			/* The earlier attempts met conflicts, which took the tail calls. */           \
			if (attempt_ && status_ == KDB_ERR_TOO_MANY_VISITS) {                          \
				status_ = KDB_ERR_CONFLICT;                                            \
				most_ = 0;                                                             \
			}                                                                              \
			/* Another attempt would need as many tail calls. */                           \
			if (tail_calls_ < left_ - tail_calls_)                                         \
				most_ = 0;                                                             \
			last_ = kdb_handler_count(handler_, status_, attempt_, most_);                 \
			bpf_local_irq_restore(&irq_);                                                  \
			if (status_ == KDB_OK || status_ == KDB_REFUSED)                               \
				verdict_ = chosen_;                                                    \
			if (last_)                                                                     \
				break;                                                                 \
			kdb_handler_pause(attempt_);                                                   \
		}                                                                                      \
		verdict_;                                                                              \
	})

/* The map with a handler's counts. The database recognizes a handler by the name of this map. */
#define KDB_HANDLER_COUNTS(name)                                                                       \
	struct {                                                                                       \
		__uint(type, BPF_MAP_TYPE_ARRAY);                                                      \
		__uint(max_entries, 1);                                                                \
		__type(key, __u32);                                                                    \
		__type(value, struct kdb_handler);                                                     \
	} name##_handler SEC(".maps")

/* The stand-in of a handler takes its place at its events while the database is exchanged, and fails each of them. It uses nothing of the
 * database, whose memory is free then. The database finds it by its name. */
#define KDB_HANDLER_STAND_IN(name, section, context, on_failure)                                       \
	SEC(section) int name##_stand_in(context *event)                                               \
	{                                                                                              \
		__u32 zero = 0;                                                                        \
		struct kdb_handler *handler = bpf_map_lookup_elem(&name##_handler, &zero);             \
		unsigned long irq;                                                                     \
		if (handler) {                                                                         \
			bpf_local_irq_save(&irq);                                                      \
			kdb_handler_count(handler, KDB_ERR_BUSY, 0, 0);                                \
			bpf_local_irq_restore(&irq);                                                   \
		}                                                                                      \
		return on_failure;                                                                     \
	}

#ifdef KDB_ENGINE_HASHMAP

/* A database on hash maps has no handlers: the bodies are compiled, and no program has them. The database recognizes by the maps that
 * a library has handlers, and refuses it. */
#define KDB_TC_HANDLER(name, on_failure)                                                               \
	KDB_HANDLER_COUNTS(name);                                                                      \
	static __always_inline int name##_body(struct kdb_proc *p, struct __sk_buff *skb, int *verdict)
#define KDB_XDP_HANDLER(name, on_failure)                                                              \
	KDB_HANDLER_COUNTS(name);                                                                      \
	static __always_inline int name##_body(struct kdb_proc *p, struct xdp_md *xdp, int *verdict)
#define KDB_TRACEPOINT_HANDLER(name, event)                                                            \
	KDB_HANDLER_COUNTS(name);                                                                      \
	static __always_inline int name##_body(struct kdb_proc *p, unsigned long long *args)
#define KDB_TIMER_HANDLER(name)                                                                        \
	KDB_HANDLER_COUNTS(name);                                                                      \
	static __always_inline int name##_body(struct kdb_proc *p)

#else

/* Defines a handler of packets that pass an interface. `on_failure`: the verdict for a packet whose transaction fails. */
#define KDB_TC_HANDLER(name, on_failure)                                                               \
	KDB_HANDLER_COUNTS(name);                                                                      \
	KDB_HANDLER_VISITORS(name, "tc", struct __sk_buff)                                             \
	KDB_HANDLER_STAND_IN(name, "tc", struct __sk_buff, on_failure)                                 \
	static __always_inline int name##_body(struct kdb_proc *p, struct __sk_buff *skb, int *verdict); \
	SEC("tc") int name(struct __sk_buff *skb)                                                      \
	{                                                                                              \
		return KDB_HANDLER_RUN(name, skb, KDB_TC_PASS, on_failure, name##_body(&p_, skb, &chosen_)); \
	}                                                                                              \
	static __always_inline int name##_body(struct kdb_proc *p, struct __sk_buff *skb, int *verdict)

/* Defines a handler of packets that an interface has received. Drivers that support XDP call it before the packet has a buffer. */
#define KDB_XDP_HANDLER(name, on_failure)                                                              \
	KDB_HANDLER_COUNTS(name);                                                                      \
	KDB_HANDLER_VISITORS(name, "xdp", struct xdp_md)                                               \
	KDB_HANDLER_STAND_IN(name, "xdp", struct xdp_md, on_failure)                                   \
	static __always_inline int name##_body(struct kdb_proc *p, struct xdp_md *xdp, int *verdict);  \
	SEC("xdp") int name(struct xdp_md *xdp)                                                        \
	{                                                                                              \
		return KDB_HANDLER_RUN(name, xdp, KDB_XDP_PASS, on_failure, name##_body(&p_, xdp, &chosen_)); \
	}                                                                                              \
	static __always_inline int name##_body(struct kdb_proc *p, struct xdp_md *xdp, int *verdict)

/*
 * Defines a handler of a tracepoint. `args` are the tracepoint's arguments, which TP_PROTO names in the kernel's source. A pointer to a
 * structure can be read through: declare the structure with the fields that the body needs and with
 * __attribute__((preserve_access_index)), and convert the argument to it.
 */
#define KDB_TRACEPOINT_HANDLER(name, event)                                                            \
	KDB_HANDLER_COUNTS(name);                                                                      \
	KDB_HANDLER_VISITORS(name, "tp_btf/" #event, unsigned long long)                               \
	KDB_HANDLER_STAND_IN(name, "tp_btf/" #event, unsigned long long, 0)                            \
	static __always_inline int name##_body(struct kdb_proc *p, unsigned long long *args);          \
	SEC("tp_btf/" #event) int name(unsigned long long *args)                                       \
	{                                                                                              \
		if (kdb_in_nmi()) {                                                                    \
			__u32 zero = 0;                                                                \
			struct kdb_handler *handler = bpf_map_lookup_elem(&name##_handler, &zero);     \
			if (handler)                                                                   \
				kdb_handler_count(handler, KDB_HANDLER_NESTED, 0, 0);                  \
			return 0;                                                                      \
		}                                                                                      \
		KDB_HANDLER_RUN(name, args, 0, 0, name##_body(&p_, args));                             \
		return 0;                                                                              \
	}                                                                                              \
	static __always_inline int name##_body(struct kdb_proc *p, unsigned long long *args)

#ifdef KDB_SEVERAL_PARTITIONS

/* Defines a handler that runs again and again. It is attached with the time from the end of one run to the next one. The function that
 * the kernel's timers call has no argument for tail calls, so a thread of the database's process runs the program. */
#define KDB_TIMER_HANDLER(name)                                                                        \
	KDB_HANDLER_COUNTS(name);                                                                      \
	KDB_HANDLER_VISITORS(name, "raw_tp", struct bpf_raw_tracepoint_args)                           \
	static __always_inline int name##_body(struct kdb_proc *p);                                    \
	SEC("raw_tp/timer") int name(struct bpf_raw_tracepoint_args *arguments)                        \
	{                                                                                              \
		KDB_HANDLER_RUN(name, arguments, 0, 0, name##_body(&p_));                              \
		return 0;                                                                              \
	}                                                                                              \
	static __always_inline int name##_body(struct kdb_proc *p)

#else

/* A handler's timer. The kernel stops it when the last descriptor of its map is closed. */
struct kdb_handler_timer {
	struct bpf_timer timer;
	__u64 interval_ns;        /* 0 = it is being stopped */
};

#define KDB_CLOCK_MONOTONIC 1

/* Defines a handler that runs again and again, in a soft interrupt. It is attached with the time from the end of one run to the next
 * one. */
#define KDB_TIMER_HANDLER(name)                                                                        \
	KDB_HANDLER_COUNTS(name);                                                                      \
	struct {                                                                                       \
		__uint(type, BPF_MAP_TYPE_ARRAY);                                                      \
		__uint(max_entries, 1);                                                                \
		__type(key, __u32);                                                                    \
		__type(value, struct kdb_handler_timer);                                               \
	} name##_timer SEC(".maps");                                                                   \
	static __always_inline int name##_body(struct kdb_proc *p);                                    \
	static int name##_expired(void *map, __u32 *key, struct kdb_handler_timer *timer)              \
	{                                                                                              \
		__u64 interval;                                                                        \
		KDB_HANDLER_RUN(name, 0, 0, 0, name##_body(&p_));                                      \
		interval = READ_ONCE(timer->interval_ns);                                              \
		if (interval)                                                                          \
			bpf_timer_start(&timer->timer, interval, 0);                                   \
		return 0;                                                                              \
	}                                                                                              \
	SEC("syscall") int name(struct kdb_timer_arguments *arguments)                                 \
	{                                                                                              \
		__u32 zero = 0;                                                                        \
		struct kdb_handler_timer *timer = bpf_map_lookup_elem(&name##_timer, &zero);           \
		__u64 interval = arguments->interval_ns;                                               \
		USE_ARENA();                                                                           \
		if (!timer)                                                                            \
			return 1;                                                                      \
		WRITE_ONCE(timer->interval_ns, interval);                                              \
		if (!interval) {                                                                       \
			bpf_timer_cancel(&timer->timer);                                               \
			return 0;                                                                      \
		}                                                                                      \
		/* It fails if the timer was in use before, which does no harm. */                     \
		bpf_timer_init(&timer->timer, &name##_timer, KDB_CLOCK_MONOTONIC);                     \
		if (bpf_timer_set_callback(&timer->timer, name##_expired))                             \
			return 1;                                                                      \
		return bpf_timer_start(&timer->timer, interval, 0) != 0;                               \
	}                                                                                              \
	static __always_inline int name##_body(struct kdb_proc *p)

#endif

#endif

#endif
