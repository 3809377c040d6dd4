//! Rules, rights and files.

use proptest::prelude::*;

use super::rule::RuleError;
use super::*;
use crate::command::spec;
use crate::limits::{USER_PASSWORDS_MAX, USER_RULES_MAX};
use crate::resp::OwnedArgs;

fn user(rules: &str) -> User {
    let mut user = User::new(false);
    for rule in merge_selectors(rules.split_whitespace().map(str::as_bytes)).unwrap() {
        user.apply(&rule, false).unwrap_or_else(|error| panic!("{rules}: {error}"));
    }
    user
}

fn check(user: &User, request: &str) -> Result<(), Denied> {
    let args: OwnedArgs = request.split_whitespace().collect();
    let resolved = spec::resolve(args.args()).unwrap();
    user.check(&Request { resolved, args: args.args() })
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn commands_are_allowed_by_name_subcommand_category_and_first_argument() {
    for (rules, allowed, denied) in [
        ("+get ~*", "get a", "set a b"),
        ("+@read ~*", "mget a b", "del a"),
        ("+config|get", "config get x", "config set x y"),
        ("+config -config|set", "config help", "config set x y"),
        ("+select|0", "SELECT 0", "select 1"),
        ("+select|0 +select", "select 1", "ping"),
        ("+@all -@dangerous ~*", "set a b", "keys *"),
        ("-@all", "auth x", "ping"),
        ("+@all -client|kill", "client id", "client kill a"),
        ("+set (+get ~x)", "get x", "get y"),
        ("+@all ~a", "eval x 1 a", "eval x 2 a b"),
        ("+@connection", "ping", "bedplate durability off"),
    ] {
        assert_eq!(check(&user(rules), allowed), Ok(()), "{rules}: {allowed}");
        assert!(check(&user(rules), denied).is_err(), "{rules}: {denied}");
    }
}

#[test]
fn keys_are_allowed_for_reads_and_writes_separately() {
    let user = user("+@all %R~r* %W~w* ~b*");
    for (request, denied) in [
        ("get r", None),
        ("get w", Some(1)),
        ("set w 1", None),
        ("set w 1 get", Some(1)),
        ("set b 1 get", None),
        ("incr w", Some(1)),
        ("append w x", None),
        ("exists w r b", None),
        ("exists w x", Some(2)),
        ("copy r w", None),
        ("copy w r", Some(1)),
        ("rename b w", None),
        ("rename r w", Some(1)),
        ("rename b r", Some(2)),
        ("bitop and w r b", None),
        ("bitop and w r w", Some(4)),
        ("bitfield r get u8 0 overflow fail", None),
        ("bitfield r get u8 0 set u8 0 1", Some(1)),
        ("mset w1 1 r1 1", Some(3)),
        ("object encoding w", None),
        ("object encoding x", Some(2)),
        ("eval x 2 b r", Some(4)),
        ("eval_ro x 1 r", None),
        ("eval x 9 r", None),
        ("cas w a b", Some(1)),
        // A procedure uses keys that nobody can check.
        ("call p", Some(1)),
    ] {
        assert_eq!(check(&user, request), denied.map_or(Ok(()), |at| Err(Denied::Key(at))), "{request}");
    }
    assert_eq!(check(&self::user("+call ~*"), "call p"), Ok(()));
    // All keys for reading and all keys for writing are not the right to use keys that nobody can check.
    assert_eq!(check(&self::user("+call %R~* %W~*"), "call p"), Err(Denied::Key(1)));
}

#[test]
fn the_error_is_that_of_the_selector_that_got_furthest() {
    let user = user("-@all (+get ~a) (+mget ~a)");
    assert_eq!(check(&user, "get b"), Err(Denied::Key(1)));
    assert_eq!(check(&user, "mget a b"), Err(Denied::Key(2)));
    assert_eq!(check(&user, "set a b"), Err(Denied::Command));
}

#[test]
fn users_are_described_as_in_redis() {
    for (rules, description) in [
        ("", "off resetchannels -@all"),
        ("on nopass ~* &* +@all", "on nopass ~* &* +@all"),
        ("+@all -@dangerous -keys +config|get", "off resetchannels +@all -@dangerous +config|get"),
        ("%R~a %W~a %W~b ~c &x", "off ~a %W~b ~c resetchannels &x -@all"),
        ("%RW~* ~a", "off %RW~* ~a resetchannels -@all"),
        ("+@read +@write", "off resetchannels -@all +@write +@read"),
        ("+@all -@geo", "off resetchannels +@all -@geo"),
        ("+@pubsub +@all -@set +@set", "off resetchannels +@all"),
        ("+@list +get", "off resetchannels -@all +@list +get"),
        ("+@string -get", "off resetchannels -@all +@string -get"),
        ("+config -config|set +select|0", "off resetchannels -@all +config -config|set +select|0"),
        (
            "(+get) (~a) clearselectors (+set ~x %R~y) on",
            "on resetchannels -@all (~x %R~y resetchannels -@all +set)",
        ),
        ("on +@all reset", "off sanitize-payload resetchannels -@all"),
        ("skip-sanitize-payload", "off skip-sanitize-payload resetchannels -@all"),
        (">x", "off #2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881 resetchannels -@all"),
        (">x nopass >y <y", "off resetchannels -@all"),
        (">x resetpass", "off resetchannels -@all"),
    ] {
        assert_eq!(text(&user(rules).describe()), description, "{rules}");
    }
}

#[test]
fn rules_with_mistakes_are_refused() {
    let nested = "(~a (+get))";
    for (rule, error) in [
        ("foo", RuleError::Syntax),
        ("+nosuch", RuleError::UnknownCommand),
        ("+@nosuch", RuleError::UnknownCommand),
        ("-select|0", RuleError::UnknownCommand),
        ("+config|get|x", RuleError::FirstArgumentOfSubcommand),
        ("+get|", RuleError::Syntax),
        ("%X~a", RuleError::Syntax),
        ("%~a", RuleError::Syntax),
        ("%RR~a", RuleError::Syntax),
        ("~a b", RuleError::Syntax),
        ("&a\tb", RuleError::Syntax),
        ("<x", RuleError::NoSuchPassword),
        ("#abc", RuleError::PasswordHash),
        ("!ABC", RuleError::PasswordHash),
        ("(on)", RuleError::Syntax),
        (nested, RuleError::Syntax),
        ("(~a", RuleError::Syntax),
    ] {
        assert_eq!(user("").apply(rule.as_bytes(), false), Err(error), "{rule}");
    }
    assert_eq!(user("~*").apply(b"~a", false), Err(RuleError::AfterAllKeys));
    assert_eq!(user("&*").apply(b"&a", false), Err(RuleError::AfterAllChannels));
    let merged = merge_selectors([&b"(+get"[..], b"~a", b"b)", b"on"].into_iter());
    assert_eq!(merged, Ok(vec![b"(+get ~a b)".to_vec(), b"on".to_vec()]));
    assert_eq!(merge_selectors([&b"(+get"[..], b"~a"].into_iter()), Err(b"(+get".to_vec()));
}

#[test]
fn passwords_are_compared_by_hash() {
    let several = user("on >one >two");
    assert!(several.accepts(b"one") && several.accepts(b"two") && !several.accepts(b"three"));
    assert!(!user("off >one").accepts(b"one"));
    assert!(user("on nopass").accepts(b"anything") && !user("off nopass").accepts(b"anything"));
    assert!(!user("on").accepts(b""));
    let hashed = user("on #2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881");
    assert!(hashed.accepts(b"x") && !hashed.accepts(b"X"));
}

#[test]
fn a_user_is_unrestricted_only_with_every_command_on_every_key() {
    for rules in ["+@all ~*", "on allcommands allkeys", "(+@all ~*)", "+@all ~* -get +@all"] {
        assert!(user(rules).is_unrestricted(), "{rules}");
    }
    for rules in ["", "+@all", "~* +@read", "+@all ~* -get", "+@all %R~* %W~*", "+@all (~*)", "+@all ~a*"] {
        assert!(!user(rules).is_unrestricted(), "{rules}");
    }
}

#[test]
fn a_change_reports_whether_it_takes_the_last_right_away() {
    let acl = Acl::default();
    let set = |rules: &str| acl.set_user(b"u", rules.split(' ').map(str::as_bytes), false).unwrap().restricts;
    assert!(!set("+@all") && !set("~*") && !set("on") && set("-get") && !set("-set") && !set("+@all"));
    let account = acl.get(b"u").unwrap();
    assert!(account.is_unrestricted());
    let failed = acl.set_user(b"u", [&b"-@all"[..], b"nonsense"].into_iter(), false);
    assert!(failed.is_err() && account.is_unrestricted(), "all rules or none");
    let (count, change) = acl.delete(&[b"u", b"v"]).unwrap();
    assert!(count == 1 && change.restricts && account.is_removed() && !account.is_unrestricted());
    assert_eq!(change.removed.len(), 1);
    assert!(acl.delete(&[DEFAULT_USER]).is_err());
}

#[test]
fn a_file_is_loaded_as_a_whole_or_not_at_all() {
    let acl = Acl::default();
    let change = acl.load(b"user a on >x ~* +@all\n\n \tuser b (+get ~x) on \r\n", "f", false).unwrap();
    assert!(!change.restricts && change.removed.is_empty());
    let before = acl.text();
    assert_eq!(
        text(&before),
        "user a on #2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881 ~* resetchannels +@all\n\
         user b on resetchannels -@all (~x resetchannels -@all +get)\n\
         user default on nopass ~* &* +@all\n"
    );
    let end = "WARNING: ACL errors detected, no change to the previously active ACL rules was performed";
    for (file, error) in [
        (
            "user a on +nosuch\nuser b foo\n",
            "f:1: Error in applying operation '+nosuch': Unknown command or category name in ACL. f:2: Syntax error. ",
        ),
        ("usr x", "f:1 should start with user keyword followed by the username. "),
        ("user", "f:1 should start with user keyword followed by the username. "),
        ("\n# c", "f:2 should start with user keyword followed by the username. "),
        ("user a on\nuser a off", "WARNING: Duplicate user 'a' found on line 2. "),
        ("user a (+get", "f:1: Unmatched parenthesis in selector definition."),
        ("user x\0y on", "f:1: username 'x\0y' contains invalid characters. "),
    ] {
        assert_eq!(acl.load(file.as_bytes(), "f", false).unwrap_err(), format!("{error}{end}"));
        assert_eq!(acl.text(), before);
    }
    let account = acl.get(b"a").unwrap();
    let change = acl.load(b"user default on nopass\nuser a on nopass ~* +@all", "f", false).unwrap();
    // The user that has the same name now is another one, so the connections of the first one are closed.
    assert!(change.restricts && change.removed.len() == 2 && account.is_removed());
    assert!(!acl.default_user().is_unrestricted() && acl.default_user().is_open());
}

#[test]
fn a_user_has_limits() {
    let passwords = (0..=USER_PASSWORDS_MAX).map(|i| format!(">{i}")).collect::<Vec<_>>();
    let mut user = user(&passwords[1..].join(" "));
    assert_eq!(user.apply(passwords[0].as_bytes(), false), Err(RuleError::Passwords));
    assert_eq!(user.apply(passwords[1].as_bytes(), false), Ok(()));
    let rules = (0..USER_RULES_MAX).map(|i| format!("~{i}")).collect::<Vec<_>>();
    let mut user = self::user(&rules.join(" "));
    assert_eq!(user.clone().apply(b"~more", false), Err(RuleError::Rules));
    assert_eq!(user.clone().apply(b"(+get)", false), Err(RuleError::Rules));
    assert_eq!(user.apply(b"~1", false), Ok(()));
}

#[test]
fn the_users_have_limits() {
    let acl = Acl::default();
    let mut file = String::new();
    (1..USERS_MAX).for_each(|i| file += &format!("user u{i} on\n"));
    acl.load(file.as_bytes(), "f", false).unwrap();
    let error = acl.set_user(b"more", [&b"on"[..]].into_iter(), false).unwrap_err();
    assert_eq!(text(&error), "ERR there are at most 4096 users");
    acl.set_user(b"u1", [&b"off"[..]].into_iter(), false).unwrap();
    file += "user more on\n";
    assert_eq!(acl.load(file.as_bytes(), "f", false).unwrap_err(), "f: there are at most 4096 users");

    let acl = Acl::default();
    let rest = ACL_BYTES_MAX - acl.text().len() - "user u off ~ resetchannels -@all\n".len();
    let pattern = [b"~", &vec![b'x'; rest + 1][..]].concat();
    let error = acl.set_user(b"u", [&pattern[..]].into_iter(), false).unwrap_err();
    assert_eq!(text(&error), "ERR the rules of all users have at most 1048576 bytes");
    acl.set_user(b"u", [&pattern[1..][..0], &pattern[..pattern.len() - 1]][1..].iter().copied(), false)
        .unwrap();
    assert_eq!(acl.text().len(), ACL_BYTES_MAX);
}

/// A rule that is often right.
fn rule() -> impl Strategy<Value = String> {
    let commands: Vec<String> = commands::all().iter().map(commands::Entry::full_name).collect();
    let command = prop::sample::select(commands);
    let category =
        prop::sample::select(category::Category::all().map(category::Category::name).collect::<Vec<_>>());
    let sign = prop::sample::select(vec!["+", "-"]);
    let pattern = "[a-z*?()~%&|\\[\\]]{0,4}";
    prop_oneof![
        4 => (sign.clone(), command).prop_map(|(sign, name)| format!("{sign}{name}")),
        3 => (sign, category).prop_map(|(sign, name)| format!("{sign}@{name}")),
        2 => (prop::sample::select(vec!["~", "%R~", "%w~", "%RW~", "&"]), pattern)
            .prop_map(|(kind, pattern)| format!("{kind}{pattern}")),
        1 => prop::sample::select(vec!["+@all", "-@all", "allkeys", "resetkeys", "allchannels", "resetchannels"])
            .prop_map(str::to_owned),
        1 => "\\+(select|get|ping)\\|[a-z0-9)]{1,3}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The description of a user makes a user with the same rights and the same description.
    #[test]
    fn a_description_makes_the_same_user(
        rules in prop::collection::vec(rule(), 0..12),
        selectors in prop::collection::vec(prop::collection::vec(rule(), 0..4), 0..3),
        flags in prop::collection::vec(prop::sample::select(vec!["on", "nopass", ">x", ">y", "reset", "sanitize-payload"]), 0..4),
    ) {
        let mut made = User::new(false);
        for rule in flags.iter().map(ToString::to_string).chain(rules) {
            let _ = made.apply(rule.as_bytes(), false);
        }
        for selector in selectors {
            let _ = made.apply(format!("({})", selector.join(" ")).as_bytes(), false);
        }
        let acl = Acl::default();
        acl.load(&line(b"u", &made), "f", false).unwrap();
        let again = acl.get(b"u").unwrap().user();
        let (first, second) = (made.describe(), again.describe());
        prop_assert_eq!(text(&second), text(&first));
        prop_assert_eq!(again.flags(), made.flags());
        for entry in commands::all() {
            let mut words: Vec<String> = entry.full_name().split('|').map(str::to_owned).collect();
            words.resize(words.len().max(entry.spec.arity.unsigned_abs() as usize), "1".into());
            let args: OwnedArgs = words.iter().collect();
            if let Ok(resolved) = spec::resolve(args.args()) {
                let request = Request { resolved, args: args.args() };
                prop_assert_eq!(again.check(&request), made.check(&request), "{:?}", words);
            }
        }
    }

    /// No text makes the parser fail in another way than by an error, and a file that is refused changes nothing.
    #[test]
    fn any_text_is_loaded_or_refused(
        text in prop::collection::vec(prop_oneof![
            Just(b"user ".to_vec()), Just(b"\n".to_vec()), Just(b" (".to_vec()), Just(b") ".to_vec()),
            rule().prop_map(|rule| [b" ", rule.as_bytes()].concat()),
            prop::collection::vec(any::<u8>(), 0..6),
        ], 0..20)
    ) {
        let acl = Acl::default();
        let before = acl.text();
        match acl.load(&text.concat(), "f", false) {
            Ok(_) => {
                let after = acl.text();
                acl.load(&after, "f", false).unwrap();
                prop_assert_eq!(acl.text(), after);
            }
            Err(_) => prop_assert_eq!(acl.text(), before),
        }
    }
}

#[test]
fn a_user_that_a_file_cannot_have_is_found() {
    let acl = Acl::default();
    let refused = acl.set_user(b"", [&b"on"[..]].into_iter(), false).unwrap_err();
    assert_eq!(text(&refused), "ERR Usernames can't contain spaces or null characters");
    for rules in ["on nopass ~* +@all", "reset off (+get ~x) resetchannels &a %R~b"] {
        acl.set_user(b"u", rules.split(' ').map(str::as_bytes), true).unwrap();
        assert_eq!(acl.check_text(true), Ok(()));
    }
    for name in [&b""[..], b"a b", b"a\nuser b"] {
        let account = Account::new(name, user("on nopass ~* +@all"));
        acl.write().insert(name.to_vec(), Entry { account, bytes: 0 });
        assert!(acl.check_text(true).is_err(), "{name:?}");
        acl.write().remove(name);
    }
}
