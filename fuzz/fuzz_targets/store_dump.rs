#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| bedplate_btree::arbitrary_dump(input));
