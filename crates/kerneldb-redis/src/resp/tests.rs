//! Tests of the protocol: every split, garbage, limits, quoting, numbers.

use super::*;
use crate::limits::LINE_BYTES_MAX;
use proptest::prelude::*;

type Parsed = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>);

/// Feeds `portions` and collects every request.
fn parse<'a>(limits: Limits, portions: impl IntoIterator<Item = &'a [u8]>) -> Parsed {
    let mut parser = RequestParser::new(limits);
    let mut requests = Vec::new();
    for portion in portions {
        parser.feed(portion);
        loop {
            match parser.poll() {
                Ok(true) => {
                    requests.push(parser.args().from(0).map(<[u8]>::to_vec).collect());
                    parser.consume();
                }
                Ok(false) => break,
                Err(error) => return (requests, Some(error)),
            }
        }
    }
    (requests, None)
}

fn encode(args: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = Writer::new(&mut out, Protocol::Resp2);
    writer.array(args.len());
    args.iter().for_each(|arg| writer.bulk(arg));
    out
}

#[test]
fn every_split_at_every_byte() {
    let input = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\nPING\r\n*0\r\n\r\n*1\r\n$0\r\n\r\nset k \"a\\x41 b\"\n*-1\r\n*1\r\n$4\r\nQUIT\r\n";
    let whole = parse(Limits::default(), [&input[..]]);
    assert_eq!(whole.0.len(), 5);
    assert_eq!(whole.0[3], [b"set".to_vec(), b"k".to_vec(), b"aA b".to_vec()]);
    for i in 0..input.len() {
        for j in i..input.len() {
            let parts = [&input[..i], &input[i..j], &input[j..]];
            assert_eq!(parse(Limits::default(), parts), whole, "split at {i} and {j}");
        }
    }
    assert_eq!(parse(Limits::default(), input.chunks(1)), whole);
}

#[test]
fn protocol_errors() {
    let cases: &[(&[u8], &str)] = &[
        (b"*x\r\n", "Protocol error: invalid multibulk length"),
        (b"*1048577\r\n", "Protocol error: invalid multibulk length"),
        (b"*\r\n", "Protocol error: invalid multibulk length"),
        (b"*1\r\nx", ""),
        (b"*1\r\nx\r\n", "Protocol error: expected '$', got 'x'"),
        (b"*1\r\n\r\n", "Protocol error: expected '$', got ' '"),
        (b"*1\r\n$-1\r\n", "Protocol error: invalid bulk length"),
        (b"*1\r\n$536870913\r\n", "Protocol error: invalid bulk length"),
        (b"*1\r\n$1a\r\n", "Protocol error: invalid bulk length"),
        (b"get \"a\r\n", "Protocol error: unbalanced quotes in request"),
        (b"get 'a'b\r\n", "Protocol error: unbalanced quotes in request"),
    ];
    for (input, message) in cases {
        let (requests, error) = parse(Limits::default(), [*input]);
        assert!(requests.is_empty());
        assert_eq!(error.map(|e| e.to_string()).unwrap_or_default(), *message, "{}", input.escape_ascii());
    }
    let long = vec![b'a'; 64 * 1024 + 1];
    for (head, message) in [
        ("", "Protocol error: too big inline request"),
        ("*", "Protocol error: too big mbulk count string"),
        ("*1\r\n$", "Protocol error: too big bulk count string"),
    ] {
        let error = parse(Limits::default(), [head.as_bytes(), &long]).1.unwrap();
        assert_eq!(error.to_string(), message);
    }
    let limits = Limits { unauthenticated: true, ..Limits::default() };
    assert_eq!(parse(limits, [&b"*11\r\n"[..]]).1, Some(ProtocolError::UnauthenticatedMultibulk));
    assert_eq!(parse(limits, [&b"*1\r\n$16385\r\n"[..]]).1, Some(ProtocolError::UnauthenticatedBulk));
}

#[test]
fn requests_at_a_limit_are_understood() {
    for input in ["*1048576\r\n", "*1\r\n$536870912\r\n"] {
        assert_eq!(parse(Limits::default(), [input.as_bytes()]).1, None, "{input}");
    }
    let limits = Limits { unauthenticated: true, ..Limits::default() };
    let request = "*10\r\n".to_owned() + &format!("$16384\r\n{}\r\n", "a".repeat(16_384)).repeat(10);
    let (requests, error) = parse(limits, [request.as_bytes()]);
    assert_eq!((requests.len(), requests[0].len(), error), (1, 10, None));
    let line = vec![b'a'; LINE_BYTES_MAX];
    for (before, first, error) in [
        ("", "a", ProtocolError::InlineTooBig),
        ("", "*", ProtocolError::MultibulkHeaderTooBig),
        ("*1\r\n", "$", ProtocolError::BulkHeaderTooBig),
    ] {
        let at = [before.as_bytes(), first.as_bytes(), &line[1..]].concat();
        assert_eq!(parse(Limits::default(), [&at[..]]).1, None, "{error}");
        assert_eq!(parse(Limits::default(), [&at[..], b"a"]).1, Some(error));
    }
}

#[test]
fn nothing_is_parsed_after_an_error() {
    let mut parser = RequestParser::new(Limits::default());
    parser.feed(b"*1\r\n!\r\n");
    assert!(parser.poll().is_err());
    parser.feed(b"PING\r\n");
    assert_eq!(parser.poll(), Ok(false));
    assert_eq!(parser.buffered(), 0);
}

#[test]
fn long_strings_are_dropped_in_step_and_in_constant_memory() {
    let limits = Limits { keep_bytes: 10, ..Limits::default() };
    let args = vec![b"set".to_vec(), b"k".to_vec(), vec![b'v'; 100_000], b"nx".to_vec()];
    let input = [encode(&args), b"PING\r\n".to_vec()].concat();
    for portion in [1, 7, 4096, input.len()] {
        let mut parser = RequestParser::new(limits);
        let mut seen = Vec::new();
        for part in input.chunks(portion) {
            parser.feed(part);
            assert!(parser.buffered() < 100 + portion, "{} buffered", parser.buffered());
            while parser.poll().unwrap() {
                let args = parser.args();
                seen.push((args.get(0).to_vec(), args.len(), args.dropped(), args.get(3).to_vec()));
                parser.consume();
            }
        }
        let expected =
            [(b"set".to_vec(), 4, Some(2), b"nx".to_vec()), (b"PING".to_vec(), 1, None, Vec::new())];
        assert_eq!(seen, expected, "portions of {portion}");
        assert!(parser.is_empty());
    }
}

#[test]
fn a_large_string_in_small_portions_takes_linear_time() {
    // 8 MiB in portions of 64 bytes: 131072 feeds. Rescanning from the start would be 5 * 10^11 steps.
    let limits = Limits { keep_bytes: 16 << 20, ..Limits::default() };
    let input = encode(&[b"echo".to_vec(), vec![b'\r'; 8 << 20]]);
    let (requests, error) = parse(limits, input.chunks(64));
    assert_eq!((requests.len(), requests[0][1].len(), error), (1, 8 << 20, None));
}

#[test]
fn quoting() {
    let words = |line: &str| {
        split_args(line.as_bytes())
            .map(|w| w.iter().map(|w| w.escape_ascii().to_string()).collect::<Vec<_>>())
    };
    let ok = |words: &[&str]| Some(words.iter().map(|w| w.to_string()).collect::<Vec<_>>());
    assert_eq!(words("  a\tb  "), ok(&["a", "b"]));
    assert_eq!(words(""), ok(&[]));
    assert_eq!(words(r#""" ''"#), ok(&["", ""]));
    assert_eq!(words(r#""\n\r\t\b\a\q\"\x4a\xzz""#), ok(&[r#"\n\r\t\x08\x07q\"Jxzz"#]));
    assert_eq!(words(r"'it\'s \n'"), ok(&[r"it\'s \\n"]));
    assert_eq!(words(r#"ab"c d"e"#), None);
    assert_eq!(words(r#"ab"c d" e"#), ok(&["abc d", "e"]));
    assert_eq!(words(r#""a\"#), None);
    assert_eq!(words("'a"), None);
}

#[test]
fn integers() {
    for (text, value) in [
        ("0", Some(0)),
        ("-1", Some(-1)),
        ("9223372036854775807", Some(i64::MAX)),
        ("-9223372036854775808", Some(i64::MIN)),
        ("9223372036854775808", None),
        ("-9223372036854775809", None),
        ("99999999999999999999999", None),
        ("-0", None),
        ("+1", None),
        ("01", None),
        (" 1", None),
        ("1 ", None),
        ("", None),
        ("-", None),
        ("0x1", None),
    ] {
        assert_eq!(parse_i64(text.as_bytes()), value, "{text}");
    }
}

#[test]
fn long_doubles() {
    let sum = |a: &str, b: &str| {
        LongDouble::parse(a.as_bytes())?.add(&LongDouble::parse(b.as_bytes())?).map(|s| s.format())
    };
    assert_eq!(sum("10.50", "0.1").as_deref(), Some("10.6"));
    assert_eq!(sum("10.6", "-5").as_deref(), Some("5.6"));
    assert_eq!(sum("5.0e3", "2.0e2").as_deref(), Some("5200"));
    assert_eq!(sum("0", "-0").as_deref(), Some("0"));
    assert_eq!(sum("1", "-1").as_deref(), Some("0"));
    assert_eq!(sum("-.5", "0.").as_deref(), Some("-0.5"));
    assert_eq!(sum("1e-18", "0").as_deref(), Some("0"));
    assert_eq!(sum("1e4932", "0").map(|s| s.len()), Some(4933));
    assert_eq!(sum("1e4932", "1e4932"), None);
    for bad in ["", ".", "x", "1e", "1e+", "1x", " 1", "1 ", "1e5000", "1e-6000", "nan", "1.2.3", "--1"] {
        assert_eq!(LongDouble::parse(bad.as_bytes()), None, "{bad}");
    }
}

#[test]
fn replies_in_both_protocols() {
    let write = |protocol| {
        let mut out = Vec::new();
        let mut w = Writer::new(&mut out, protocol);
        w.map(1);
        w.simple("a");
        w.null();
        w.set(1);
        w.double(1.5);
        w.push(1);
        w.boolean(true);
        w.verbatim(b"hi");
        w.null_array();
        w.error(b"ERR a\r\nb");
        w.bulk_or_null(Some(b""));
        w.integer(i64::MIN);
        w.double(f64::NEG_INFINITY);
        String::from_utf8(out).unwrap()
    };
    assert_eq!(
        write(Protocol::Resp2),
        "*2\r\n+a\r\n$-1\r\n*1\r\n$3\r\n1.5\r\n*1\r\n:1\r\n$2\r\nhi\r\n*-1\r\n-ERR a  b\r\n$0\r\n\r\n\
         :-9223372036854775808\r\n$4\r\n-inf\r\n"
    );
    assert_eq!(
        write(Protocol::Resp3),
        "%1\r\n+a\r\n_\r\n~1\r\n,1.5\r\n>1\r\n#t\r\n=6\r\ntxt:hi\r\n_\r\n-ERR a  b\r\n$0\r\n\r\n\
         :-9223372036854775808\r\n,-inf\r\n"
    );
}

fn any_args() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 1..6)
}

proptest! {
    #[test]
    fn requests_survive_any_splits(
        requests in prop::collection::vec(any_args(), 1..8),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let input: Vec<u8> = requests.iter().flat_map(|r| encode(r)).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|c| c.index(input.len())).collect();
        cuts.extend([0, input.len()]);
        cuts.sort();
        let parts = cuts.windows(2).map(|w| &input[w[0]..w[1]]);
        let limits = Limits { keep_bytes: 32, ..Limits::default() };
        let expected: Vec<Vec<Vec<u8>>> = requests
            .iter()
            .map(|r| r.iter().map(|a| if a.len() > 32 { Vec::new() } else { a.clone() }).collect())
            .collect();
        prop_assert_eq!(parse(limits, parts), (expected, None));
    }

    #[test]
    fn garbage_neither_panics_nor_depends_on_splits(
        input in prop::collection::vec(
            prop_oneof![
                any::<u8>().prop_map(|b| vec![b]),
                "[*$][0-9]{1,2}\r\n".prop_map(String::into_bytes),
                Just(b"\r\n".to_vec()),
                "[a-c\"' ]{0,4}".prop_map(String::into_bytes),
            ],
            0..60,
        ),
        portion in 1usize..20,
    ) {
        let input = input.concat();
        let limits = Limits { keep_bytes: 16, ..Limits::default() };
        prop_assert_eq!(parse(limits, input.chunks(portion)), parse(limits, [&input[..]]));
    }
}
