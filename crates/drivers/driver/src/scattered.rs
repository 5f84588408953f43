//! Data at chosen device addresses, for tests of what describes them.

use ring3_class::block::Data;
use ring3_device::dma::{Arena, Region, Span};

/// Data of these pieces (address, bytes), in an arena that is nowhere but there.
pub(crate) fn scattered(pieces: &[(u64, u32)]) -> Data {
    let base = pieces.iter().map(|&(iova, _)| iova).min().unwrap_or(0);
    let end = pieces.iter().map(|&(iova, len)| iova + u64::from(len)).max().unwrap_or(0);
    let arena = Arena::new(Region::new((end - base) as usize).unwrap(), base);
    let spans: Vec<_> =
        pieces.iter().map(|&(iova, len)| Span { region: 0, len, offset: iova - base }).collect();
    arena.list(&spans).unwrap().into()
}
