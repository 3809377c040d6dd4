//! The arithmetic behind INCRBYFLOAT. Redis computes with the x87 80-bit `long double`, which Rust lacks.
//! Its results differ from those of `f64` in the printed digits (10.5 + 0.1 is 10.6 only with it).
//!
//! A value is `mantissa * 2^exponent` with at most 64 significant bits, rounded to nearest, ties to even,
//! over the range of the 80-bit format.

use num_bigint::{BigInt, BigUint, Sign};

/// Significant bits.
const BITS: u64 = 64;
/// Weight of the last bit of the smallest subnormal number.
const MIN_EXPONENT: i64 = -16445;
/// Values of this many bits before the point and more are infinite.
const MAX_EXPONENT: i64 = 16384;
/// Longest text in bytes that is accepted as a number.
const MAX_TEXT: usize = 5 * 1024;
/// Digits after the point that are printed.
const PLACES: u32 = 17;

/// A finite 80-bit floating-point number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LongDouble {
    mantissa: BigInt,
    exponent: i64,
}

impl LongDouble {
    /// Parses a decimal number with optional sign, fraction and exponent, without any space. `None` if it
    /// is something else or not representable.
    pub fn parse(text: &[u8]) -> Option<LongDouble> {
        if text.len() >= MAX_TEXT {
            return None;
        }
        let (sign, rest) = match text {
            [b'-', rest @ ..] => (Sign::Minus, rest),
            [b'+', rest @ ..] => (Sign::Plus, rest),
            _ => (Sign::Plus, text),
        };
        let (digits, exponent) = match rest.iter().position(|c| matches!(c, b'e' | b'E')) {
            Some(at) => (&rest[..at], decimal_exponent(&rest[at + 1..])?),
            None => (rest, 0),
        };
        let (whole, fraction) = match digits.iter().position(|c| *c == b'.') {
            Some(at) => (&digits[..at], &digits[at + 1..]),
            None => (digits, &[][..]),
        };
        let all: Vec<u8> = [whole, fraction].concat();
        if all.is_empty() || !all.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let number = BigUint::parse_bytes(&all, 10)?;
        if number == BigUint::ZERO {
            return Some(LongDouble { mantissa: BigInt::ZERO, exponent: 0 });
        }
        let exponent = exponent.saturating_sub(fraction.len() as i64);
        // The number is far out of range. The check also keeps the powers of ten below small.
        if !(-10_200..=5_000).contains(&exponent) {
            return None;
        }
        let power = BigUint::from(10u32).pow(exponent.unsigned_abs() as u32);
        if exponent >= 0 {
            return Self::rounded(sign, number * power, 0);
        }
        // Enough bits that rounding sees 66 of the quotient, and one more for "there is a rest".
        let shift = (BITS + 3 + power.bits()).saturating_sub(number.bits());
        let number = number << shift;
        let quotient = &number / &power;
        let rest = u32::from(&quotient * &power != number);
        let rounded = Self::rounded(sign, (quotient << 1u32) + rest, -(shift as i64) - 1)?;
        (rounded.mantissa.sign() != Sign::NoSign).then_some(rounded)
    }

    /// The sum; `None` if it is not finite.
    pub fn add(&self, other: &LongDouble) -> Option<LongDouble> {
        let exponent = self.exponent.min(other.exponent);
        let aligned = |x: &LongDouble| &x.mantissa << (x.exponent - exponent) as u64;
        let (sign, sum) = (aligned(self) + aligned(other)).into_parts();
        Self::rounded(sign, sum, exponent)
    }

    /// The decimal text with up to 17 places, without trailing zeros.
    pub fn format(&self) -> String {
        let scaled = self.mantissa.magnitude() * BigUint::from(10u32).pow(PLACES);
        let scaled = if self.exponent >= 0 {
            scaled << self.exponent as u64
        } else {
            round_shift(scaled, self.exponent.unsigned_abs())
        };
        let digits = format!("{scaled:0>width$}", width = PLACES as usize + 1);
        let (whole, fraction) = digits.split_at(digits.len() - PLACES as usize);
        let fraction = fraction.trim_end_matches('0');
        let mut text = String::new();
        if self.mantissa.sign() == Sign::Minus && (whole != "0" || !fraction.is_empty()) {
            text.push('-');
        }
        text.push_str(whole);
        if !fraction.is_empty() {
            text.push('.');
            text.push_str(fraction);
        }
        text
    }

    fn rounded(sign: Sign, magnitude: BigUint, exponent: i64) -> Option<LongDouble> {
        let excess = (magnitude.bits() as i64 - BITS as i64).max(MIN_EXPONENT - exponent).max(0);
        let magnitude = round_shift(magnitude, excess as u64);
        let exponent = exponent + excess;
        if magnitude.bits() as i64 + exponent > MAX_EXPONENT {
            return None;
        }
        Some(LongDouble { mantissa: BigInt::from_biguint(sign, magnitude), exponent })
    }
}

/// `value / 2^shift`, rounded to nearest, ties to even.
fn round_shift(value: BigUint, shift: u64) -> BigUint {
    if shift == 0 {
        return value;
    }
    let quotient = &value >> shift;
    let half = BigUint::from(1u32) << (shift - 1);
    let rest = value - (&quotient << shift);
    let up = match rest.cmp(&half) {
        std::cmp::Ordering::Less => false,
        std::cmp::Ordering::Equal => quotient.bit(0),
        std::cmp::Ordering::Greater => true,
    };
    if up { quotient + 1u32 } else { quotient }
}

/// The number behind `e`; saturates.
fn decimal_exponent(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = digits.iter().fold(0i64, |v, d| v.saturating_mul(10).saturating_add(i64::from(d - b'0')));
    Some(if negative { -value } else { value })
}
