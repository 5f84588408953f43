//! Bytes that say which block they belong to and which write put them there.

/// Words at the start of a block: its number and its generation.
const STAMP: usize = 2;

/// Writes the content of block `lba` after write `generation` into `block`. A suite does this for
/// many megabytes, some of them under emulation.
fn fill(block: &mut [u8], lba: u64, generation: u64) {
    let (stamp, noise) = block.as_chunks_mut::<8>().0.split_at_mut(STAMP);
    for (word, value) in stamp.iter_mut().zip([lba, generation]) {
        *word = value.to_le_bytes();
    }
    let mut state = lba.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ generation;
    for word in noise {
        // xorshift64*: any generator does that tells neighbours apart.
        state = (state | 1) ^ (state >> 12);
        state ^= state << 25;
        state ^= state >> 27;
        *word = state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes();
    }
}

/// The content of block `lba` after write `generation`.
pub(super) fn block(lba: u64, generation: u64, block_size: usize) -> Vec<u8> {
    let mut bytes = vec![0; block_size];
    fill(&mut bytes, lba, generation);
    bytes
}

/// The content of `blocks` blocks from `lba` on.
pub(super) fn blocks(lba: u64, blocks: u32, generation: u64, block_size: usize) -> Vec<u8> {
    let mut bytes = vec![0; blocks as usize * block_size];
    for (lba, block) in (lba..).zip(bytes.chunks_exact_mut(block_size)) {
        fill(block, lba, generation);
    }
    bytes
}

/// Fails with a description if `bytes` are not the blocks from `lba` on after write `generation`.
pub(super) fn verify(
    bytes: &[u8],
    lba: u64,
    generation: u64,
    block_size: usize,
) -> Result<(), String> {
    let mut expected = vec![0; block_size];
    for (lba, found) in (lba..).zip(bytes.chunks(block_size)) {
        fill(&mut expected, lba, generation);
        if found != expected {
            return Err(format!(
                "block {lba} should hold write {generation}, but holds {}",
                describe(found)
            ));
        }
    }
    Ok(())
}

fn describe(block: &[u8]) -> String {
    if block.iter().all(|&byte| byte == block[0]) {
        return format!("{:#04x} in every byte", block[0]);
    }
    let words: Vec<_> = block
        .chunks_exact(8)
        .take(STAMP)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap_or([0; 8])))
        .collect();
    match words[..] {
        [lba, generation] if block == self::block(lba, generation, block.len()) => {
            format!("block {lba} of write {generation}")
        }
        [first, second] => format!("other bytes ({first:#x} {second:#x} ...)"),
        _ => "too little".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_in_the_wrong_place_is_named() {
        let error = verify(&block(7, 3, 512), 8, 3, 512).unwrap_err();
        assert_eq!(error, "block 8 should hold write 3, but holds block 7 of write 3");
    }

    #[test]
    fn a_changed_byte_is_found() {
        let mut bytes = blocks(1, 2, 9, 512);
        bytes[1023] ^= 1;
        assert!(
            verify(&bytes, 1, 9, 512)
                .unwrap_err()
                .starts_with("block 2 should hold write 9, but holds other bytes")
        );
    }
}
