#![no_main]

#[allow(dead_code, reason = "the command uses the rest")]
#[path = "../../crates/cli/src/kv/commands_file.rs"]
mod commands_file;

libfuzzer_sys::fuzz_target!(|input: &[u8]| commands_file::arbitrary_bytes(input));
