//! Runs commands and test binaries on a stock distribution kernel in QEMU.
