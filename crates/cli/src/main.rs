//! The bedplate command.
fn main() {}
