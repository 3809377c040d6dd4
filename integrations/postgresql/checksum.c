/*
 * checksum.c
 *	  The checksum of a page that must not be written to.
 *
 * The server's pg_checksum_page() clears the page's checksum for a moment. Images are in read-only memory, so this one
 * computes the same number from a copy of the first row of words, which is where the checksum is.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "bedplate_scan.h"

/* The header defines the constants and the step, and the server's function, which stays in this file and is not used. */
#define pg_checksum_page bps_unused_checksum_page
static uint16 bps_unused_checksum_page(char *page, BlockNumber block) pg_attribute_unused();
#include "storage/checksum_impl.h"

#define ROW_BYTES (N_SUMS * sizeof(uint32))

StaticAssertDecl(offsetof(PageHeaderData, pd_checksum) + sizeof(uint16) <= ROW_BYTES, "the checksum is in the first row");
StaticAssertDecl(BLCKSZ % ROW_BYTES == 0, "a page is whole rows");

uint16
BpsChecksum(const char *page, BlockNumber block)
{
	uint32		first[N_SUMS];
	uint32		sums[N_SUMS];
	uint32		result = 0;

	memcpy(first, page, ROW_BYTES);
	memset((char *) first + offsetof(PageHeaderData, pd_checksum), 0, sizeof(uint16));
	memcpy(sums, checksumBaseOffsets, ROW_BYTES);
	for (size_t i = 0; i < N_SUMS; i++)
		CHECKSUM_COMP(sums[i], first[i]);
	for (size_t row = 1; row < BLCKSZ / ROW_BYTES; row++)
	{
		const uint32 *words = (const uint32 *) (page + row * ROW_BYTES);

		for (size_t i = 0; i < N_SUMS; i++)
			CHECKSUM_COMP(sums[i], words[i]);
	}
	/* Two rounds of zeroes mix the last words, too. */
	for (int round = 0; round < 2; round++)
		for (size_t i = 0; i < N_SUMS; i++)
			CHECKSUM_COMP(sums[i], 0);
	for (size_t i = 0; i < N_SUMS; i++)
		result ^= sums[i];
	/* The number of the block is part of it, and 0 means that there is none. */
	result ^= block;
	return (uint16) ((result % 65535) + 1);
}
