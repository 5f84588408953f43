"""clang's text IR: parsed without an LLVM library, and only as far as it is asked for."""
