//! `ring3`: device drivers outside the kernel, in one command.

fn main() {}
