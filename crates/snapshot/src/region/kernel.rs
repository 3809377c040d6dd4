//! Which kernel this is, for what cannot be asked otherwise.

/// Whether the kernel is this version or a later one. What cannot be read is an old one.
pub fn is_at_least(major: u32, minor: u32) -> bool {
    let uname = rustix::system::uname();
    uname.release().to_str().ok().and_then(version).is_some_and(|version| version >= (major, minor))
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    #[test]
    fn versions_are_read() {
        let version = super::version;
        assert_eq!(version("6.1.0-56-cloud-amd64"), Some((6, 1)));
        assert_eq!(version("6.18.2"), Some((6, 18)));
        assert_eq!(version("7.0-rc1"), Some((7, 0)));
        assert_eq!(version("unknown"), None);
        assert!(super::is_at_least(3, 0) && !super::is_at_least(1000, 0));
    }
}
