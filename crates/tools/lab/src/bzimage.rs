//! The kernel proper out of a bzImage, and decompression of what kernels come packed in.
//!
//! QEMU boots an uncompressed ELF kernel through its PVH entry point, which spares the guest the
//! decompression: under emulation that is most of a second.
//!
//! References: [BOOT] Linux/x86 boot protocol, Documentation/arch/x86/boot.rst, version 2.15.

use crate::error::Error;
use std::io::Read;

/// Largest kernel or module we take out of a compressed stream. A stream that claims more is
/// damaged.
const LIMIT: u64 = 512 << 20;

const SECTOR: usize = 512;

/// The ELF kernel in a bzImage. [BOOT "Details of header fields": setup_sects, payload_offset,
/// payload_length]
pub(crate) fn vmlinux(image: &[u8]) -> Result<Vec<u8>, Error> {
    let wrong = |why: &str| Error::Format { what: "kernel image".into(), why: why.into() };
    if image.get(0x202..0x206) != Some(b"HdrS") {
        return Err(wrong("no boot header: not a bzImage"));
    }
    if u16::from_le_bytes(array(image, 0x206)?) < 0x208 {
        return Err(wrong("boot protocol older than 2.08"));
    }
    // Zero sectors means four, for the sake of very old loaders.
    let sectors = match image[0x1f1] {
        0 => 4,
        n => usize::from(n),
    };
    let offset = u32::from_le_bytes(array(image, 0x248)?) as usize;
    let length = u32::from_le_bytes(array(image, 0x24c)?) as usize;
    let start = (sectors + 1) * SECTOR + offset;
    let payload = image.get(start..start + length).ok_or_else(|| wrong("cut short"))?;
    let kernel = unpack(payload, "kernel image")?;
    if !kernel.starts_with(b"\x7fELF") {
        return Err(wrong("the payload is not an ELF file"));
    }
    Ok(kernel)
}

/// `bytes` decompressed, if they are xz or zstd; as they are when they look like neither. What
/// follows the stream (a kernel's payload carries its size there) is ignored.
pub(crate) fn unpack(bytes: &[u8], what: &str) -> Result<Vec<u8>, Error> {
    let wrong = |why: String| Error::Format { what: what.into(), why };
    let mut plain = Vec::new();
    match bytes {
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
            liblzma::read::XzDecoder::new(bytes)
                .take(LIMIT)
                .read_to_end(&mut plain)
                .map_err(|e| wrong(format!("xz: {e}")))?;
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let stream = ruzstd::decoding::StreamingDecoder::new(bytes)
                .map_err(|e| wrong(format!("zstd: {e}")))?;
            stream.take(LIMIT).read_to_end(&mut plain).map_err(|e| wrong(format!("zstd: {e}")))?;
        }
        [0x1f, 0x8b, ..] | [b'B', b'Z', b'h', ..] | [0x02, 0x21, 0x4c, 0x18, ..] => {
            return Err(wrong("packed with gzip, bzip2 or lz4; xz and zstd are known".into()));
        }
        _ => plain.extend_from_slice(bytes),
    }
    Ok(plain)
}

fn array<const N: usize>(image: &[u8], at: usize) -> Result<[u8; N], Error> {
    image
        .get(at..at + N)
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| Error::Format { what: "kernel image".into(), why: "cut short".into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn xz(bytes: &[u8]) -> Vec<u8> {
        let mut packed = liblzma::write::XzEncoder::new(Vec::new(), 6);
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
    }

    /// A bzImage of one setup sector with `payload`, followed by its size as the kernel build
    /// appends it.
    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 2 * SECTOR + 64];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&0x20f_u16.to_le_bytes());
        image[0x248..0x24c].copy_from_slice(&64_u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&(payload.len() as u32 + 4).to_le_bytes());
        image.extend_from_slice(payload);
        image.extend_from_slice(&[1, 2, 3, 4]);
        image
    }

    #[test]
    fn the_kernel_comes_out_of_xz_and_zstd() {
        let kernel = [b"\x7fELF".as_slice(), &[7; 3000]].concat();
        assert_eq!(vmlinux(&image(&xz(&kernel))).unwrap(), kernel);
        assert_eq!(vmlinux(&image(&zstd(&kernel))).unwrap(), kernel);
    }

    #[test]
    fn an_image_cut_short_is_an_error() {
        let whole = image(&xz(b"\x7fELF and more"));
        for length in [0, 0x1f0, 0x204, 0x24a, 1000, whole.len() - 1] {
            assert!(vmlinux(&whole[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn a_payload_that_is_no_elf_is_an_error() {
        let error = vmlinux(&image(&zstd(b"MZ something else"))).unwrap_err();
        assert!(error.to_string().contains("not an ELF"), "{error}");
    }

    #[test]
    fn offsets_beyond_the_image_are_an_error() {
        let mut wrong = image(b"x");
        wrong[0x248..0x250].fill(0xff);
        assert!(vmlinux(&wrong).is_err());
    }

    #[test]
    fn plain_bytes_stay_as_they_are() {
        assert_eq!(unpack(b"\x7fELF", "x").unwrap(), b"\x7fELF");
    }
}
