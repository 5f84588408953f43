//! Load generators, measurements and reports.
