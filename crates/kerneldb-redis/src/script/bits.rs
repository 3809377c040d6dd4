//! The library `bit`: operations on 32 bits.

use mlua::{Lua, Result, Table, Variadic};

/// The lowest 32 bits of a number, as Lua's `bit` takes them.
fn bits(number: f64) -> i32 {
    number.round_ties_even() as i64 as i32
}

/// The library.
pub(super) fn library(lua: &Lua) -> Result<Table> {
    let library = lua.create_table()?;
    let one = |name: &str, f: fn(i32) -> i32| {
        library.set(name, lua.create_function(move |_, x: f64| Ok(f(bits(x))))?)
    };
    one("tobit", |x| x)?;
    one("bnot", |x| !x)?;
    one("bswap", i32::swap_bytes)?;
    let fold = |name: &str, f: fn(i32, i32) -> i32| {
        let all = move |_: &Lua, (first, rest): (f64, Variadic<f64>)| {
            Ok(rest.iter().fold(bits(first), |x, y| f(x, bits(*y))))
        };
        library.set(name, lua.create_function(all)?)
    };
    fold("band", |x, y| x & y)?;
    fold("bor", |x, y| x | y)?;
    fold("bxor", |x, y| x ^ y)?;
    let shift = |name: &str, f: fn(i32, u32) -> i32| {
        let shift = move |_: &Lua, (x, by): (f64, f64)| Ok(f(bits(x), bits(by) as u32 & 31));
        library.set(name, lua.create_function(shift)?)
    };
    shift("lshift", |x, by| x << by)?;
    shift("rshift", |x, by| (x as u32 >> by) as i32)?;
    shift("arshift", |x, by| x >> by)?;
    shift("rol", i32::rotate_left)?;
    shift("ror", i32::rotate_right)?;
    let tohex = |_: &Lua, (x, digits): (f64, Option<f64>)| {
        let digits = digits.map_or(8, bits);
        let text = match digits < 0 {
            true => format!("{:08X}", bits(x)),
            false => format!("{:08x}", bits(x)),
        };
        let count = digits.unsigned_abs().min(8) as usize;
        Ok(text[8 - count..].to_owned())
    };
    library.set("tohex", lua.create_function(tohex)?)?;
    Ok(library)
}
