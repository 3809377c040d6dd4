//! A limit on a process's memory, page cache included, for stores that leave caching to the kernel.
//!
//! The limit is a control group (version 2, or 1 if that has memory) whose only member is the process. It also counts the
//! process's own memory and the kernel's memory for it. So the limit is the size of these before the store is opened,
//! plus the budget. The kernel unmaps a page that the group reclaims, as a pool does by itself. This is in the process's
//! CPU time, as it should be. But kernel threads may write pages that the store has dirtied. Their CPU time counts for no
//! process, which favours the store.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::Error;

/// A control group. Dropping it removes the group, if the process has ended.
pub struct Group {
    directory: PathBuf,
    /// The group of the process that made this one.
    home: PathBuf,
    limit: &'static str,
    usage: &'static str,
}

impl Group {
    /// Creates a group, or returns the reason why there cannot be one.
    pub fn create(name: &str) -> Result<Self, String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|e| e.to_string())?;
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(|e| e.to_string())?;
        let mut reason = "there is no control group for memory".to_owned();
        for (mount, group, version) in places(&mounts, &groups) {
            let (limit, usage) = match version {
                1 => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
                _ => ("memory.max", "memory.current"),
            };
            let home = mount.join(group.strip_prefix("/").unwrap_or(&group));
            // In version 2, a group has limits only if no process is beside it, so this also tries the ancestors of the
            // process's group.
            for parent in group.ancestors() {
                let parent = mount.join(parent.strip_prefix("/").unwrap_or(parent));
                let directory = parent.join(format!("bedplate-{name}-{}", std::process::id()));
                match fs::create_dir(&directory) {
                    Ok(()) if directory.join(limit).exists() => {
                        return Ok(Self { directory, home, limit, usage });
                    }
                    Ok(()) => drop(fs::remove_dir(&directory)),
                    Err(error) => reason = format!("no control group in {}: {error}", parent.display()),
                }
                if version == 1 {
                    break;
                }
            }
        }
        Err(reason)
    }

    /// Makes the calling process a member.
    pub fn enter(&self) -> io::Result<()> {
        fs::write(self.directory.join("cgroup.procs"), "0")
    }

    /// Moves the calling process back to the group that it was a member of when this group was created.
    pub fn leave(&self) -> io::Result<()> {
        fs::write(self.home.join("cgroup.procs"), "0")
    }

    /// Limits the memory of the members to `bytes`.
    pub fn limit(&self, bytes: u64) -> io::Result<()> {
        fs::write(self.directory.join(self.limit), bytes.to_string())
    }

    /// Limits the memory of the members to `bytes` more than they use now.
    pub fn allow(&self, bytes: u64) -> io::Result<()> {
        let used = fs::read_to_string(self.directory.join(self.usage))?;
        let used: u64 = used.trim().parse().map_err(io::Error::other)?;
        fs::write(self.directory.join(self.limit), (used + bytes).to_string())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has ended may be counted for a moment longer.
        for _ in 0..50 {
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        tracing::warn!(directory = %self.directory.display(), "the control group could not be removed");
    }
}

/// The mount points of control groups for memory, this process's group there, and their version.
fn places(mounts: &str, groups: &str) -> Vec<(PathBuf, PathBuf, u8)> {
    let mut all = Vec::new();
    for mount in mounts.lines() {
        // ID, parent, device, root, mount point, options, any number of others, "-", type, source, options.
        let Some((front, back)) = mount.split_once(" - ") else { continue };
        let front: Vec<&str> = front.split(' ').collect();
        let back: Vec<&str> = back.split(' ').collect();
        let (Some(root), Some(point), Some(kind)) = (front.get(3), front.get(4), back.first()) else {
            continue;
        };
        let version = match *kind {
            "cgroup2" => 2,
            "cgroup" if back.get(2).is_some_and(|options| options.split(',').any(|o| o == "memory")) => 1,
            _ => continue,
        };
        let own = groups.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let is_it = match version {
                1 => controllers.split(',').any(|controller| controller == "memory"),
                _ => controllers.is_empty(),
            };
            is_it.then_some(path)
        });
        // In a container, the mount shows only a part of the tree.
        let Some(own) = own else { continue };
        let own = Path::new(own);
        let own =
            own.strip_prefix(root).map_or(Path::new("/").to_path_buf(), |rest| Path::new("/").join(rest));
        all.push((PathBuf::from(point), own, version));
    }
    all
}

/// Drops the files in a directory from the page cache, because a cached page counts for the process that read it first.
pub fn forget(directory: &Path) -> crate::Result<()> {
    forget_files(directory).map_err(Error::io("empty the page cache"))
}

fn forget_files(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            forget_files(&path)?;
            continue;
        }
        let file = fs::File::open(path)?;
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_in_both_versions() {
        let mounts = "\
            24 1 0:22 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
            25 1 0:23 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
            26 1 0:24 /part /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
        let groups = "4:memory:/a/b\n1:cpu:/c\n0::/part/d\n";
        let found = places(mounts, groups);
        assert_eq!(
            found,
            [
                (PathBuf::from("/sys/fs/cgroup/memory"), PathBuf::from("/a/b"), 1),
                (PathBuf::from("/sys/fs/cgroup/unified"), PathBuf::from("/d"), 2),
            ]
        );
    }
}
