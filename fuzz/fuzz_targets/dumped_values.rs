#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| bedplate_kerneldb_redis::fuzzing::dumped_values(input));
