//! The buffer pool's workloads (paper 7.4): YCSB and TPC-C. They run over the bare B+tree on each of the pool's
//! engines, over the transactional store, and over other embedded stores.

pub(crate) mod apart;
pub(crate) mod budget;
#[cfg(test)]
mod memory;
mod peers;
mod plain;
#[cfg(target_arch = "x86_64")]
pub(crate) mod ring0;
pub(crate) mod scaling;
mod side;
mod store;
#[cfg(test)]
mod suite;
pub(crate) mod tpcc;
mod transactional;
mod tree;
pub(crate) mod ycsb;
