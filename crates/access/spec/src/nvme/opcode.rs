//! Opcodes. [NVMe 5, 7] [NVMe-NVM 3.3]

/// Admin commands. [NVMe 5, figure "Opcodes for Admin Commands"]
pub mod admin {
    /// Delete I/O submission queue. [NVMe 5.2.4]
    pub const DELETE_SQ: u8 = 0x00;
    /// Create I/O submission queue. [NVMe 5.2.2]
    pub const CREATE_SQ: u8 = 0x01;
    /// Get log page. [NVMe 5.1.12]
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Delete I/O completion queue. [NVMe 5.2.3]
    pub const DELETE_CQ: u8 = 0x04;
    /// Create I/O completion queue. [NVMe 5.2.1]
    pub const CREATE_CQ: u8 = 0x05;
    /// Identify. [NVMe 5.1.13]
    pub const IDENTIFY: u8 = 0x06;
    /// Abort. [NVMe 5.1.1]
    pub const ABORT: u8 = 0x08;
    /// Set features. [NVMe 5.1.25]
    pub const SET_FEATURES: u8 = 0x09;
    /// Get features. [NVMe 5.1.11]
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous event request. [NVMe 5.1.2]
    pub const ASYNC_EVENT: u8 = 0x0c;
    /// Format NVM. [NVMe 5.1.10]
    pub const FORMAT_NVM: u8 = 0x80;
}

/// Commands of the NVM command set on I/O queues. [NVMe-NVM 3.3]
pub mod nvm {
    /// Flush. [NVMe 7.2]
    pub const FLUSH: u8 = 0x00;
    /// Write. [NVMe-NVM 3.3.6]
    pub const WRITE: u8 = 0x01;
    /// Read. [NVMe-NVM 3.3.4]
    pub const READ: u8 = 0x02;
    /// Write zeroes. [NVMe-NVM 3.3.8]
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset management. [NVMe-NVM 3.3.3]
    pub const DATASET_MANAGEMENT: u8 = 0x09;
}
