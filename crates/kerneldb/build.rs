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
};

use libbpf_cargo::SkeletonBuilder;

#[path = "src/library_file.rs"]
#[allow(dead_code, reason = "files are only written here")]
mod library_file;
#[path = "src/toolchain.rs"]
mod toolchain;

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
}

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap());
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    let include = root.join("bpf/include");
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    let system = toolchain::system_include();
    let clang = toolchain::clang();
    let clang = clang
        .expect("clang 19 or newer is needed to compile the eBPF programs: run `make setup`, or set CLANG");
    println!("cargo:bpf={}", root.join("bpf").display());
    println!("cargo:include={}", include.display());
    println!("cargo:clang={clang}");
    println!("cargo:system={system}");
    embed_headers(&root.join("bpf"), &out);
    let generated = out.join("include");
    let [arena, partitions, hashmap] = [&toolchain::ARENA[..], &toolchain::PARTITIONS, &toolchain::HASH_MAPS];
    for (source, name, engine) in [
        ("bpf/calls.bpf.c", "calls_arena", arena),
        ("bpf/calls.bpf.c", "calls_hashmap", hashmap),
        ("bpf/visitors.bpf.c", "visitors", arena),
        ("bpf/trace.bpf.c", "trace_arena", arena),
        ("bpf/trace.bpf.c", "trace_hashmap", hashmap),
        ("bpf/examples/voter.bpf.c", "voter", arena),
        ("bpf/examples/voter.bpf.c", "voter_hashmap", hashmap),
        ("bpf/examples/voter_procedures.bpf.c", "voter_procedures", arena),
        ("bpf/examples/voter_procedures.bpf.c", "voter_procedures_partitions", partitions),
        ("bpf/examples/voter_procedures.bpf.c", "voter_procedures_hashmap", hashmap),
        ("bpf/examples/accounts.bpf.c", "accounts", arena),
        ("bpf/examples/accounts.bpf.c", "accounts_partitions", partitions),
        ("bpf/examples/accounts.bpf.c", "accounts_hashmap", hashmap),
    ] {
        let folders = [include.as_os_str(), generated.as_os_str(), OsStr::new(&system)];
        let folders = folders.into_iter().flat_map(|folder| [OsStr::new("-I"), folder]);
        let options =
            toolchain::OPTIONS.into_iter().chain(["-Werror"]).chain(engine.iter().copied()).map(OsStr::new);
        SkeletonBuilder::new()
            .source(root.join(source))
            .clang(&clang)
            .clang_args(options.chain(folders))
            .obj(out.join(format!("{name}.bpf.o")))
            .build()
            .unwrap_or_else(|e| panic!("{source}: {e:#}"));
    }

    for library in ["voter_procedures", "accounts"] {
        let object =
            |name: &str| std::fs::read(out.join(format!("{name}.bpf.o"))).expect("an object of this build");
        let [arena, partitions, hash_maps] =
            ["", "_partitions", "_hashmap"].map(|end| object(&format!("{library}{end}")));
        let objects = library_file::Objects { arena: &arena, partitions: &partitions, hash_maps: &hash_maps };
        std::fs::write(out.join(format!("{library}.o")), objects.join()).expect("write a library");
    }

    let headers = ["linux/types.h", "bedplate/layout.h", "bedplate/calls.h", "bedplate/abi.h"];
    let headers: String = headers.iter().map(|header| format!("#include <{header}>\n")).collect();
    bindgen::Builder::default()
        .header_contents("shared.h", &headers)
        .clang_arg(format!("-I{}", include.display()))
        .clang_arg(format!("-I{}", generated.display()))
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
