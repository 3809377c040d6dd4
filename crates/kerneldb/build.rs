//! Compiles the eBPF objects with clang-19 and generates the shared layout's Rust types.
//!
//! A crate with eBPF programs of its own depends on this one. Its build script gets the paths of the headers and tools
//! in `DEP_BEDPLATE_KERNELDB_BPF` (the folder of all headers), `_INCLUDE` (the include path), `_CLANG` and `_SYSTEM`
//! (the include path of the C library).

use std::{
    collections::hash_map::DefaultHasher,
    env,
    ffi::OsStr,
    hash::{Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
};

use libbpf_cargo::SkeletonBuilder;

/// The eBPF programs need a clang that knows arenas' address spaces and the v4 instruction set.
fn clang() -> String {
    println!("cargo:rerun-if-env-changed=CLANG");
    let candidates =
        env::var("CLANG").into_iter().chain(["clang-19", "clang-20", "clang-21", "clang"].map(String::from));
    for candidate in candidates {
        if Command::new(&candidate).arg("--version").output().is_ok_and(|out| out.status.success()) {
            return candidate;
        }
    }
    panic!("clang 19 or newer is needed to compile the eBPF programs: run `make setup`, or set CLANG");
}

/// Writes a list of the headers, with their paths and contents, for programs that compile procedures, and a header with a number
/// that identifies them.
fn embed_headers(bpf: &Path, out: &Path) {
    let mut list = String::from("&[\n");
    let mut folders = vec![bpf.join("engine"), bpf.join("include")];
    let mut headers = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder of the headers") {
            let path = entry.expect("an entry of that folder").path();
            match path.extension() {
                None => folders.push(path),
                Some(extension) if extension == "h" => headers.push(path),
                Some(_) => {}
            }
        }
    }
    headers.sort();
    let mut hasher = DefaultHasher::new();
    for header in headers {
        std::fs::read(&header).expect("a header").hash(&mut hasher);
        let name = header.strip_prefix(bpf).expect("below the folder").display().to_string();
        list += &format!("    ({name:?}, include_str!({:?})),\n", header.display().to_string());
    }
    std::fs::write(out.join("headers.rs"), list + "]\n").expect("write the list of headers");
    let header = format!("/* Identifies these headers. */\n#define KDB_ABI {:#018x}ull\n", hasher.finish());
    let folder = out.join("include/bedplate");
    std::fs::create_dir_all(&folder).expect("create a folder for a generated header");
    std::fs::write(folder.join("abi.h"), header).expect("write the generated header");
    std::fs::write(out.join("abi.rs"), format!("{:#018x}", hasher.finish()))
        .expect("write the number of the headers");
}

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap());
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    let include = root.join("bpf/include");
    println!("cargo:rerun-if-changed=bpf");

    let multiarch = Command::new("gcc").arg("-print-multiarch").output();
    let multiarch = multiarch.ok().and_then(|o| String::from_utf8(o.stdout).ok()).unwrap_or_default();
    let system = format!("/usr/include/{}", multiarch.trim());
    let clang = clang();
    println!("cargo:bpf={}", root.join("bpf").display());
    println!("cargo:include={}", include.display());
    println!("cargo:clang={clang}");
    println!("cargo:system={system}");
    embed_headers(&root.join("bpf"), &out);
    let generated = out.join("include");
    // The hash-map engine is for kernels without arenas, which do not know the v4 instruction set either.
    let arena = ["-DKDB_ENGINE_ARENA", "-mcpu=v4"];
    let hashmap = ["-DKDB_ENGINE_HASHMAP", "-mcpu=v3"];
    for (source, name, engine) in [
        ("bpf/calls.bpf.c", "calls_arena", arena),
        ("bpf/calls.bpf.c", "calls_hashmap", hashmap),
        ("bpf/trace.bpf.c", "trace_arena", arena),
        ("bpf/trace.bpf.c", "trace_hashmap", hashmap),
        ("bpf/examples/voter.bpf.c", "voter", arena),
        ("bpf/examples/accounts.bpf.c", "accounts", arena),
    ] {
        SkeletonBuilder::new()
            .source(root.join(source))
            .clang(&clang)
            .clang_args([
                OsStr::new("-I"),
                include.as_os_str(),
                OsStr::new("-I"),
                generated.as_os_str(),
                OsStr::new("-I"),
                OsStr::new(&system),
                OsStr::new("-O2"),
                OsStr::new("-g"),
                OsStr::new("-Wall"),
                OsStr::new("-Wno-unused-function"),
                OsStr::new("-Werror"),
                OsStr::new(engine[0]),
                OsStr::new(engine[1]),
            ])
            .obj(out.join(format!("{name}.bpf.o")))
            .build()
            .unwrap_or_else(|e| panic!("{source}: {e:#}"));
    }

    let headers = "#include <linux/types.h>\n#include <bedplate/layout.h>\n#include <bedplate/calls.h>\n";
    bindgen::Builder::default()
        .header_contents("shared.h", headers)
        .clang_arg(format!("-I{}", include.display()))
        .clang_arg(format!("-I{system}"))
        .allowlist_item("kdb_.*|KDB_.*")
        .prepend_enum_name(false)
        .derive_default(false)
        .layout_tests(true)
        .generate_comments(false)
        .generate()
        .expect("bindgen of the shared layout")
        .write_to_file(out.join("layout.rs"))
        .expect("write the shared layout");
}
