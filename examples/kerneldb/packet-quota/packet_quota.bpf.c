// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
// Limits the IPv4 packets of each sender, in all and per second, in a transaction for each packet. All state is ordinary keys:
//
//	quota:ADDRESS     packets that the address may still send; without this key there is no quota
//	rate:ADDRESS      packets that the address may send in a second; without this key there is no limit
//	sent:ADDRESS      packets of the current second; the key expires with it
//	dropped:ADDRESS   packets that were dropped
#include <bedplate/handler.h>
#include <bpf/bpf_endian.h>

KDB_LICENSE("Dual MIT/GPL");

// A packet whose transaction fails is dropped, so no address ever exceeds its quota. KDB_TC_PASS would let it pass, uncounted.
#define ON_FAILURE KDB_TC_DROP

#define ETHERTYPE_IPV4 0x0800
// Where the source address is in an Ethernet packet.
#define SOURCE_OFFSET 26

#define WINDOW_MS 1000

static __always_inline int append_address(struct kdb_proc *p, const __u8 *address)
{
	KDB_TRY(kdb_key_append_decimal(p, address[0]));
	KDB_TRY(kdb_key_append_text(p, "."));
	KDB_TRY(kdb_key_append_decimal(p, address[1]));
	KDB_TRY(kdb_key_append_text(p, "."));
	KDB_TRY(kdb_key_append_decimal(p, address[2]));
	KDB_TRY(kdb_key_append_text(p, "."));
	return kdb_key_append_decimal(p, address[3]);
}

// Sets the key to a literal, followed by the address.
#define address_key(p, literal, address)                                                               \
	({                                                                                             \
		kdb_key(p, literal);                                                                   \
		append_address(p, address);                                                            \
	})

static __always_inline int drop(struct kdb_proc *p, const __u8 *source, int *verdict)
{
	__s64 dropped = 0;

	*verdict = KDB_TC_DROP;
	KDB_TRY(address_key(p, "dropped:", source));
	if (KDB_TRY(kdb_read_for_update(p)) == KDB_OK)
		KDB_TRY(kdb_value_integer(p, &dropped));
	return kdb_write_integer(p, dropped + 1);
}

KDB_TC_HANDLER(packet_quota, ON_FAILURE)
{
	int has_rate, has_quota;
	__s64 rate = 0, sent = 0, quota = 0;
	__u8 source[4];

	if (skb->protocol != bpf_htons(ETHERTYPE_IPV4) || bpf_skb_load_bytes(skb, SOURCE_OFFSET, source, sizeof(source)))
		return KDB_OK;
	KDB_TRY(address_key(p, "rate:", source));
	has_rate = KDB_TRY(kdb_read(p)) == KDB_OK;
	if (has_rate) {
		KDB_TRY(kdb_value_integer(p, &rate));
		KDB_TRY(address_key(p, "sent:", source));
		if (KDB_TRY(kdb_read_for_update(p)) == KDB_OK)
			KDB_TRY(kdb_value_integer(p, &sent));
		if (sent >= rate)
			return drop(p, source, verdict);
	}
	KDB_TRY(address_key(p, "quota:", source));
	has_quota = KDB_TRY(kdb_read_for_update(p)) == KDB_OK;
	if (has_quota) {
		KDB_TRY(kdb_value_integer(p, &quota));
		if (quota <= 0)
			return drop(p, source, verdict);
		KDB_TRY(kdb_write_integer(p, quota - 1));
	}
	if (!has_rate)
		return KDB_OK;
	KDB_TRY(address_key(p, "sent:", source));
	// The first packet begins a second. The others keep the time at which it ends.
	if (sent > 0)
		return kdb_write_integer(p, sent + 1);
	kdb_value(p, "1");
	return kdb_write_with(p, 0, kdb_now_ms() + WINDOW_MS);
}
