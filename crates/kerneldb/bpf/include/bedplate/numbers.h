/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* Numbers and texts of procedures, apart from any call: division, and decimal text in buffers. */
#ifndef BEDPLATE_NUMBERS_H
#define BEDPLATE_NUMBERS_H

#include <bedplate/kdb.h>

/* Returns the quotient of two signed numbers, rounded towards zero. Programs of the hash-map engine have no instruction for it, so
 * the compiler may refuse `/` and `%` of signed numbers there. `right` is not 0, and the quotient is in range. */
static __always_inline __s64 kdb_divide(__s64 left, __s64 right)
{
#ifdef KDB_ENGINE_HASHMAP
	__u64 quotient = (left < 0 ? -(__u64)left : left) / (right < 0 ? -(__u64)right : right);

	return (left < 0) != (right < 0) ? -quotient : quotient;
#else
	return left / right;
#endif
}

/* Returns the remainder of that division, which has the sign of `left`. */
static __always_inline __s64 kdb_remainder(__s64 left, __s64 right)
{
#ifdef KDB_ENGINE_HASHMAP
	return left - kdb_divide(left, right) * right;
#else
	return left % right;
#endif
}

/* Number of decimal digits of a number. */
static __always_inline __u32 kdb_decimal_digits(__u64 number)
{
	__u32 digits = 1, i;

	for (i = 0; i < 19; i++) {
		number /= 10;
		if (!number)
			break;
		digits++;
	}
	return digits;
}

/* Writes a number as decimal text, whose last digit is bytes[end - 1]. `mask` shows the verifier that no index is outside of the
 * buffer. */
static __always_inline void kdb_put_decimal(__u8 *bytes, __u32 mask, __u32 end, __u64 number)
{
	__u32 i;

	for (i = 0; i < 20; i++) {
		end--;
		bytes[end & mask] = '0' + number % 10;
		number /= 10;
		if (!number)
			break;
	}
}

/* Appends a string literal to `bytes`, which has `length` bytes and may have `max`. */
#define KDB_APPEND_TEXT(bytes, length, max, literal)                                                   \
	({                                                                                             \
		__u32 length_ = (length);                                                              \
		int fits_ = length_ <= (max) - (sizeof(literal) - 1);                                  \
		/* The verifier needs the bound where the value is used. */                            \
		opaque(length_);                                                                       \
		if (fits_ && length_ <= (max) - (sizeof(literal) - 1)) {                               \
			__builtin_memcpy(&(bytes)[length_], literal, sizeof(literal) - 1);             \
			(length) = length_ + sizeof(literal) - 1;                                      \
		}                                                                                      \
		fits_ ? KDB_OK : KDB_ERR_TOO_LARGE;                                                    \
	})

#endif
