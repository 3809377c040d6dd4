#![no_main]

use bedplate_procedure_language::{compile, limits::ERRORS_MAX};

libfuzzer_sys::fuzz_target!(|source: &str| {
    match compile(source, "fuzz.kdb") {
        Ok(c) => assert!(c.ends_with("}\n")),
        Err(errors) => assert!((1..=ERRORS_MAX).contains(&errors.len())),
    }
});
