//! Generates the C header. Programs use `include/bedplate/ring0.h`; a test checks that it equals the generated one.

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=cbindgen.toml");
    let folder = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    match cbindgen::generate(&folder) {
        Ok(bindings) => {
            bindings.write_to_file(out.join("ring0.h"));
        }
        Err(error) => panic!("the C header cannot be generated: {error}"),
    }
}
