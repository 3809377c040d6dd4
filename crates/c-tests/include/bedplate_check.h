/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Checks in the tests of the C interfaces. They print the line and what is wrong, and count. The including file defines
 * BP_CHECK_STRERROR, the function that gives a code's text, and BP_CHECK_ERROR, the function that gives the latest error's text.
 */
#ifndef BEDPLATE_CHECK_H
#define BEDPLATE_CHECK_H

#include <stdio.h>

static int failures;

#define IS(call, wanted)                                                                                               \
	do {                                                                                                           \
		int got_ = (call), wanted_ = (wanted);                                                                 \
		if (got_ != wanted_) {                                                                                 \
			printf("line %d: %s: %s (%s), not %s\n", __LINE__, #call, BP_CHECK_STRERROR(got_),             \
			       BP_CHECK_ERROR(), BP_CHECK_STRERROR(wanted_));                                          \
			failures++;                                                                                    \
		}                                                                                                      \
	} while (0)
#define HOLDS(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			printf("line %d: %s does not hold (%s)\n", __LINE__, #condition, BP_CHECK_ERROR());            \
			failures++;                                                                                    \
		}                                                                                                      \
	} while (0)

#endif
