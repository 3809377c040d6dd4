//! Generates the C header. Programs use `include/bedplate/snapshot.h`; a test checks that both are equal.

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=cbindgen.toml");
    // The threads and the fork handler of the library outlive a dlclose().
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    let folder = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    match cbindgen::generate(&folder) {
        Ok(bindings) => {
            bindings.write_to_file(out.join("snapshot.h"));
        }
        Err(error) => panic!("the C header cannot be generated: {error}"),
    }
}
