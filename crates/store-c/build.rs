//! Generates the C header. The one that people use is `include/bedplate/store.h`; a test checks that it is this one.

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=cbindgen.toml");
    // Its fork handler outlives a dlclose().
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // The functions of this crate are all that it exports. A symbol of a crate below could take the place of the same symbol in
    // another library of Bedplate's in the process.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    let folder = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    match cbindgen::generate(&folder) {
        Ok(bindings) => {
            bindings.write_to_file(out.join("store.h"));
        }
        Err(error) => panic!("the C header cannot be generated: {error}"),
    }
}
