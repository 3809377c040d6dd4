//! kerneldb
