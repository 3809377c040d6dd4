//! Each rule has programs that break it, and the documentation lists the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bedplate_procedure_language::{Diagnostic, Rule, compile, limits::ERRORS_MAX};

/// Programs with one error each, at the place of the mark `@`. The program `P(statements)` is a procedure with these statements, and
/// `R(statements)` is one that is readonly; both have the arguments `n: integer`, `small: integer(1..10)` and `t: text(1..9)`.
const BROKEN: &[(Rule, &str)] = &[
    (Rule::Syntax, "procedure a() { reply ok @}"),
    (Rule::Syntax, "procedure a() { reply ok; } @nonsense"),
    (Rule::Syntax, "@"),
    (Rule::Syntax, "@const a = 1;"),
    (Rule::Syntax, "P(reply @;)"),
    (Rule::Syntax, "P(reply n @$;)"),
    (Rule::Syntax, "P(@else;)"),
    (Rule::Syntax, "P(if 1 < n @< 3 { reply ok; } reply nil;)"),
    (Rule::Syntax, "P(if 1 == @not n { reply ok; } reply nil;)"),
    (Rule::Syntax, "P(insert [t] = 1@; reply ok;)"),
    (Rule::Syntax, "P(set [t] = 1 @else { reply nil; } reply ok;)"),
    (Rule::Syntax, "P(insert [t] = 1 @keep expiry else { reply nil; } reply ok;)"),
    (Rule::Syntax, "P(let @found = 1; reply ok;)"),
    (Rule::Syntax, "procedure a(x: @float) { reply ok; }"),
    (Rule::Number, "P(reply @9223372036854775808;)"),
    (Rule::Number, "P(reply @18446744073709551616;)"),
    (Rule::Number, "P(reply @0x10;)"),
    (Rule::Literal, "P(reply @\"abc\n  ;)"),
    (Rule::Literal, "P(reply \"abc@\\q\";)"),
    (Rule::Literal, "P(reply \"abc@\\x1\";)"),
    (Rule::Name, "procedure @Take() { reply ok; }"),
    (Rule::Name, "P(let @LEFT = 1; reply ok;)"),
    (Rule::ReservedName, "procedure @int() { reply ok; }"),
    (Rule::ReservedName, "procedure @kdb_get() { reply ok; }"),
    (Rule::ReservedName, "procedure @snapshot_get() { reply ok; }"),
    (Rule::ReservedName, "procedure @my_body() { reply ok; }"),
    (Rule::DuplicateName, "procedure a() { reply ok; } procedure @a() { reply ok; }"),
    (Rule::DuplicateName, "const a = 1; const @a = 2; procedure p() { reply ok; }"),
    (Rule::DuplicateName, "procedure p(a: integer, @a: integer) { reply ok; }"),
    (Rule::DuplicateName, "P(let @n = 1; reply ok;)"),
    (Rule::DuplicateName, "P(if n > 1 { let @small = 1; reply small; } reply ok;)"),
    (Rule::DuplicateName, "P(for @n in 1..2 { set [t] = 1; } reply ok;)"),
    (Rule::UnknownName, "P(reply @m;)"),
    (Rule::UnknownName, "P(@m = 1; reply ok;)"),
    (Rule::UnknownName, "P(if n > 1 { let m = 1; set [t] = m; } reply @m;)"),
    (Rule::UnknownName, "procedure p(a: integer(1..@limit)) { reply ok; } "),
    (Rule::Type, "P(reply @t + 1;)"),
    (Rule::Type, "P(reply 1 + @\"x\";)"),
    (Rule::Type, "P(reply @(n == 1);)"),
    (Rule::Type, "P(require @n else NO \"no\"; reply ok;)"),
    (Rule::Type, "P(reply length(@n);)"),
    (Rule::Type, "P(get [t] else { reply nil; } reply @value + 1;)"),
    (Rule::Type, "P(get [t] else { reply nil; } get [@value]; reply ok;)"),
    (Rule::Type, "P(let m = @found; reply m;)"),
    (Rule::Constant, "procedure p(a: integer, b: integer(1..@a)) { reply ok; }"),
    (Rule::Constant, "P(for i in 1..n up to @small { set [t] = i; } reply ok;)"),
    (Rule::Range, "procedure p(a: integer(@2..1)) { reply ok; }"),
    (Rule::Range, "procedure p(a: text(@-1..1)) { reply ok; }"),
    (Rule::NeverInRange, "P(reply @9223372036854775807 + small;)"),
    (Rule::NeverInRange, "P(reply @n / 0;)"),
    (Rule::NeverInRange, "P(reply @n % (1 - 1);)"),
    (Rule::NeverInRange, "P(reply @-9223372036854775807 - 2;)"),
    (Rule::ReadOnly, "R(@set [t] = 1; reply ok;)"),
    (Rule::ReadOnly, "R(@insert [t] = 1 else NO \"no\"; reply ok;)"),
    (Rule::ReadOnly, "R(@update [t] = 1 else NO \"no\"; reply ok;)"),
    (Rule::ReadOnly, "R(get [t] else { @delete [t]; } reply ok;)"),
    (Rule::Outcome, "procedure p() { @}"),
    (Rule::Outcome, "procedure p(t: text(1..9)) { set [t] = 1; @}"),
    (Rule::Outcome, "procedure p(n: integer) { if n > 1 { reply ok; } @}"),
    (Rule::Outcome, "procedure p(n: integer) { if n > 1 { reply ok; } else if n < 0 { reply nil; } @}"),
    (Rule::Outcome, "procedure p(n: integer(0..3)) { for i in 0..n { require i < 2 else NO \"no\"; } @}"),
    (Rule::AfterOutcome, "P(reply ok; @reply nil;)"),
    (Rule::AfterOutcome, "P(refuse NO \"no\"; @set [t] = 1; reply ok;)"),
    (Rule::AfterOutcome, "P(if n > 1 { reply ok; } else { reply nil; } @set [t] = 1; reply ok;)"),
    (Rule::Assigned, "P(var m; reply @m;)"),
    (Rule::Assigned, "P(var m; if n > 1 { m = 1; } reply @m;)"),
    (Rule::Assigned, "P(var m; for i in 1..small { m = i; } reply @m;)"),
    (Rule::Assigned, "P(var m; get [t] else { m = 1; } reply @m;)"),
    (Rule::Immutable, "P(let m = 1; @m = 2; reply m;)"),
    (Rule::Immutable, "P(@n = 2; reply n;)"),
    (Rule::Immutable, "P(for i in 1..3 { @i = 2; } reply ok;)"),
    (Rule::Immutable, "const c = 1; procedure p() { @c = 2; reply ok; }"),
    (Rule::ValueUnread, "P(reply @value;)"),
    (Rule::ValueUnread, "P(require @found else NO \"no\"; reply ok;)"),
    (Rule::ValueUnread, "P(if n > 1 { get [t] else { reply nil; } } reply @integer(value);)"),
    (Rule::ValueUnread, "P(for i in 1..small { get [t] else { reply nil; } } reply @value;)"),
    (Rule::KeyChanged, "P(get [t] else { reply nil; } set [t] = 1; reply @value;)"),
    (Rule::KeyChanged, "P(get [t]; delete [\"x\", t]; require @missing else NO \"no\"; reply ok;)"),
    (Rule::KeyChanged, "P(get [t] else { reply nil; } if n > 1 { set [t] = 1; } reply @length(value);)"),
    (Rule::KeyChanged, "P(get [t] else { reply nil; } for i in 1..3 { set [i] = @value; } reply ok;)"),
    (Rule::ValueMissing, "P(get [t]; reply @value;)"),
    (Rule::ValueMissing, "P(get [t] else { set [\"x\"] = 1; get [t]; } reply @value;)"),
    (Rule::ValueMissing, "P(get [t]; if missing { reply @integer(value); } reply ok;)"),
    (Rule::ValueMissing, "P(get [t]; if found or @integer(value) > 2 { reply ok; } reply nil;)"),
    (Rule::ValueMissing, "P(get [t]; if found and n > 1 { reply ok; } reply @value;)"),
    (Rule::LoopBound, "P(for i in @1..n { set [t] = i; } reply ok;)"),
    (Rule::LoopBound, "P(for i in @2..1 { set [t] = i; } reply ok;)"),
    (Rule::LoopBound, "P(for i in @1..3 up to 2 { set [t] = i; } reply ok;)"),
    (Rule::LoopBound, "P(for i in 1..n up to @0 { set [t] = i; } reply ok;)"),
    (Rule::LoopOnce, "P(@for i in 1..n up to 9 { reply i; } reply ok;)"),
    (Rule::Refusal, "P(refuse @NO \"\";)"),
    (Rule::Refusal, "P(refuse @NO \"a\\nb\";)"),
    (Rule::Refusal, "P(refuse @NO \"a\\xff\";)"),
    (Rule::KeySize, "P(get @[\"\"]; reply ok;)"),
    (Rule::KeySize, "procedure p(a: text(9)) { get @[a]; reply ok; }"),
    (Rule::KeySize, "procedure p(a: text(1..256)) { get @[a]; reply ok; }"),
    (Rule::Limit, "P(for i in 1..1000 { @set [t] = i; } reply ok;)"),
];

fn expand(program: &str) -> String {
    let arguments = "(n: integer, small: integer(1..10), t: text(1..9))";
    for (short, long) in [("P(", "procedure"), ("R(", "readonly procedure")] {
        if let Some(statements) = program.strip_prefix(short).and_then(|rest| rest.strip_suffix(')')) {
            return format!("{long} example{arguments} {{\n  {statements}\n}}\n");
        }
    }
    program.to_owned()
}

#[test]
fn each_rule_is_enforced_at_its_place() {
    let (mut covered, mut wrong) = (BTreeSet::new(), Vec::new());
    for (rule, program) in BROKEN {
        let marked = expand(program);
        let at = marked.find('@').unwrap();
        let (line, column) =
            marked[..at].split('\n').fold((0, 0), |(line, _), text| (line + 1, text.len() + 1));
        let found = compile(&marked.replacen('@', "", 1), "test.kdb").err().unwrap_or_default();
        let places: Vec<_> = found.iter().map(|error| (error.rule, error.line, error.column)).collect();
        if places != [(*rule, line, column)] {
            wrong.push(format!("{program}: {places:?} instead of {:?}", (rule, line, column)));
        }
        covered.insert(rule.identifier());
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let all: BTreeSet<_> = Rule::ALL.iter().map(|rule| rule.identifier()).collect();
    assert_eq!(covered, all);
    assert_eq!(all.len(), Rule::ALL.len());
}

/// Programs that look as if they broke a rule.
#[test]
fn programs_within_the_rules_compile() {
    for program in [
        "P(reply -9223372036854775808;)",
        "P(var m; if n > 1 { m = 1; } else { m = 2; } reply m;)",
        "P(var m; for i in 1..3 { m = i; } reply m;)",
        "P(var m; if n > 1 { reply ok; } else { m = 2; } reply m;)",
        "P(get [t]; if missing { reply nil; } reply value;)",
        "P(get [t]; if not missing and integer(value) > n { reply value; } reply nil;)",
        "P(get [t]; if missing or n > 1 { reply nil; } reply value;)",
        "P(get [t]; require found and length(value) > 0 else NO \"no\"; reply integer(value);)",
        "P(get [t]; if n > 1 { require found else NO \"no\"; } else { get [n] else { reply nil; } } reply value;)",
        "P(get [t] else { reply nil; } set [\"copy\", integer(value)] = value; reply ok;)",
        "P(get [t] else { reply nil; } for i in 1..3 { require length(value) > i else NO \"no\"; } reply value;)",
        "P(get [t] else { get [n] else { reply nil; } } reply value;)",
        "P(if n > 1 { let m = 1; set [t] = m; } else { let m = 2; set [t] = m; } reply ok;)",
        "P(let up = 1; let to = 2; let keep = 3; let at = to; reply up + keep + at;)",
        "P(reply n / small + 7 % -small;)",
        "P(if not not n == 1 and not (not n < 2 or n > 9) { reply ok; } reply - - n;)",
        "P(for i in small..small + 2 { set [i] = i; } reply ok;)",
        // A bound takes no steps.
        "P(for i in 1..700 { for j in i..i up to 2 - 1 { } } reply ok;)",
        "R(reply \"text\";)",
        "R(reply t;)",
        "procedure p(a: text(0..5), b: text(1..250)) { get [a, b]; reply ok; }",
        "// A comment at the end of the file.\nprocedure p() { reply ok; } // without a line end",
    ] {
        if let Err(errors) = compile(&expand(program), "test.kdb") {
            panic!("{program}: {errors:#?}");
        }
    }
}

#[test]
fn one_run_finds_several_errors() {
    let source = "procedure a(n: integer) {\n  reply ;\n  reply n +;\n}\nprocedure b() { reply 1 2; }\n";
    let places = |errors: Vec<Diagnostic>| errors.iter().map(|e| (e.line, e.rule)).collect::<Vec<_>>();
    let errors = compile(source, "x").unwrap_err();
    assert_eq!(places(errors), [(2, Rule::Syntax), (3, Rule::Syntax), (5, Rule::Syntax)]);
    let source =
        "readonly procedure a(n: integer) {\n  set [m] = 1;\n  reply value;\n}\nprocedure b() {\n}\n";
    let errors = compile(source, "x").unwrap_err();
    assert_eq!(
        places(errors),
        [(2, Rule::ReadOnly), (2, Rule::UnknownName), (3, Rule::ValueUnread), (6, Rule::Outcome)]
    );
    let many = format!("procedure a() {{ {} reply ok; }}", "set [x] = 1; ".repeat(ERRORS_MAX + 1));
    assert_eq!(compile(&many, "x").unwrap_err().len(), ERRORS_MAX);
    let columns = compile("procedure a() { reply \"ä\" + x; }", "x").unwrap_err();
    assert_eq!(columns.iter().map(|error| error.column).collect::<Vec<_>>(), [23, 29], "in characters");
}

/// The table of rules in the documentation is the one of the compiler.
#[test]
fn the_documentation_lists_the_rules() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/procedure-language.md");
    let text = std::fs::read_to_string(path).unwrap();
    let rules = text.split("## Rules").nth(1).unwrap().split("\n## ").next().unwrap();
    let listed: BTreeMap<&str, &str> = rules
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | "))
        .collect();
    let known: BTreeMap<_, _> = Rule::ALL.iter().map(|rule| (rule.identifier(), rule.sentence())).collect();
    assert_eq!(listed, known);
}

/// The programs in the documentation compile.
#[test]
fn the_programs_of_the_documentation_compile() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/procedure-language.md");
    let text = std::fs::read_to_string(path).unwrap();
    let programs: Vec<&str> =
        text.split("```kdb\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(!programs.is_empty());
    for program in programs {
        assert!(compile(program, "docs.kdb").is_ok(), "{:#?}\n{program}", compile(program, "docs.kdb"));
    }
}

#[test]
fn each_statement_has_its_line_in_the_c_text() {
    let source = "// x\nprocedure p(t: text(1..9)) {\n  let a = 1;\n\n  set [t] = a;\n  reply ok;\n}\n";
    let c = compile(source, "dir/\"x\".kdb").unwrap();
    let mut line = 0;
    let mut lines = BTreeMap::new();
    for text in c.lines() {
        match text.strip_prefix("#line ") {
            Some(rest) => {
                // The name of the file is in the first directive.
                let (number, file) = rest.split_once(' ').unwrap_or((rest, ""));
                assert_eq!(
                    file,
                    if lines.contains_key("KDB_PROCEDURE(p)") { "" } else { r#""dir/\"x\".kdb""# }
                );
                line = number.parse::<usize>().unwrap();
            }
            None => {
                lines.insert(text.trim().to_owned(), line);
                line += 1;
            }
        }
    }
    for (text, line) in [
        ("KDB_PROCEDURE(p)", 2),
        ("KDB_TRY(kdb_expect(p, 1));", 2),
        ("__s64 v_a = 1;", 3),
        ("KDB_TRY(kdb_key_argument(p, 0));", 5),
        ("KDB_TRY(kdb_write(p));", 5),
        ("return KDB_OK;", 6),
    ] {
        assert_eq!(lines.get(text), Some(&line), "{text}\n{c}");
    }
}

/// The C text has only what the program needs.
#[test]
fn the_c_text_is_special_to_the_program() {
    let c = |program: &str| compile(&expand(program), "x.kdb").unwrap();
    let count = |text: &str, part: &str| text.matches(part).count();
    // The key stays that of the get, and the operation cannot overflow.
    let same = c("P(get [t] else { reply nil; } set [t] = small + 1; reply ok;)");
    assert_eq!(count(&same, "kdb_key_argument"), 1, "{same}");
    assert!(!same.contains("ADD") && !same.contains("generated_"), "{same}");
    // Another key, or one that has a variable which changes.
    assert_eq!(count(&c("P(get [t]; set [\"a\", t] = 1; get [t]; reply ok;)"), "kdb_key_argument"), 2);
    let changed = c("P(var m = n; get [m]; m = 1; get [m]; get [m]; reply ok;)");
    assert_eq!(count(&changed, "kdb_key_append_integer"), 2, "{changed}");
    let branches = c("P(get [t]; if n > 1 { get [n]; } get [t]; reply ok;)");
    assert_eq!(count(&branches, "kdb_key_argument"), 2, "{branches}");
    let looped = c("P(get [t]; for i in 1..3 { get [t]; get [\"b\"]; } get [t]; reply ok;)");
    assert_eq!(count(&looped, "kdb_key_argument"), 3, "{looped}");
    // An argument is written as the text that it is, a constant as the text that it has, and each argument is parsed once.
    let written = c("P(set [t] = n; set [t] = 12; reply n + small * small;)");
    assert!(
        written.contains("kdb_value_argument(p, 0)") && written.contains("kdb_value(p, \"12\")"),
        "{written}"
    );
    assert_eq!(count(&written, "kdb_argument_integer"), 2, "{written}");
    assert!(written.contains("ADD(v_n, (v_small * v_small))"), "{written}");
    assert!(!c("procedure p(a: text(65536)) { reply a; }").contains(".len"));
}
