//! Procedures of the language beside the same procedures in C, and beside models: the same calls have the same replies and leave
//! the same database.

mod common;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use bedplate_kerneldb::{ACCOUNTS, Database, EngineKind, Error, Reply, Session, SetOptions, VOTER, Written};
use common::{can_run, compiled, contents, database, database_on, databases, example, object, seed};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

/// `accounts.kdb`, compiled once.
fn accounts() -> &'static [u8] {
    static OBJECT: OnceLock<Vec<u8>> = OnceLock::new();
    OBJECT.get_or_init(|| compiled(&example("accounts.kdb")))
}

/// `stock.kdb` and the procedures of this file, compiled once.
fn others() -> &'static [u8] {
    static OBJECT: OnceLock<Vec<u8>> = OnceLock::new();
    OBJECT.get_or_init(|| compiled(&[&example("stock.kdb"), ARITHMETIC, OPERATIONS].concat()))
}

/// A result that can be compared. Refusals are their text.
fn comparable(result: Result<Reply, Error>) -> String {
    match result {
        Ok(reply) => format!("{reply:?}"),
        Err(Error::Refused(text)) => text,
        Err(error) => format!("{error:?}"),
    }
}

fn call(session: &mut Session, name: &str, arguments: &[Vec<u8>]) -> String {
    let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
    comparable(session.call(name, &arguments))
}

fn strings(arguments: &[&str]) -> Vec<Vec<u8>> {
    arguments.iter().map(|argument| argument.as_bytes().to_vec()).collect()
}

/// The text of a number, or of something that is none.
fn amount(rng: &mut SmallRng) -> Vec<u8> {
    let number = match rng.random_range(0..10) {
        0 => {
            return [&b""[..], b"-", b"+1", b"01", b"1x", b"-0", b"9223372036854775808"]
                [rng.random_range(0..7)]
            .to_vec();
        }
        1 => rng.random_range(-3..=0),
        2 => [1_000_000_000_000, 1_000_000_000_001, i64::MAX, i64::MIN][rng.random_range(0..4)],
        _ => rng.random_range(1..200i64),
    };
    number.to_string().into_bytes()
}

#[test]
fn accounts_are_those_of_the_example_in_c() {
    if !can_run() {
        return;
    }
    let (arenas, hash_maps) = (EngineKind::Arena, EngineKind::HashMap);
    let forms = [(ACCOUNTS, arenas), (accounts(), arenas), (ACCOUNTS, hash_maps), (accounts(), hash_maps)];
    let databases = forms.map(|(form, engine)| {
        let database = database_on(engine);
        let names = database.load_library("accounts", form, false).unwrap();
        assert_eq!(names, ["account_balance", "account_open", "account_transfer"]);
        database
    });
    assert!(databases[1..].iter().all(|database| database.procedures() == databases[0].procedures()));
    let mut sessions = databases.each_ref().map(|database| database.session().unwrap());
    let mut rng = SmallRng::seed_from_u64(seed());
    let mut outcomes: BTreeMap<String, u32> = BTreeMap::new();
    for round in 0..6000 {
        // Balances stay where C does not wrap around; the edge is in `results_out_of_range_are_refused`.
        let name = |rng: &mut SmallRng| match rng.random_range(0..12) {
            0 => vec![b'x'; 255],
            n => format!("account{n}").into_bytes(),
        };
        let (procedure, mut arguments) = match rng.random_range(0..10) {
            0..2 => {
                ("account_open", vec![name(&mut rng), rng.random_range(-50..500i64).to_string().into_bytes()])
            }
            2..4 => ("account_balance", vec![name(&mut rng)]),
            4 => {
                // A value that is no number, or has an expiry.
                let key = name(&mut rng);
                let value = [&b"12"[..], b"many", b""][rng.random_range(0..3)];
                let expire_at_ms = rng.random_bool(0.5).then_some(4_000_000_000_000 + round);
                for session in &mut sessions {
                    session.set(&key, value, SetOptions { expire_at_ms, ..SetOptions::default() }).unwrap();
                }
                continue;
            }
            5 => {
                let key = name(&mut rng);
                let missing =
                    |session: &mut Session| session.delete(&key).unwrap() == Written::ConditionFailed;
                let missing = sessions.each_mut().map(missing);
                assert!(missing.iter().all(|other| *other == missing[0]), "{missing:?}");
                continue;
            }
            _ => ("account_transfer", vec![name(&mut rng), name(&mut rng), amount(&mut rng)]),
        };
        if rng.random_range(0..40) == 0 {
            arguments.push(b"1".to_vec());
        }
        let replies = sessions.each_mut().map(|session| call(session, procedure, &arguments));
        assert!(
            replies.iter().all(|reply| *reply == replies[0]),
            "round {round}: {procedure} {arguments:?}: {replies:?}"
        );
        let kind = replies[1].split([' ', '(']).next().unwrap().to_owned();
        *outcomes.entry(kind).or_default() += 1;
    }
    let expected = contents(&databases[0]);
    assert!(databases[1..].iter().all(|database| contents(database) == expected));
    for outcome in ["Ok", "Nil", "Integer", "Value", "EXISTS", "NOACCOUNT", "OVERDRAWN", "ERR"] {
        assert!(outcomes.contains_key(outcome), "{outcome} is missing: {outcomes:?}");
    }
    databases.iter().for_each(|database| assert!(database.verify().unwrap().keys > 0));
    // The language checks lengths that the example in C leaves to the engine.
    let [c, language, c_on_hash_maps, language_on_hash_maps] = &mut sessions;
    for name in [&b""[..], &[b'x'; 256]] {
        for c in [&mut *c, c_on_hash_maps] {
            assert!(matches!(c.call("account_balance", &[name]), Err(Error::TooLarge(_))));
        }
        for language in [&mut *language, language_on_hash_maps] {
            let reply = comparable(language.call("account_balance", &[name]));
            assert_eq!(reply, "ERR name must have 1 to 255 bytes");
        }
    }
}

/// Rows of Voter: table, number, number of the vote, and value.
type Rows = BTreeMap<(u8, u64, u64), Vec<u8>>;

/// The key of a row in `voter.bpf.c`.
fn c_key(table: u8, number: u64, bytes: usize) -> Vec<u8> {
    (u64::from(table) | number << 8).to_le_bytes()[..1 + bytes].to_vec()
}

/// The key of a row in `voter.kdb`.
fn language_key(table: u8, number: u64) -> Vec<u8> {
    [&[table][..], &number.to_be_bytes()].concat()
}

fn fill(database: &Database, key: impl Fn(u8, u64, usize) -> Vec<u8>) {
    let mut session = database.session().unwrap();
    for area in 200..220 {
        session.set(&key(b'a', area, 4), b"PA", SetOptions::default()).unwrap();
    }
    for contestant in 1..=12 {
        session.set(&key(b'c', contestant, 4), b"somebody", SetOptions::default()).unwrap();
    }
}

fn decimal(number: &[u8]) -> Vec<u8> {
    u64::from_le_bytes(number.try_into().unwrap()).to_string().into_bytes()
}

fn c_rows(database: &Database) -> Rows {
    let row = |(key, (value, _)): (Vec<u8>, (Vec<u8>, u64))| {
        let word = |bytes: &[u8]| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        };
        match key[0] {
            table @ (b'a' | b'c') => ((table, word(&key[1..]), 0), value),
            table @ b'p' => ((table, word(&key[1..]), 0), decimal(&value)),
            table => ((table, word(&key[1..8]), word(&key[8..])), decimal(&value)),
        }
    };
    contents(database).into_iter().map(row).collect()
}

fn language_rows(database: &Database) -> Rows {
    let row = |(key, (value, _)): (Vec<u8>, (Vec<u8>, u64))| {
        let word = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
        let vote = if key.len() > 9 { word(&key[9..]) } else { 0 };
        ((key[0], word(&key[1..9]), vote), value)
    };
    contents(database).into_iter().map(row).collect()
}

#[test]
fn votes_are_those_of_the_example_in_c() {
    if !can_run() {
        return;
    }
    let [c, by_hand, language] = std::array::from_fn(|_| database());
    let on_hash_maps = database_on(EngineKind::HashMap);
    fill(&c, c_key);
    fill(&by_hand, |table, number, _| language_key(table, number));
    fill(&language, |table, number, _| language_key(table, number));
    fill(&on_hash_maps, |table, number, _| language_key(table, number));
    let application = c.load_application(VOTER, 0).unwrap();
    let direct = application.procedure("voter_direct").unwrap();
    by_hand.load_library("voter", &object(&example("voter.bpf.c")), false).unwrap();
    let voter = compiled(&example("voter.kdb"));
    language.load_library("voter", &voter, false).unwrap();
    on_hash_maps.load_library("voter", &voter, false).unwrap();
    let mut sessions = [&c, &by_hand, &language, &on_hash_maps].map(|database| database.session().unwrap());
    let mut rng = SmallRng::seed_from_u64(seed());
    let mut outcomes = [0; 4];
    for _ in 0..6000 {
        let phone = rng.random_range(199..=220) * 10_000_000 + rng.random_range(0..50u64);
        let (contestant, limit) = (rng.random_range(0..=13u64), rng.random_range(0..4u64));
        let arguments = [phone, contestant, limit];
        let result = direct.run(&mut sessions[0], &arguments).unwrap();
        let texts: Vec<Vec<u8>> = arguments.iter().map(|number| number.to_string().into_bytes()).collect();
        for session in &mut sessions[1..] {
            assert_eq!(call(session, "vote", &texts), format!("Integer({result})"), "{arguments:?}");
        }
        outcomes[result as usize] += 1;
    }
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
    assert_eq!(contents(&by_hand), contents(&language));
    assert_eq!(contents(&on_hash_maps), contents(&language));
    assert_eq!(c_rows(&c), language_rows(&language));
    for wrong in [["-1", "1", "1"], ["10000000000", "1", "1"], ["1", "1000001", "1"], ["1", "1", "x"]] {
        let replies = [1, 2, 3].map(|form| call(&mut sessions[form], "vote", &strings(&wrong)));
        assert!(replies[1..] == [&*replies[0]; 2] && replies[0].starts_with("ERR "), "{replies:?}");
    }
}

/// A model of `stock.kdb`.
#[derive(Clone, Default)]
struct Stock {
    stock: BTreeMap<(String, String), i64>,
    orders: BTreeMap<i64, i64>,
}

impl Stock {
    fn call(&mut self, name: &str, arguments: &[String]) -> Result<String, &'static str> {
        let number = |index: usize| arguments[index].parse::<i64>().unwrap();
        let place = |warehouse: usize, item: usize| (arguments[warehouse].clone(), arguments[item].clone());
        let quantity = |index: usize| match number(index) {
            quantity @ 1..=1_000_000 => Ok(quantity),
            _ => Err("QUANTITY the quantity must be 1 to 1000000"),
        };
        const NO_ITEM: &str = "NOITEM the warehouse does not have the item";
        let integer = |number: i64| Ok(format!("Integer({number})"));
        match name {
            "stock_add" => {
                let stock = self.stock.entry(place(0, 1)).or_default();
                *stock += quantity(2)?;
                integer(*stock)
            }
            "stock_reserve" => {
                let quantity = quantity(3)?;
                let stock = self.stock.get_mut(&place(0, 1)).ok_or(NO_ITEM)?;
                if *stock < quantity {
                    return Err("SHORT the stock is too low");
                }
                *stock -= quantity;
                if self.orders.insert(number(2), quantity).is_some() {
                    return Err("EXISTS there is an order of this number");
                }
                integer(*stock)
            }
            "stock_cancel" => {
                let quantity = self.orders.remove(&number(2)).ok_or("NOORDER there is no such order")?;
                let stock = self.stock.get_mut(&place(0, 1)).ok_or(NO_ITEM)?;
                *stock += quantity;
                integer(*stock)
            }
            "stock_transfer" => {
                let quantity = quantity(3)?;
                let from = self.stock.get_mut(&place(0, 2)).ok_or(NO_ITEM)?;
                *from -= quantity;
                let left = *from;
                if left < 0 {
                    return Err("SHORT the stock is too low");
                }
                if left == 0 {
                    self.stock.remove(&place(0, 2));
                }
                *self.stock.entry(place(1, 2)).or_default() += quantity;
                integer(left)
            }
            "stock_of" => match self.stock.get(&place(0, 1)) {
                Some(stock) => integer(*stock),
                None => Ok("Nil".to_owned()),
            },
            _ => {
                let orders = self.orders.range(number(0)..number(0) + number(1));
                integer(orders.map(|(_, quantity)| quantity).sum())
            }
        }
    }
}

/// Refusals after writes included: a call has all of its effects or none.
#[test]
fn orders_and_inventory_are_those_of_a_model() {
    if !can_run() {
        return;
    }
    for database in databases() {
        database.load_library("others", others(), false).unwrap();
        let mut session = database.session().unwrap();
        let mut rng = SmallRng::seed_from_u64(seed());
        let (mut model, mut outcomes) = (Stock::default(), BTreeMap::<String, u32>::new());
        for _ in 0..8000 {
            let mut pick = |of: &[&str]| of[rng.random_range(0..of.len())].to_owned();
            let warehouses = [pick(&["north", "south"]), pick(&["north", "south"])];
            let item = pick(&["bolt", "nut", "gear"]);
            let quantity = rng.random_range(0..12i64).to_string();
            let order = rng.random_range(1..40i64).to_string();
            let [from, to] = warehouses;
            let (name, arguments) = match rng.random_range(0..14) {
                0 => ("stock_add", vec![from, item, quantity]),
                1..4 => ("stock_reserve", vec![from, item, order, quantity]),
                4..6 => ("stock_cancel", vec![from, item, order]),
                6..12 => ("stock_transfer", vec![from, to, item, quantity]),
                12 => ("stock_of", vec![from, item]),
                _ => ("stock_expected", vec![order, rng.random_range(1..=50i64).to_string()]),
            };
            if rng.random_range(0..30) == 0 {
                let [warehouse, item] = [&arguments[0], &arguments[1]];
                let was_there = model.stock.remove(&(warehouse.clone(), item.clone())).is_some();
                let deleted = session.delete(format!("stock:{warehouse}:{item}").as_bytes()).unwrap();
                assert_eq!(deleted != Written::ConditionFailed, was_there);
            }
            let before = model.clone();
            let expected = model.call(name, &arguments).unwrap_or_else(|refusal| {
                model = before;
                refusal.to_owned()
            });
            let texts: Vec<Vec<u8>> =
                arguments.iter().map(|argument| argument.clone().into_bytes()).collect();
            assert_eq!(call(&mut session, name, &texts), expected, "{name} {arguments:?}");
            let kind = expected.split([' ', '(']).next().unwrap().to_owned();
            *outcomes.entry(format!("{name} {kind}")).or_default() += 1;
        }
        for outcome in [
            "stock_reserve EXISTS",
            "stock_reserve SHORT",
            "stock_cancel NOORDER",
            "stock_cancel NOITEM",
            "stock_cancel Integer",
            "stock_transfer SHORT",
            "stock_transfer Integer",
            "stock_of Nil",
        ] {
            assert!(outcomes.contains_key(outcome), "{outcome} is missing: {outcomes:?}");
        }
        let mut expected = BTreeMap::new();
        for ((warehouse, item), stock) in &model.stock {
            expected.insert(
                format!("stock:{warehouse}:{item}").into_bytes(),
                (stock.to_string().into_bytes(), 0),
            );
        }
        for (order, quantity) in &model.orders {
            let key = [&b"order:"[..], &order.to_be_bytes()].concat();
            expected.insert(key, (quantity.to_string().into_bytes(), 0));
        }
        assert_eq!(contents(&database), expected);
        let too_many = call(&mut session, "stock_expected", &strings(&["1", "51"]));
        assert_eq!(too_many, "ERR count must be 1 to 50");
    }
}

const ARITHMETIC: &str = r#"
procedure add(a: integer, b: integer) { reply a + b; }
procedure subtract(a: integer, b: integer) { reply a - b; }
procedure multiply(a: integer, b: integer) { reply a * b; }
procedure divide(a: integer, b: integer) { reply a / b; }
procedure remainder(a: integer, b: integer) { reply a % b; }
procedure negate(a: integer, b: integer) { reply -a; }
procedure nested(a: integer, b: integer) { reply (a * b + a) * (b - a * 3) / (a - b); }
procedure compare(a: integer, b: integer) {
    var bits = 0;
    if a < b { bits = bits + 1; }
    if a <= b { bits = bits + 2; }
    if a == b { bits = bits + 4; }
    if a != b { bits = bits + 8; }
    if a > b or b > 1000 and not a < 0 { bits = bits + 16; }
    if a >= b and (b < 0 or a != 7) { bits = bits + 32; } else { bits = -bits; }
    reply bits;
}
"#;

fn arithmetic(name: &str, a: i64, b: i64) -> Option<i64> {
    match name {
        "add" => a.checked_add(b),
        "subtract" => a.checked_sub(b),
        "multiply" => a.checked_mul(b),
        "divide" => a.checked_div(b),
        "remainder" if b == -1 => Some(0),
        "remainder" => a.checked_rem(b),
        "negate" => a.checked_neg(),
        "nested" => {
            let left = a.checked_mul(b)?.checked_add(a)?;
            let right = b.checked_sub(a.checked_mul(3)?)?;
            left.checked_mul(right)?.checked_div(a.checked_sub(b)?)
        }
        _ => {
            let bit = |is: bool, bit: i64| if is { bit } else { 0 };
            let low = bit(a < b, 1) + bit(a <= b, 2) + bit(a == b, 4) + bit(a != b, 8);
            let low = low + bit(a > b || (b > 1000 && a >= 0), 16);
            Some(if a >= b && (b < 0 || a != 7) { low + 32 } else { -low })
        }
    }
}

#[test]
fn results_out_of_range_are_refused() {
    if !can_run() {
        return;
    }
    for database in databases() {
        database.load_library("others", others(), false).unwrap();
        let mut session = database.session().unwrap();
        let mut numbers = vec![0, 1, -1, 2, -2, 3, 7, 10, 1 << 31, 1 << 32, -(1 << 32), 3_037_000_500];
        numbers.extend([i64::MAX, i64::MAX - 1, i64::MIN, i64::MIN + 1, i64::MAX / 2 + 1, i64::MIN / 2]);
        let mut rng = SmallRng::seed_from_u64(seed());
        numbers.extend((0..6).map(|_| rng.random::<i64>() >> rng.random_range(0..60)));
        for name in ["add", "subtract", "multiply", "divide", "remainder", "negate", "nested", "compare"] {
            let mut refused = 0;
            for (a, b) in numbers.iter().flat_map(|a| numbers.iter().map(move |b| (*a, *b))) {
                let texts = [a, b].map(|number| number.to_string().into_bytes());
                let expected = match arithmetic(name, a, b) {
                    Some(result) => format!("Integer({result})"),
                    None => "ERR the result of an operation is out of range".to_owned(),
                };
                refused += u32::from(expected.starts_with("ERR"));
                assert_eq!(call(&mut session, name, &texts), expected, "{name} {a} {b}");
            }
            assert!(name == "compare" || refused > 0, "{name}");
        }
        // The example in C wraps around instead.
        database.load_library("accounts", accounts(), false).unwrap();
        for (name, balance) in [("rich", i64::MAX), ("other", 100)] {
            call(&mut session, "account_open", &strings(&[name, &balance.to_string()]));
        }
        let reply = call(&mut session, "account_transfer", &strings(&["other", "rich", "1"]));
        assert_eq!(reply, "ERR the result of an operation is out of range");
    }
}

const OPERATIONS: &str = r#"
procedure expiring(key: text(1..20), time: integer) {
    set [key] = "a" expire at time;
    insert ["other:", key] = key expire at now + 3600000 else { reply "exists"; }
    reply ok;
}
procedure extend(key: text(1..20)) {
    update [key] = -5 keep expiry else MISSING "there is no such key";
    delete ["other:", key] else { reply nil; }
    get [key] else NEVER "it has just been written";
    let length_of_value = length(value);
    set ["copy of ", key, " with ", length(key), "?"] = value;
    reply length_of_value;
}
procedure rounds(first: integer, last: integer) {
    var sum = 0;
    for i in first..last up to 20 {
        for j in 1..3 { sum = sum + i * j; }
        if sum > 2000 { reply "large"; }
    }
    reply sum;
}
readonly procedure echo(text_: text(65536)) { reply text_; }
"#;

#[test]
fn each_statement_does_what_it_says() {
    if !can_run() {
        return;
    }
    for database in databases() {
        database.load_library("others", others(), false).unwrap();
        let mut session = database.session().unwrap();
        let time = 4_000_000_000_000u64;
        let mut run = |name: &str, arguments: &[&str]| call(&mut session, name, &strings(arguments));
        assert_eq!(run("extend", &["k"]), "MISSING there is no such key");
        assert_eq!(run("expiring", &["k", "0"]), "ERR the time of an expiry is out of range");
        assert_eq!(run("expiring", &["k", &time.to_string()]), "Ok");
        assert_eq!(run("expiring", &["k", &time.to_string()]), format!("Value({:?})", b"exists"));
        let keys = contents(&database);
        assert_eq!(keys[&b"k"[..]], (b"a".to_vec(), time));
        let expiry = keys[&b"other:k"[..]].1;
        let now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
        assert!((now + 1_800_000..now + 5_400_000).contains(&expiry), "{expiry} {now}");
        assert_eq!(run("extend", &["k"]), "Integer(2)");
        assert_eq!(run("extend", &["k"]), "Nil");
        let keys = contents(&database);
        assert_eq!(keys[&b"k"[..]], (b"-5".to_vec(), time));
        let copy = [&b"copy of k with "[..], &1u64.to_be_bytes(), b"?"].concat();
        assert_eq!(keys[&copy], (b"-5".to_vec(), 0));
        assert_eq!(keys.len(), 2);
        assert_eq!(run("rounds", &["3", "2"]), "Integer(0)");
        assert_eq!(run("rounds", &["-1", "18"]), format!("Integer({})", (-1..=18).sum::<i64>() * 6));
        assert_eq!(run("rounds", &["-1", "19"]), "ERR a loop would have more than 20 rounds");
        assert_eq!(run("rounds", &["50", "60"]), format!("Value({:?})", b"large"));
        let (least, most) = (i64::MIN.to_string(), i64::MAX.to_string());
        assert_eq!(run("rounds", &[&least, &most]), "ERR a loop would have more than 20 rounds");
        assert_eq!(run("rounds", &[&most, &least]), "Integer(0)");
        assert_eq!(run("rounds", &[&most, &most]), "ERR the result of an operation is out of range");
        let long = "x".repeat(65_536);
        assert_eq!(run("echo", &[&long]), format!("Value({:?})", long.as_bytes()));
    }
}
