//! The arguments of commands as the slow log and monitors show them: without passwords.

use super::exec::is;
use super::spec::Cmd;
use crate::resp::Args;

const REDACTED: &[u8] = b"(redacted)";

/// Parameters of CONFIG SET that are secret. The server has only the first one. The others are those of Redis, whose values a client may
/// send here by mistake.
const SECRET_PARAMETERS: [&str; 3] = ["requirepass", "masterauth", "masteruser"];

/// The arguments of a command, with `(redacted)` in the place of user names and passwords.
pub(super) fn shown<'a>(cmd: Cmd, args: Args<'a>) -> Vec<&'a [u8]> {
    let mut shown: Vec<&[u8]> = args.from(0).collect();
    match cmd {
        Cmd::Auth => shown[1..].fill(REDACTED),
        Cmd::Hello => {
            let mut i = 2;
            while i < shown.len() {
                if is(shown[i], "auth") {
                    let end = shown.len().min(i + 3);
                    shown[i + 1..end].fill(REDACTED);
                    i = end;
                } else {
                    // The name of SETNAME may be any word.
                    i += if is(shown[i], "setname") { 2 } else { 1 };
                }
            }
        }
        Cmd::Config if is(args.get(1), "set") => {
            let is_secret = |word: &&[u8]| SECRET_PARAMETERS.iter().any(|name| is(word, name));
            // Without pairs, any word may be a password.
            if shown.len() % 2 == 1
                && let Some(at) = shown[2..].iter().position(is_secret)
            {
                shown[at + 3..].fill(REDACTED);
            }
            for i in (2..shown.len()).step_by(2) {
                if i + 1 < shown.len() && SECRET_PARAMETERS.iter().any(|name| is(shown[i], name)) {
                    shown[i + 1] = REDACTED;
                }
            }
        }
        Cmd::Acl if ["setuser", "deluser", "getuser"].iter().any(|name| is(args.get(1), name)) => {
            shown[2..].fill(REDACTED);
        }
        Cmd::Acl if is(args.get(1), "dryrun") && shown.len() > 3 => shown[3..].fill(REDACTED),
        Cmd::Command
            if shown.len() > 3
                && ["getkeys", "getkeysandflags"].iter().any(|name| is(shown[1], name))
                && ["auth", "hello", "acl", "config"].iter().any(|name| is(shown[2], name)) =>
        {
            shown[3..].fill(REDACTED);
        }
        _ => {}
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::spec;
    use crate::resp::OwnedArgs;

    #[test]
    fn passwords_are_not_shown() {
        for (line, expected) in [
            ("auth p", "auth (redacted)"),
            ("AUTH u p", "AUTH (redacted) (redacted)"),
            ("hello 3", "hello 3"),
            ("hello 3 setname auth auth u p", "hello 3 setname auth auth (redacted) (redacted)"),
            ("hello 3 AUTH u p setname x", "hello 3 AUTH (redacted) (redacted) setname x"),
            ("hello 3 nosuch auth u", "hello 3 nosuch auth (redacted)"),
            ("config set timeout 1 RequirePass p", "config set timeout 1 RequirePass (redacted)"),
            (
                "config set masterauth p requirepass q",
                "config set masterauth (redacted) requirepass (redacted)",
            ),
            ("config set timeout requirepass 1 2", "config set timeout requirepass 1 2"),
            ("config set timeout 1 requirepass", "config set timeout 1 requirepass"),
            ("config set timeout requirepass p", "config set timeout requirepass (redacted)"),
            ("config set requirepass p x", "config set requirepass (redacted) (redacted)"),
            ("acl dryrun u", "acl dryrun u"),
            ("acl dryrun u auth u p", "acl dryrun u (redacted) (redacted) (redacted)"),
            ("command getkeys AUTH u p", "command getkeys AUTH (redacted) (redacted)"),
            (
                "command GETKEYSANDFLAGS hello 3 auth u p",
                "command GETKEYSANDFLAGS hello (redacted) (redacted) (redacted) (redacted)",
            ),
            ("command getkeys get auth", "command getkeys get auth"),
            ("command", "command"),
            ("config get requirepass p", "config get requirepass p"),
            ("acl setuser u on >p", "acl setuser (redacted) (redacted) (redacted)"),
            ("ACL getuser u", "ACL getuser (redacted)"),
            ("acl whoami x", "acl whoami x"),
            ("set auth p", "set auth p"),
        ] {
            let args: OwnedArgs = line.split(' ').map(str::as_bytes).collect();
            let cmd = spec::find(args.args().get(0)).unwrap().cmd.unwrap();
            assert_eq!(shown(cmd, args.args()).join(&b' '), expected.as_bytes());
        }
    }
}
