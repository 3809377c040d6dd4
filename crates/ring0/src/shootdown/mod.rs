//! The TLB shootdown protocol between vCPUs.
