//! Scans of real files, in one program, because each program that has DataFusion in it takes long to link.

mod changes;
mod common;
mod daemon;
mod limits;
mod program;
mod tpch;
