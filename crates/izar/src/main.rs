//! The izar command line.
fn main() {}
