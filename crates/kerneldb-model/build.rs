//! Compiles the engine for the model checker, once as it is and once for each mutant, and generates the Rust types of
//! the layout.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

#[path = "src/mutants.rs"]
mod mutants;
#[allow(dead_code, reason = "the options are for eBPF")]
#[path = "../kerneldb/src/toolchain.rs"]
mod toolchain;

use mutants::{MUTANTS, Mutant};

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        let target = to.join(file.file_name());
        if file.file_type().unwrap().is_dir() {
            copy(&file.path(), &target);
        } else {
            fs::copy(file.path(), target).unwrap();
        }
    }
}

/// Copies the engine's headers and changes them. Returns whether the mutant's text is in them exactly once.
fn mutate(bpf: &Path, to: &Path, mutant: &Mutant) -> bool {
    let _ = fs::remove_dir_all(to);
    copy(&bpf.join("engine"), &to.join("engine"));
    copy(&bpf.join("include"), &to.join("include"));
    let file = to.join(mutant.file);
    let Ok(text) = fs::read_to_string(&file) else { return false };
    if text.matches(mutant.text).count() != 1 {
        return false;
    }
    fs::write(&file, text.replacen(mutant.text, mutant.becomes, 1)).unwrap();
    true
}

/// Compiles the headers in `bpf` to an object that has one table of functions.
fn compile(name: &str, bpf: &Path, clang: &str, root: &Path) {
    let shim = root.join("shim");
    cc::Build::new()
        .compiler(clang)
        .no_default_flags(true)
        .warnings(false)
        .file(shim.join("engine.c"))
        .include(&shim)
        .include(bpf.join("include"))
        .include(bpf)
        .define("VARIANT", format!("kdb_model_{name}").as_str())
        .define("KDB_ENGINE_ARENA", None)
        // The flags are those of the eBPF programs, except that vectors are off, which eBPF does not have.
        .flag("-O2")
        .flag("-fPIC")
        .flag("-ffreestanding")
        .flag("-fno-builtin")
        .flag("-fno-vectorize")
        .flag("-fno-slp-vectorize")
        .flag("-mno-sse")
        .flag("-fno-omit-frame-pointer")
        .flag("-fexceptions")
        .flag("-Wno-unused-function")
        // The runtime of this crate replaces the sanitizer's.
        .flag("-fsanitize=thread")
        .flag(if name == "engine" { "-g" } else { "-g0" })
        .flag("-mllvm")
        .flag("-tsan-instrument-read-before-write=1")
        .flag("-mllvm")
        .flag("-tsan-instrument-func-entry-exit=0")
        .compile(&format!("kdb_model_{name}"));
}

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap());
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    let bpf = root.join("../kerneldb/bpf").canonicalize().unwrap();
    println!("cargo:rerun-if-changed=shim");
    println!("cargo:rerun-if-changed=src/mutants.rs");
    println!("cargo:rerun-if-changed={}", bpf.join("engine").display());
    println!("cargo:rerun-if-changed={}", bpf.join("include").display());
    println!("cargo:rerun-if-env-changed=CLANG");
    let clang = toolchain::clang();
    let clang = clang.expect(
        "clang is needed to compile the engine for the model checker: run `make setup`, or set CLANG",
    );

    compile("engine", &bpf, &clang, &root);
    let mut externs = String::from("    static kdb_model_engine: Table;\n");
    let mut arms = String::new();
    for mutant in MUTANTS {
        let folder = out.join("mutants").join(mutant.name);
        if mutate(&bpf, &folder, mutant) {
            compile(mutant.name, &folder, &clang, &root);
            externs += &format!("    static kdb_model_{}: Table;\n", mutant.name);
            arms += &format!("        {:?} => Some(&raw const kdb_model_{}),\n", mutant.name, mutant.name);
        }
    }
    let variants = format!(
        "unsafe extern \"C\" {{\n{externs}}}\n\n\
         fn mutant_table(name: &str) -> Option<*const Table> {{\n    match name {{\n{arms}        _ => None,\n    }}\n}}\n"
    );
    fs::write(out.join("variants.rs"), variants).unwrap();

    bindgen::Builder::default()
        .header_contents(
            "shared.h",
            "#include <linux/types.h>\n#include <bedplate/layout.h>\n#include <bedplate/calls.h>\n",
        )
        .clang_arg(format!("-I{}", bpf.join("include").display()))
        .allowlist_item("kdb_.*|KDB_.*")
        .prepend_enum_name(false)
        .derive_default(false)
        .layout_tests(false)
        .generate_comments(false)
        .generate()
        .expect("bindgen of the shared layout")
        .write_to_file(out.join("layout.rs"))
        .expect("write the shared layout");
}
