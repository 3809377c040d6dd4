//! `bedplate store` as people and scripts run it.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn store(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bedplate")).arg("store").args(arguments).output().unwrap()
}

/// The standard output of a command that succeeds.
fn succeeds(arguments: &[&str]) -> String {
    let output = store(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The one line of error of a command that fails.
fn fails(arguments: &[&str]) -> String {
    let output = store(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    let mut lines = text.lines().filter(|line| !line.starts_with("hint: "));
    let error = lines.next().unwrap().strip_prefix("error: ").unwrap().to_owned();
    assert_eq!(lines.next(), None, "{text}");
    error
}

fn with_input(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_bedplate"))
        .arg("store")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that refuses its arguments does not read.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn records_are_put_found_scanned_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let path = text(&path);
    assert!(fails(&["get", path, "t", "k"]).contains("there is no store in"));
    assert!(!Path::new(path).exists(), "only create makes a store");
    assert!(succeeds(&["create", path, "--tree", "t"]).contains("1 trees"));
    assert!(fails(&["create", path]).contains("there is a store in"));
    assert!(fails(&["create", path, "--tree", "t"]).contains("there is a tree \"t\" already"));
    for (key, value) in [("a", "1"), ("b", r"two\nlines\x00\\"), ("bb", "3"), ("ü", "4")] {
        assert_eq!(succeeds(&["put", path, "t", key, value]), "");
    }
    assert_eq!(succeeds(&["get", path, "t", "b"]), "two\\nlines\\x00\\\\\n");
    assert_eq!(succeeds(&["get", path, "t", "b", "--raw"]), "two\nlines\0\\");
    assert_eq!(succeeds(&["get", path, "t", "62", "--hex"]), "74776f0a6c696e6573005c\n");
    assert_eq!(succeeds(&["get", path, "t", "a", "--json"]), "{\"key\":\"a\",\"value\":\"1\"}\n");
    assert_eq!(succeeds(&["scan", path, "t", "--keys"]), "a\nb\nbb\nü\n");
    assert_eq!(succeeds(&["scan", path, "t", "--prefix", "b", "--keys"]), "b\nbb\n");
    assert_eq!(succeeds(&["scan", path, "t", "--from", "b", "--to", "bb", "--keys"]), "b\n");
    assert_eq!(succeeds(&["scan", path, "t", "--reverse", "--limit", "2"]), "ü\t4\nbb\t3\n");
    assert_eq!(succeeds(&["scan", path, "t", "--hex", "--limit", "1"]), "61\t31\n");
    let lines = succeeds(&["scan", path, "t", "--json"]);
    let records: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((records.len(), &records[3]["key"]), (4, &"ü".into()));
    succeeds(&["delete", path, "t", "a"]);
    assert!(fails(&["delete", path, "t", "a"]).contains("there is no key a in tree \"t\""));
    assert!(fails(&["get", path, "t", "a"]).contains("there is no key a"));
    assert!(fails(&["get", path, "none", "a"]).contains("there is no tree \"none\""));
    assert!(fails(&["put", path, "none", "a", "b"]).contains("there is no tree"));
    assert!(fails(&["put", path, "t", "a", "b\\q"]).contains("no escape"));
    let long = [b'x'; 513];
    assert!(
        fails(&["put", path, "t", std::str::from_utf8(&long).unwrap(), ""]).contains("keys have at most 512")
    );
    let value: Vec<u8> = (0..100_000).map(|n| n as u8).collect();
    let put = with_input(&["put", path, "new", "long", "-", "--create"], &value);
    assert!(put.status.success(), "{put:?}");
    assert_eq!(store(&["get", path, "new", "long", "--raw"]).stdout, value);
    let info: serde_json::Value = serde_json::from_str(&succeeds(&["info", path, "--json"])).unwrap();
    assert_eq!(info["trees"][0]["name"], "new");
    assert_eq!(info["trees"][1]["estimated_records"], 3);
    assert!(succeeds(&["info", path]).contains("tree \"t\": about 3 records"));
}

#[test]
fn a_store_keeps_the_page_size_that_it_was_created_with() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let path = text(&path);
    let refused = fails(&["create", path, "--page-size", "12K"]);
    assert!(refused.contains("a page size of 12288") && refused.contains("power of two"), "{refused}");
    succeeds(&["create", path, "--page-size", "16K", "--tree", "t"]);
    let key = "k".repeat(2048);
    succeeds(&["put", path, "t", &key, "long"]);
    assert_eq!(succeeds(&["get", path, "t", &key]), "long\n");
    assert!(fails(&["put", path, "t", &(key + "k"), ""]).contains("keys have at most 2048"));
    assert!(succeeds(&["info", path]).contains("in pages of 16 KiB"));
    let info: serde_json::Value = serde_json::from_str(&succeeds(&["info", path, "--json"])).unwrap();
    assert_eq!(info["page_size"], 16384);
    let refused = fails(&["create", path, "--page-size", "4K", "--tree", "u"]);
    assert!(refused.contains("created with pages of 16 KiB"), "{refused}");
    succeeds(&["create", path, "--tree", "u"]);
}

/// A store with some thousand records.
fn filled(path: &str) {
    let store = bedplate_btree::store::Store::builder(path).open().unwrap();
    for name in ["one", "two"] {
        let tree = store.create_tree(name).unwrap();
        store
            .update(|transaction| {
                (0..3000u64).try_for_each(|n| transaction.put(&tree, &n.to_be_bytes(), &[n as u8; 500]))
            })
            .unwrap();
    }
    store.close().unwrap();
}

#[test]
fn a_backup_and_a_dump_make_equal_stores() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (from, copy, file) = (path("from"), path("copy"), path("dump"));
    filled(&from);
    let scan = |path: &str| ["one", "two"].map(|tree| succeeds(&["scan", path, tree, "--hex"]));
    let content = scan(&from);
    assert!(succeeds(&["backup", &from, &copy]).contains("MiB in"));
    assert!(fails(&["backup", &from, &copy]).contains("is not an empty directory"));
    assert!(succeeds(&["verify", &copy]).ends_with("sound\n"));
    assert!(scan(&copy) == content);
    assert!(succeeds(&["dump", &from, &file]).starts_with("2 trees, 6,000 records"));
    let stream = store(&["dump", &from]);
    assert!(stream.status.success() && stream.stdout == std::fs::read(&file).unwrap());
    let (new, piped) = (path("new"), path("piped"));
    assert!(succeeds(&["load", &new, &file]).contains("6,000 records loaded"));
    assert!(with_input(&["load", &piped], &stream.stdout).status.success());
    assert!(scan(&new) == content && scan(&piped) == content);
    // The store has the trees already.
    assert!(fails(&["load", &new, &file]).contains("there is a tree \"one\" already"));
    succeeds(&["put", &new, "one", "own", "1"]);
    succeeds(&["load", &new, &file, "--existing", "merge"]);
    assert_eq!(succeeds(&["get", &new, "one", "own"]), "1\n");
    succeeds(&["load", &new, &file, "--existing", "replace"]);
    assert!(scan(&new) == content);
    // An incomplete dump creates no store, and changes none.
    let part = &stream.stdout[..stream.stdout.len() - 1];
    let none = path("none");
    for (target, existing) in [(&none, "refuse"), (&new, "replace"), (&new, "merge")] {
        let refused = with_input(&["load", target, "--existing", existing], part);
        assert_eq!(refused.status.code(), Some(1));
        let error = String::from_utf8(refused.stderr).unwrap();
        assert!(
            error.starts_with("error: the dump is damaged or incomplete") && error.lines().count() == 1,
            "{error}"
        );
    }
    assert!(!Path::new(&none).exists() && scan(&new) == content);
}

#[test]
fn verify_names_what_is_damaged_and_fails() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    filled(text(&path));
    let pages = path.join("pages");
    let mut bytes = std::fs::read(&pages).unwrap();
    let page = 300;
    bytes[page * 4096 + 1000] ^= 1;
    std::fs::write(&pages, bytes).unwrap();
    let output = store(&["verify", text(&path)]);
    assert_eq!(output.status.code(), Some(1));
    let (out, error) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(out.contains("damaged: tree \"") && out.contains("page 300 is damaged"), "{out}");
    assert!(error.starts_with("error: the store in ") && error.contains("1 places"), "{error}");
    let output = store(&["verify", text(&path), "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["sound"], &report["damages"][0]["page"]), (&false.into(), &page.into()));
    // A backup does not copy the damaged page.
    let copy = folder.path().join("copy");
    assert!(fails(&["backup", text(&path), text(&copy)]).contains("page 300 is damaged"));
    assert!(!copy.exists());
}

#[test]
fn compact_says_what_it_needs_and_shrinks_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    filled(text(&path));
    let open = bedplate_btree::store::Store::builder(&path).open().unwrap();
    open.drop_tree("two").unwrap();
    open.close().unwrap();
    let content = succeeds(&["scan", text(&path), "one"]);
    let size = || std::fs::metadata(path.join("pages")).unwrap().len();
    let before = size();
    let said = store(&["compact", text(&path), "--dry-run"]);
    assert!(
        said.status.success() && String::from_utf8_lossy(&said.stderr).contains("so much space is needed")
    );
    assert_eq!(size(), before);
    assert!(succeeds(&["compact", text(&path)]).contains(" instead of "));
    assert!(size() < before, "{} of {before}", size());
    assert!(succeeds(&["verify", text(&path)]).ends_with("sound\n"));
    assert_eq!(succeeds(&["scan", text(&path), "one"]), content);
}

#[test]
fn a_store_that_another_process_has_open_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let copy = folder.path().join("copy");
    let (path, copy) = (text(&path), text(&copy));
    filled(path);
    let open = bedplate_btree::store::Store::builder(path).open().unwrap();
    for arguments in [
        &["create", path, "--tree", "x"][..],
        &["info", path],
        &["get", path, "one", "k"],
        &["put", path, "one", "k", "v"],
        &["delete", path, "one", "k"],
        &["scan", path, "one"],
        &["backup", path, copy],
        &["verify", path],
        &["dump", path],
        &["compact", path],
    ] {
        assert!(fails(arguments).contains("is open already"), "{arguments:?}");
    }
    let load = with_input(&["load", path], b"");
    assert!(String::from_utf8(load.stderr).unwrap().contains("is open already"));
    drop(open);
    // A reader that closes the pipe is no error.
    let mut child = Command::new(env!("CARGO_BIN_EXE_bedplate"))
        .args(["store", "scan", path, "one"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_dump_goes_into_what_is_no_regular_file_and_does_not_replace_it() {
    let folder = tempfile::tempdir().unwrap();
    let [path, pipe, link, target] = ["data", "pipe", "link", "target"].map(|name| folder.path().join(name));
    succeeds(&["create", text(&path), "--tree", "t"]);
    succeeds(&["put", text(&path), "t", "key", "value"]);
    let expected = store(&["dump", text(&path)]).stdout;
    assert!(expected.starts_with(b"BEDDUMP"));

    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Opened for reading and writing, so that the test does not wait for a writer.
    let mut reading = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
    succeeds(&["dump", text(&path), text(&pipe)]);
    let is_pipe = std::os::unix::fs::FileTypeExt::is_fifo(&pipe.metadata().unwrap().file_type());
    assert!(is_pipe, "the pipe was replaced");
    let mut found = vec![0; expected.len()];
    std::io::Read::read_exact(&mut reading, &mut found).unwrap();
    assert_eq!(found, expected);

    std::fs::write(&target, "old").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    succeeds(&["dump", text(&path), text(&link)]);
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert_eq!(std::fs::read(&target).unwrap(), expected);
    assert!(fails(&["dump", text(&path), text(folder.path())]).contains("is a directory"));
}
