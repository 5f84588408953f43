//! One driver process: device, driver, export, signals.
