//! Names of procedures against the names of the headers.

mod common;

use std::collections::BTreeSet;

use bedplate_kerneldb::sdk::{self, Target};
use bedplate_procedure_language::{Rule, compile};

/// Names that `bedplate/procedure.h` and the headers behind it declare or define for a target.
fn names_of_the_headers(target: Target) -> BTreeSet<String> {
    let folder = tempfile::tempdir().unwrap();
    sdk::write_headers(folder.path()).unwrap();
    let source = folder.path().join("test.c");
    std::fs::write(&source, "#include <bedplate/procedure.h>\n").unwrap();
    let print = |options: &[&str]| {
        let mut compiler = sdk::compiler(target, folder.path(), &source, "/dev/null".as_ref()).unwrap();
        let output = compiler.args(options).args(["-o", "-"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let macros = print(&["-E", "-dM"]);
    let macros = macros.lines().filter_map(|line| line.strip_prefix("#define ")?.split([' ', '(']).next());
    // Declarations of the file are without indentation. The name is before the type, which is in quotes.
    let tree = print(&["-fsyntax-only", "-fno-color-diagnostics", "-Xclang", "-ast-dump"]);
    let declared = tree.lines().filter_map(|line| {
        let declaration = line.strip_prefix("|-").or_else(|| line.strip_prefix("`-"))?;
        let is_named =
            ["FunctionDecl ", "VarDecl ", "TypedefDecl "].iter().any(|kind| declaration.starts_with(kind));
        is_named.then(|| declaration.split(" '").next()?.split(' ').next_back()).flatten()
    });
    macros.chain(declared).map(str::to_owned).collect()
}

#[test]
fn a_procedure_has_no_name_of_the_headers() {
    let targets = [Target::Arena, Target::Partitions, Target::HashMap];
    let names: BTreeSet<String> = targets.into_iter().flat_map(names_of_the_headers).collect();
    assert!(
        names.contains("snapshot_get") && names.contains("kdb_get") && names.contains("opaque"),
        "{names:?}"
    );
    let is_name = |name: &&String| {
        name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    let allowed: Vec<_> = names
        .iter()
        .filter(is_name)
        .filter(|name| match compile(&format!("procedure {name}() {{ reply ok; }}"), "x") {
            Ok(_) => true,
            Err(errors) => errors.iter().all(|e| !matches!(e.rule, Rule::ReservedName | Rule::Syntax)),
        })
        .collect();
    assert!(allowed.is_empty(), "src/reserved_names.txt lacks names of the headers: {allowed:?}");
}

/// Functions of C's library that the compiler knows, and that are no part of the headers.
#[test]
fn a_procedure_can_have_a_name_of_the_c_library() {
    let names = [
        "abs",
        "alloca",
        "calloc",
        "exp",
        "fork",
        "free",
        "index",
        "labs",
        "log",
        "malloc",
        "pow",
        "printf",
        "remainder",
        "round",
        "setjmp",
        "signal",
        "sin",
        "strcmp",
        "strlen",
        "time",
        "toupper",
        "write",
    ];
    let source = names.map(|name| format!("procedure {name}(n: integer) {{ reply n; }}\n")).concat();
    common::compiled(&source);
}
