// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
/*
 * The Voter benchmark of H-Store and VoltDB (paper 5.2) as procedures that clients call by name: a telephone vote for
 * the contestants of a talent show.
 *
 *	CALL voter_vote PHONE CONTESTANT LIMIT  casts a vote: 0 = accepted, 1 = there is no such contestant,
 *	                                        2 = the phone number has cast LIMIT votes already
 *	CALL voter_results CONTESTANT           the contestant's votes from all states
 *
 * The tables are prefixes of keys, and all numbers are decimal text, so that ordinary commands read and load them:
 *
 *	area:AREA            state of an area code, two letters; the vote of an unknown area code counts for XX
 *	contestant:NUMBER    name of a contestant
 *	phone:PHONE          number of votes that a phone number has cast
 *	vote:PHONE n         one vote: contestant and state; n is the vote's number among those of the phone number, as 8 bytes
 *	count:STATE:NUMBER   number of votes for a contestant from a state
 */
#include <bedplate/procedure.h>

KDB_LICENSE("Dual MIT/GPL");

enum vote_outcome {
	VOTE_ACCEPTED = 0,
	VOTE_NO_CONTESTANT = 1,
	VOTE_OVER_LIMIT = 2,
};

/* The key of the votes from a state. The caller appends the contestant. */
static __always_inline void key_count(struct kdb_proc *p, const char *state)
{
	kdb_key(p, "count:XX:");
	p->io->key[6] = state[0];
	p->io->key[7] = state[1];
}

KDB_PROCEDURE(voter_vote)
{
	__s64 phone, contestant, limit, votes = 0, count = 0;
	char state[2] = { 'X', 'X' };
	__u32 at, len;

	KDB_TRY(kdb_expect(p, 3));
	KDB_TRY(kdb_argument_integer(p, 0, &phone));
	KDB_TRY(kdb_argument_integer(p, 1, &contestant));
	KDB_TRY(kdb_argument_integer(p, 2, &limit));
	if (phone < 1000000000 || phone > 9999999999)
		return kdb_refuse(p, "ERR a phone number has ten digits");

	kdb_key(p, "contestant:");
	KDB_TRY(kdb_key_append(p, 1));
	if (KDB_TRY(kdb_read(p)) == KDB_NOT_FOUND)
		return kdb_reply_integer(p, VOTE_NO_CONTESTANT);

	kdb_key(p, "phone:");
	KDB_TRY(kdb_key_append(p, 0));
	if (KDB_TRY(kdb_read(p)) == KDB_OK)
		KDB_TRY(kdb_value_integer(p, &votes));
	if (votes >= limit)
		return kdb_reply_integer(p, VOTE_OVER_LIMIT);

	/* The area code is the first three digits. */
	kdb_key(p, "area:");
	at = kdb_argument_at(p, 0, &len);
	KDB_TRY(kdb_key_extend(p->call, p->io, at, 3));
	if (KDB_TRY(kdb_read(p)) == KDB_OK && p->io->vlen == sizeof(state)) {
		state[0] = p->io->val[0];
		state[1] = p->io->val[1];
	}

	kdb_key(p, "phone:");
	KDB_TRY(kdb_key_append(p, 0));
	KDB_TRY(kdb_write_integer(p, votes + 1));

	kdb_key(p, "vote:");
	KDB_TRY(kdb_key_append(p, 0));
	KDB_TRY(kdb_key_append_integer(p, votes + 1));
	KDB_TRY(kdb_value_argument(p, 1));
	/* An integer has at most 20 digits, so there is room behind it. */
	len = p->io->vlen;
	opaque(len);
	p->io->val[len & 31] = ' ';
	p->io->val[(len + 1) & 31] = state[0];
	p->io->val[(len + 2) & 31] = state[1];
	p->io->vlen = len + 3;
	KDB_TRY(kdb_write(p));

	key_count(p, state);
	KDB_TRY(kdb_key_append(p, 1));
	if (KDB_TRY(kdb_read(p)) == KDB_OK)
		KDB_TRY(kdb_value_integer(p, &count));
	KDB_TRY(kdb_write_integer(p, count + 1));
	return kdb_reply_integer(p, VOTE_ACCEPTED);
}

/* Every state that a vote can count for. */
static const char states[][3] = {
	"AK", "AL", "AR", "AZ", "CA", "CO", "CT", "DC", "DE", "FL", "GA", "HI", "IA", "ID", "IL", "IN", "KS", "KY",
	"LA", "MA", "MD", "ME", "MI", "MN", "MO", "MS", "MT", "NC", "ND", "NE", "NH", "NJ", "NM", "NV", "NY", "OH",
	"OK", "OR", "PA", "RI", "SC", "SD", "TN", "TX", "UT", "VA", "VT", "WA", "WI", "WV", "WY", "XX",
};

KDB_READ_ONLY_PROCEDURE(voter_results)
{
	__s64 contestant, votes, total = 0;
	__u32 i;

	KDB_TRY(kdb_expect(p, 1));
	KDB_TRY(kdb_argument_integer(p, 0, &contestant));
	for (i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
		key_count(p, states[i]);
		KDB_TRY(kdb_key_append(p, 0));
		if (KDB_TRY(kdb_read(p)) == KDB_NOT_FOUND)
			continue;
		KDB_TRY(kdb_value_integer(p, &votes));
		total += votes;
	}
	return kdb_reply_integer(p, total);
}
