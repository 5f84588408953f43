//! Command codes. [ACS-3 7]

/// READ SECTOR(S): PIO in. [ACS-3 7.21]
pub const READ_PIO: u8 = 0x20;
/// READ SECTOR(S) EXT. [ACS-3 7.22]
pub const READ_PIO_EXT: u8 = 0x24;
/// READ DMA. [ACS-3 7.17]
pub const READ_DMA: u8 = 0xc8;
/// READ DMA EXT. [ACS-3 7.18]
pub const READ_DMA_EXT: u8 = 0x25;
/// READ MULTIPLE: PIO in, several sectors for each interrupt. [ATA-6 8.29]
pub const READ_MULTIPLE: u8 = 0xc4;
/// READ MULTIPLE EXT. [ATA-6 8.30]
pub const READ_MULTIPLE_EXT: u8 = 0x29;
/// READ FPDMA QUEUED. [ACS-3 7.20]
pub const READ_QUEUED: u8 = 0x60;
/// WRITE SECTOR(S): PIO out. [ACS-3 7.60]
pub const WRITE_PIO: u8 = 0x30;
/// WRITE SECTOR(S) EXT. [ACS-3 7.61]
pub const WRITE_PIO_EXT: u8 = 0x34;
/// WRITE DMA. [ACS-3 7.53]
pub const WRITE_DMA: u8 = 0xca;
/// WRITE DMA EXT. [ACS-3 7.54]
pub const WRITE_DMA_EXT: u8 = 0x35;
/// WRITE DMA FUA EXT: durable before it ends. [ACS-3 7.55]
pub const WRITE_DMA_FUA_EXT: u8 = 0x3d;
/// WRITE MULTIPLE: PIO out. [ATA-6 8.62]
pub const WRITE_MULTIPLE: u8 = 0xc5;
/// WRITE MULTIPLE EXT. [ATA-6 8.63]
pub const WRITE_MULTIPLE_EXT: u8 = 0x39;
/// WRITE MULTIPLE FUA EXT. [ATA-6 8.64]
pub const WRITE_MULTIPLE_FUA_EXT: u8 = 0xce;
/// WRITE FPDMA QUEUED; FUA is bit 7 of the device field. [ACS-3 7.58]
pub const WRITE_QUEUED: u8 = 0x61;
/// FLUSH CACHE. [ACS-3 7.10]
pub const FLUSH: u8 = 0xe7;
/// FLUSH CACHE EXT. [ACS-3 7.11]
pub const FLUSH_EXT: u8 = 0xea;
/// DATA SET MANAGEMENT; bit 0 of the features is TRIM. [ACS-3 7.5]
pub const DATA_SET_MANAGEMENT: u8 = 0x06;
/// IDENTIFY DEVICE. [ACS-3 7.12]
pub const IDENTIFY: u8 = 0xec;
/// IDENTIFY PACKET DEVICE: an ATAPI drive's. [ACS-3 7.13]
pub const IDENTIFY_PACKET: u8 = 0xa1;
/// SET FEATURES. [ACS-3 7.45]
pub const SET_FEATURES: u8 = 0xef;
/// SET MULTIPLE MODE. [ATA-6 8.50]
pub const SET_MULTIPLE: u8 = 0xc6;
/// READ LOG EXT. [ACS-3 7.24]
pub const READ_LOG_EXT: u8 = 0x2f;
/// READ LOG DMA EXT. [ACS-3 7.25]
pub const READ_LOG_DMA_EXT: u8 = 0x47;
/// SMART; which of its functions is in the features. [ACS-3 7.48]
pub const SMART: u8 = 0xb0;
/// STANDBY IMMEDIATE: heads parked, cache flushed. [ACS-3 7.51]
pub const STANDBY_IMMEDIATE: u8 = 0xe0;
/// NOP: always aborted. [ACS-3 7.16]
pub const NOP: u8 = 0x00;

/// SET FEATURES, features: set the transfer mode given in the count. [ACS-3 7.45.3]
pub const FEATURE_TRANSFER_MODE: u8 = 0x03;
/// SET FEATURES, features: enable the volatile write cache. [ACS-3 7.45.4]
pub const FEATURE_ENABLE_CACHE: u8 = 0x02;
/// SET FEATURES, features: disable the volatile write cache. [ACS-3 7.45.4]
pub const FEATURE_DISABLE_CACHE: u8 = 0x82;
/// DATA SET MANAGEMENT, features: TRIM. [ACS-3 7.5.3]
pub const DSM_TRIM: u8 = 1 << 0;
/// SMART, features: return status; the answer is in LBA mid and high. [ACS-3 7.48.8]
pub const SMART_RETURN_STATUS: u8 = 0xda;
/// SMART, features: return the 512 bytes of vendor data. [ATA-6 8.55.5]
pub const SMART_READ_DATA: u8 = 0xd0;
/// SMART: what LBA mid and high must hold for a SMART command to be taken, as bits 23:8. [ACS-3
/// 7.48]
pub const SMART_KEY: u16 = 0xc24f;
