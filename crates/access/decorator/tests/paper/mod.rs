//! A recording in memory.

use std::io::{Cursor, Write};
use std::sync::{Arc, Mutex};

use ring3_decorator::recording::Recording;

/// A file that a test can read.
#[derive(Clone, Default)]
pub struct Paper(Arc<Mutex<Vec<u8>>>);

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Paper {
    pub fn text(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

/// What `bytes` are as a file.
pub fn recording(bytes: &[u8]) -> Recording {
    Recording::read(Cursor::new(bytes.to_vec())).unwrap()
}
