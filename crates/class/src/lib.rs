//! What a disk is to those who use it: requests, buffers, errors, and the conformance suite.
