//! The buffer pool's workloads (paper 7.4): YCSB and TPC-C over the B+tree on each of the pool's engines, and over the
//! embedded stores that one would use instead.

pub(crate) mod apart;
pub(crate) mod budget;
mod log;
#[cfg(test)]
mod memory;
mod peers;
mod plain;
mod recover;
mod side;
mod store;
#[cfg(test)]
mod suite;
pub(crate) mod tpcc;
mod tree;
pub(crate) mod ycsb;
