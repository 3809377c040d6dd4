//! Compiles the server's eBPF objects and generates the Rust types of the memory that they share with the event loop.
//!
//! The engine's headers, the compiler and the C library's headers are those that kerneldb's build script found.

use std::{env, ffi::OsStr, path::PathBuf, process::Command};

use libbpf_cargo::SkeletonBuilder;

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The first number of a compiler's version.
fn major_version(clang: &str) -> String {
    let output = Command::new(clang).arg("--version").output().unwrap_or_else(|e| panic!("{clang}: {e}"));
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.split("version ").nth(1).and_then(|rest| rest.split('.').next());
    version.unwrap_or_else(|| panic!("{clang} --version says no version: {text}")).to_owned()
}

fn main() {
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(variable("OUT_DIR"));
    let include = variable("DEP_BEDPLATE_KERNELDB_INCLUDE");
    let system = variable("DEP_BEDPLATE_KERNELDB_SYSTEM");
    let clang = variable("DEP_BEDPLATE_KERNELDB_CLANG");
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-changed={}", variable("DEP_BEDPLATE_KERNELDB_BPF"));
    // The test `verifier` has a record for each version of the compiler.
    println!("cargo:rustc-env=BEDPLATE_CLANG_VERSION={}", major_version(&clang));

    for (source, name) in [("bpf/server.bpf.c", "server_arena"), ("bpf/local.bpf.c", "local_path_arena")] {
        SkeletonBuilder::new()
            .source(root.join(source))
            .clang(&clang)
            .clang_args([
                OsStr::new("-I"),
                OsStr::new(&include),
                OsStr::new("-I"),
                OsStr::new(&system),
                OsStr::new("-O2"),
                OsStr::new("-g"),
                OsStr::new("-Wall"),
                OsStr::new("-Wno-unused-function"),
                OsStr::new("-fno-jump-tables"),
                OsStr::new("-Werror"),
                OsStr::new("-DKDB_ENGINE_ARENA"),
                OsStr::new("-mcpu=v4"),
            ])
            .obj(out.join(format!("{name}.bpf.o")))
            .build()
            .unwrap_or_else(|e| panic!("{source}: {e:#}"));
    }

    bindgen::Builder::default()
        .header_contents("shared.h", "#include <linux/types.h>\n#include \"layout.h\"\n")
        .clang_arg(format!("-I{include}"))
        .clang_arg(format!("-I{}", root.join("bpf").display()))
        .clang_arg(format!("-I{system}"))
        .allowlist_item("srv_.*|SRV_.*")
        .prepend_enum_name(false)
        .derive_default(false)
        .layout_tests(true)
        .generate_comments(false)
        .generate()
        .expect("bindgen of the shared layout")
        .write_to_file(out.join("server_layout.rs"))
        .expect("write the shared layout");
}
