//! The memory that the server's eBPF programs and the event loop share; generated from `bpf/layout.h`.
#![allow(missing_docs, non_camel_case_types, dead_code, clippy::all)]

include!(concat!(env!("OUT_DIR"), "/server_layout.rs"));
