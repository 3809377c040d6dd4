//! The ordinary user as whom servers run, because database servers refuse to run as root, or should not.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::geteuid;

use crate::Result;

/// A user and a group by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    user: u32,
    group: u32,
}

impl User {
    /// The user for servers. `None` means this process's own user, unless that is root. For root, it is the user of the given
    /// name, which the server's package creates, or else `nobody`.
    pub fn ordinary(name: &str) -> Result<Option<Self>> {
        if !geteuid().is_root() {
            return Ok(None);
        }
        let users = fs::read_to_string("/etc/passwd").map_err(|e| format!("/etc/passwd: {e}"))?;
        let found = [name, "nobody"].iter().find_map(|name| Self::find(&users, name));
        found
            .map(Some)
            .ok_or_else(|| format!("no user {name} or nobody, and the server does not run as root"))
    }

    /// A user in the text of `/etc/passwd`.
    fn find(users: &str, name: &str) -> Option<Self> {
        let fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|f| f[0] == name)?;
        Some(Self { user: fields.get(2)?.parse().ok()?, group: fields.get(3)?.parse().ok()? })
    }

    /// Makes the user the owner of a file or folder.
    pub fn own(self, path: &Path) -> Result<()> {
        chown(path, Some(self.user), Some(self.group)).map_err(|e| format!("chown {}: {e}", path.display()))
    }

    /// Lets a command run as this user.
    pub fn run(self, command: &mut Command) {
        command.uid(self.user).gid(self.group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let users =
            "root:x:0:0:root:/root:/bin/bash\npostgres2:x:7:7::/:/bin/sh\npostgres:x:105:111::/:/bin/sh\n";
        assert_eq!(User::find(users, "postgres"), Some(User { user: 105, group: 111 }));
        assert_eq!(User::find(users, "nobody"), None);
    }
}
