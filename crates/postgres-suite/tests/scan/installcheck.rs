//! Runs PostgreSQL's own regression and isolation tests, with the extension for every table that it takes.
//!
//! The output must be PostgreSQL's expected one, or that of the same server without the extension. Only the name of the node
//! in plans and the node's own lines may differ. The outputs of a few tests ([`PLANS`]) must be the same without their plans.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bedplate_postgres_suite::extension::{Build, is_stock};
use bedplate_postgres_suite::suite::{first_difference, folder, is_same, normalise, without_plans};
use bedplate_postgres_suite::{Cluster, Installation, Settings, run};

use crate::common::{each_installation, module};

/// One of the two suites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suite {
    Regress,
    Isolation,
}

impl Suite {
    /// Its folder in the sources; the program that runs it; its list of tests; their least number.
    fn parts(self) -> (&'static str, &'static str, &'static str, usize) {
        match self {
            Self::Regress => ("regress", "regress/pg_regress", "parallel_schedule", 190),
            Self::Isolation => ("isolation", "isolation/pg_isolation_regress", "isolation_schedule", 90),
        }
    }
}

/// Tests whose plans are not compared, with the reasons.
const PLANS: [(&str, &str); 4] = [
    ("brin", "the test warns of plans in which it does not find the words Seq Scan"),
    ("brin_bloom", "likewise"),
    ("brin_multi", "likewise"),
    ("explain", "plans in other formats than text"),
];

/// Settings of the server that the suites run against: the suites expect the defaults.
fn settings(module: Option<&Path>, force: bool) -> Settings {
    let settings =
        Settings::default().module(module).with("fsync", "off").with("max_prepared_transactions", "10");
    match force {
        true => settings.with("bedplate_scan.force", "on"),
        false => settings,
    }
}

/// Runs a suite on a new cluster, and returns the output of its tests by name.
fn outputs(
    installation: &Installation,
    sources: &Path,
    suite: Suite,
    settings: &Settings,
) -> BTreeMap<String, String> {
    let (name, program, schedule, _) = suite.parts();
    let cluster = Cluster::create(installation, settings).unwrap();
    // The server reads and writes files of the suite, so its user must own them.
    let input = cluster.path().join(name);
    run(Command::new("cp").arg("-r").arg(sources.join("src/test").join(name)).arg(&input)).unwrap();
    let output = cluster.make_folder("output").unwrap();
    let libraries = cluster.make_folder("libraries").unwrap();
    if suite == Suite::Regress {
        build_functions(installation, &input, &libraries);
    }
    for path in ["", "data", "results", "testtablespace"] {
        let path = input.join(path);
        if path.exists() {
            cluster.give(&path).unwrap();
        }
    }
    let pgxs = PathBuf::from(installation.ask("--pgxs").unwrap());
    let tests = pgxs.ancestors().nth(2).unwrap().join("test");
    let mut regress = Command::new(tests.join(program));
    regress.arg(format!("--inputdir={}", input.display())).arg(format!("--outputdir={}", output.display()));
    regress
        .arg(format!("--dlpath={}", libraries.display()))
        .arg(format!("--bindir={}", installation.bin.display()));
    regress
        .arg(format!("--schedule={}", input.join(schedule).display()))
        .args(["--max-concurrent-tests=20", "--user=postgres"]);
    regress.arg(format!("--host={}", cluster.path().display())).arg("--port=5432");
    let log = as_server(&cluster, &regress).output().unwrap();
    let log = String::from_utf8_lossy(&log.stdout).into_owned() + &String::from_utf8_lossy(&log.stderr);
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(output.join("results")).unwrap_or_else(|e| panic!("{e}: {log}")).flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "out") {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            found.insert(name, String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned());
        }
    }
    println!("{}", log.lines().rev().take(4).collect::<Vec<_>>().join("\n"));
    found
}

/// A program with its arguments, run by the server's user with the variables by which clients find the server.
fn as_server(cluster: &Cluster, other: &Command) -> Command {
    let mut command = cluster.program("/bin/sh");
    let words = std::iter::once(other.get_program()).chain(other.get_args());
    let quoted = words.map(|word| format!("'{}'", word.to_string_lossy().replace('\'', "'\\''")));
    command.arg("-c").arg(format!("exec {}", quoted.collect::<Vec<_>>().join(" ")));
    command
}

/// Builds the C functions that the regression tests call, and puts the libraries of `contrib/spi` beside them.
fn build_functions(installation: &Installation, input: &Path, libraries: &Path) {
    fs::copy(input.join("regress.c"), libraries.join("regress.c")).unwrap();
    let makefile = format!(
        "MODULES = regress\nPG_CONFIG = {}\nwith_llvm = no\nPGXS := $(shell $(PG_CONFIG) --pgxs)\ninclude $(PGXS)\n",
        installation.pg_config.display()
    );
    fs::write(libraries.join("Makefile"), makefile).unwrap();
    let mut make = Command::new("make");
    make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL").env_remove("MFLAGS");
    // The server may have been built by a compiler whose warnings this one does not know.
    make.arg("CFLAGS=-O2 -fPIC -fno-strict-aliasing -fwrapv -fexcess-precision=standard");
    run(make.arg("-C").arg(libraries)).unwrap();
    let installed = PathBuf::from(installation.ask("--pkglibdir").unwrap());
    for name in ["autoinc.so", "refint.so"] {
        if installed.join(name).exists() {
            fs::copy(installed.join(name), libraries.join(name)).unwrap();
        }
    }
}

/// The outputs that PostgreSQL expects of a test, which may be several.
fn expected(sources: &Path, suite: Suite, test: &str) -> Vec<String> {
    let folder = sources.join("src/test").join(suite.parts().0).join("expected");
    let names =
        std::iter::once(format!("{test}.out")).chain((0..10).map(|number| format!("{test}_{number}.out")));
    names
        .filter_map(|name| Some(String::from_utf8_lossy(&fs::read(folder.join(name)).ok()?).into_owned()))
        .collect()
}

/// The tests whose output differs from PostgreSQL's expected one and from the one without the extension.
fn differences(installation: &Installation, suite: Suite) -> Option<Vec<String>> {
    let sources = folder(installation.version);
    if !sources.join("src/test").join(suite.parts().0).exists() {
        eprintln!(
            "skipped: the tests of PostgreSQL {} are not in {}; `make setup` fetches them",
            installation.version,
            sources.display()
        );
        return None;
    }
    let pgxs = PathBuf::from(installation.ask("--pgxs").unwrap());
    let runner = pgxs.ancestors().nth(2).unwrap().join("test").join(suite.parts().1);
    if !runner.exists() || !installation.bin.join("psql").exists() {
        eprintln!(
            "skipped: PostgreSQL {} was installed without {} or psql",
            installation.version,
            runner.display()
        );
        return None;
    }
    let module = module(installation, Build::Product);
    let found = outputs(installation, &sources, suite, &settings(module.as_deref(), true));
    assert!(found.len() >= suite.parts().3, "only {} tests of {suite:?} were run", found.len());
    let used = found.values().filter(|output| output.contains("Custom Scan (BedplateScan)")).count();
    println!("{suite:?}: {} tests, the extension is in the plans of {used}", found.len());
    assert!(
        is_stock() || suite == Suite::Isolation || used > 20,
        "the extension is in the plans of {used} tests only"
    );
    let is_expected = |test: &String, output: &String| {
        let output = normalise(output);
        expected(&sources, suite, test).iter().any(|expected| is_same(&normalise(expected), &output))
    };
    let left: BTreeMap<_, _> =
        found.into_iter().filter(|(test, output)| !is_expected(test, output)).collect();
    if left.is_empty() {
        return Some(Vec::new());
    }
    // If the minor version or the configuration is not the one of the tests, the output without the extension is the same.
    let plain = outputs(installation, &sources, suite, &settings(None, false));
    let mut wrong = Vec::new();
    for (test, output) in &left {
        let (mut plain, mut output) =
            (normalise(plain.get(test).map_or("", String::as_str)), normalise(output));
        if PLANS.iter().any(|(name, _)| name == test) {
            (plain, output) = (without_plans(&plain), without_plans(&output));
        }
        if !is_same(&plain, &output) {
            wrong.push(format!("{test}: {}", first_difference(&plain, &output)));
        }
    }
    println!(
        "{suite:?}: unlike what PostgreSQL expects, but with the extension alone in {}: {:?}",
        wrong.len(),
        left.keys()
    );
    Some(wrong)
}

fn installcheck(suite: Suite) {
    each_installation(|installation| {
        let wrong = differences(installation, suite).unwrap_or_default();
        assert!(wrong.is_empty(), "PostgreSQL {}: {}", installation.version, wrong.join("\n"));
    });
}

#[test]
fn the_regression_tests_differ_in_the_names_of_nodes_only() {
    installcheck(Suite::Regress);
}

#[test]
fn the_isolation_tests_do_not_differ() {
    installcheck(Suite::Isolation);
}
