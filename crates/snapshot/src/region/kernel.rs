//! Properties of the running kernel that cannot be found by trying.

use super::above_standard::open;

/// Whether the kernel has this version or a later one. A version that cannot be parsed counts as old.
pub fn is_at_least(major: u32, minor: u32) -> bool {
    let uname = rustix::system::uname();
    uname.release().to_str().ok().and_then(version).is_some_and(|version| version >= (major, minor))
}

/// Whether the kernel limits private memory to the amount that could be copied completely (`vm.overcommit_memory`
/// is 2). Then a private mapping as large as the memory may be refused. Nothing is allocated.
pub fn counts_promises() -> bool {
    let mut mode = [0];
    let read = open(c"/proc/sys/vm/overcommit_memory").and_then(|file| rustix::io::read(&file, &mut mode));
    read == Ok(1) && mode == *b"2"
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
