//! Compiles the benchmarks' eBPF procedures.

use std::path::PathBuf;
use std::{env, ffi::OsStr, process::Command};

use libbpf_cargo::SkeletonBuilder;

fn main() {
    println!("cargo:rerun-if-env-changed=CLANG");
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-changed=../kerneldb/bpf");
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let include = root.join("../kerneldb/bpf/include");
    let multiarch = Command::new("gcc").arg("-print-multiarch").output();
    let multiarch = multiarch.ok().and_then(|o| String::from_utf8(o.stdout).ok()).unwrap_or_default();
    let system = format!("/usr/include/{}", multiarch.trim());
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    SkeletonBuilder::new()
        .source(root.join("bpf/voter.bpf.c"))
        .clang(&clang)
        .clang_args([
            OsStr::new("-I"),
            include.as_os_str(),
            OsStr::new("-I"),
            OsStr::new(&system),
            OsStr::new("-O2"),
            OsStr::new("-g"),
            OsStr::new("-mcpu=v4"),
            OsStr::new("-Wall"),
            OsStr::new("-Wno-unused-function"),
            OsStr::new("-Werror"),
            OsStr::new("-DKDB_ENGINE_ARENA"),
        ])
        .obj(out.join("voter.bpf.o"))
        .build()
        .unwrap_or_else(|e| panic!("bpf/voter.bpf.c with {clang}: {e:#}"));
}
