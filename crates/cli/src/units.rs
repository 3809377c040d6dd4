//! Sizes and times as people write them.

use std::time::Duration;

/// Bytes from `4096`, `64k`, `4G`, `1.5GiB`. The units are powers of 1024, as in Redis's own options.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        other => return Err(format!("{other} is not a unit of size: use K, M, G or T")),
    };
    let value = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(1 << shift),
        Err(_) => {
            let value: f64 = number.parse().map_err(|_| format!("{text} is not a size: write 512M or 4G"))?;
            let bytes = value * (1u64 << shift) as f64;
            (bytes < u64::MAX as f64).then_some(bytes as u64)
        }
    };
    value.ok_or_else(|| format!("{text} is too large"))
}

/// A time from `5m`, `100ms`, `1h 30m`; plain numbers are seconds.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    humantime::parse_duration(text).map_err(|e| format!("{e}; write 30s, 5m or 100ms"))
}

/// "1.5 GiB": for people.
pub fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if value.fract() < 0.05 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}

/// "1.5 ms": for people, from nanoseconds.
pub fn duration(ns: u64) -> String {
    let mut value = ns as f64;
    let mut unit = "ns";
    for next in ["µs", "ms", "s"] {
        if value < 1000.0 {
            break;
        }
        value /= 1000.0;
        unit = next;
    }
    if value.fract() < 0.05 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}

/// "1,234,567": for people.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64k"), Ok(64 << 10));
        assert_eq!(parse_size("4G"), Ok(4 << 30));
        assert_eq!(parse_size(" 1.5 GiB "), Ok(3 << 29));
        assert!(parse_size("").is_err());
        assert!(parse_size("4X").unwrap_err().contains('x'));
        assert!(parse_size("99999999T").is_err());
        assert!(parse_size("-1").is_err());
    }

    #[test]
    fn times_are_read() {
        assert_eq!(parse_time("30"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_time("100ms"), Ok(Duration::from_millis(100)));
        assert!(parse_time("soon").is_err());
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(size(512), "512 B");
        assert_eq!(size(1 << 30), "1 GiB");
        assert_eq!(size(3 << 29), "1.5 GiB");
        assert_eq!(
            (duration(0), duration(999), duration(8192)),
            ("0 ns".into(), "999 ns".into(), "8.2 µs".into())
        );
        assert_eq!((duration(1_500_000), duration(90_000_000_000)), ("1.5 ms".into(), "90 s".into()));
        assert_eq!((count(0), count(999), count(1_234_567)), ("0".into(), "999".into(), "1,234,567".into()));
    }
}
