//! Programs at each limit and one past it, and the engine's own limits.

mod common;

use bedplate_kerneldb::limits as engine;
use bedplate_procedure_language::{Rule, compile, limits::*};

/// The program compiles, and the one that is larger by one breaks the rule. Returns the first one.
fn at_the_limit(rule: Rule, limit: usize, program: impl Fn(usize) -> String) -> String {
    let past = program(limit + 1);
    match compile(&past, "test.kdb") {
        Ok(_) => panic!("one past the limit compiles: {past}"),
        Err(errors) => assert!(errors.iter().all(|error| error.rule == rule), "{errors:#?}"),
    }
    let program = program(limit);
    if let Err(errors) = compile(&program, "test.kdb") {
        panic!("{errors:#?}\n{program}");
    }
    program
}

fn body(statements: &str) -> String {
    format!("procedure p(t: text(1..9), n: integer) {{ {statements} reply ok; }}")
}

fn numbered(count: usize, text: impl Fn(usize) -> String, between: &str) -> String {
    (0..count).map(text).collect::<Vec<_>>().join(between)
}

/// As many arguments and variables as there can be, which live at once, in loops, beside the largest expressions.
fn at_several_limits() -> String {
    let variables = VARIABLES_MAX - 2;
    let arguments = numbered(ARGUMENTS_MAX, |i| format!("a{i}: integer"), ", ");
    let declarations = numbered(variables, |i| format!("var x{i} = a{i} - 1;"), " ");
    let depth = EXPRESSION_DEPTH_MAX - 1;
    let level = |i: usize| format!("a{i} {} (x{} - ", ["*", "+"][i % 2], i % variables);
    let nested = format!("{}a15{}", numbered(depth, level, ""), ")".repeat(depth));
    let changes = numbered(variables, |i| format!("x{i} = x{i} + a{i};"), " ");
    let sum = |name: &str, count: usize| numbered(count, |i| format!("{name}{i}"), " + ");
    format!(
        "procedure p({arguments}) {{
            {declarations}
            for i in 1..4 {{
                get [\"k\", i, x0];
                for j in a1..a2 up to 4 {{
                    if x3 > 5 {{ set [\"k\", i, j] = {nested}; }} else if x1 > x2 {{ x2 = x1; }}
                    {changes}
                }}
                set [\"sum\"] = {};
            }}
            reply {};
        }}",
        sum("x", variables),
        sum("a", ARGUMENTS_MAX),
    )
}

/// Loops over the same ranges, one after the other and within each other.
const RELATED_LOOPS: &str = "procedure p(t: text(1..40), n: integer, small: integer(1..10)) {
        for a in small..small * 3 { for b in -2..small { } get [n] else NO \"it is not so\"; }
        get [\"x\"] else { for c in small..small * 3 { for d in small..small * 3 { } } }
        for e in small..small * 3 { set [\"k\", e] = t; }
        for f in 1..n up to 30 { if f > small { get [f]; } for g in small..f up to 9 { } }
        for h in 1..n up to 30 { if n > 4 { get [h]; } }
        reply nil;
    }";

#[test]
fn one_past_each_limit_is_an_error() {
    let mut texts = vec![
        at_the_limit(Rule::Limit, ARGUMENTS_MAX, |count| {
            format!("procedure p({}) {{ reply ok; }}", numbered(count, |i| format!("a{i}: integer"), ", "))
        }),
        at_the_limit(Rule::Name, NAME_BYTES_MAX, |count| {
            format!("procedure {}() {{ reply ok; }}", "p".repeat(count))
        }),
        at_the_limit(Rule::KeySize, KEY_BYTES_MAX, |count| {
            format!("procedure p(a: text(1..{})) {{ get [a, 1]; reply ok; }}", count - KEY_INTEGER_BYTES)
        }),
        at_the_limit(Rule::KeySize, KEY_BYTES_MAX, |count| {
            body(&format!("get [t, \"{}\"]; get [\"{0}\", t];", "k".repeat(count - 9)))
        }),
        at_the_limit(Rule::Range, VALUE_BYTES_MAX, |count| {
            format!("procedure p(a: text({count})) {{ set [\"k\"] = a; reply ok; }}")
        }),
        at_the_limit(Rule::Refusal, REFUSAL_BYTES_MAX, |count| {
            body(&format!("require n > 1 else NO \"{}\";", "x".repeat(count - 3)))
        }),
        at_the_limit(Rule::Literal, LITERAL_BYTES_MAX, |count| {
            body(&format!("set [\"k\"] = \"{}\";", "x".repeat(count)))
        }),
        at_the_limit(Rule::Limit, NESTING_MAX, |count| {
            body(&format!("{} get [t]; {}", "if n > 1 {".repeat(count - 1), "}".repeat(count - 1)))
        }),
        at_the_limit(Rule::Limit, EXPRESSION_DEPTH_MAX, |count| {
            body(&format!("let a = {}n{};", "(".repeat(count), ")".repeat(count)))
        }),
        at_the_limit(Rule::Limit, EXPRESSION_DEPTH_MAX, |count| {
            body(&format!("let a = {}n;", "- ".repeat(count)))
        }),
        at_the_limit(Rule::Limit, EXPRESSION_NODES_MAX / 2, |count| {
            // As many operators as operands, with the sign.
            body(&format!("let a = -{};", numbered(count, |_| "n".to_owned(), " + ")))
        }),
        at_the_limit(Rule::Limit, KEY_PARTS_MAX, |count| {
            body(&format!("get [{}];", numbered(count, |i| format!("n + {i}"), ", ")))
        }),
        at_the_limit(Rule::Limit, VARIABLES_MAX, |count| {
            let sum = numbered(count, |i| format!("a{i}"), " + ");
            body(&format!("{} set [t] = {sum};", numbered(count, |i| format!("var a{i} = n;"), " ")))
        }),
        at_the_limit(Rule::LoopBound, ROUNDS_MAX as usize, |count| {
            body(&format!("var a = 0; for i in 1..{count} {{ a = i; }}"))
        }),
        at_the_limit(Rule::LoopBound, ROUNDS_MAX as usize, |count| {
            body(&format!("var a = 0; for i in 1..n up to {count} {{ a = i; }}"))
        }),
    ];
    // Assignments of two steps. The argument counts four, the declaration and the reply count one each.
    texts.push(at_the_limit(Rule::Limit, (STEPS_MAX as usize - 6) / 2, |count| {
        format!("procedure p(n: integer) {{ var a; {} reply ok; }}", "a = 1; ".repeat(count))
    }));
    at_the_limit(Rule::Limit, PROCEDURES_MAX, |count| {
        numbered(count, |i| format!("procedure p{i}() {{ reply ok; }}"), "\n")
    });
    at_the_limit(Rule::Limit, SOURCE_BYTES_MAX, |count| {
        let procedure = "procedure p() { reply ok; }";
        format!("{procedure}{}", " ".repeat(count - procedure.len()))
    });
    texts.extend([at_several_limits(), RELATED_LOOPS.to_owned()]);
    if !common::can_run() {
        return;
    }
    // As one library, because the headers take longer to compile than the procedures.
    let renamed = texts.iter().enumerate();
    let renamed = renamed.map(|(i, text)| text.replace("procedure p(", &format!("procedure limit_{i}(")));
    let source: Vec<String> = renamed.collect();
    let names = common::database().load_library("limits", &common::compiled(&source.join("\n")), false);
    assert_eq!(names.unwrap().len(), texts.len());
}

#[test]
fn limits_of_the_engine_are_those_of_the_language() {
    assert_eq!(ARGUMENTS_MAX, engine::CALL_ARGUMENTS_MAX);
    assert_eq!(KEY_BYTES_MAX, engine::KEY_MAX);
    assert_eq!(VALUE_BYTES_MAX, engine::VALUE_MAX);
    assert_eq!(VALUE_BYTES_MAX, engine::CALL_BYTES_MAX);
    assert_eq!(PROCEDURES_MAX, engine::PROCEDURES_MAX);
    assert_eq!(NAME_BYTES_MAX, engine::PROCEDURE_NAME_MAX);
}
