//! The Internet checksum. [RFC 1071]

/// The sum of `bytes` as 16-bit words in network order, folded, not inverted; an odd byte at the
/// end is followed by zero. [RFC 1071 1]
pub fn sum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|word| u64::from(word[0]) << 8 | word.get(1).map_or(0, |&low| low.into()));
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Finishes a [partial](super::Checksum::Partial) checksum in the bytes of a packet: sums from
/// `start` on, with what the field at `start + offset` holds, and writes the result there. False,
/// and nothing is changed, if the field is not in `packet`.
pub fn complete(packet: &mut [u8], start: u16, offset: u16) -> bool {
    let field = usize::from(start) + usize::from(offset);
    if field + 2 > packet.len() {
        return false;
    }
    let sum = !sum(&packet[start.into()..]);
    // Zero would say of UDP that there is none; the other zero of ones' complement says the same of
    // TCP as this one. [RFC 768]
    packet[field..field + 2].copy_from_slice(&if sum == 0 { 0xffff } else { sum }.to_be_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_standard_sums_as_it_says() {
        // [RFC 1071 3]
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
        assert_eq!(sum(&[0x01]), 0x0100);
    }

    #[test]
    fn a_completed_checksum_sums_to_all_ones_with_its_pseudo_header() {
        let mut packet: Vec<u8> = (0..61).collect();
        // What the pseudo header sums to.
        let pseudo = 0x1234u16;
        packet[40..42].copy_from_slice(&pseudo.to_be_bytes());
        assert!(complete(&mut packet, 34, 6));
        let total = u32::from(sum(&packet[34..])) + u32::from(pseudo);
        assert_eq!((total & 0xffff) + (total >> 16), 0xffff);
    }

    #[test]
    fn a_field_beyond_the_packet_changes_nothing() {
        let mut packet = [7; 20];
        assert!(!complete(&mut packet, 18, 1) && !complete(&mut packet, u16::MAX, u16::MAX));
        assert_eq!(packet, [7; 20]);
    }
}
