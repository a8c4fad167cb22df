//! The command line of the lab.
//! Never decides anything: it reads arguments and calls the library.

fn main() {}
