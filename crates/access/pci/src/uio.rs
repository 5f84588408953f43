//! What the way without protection needs: the function's uio file, huge pages, and an IOMMU that
//! does not translate.

use serde::Serialize;

use crate::{Address, Function, Host, Obstacle};

/// Bytes of the huge pages that are used.
const PAGE: u64 = 2 << 20;

/// The machine's huge pages of 2 MiB, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HugePages {
    /// Reserved in all.
    pub total: u64,
    /// Of these, the ones that nobody has.
    pub free: u64,
}

/// How many huge pages there are; none if the kernel has no such pages.
pub fn huge_pages(host: &Host) -> HugePages {
    let count = |name: &str| {
        host.text(&format!("sys/kernel/mm/hugepages/hugepages-2048kB/{name}"))?.parse().ok()
    };
    HugePages {
        total: count("nr_hugepages").unwrap_or(0),
        free: count("free_hugepages").unwrap_or(0),
    }
}

/// The name of the function's uio file (`uio0` for `/dev/uio0`); `None` if uio_pci_generic does not
/// have it.
pub fn uio_file(host: &Host, address: Address) -> Option<String> {
    host.names(&format!("sys/bus/pci/devices/{address}/uio"))
        .into_iter()
        .find(|name| name.starts_with("uio"))
}

impl Function {
    /// Fails if an IOMMU translates the addresses that the function uses, so that physical ones
    /// would fault.
    pub fn check_untranslated(&self, host: &Host) -> Result<(), Obstacle> {
        let Some(group) = self.iommu_group else { return Ok(()) };
        let kind = host
            .text(&format!("sys/kernel/iommu_groups/{group}/type"))
            .unwrap_or_else(|| "unknown".into());
        if kind == "identity" { Ok(()) } else { Err(Obstacle::Translated { group, kind }) }
    }

    /// Whether the kernel has an interrupt for its pin.
    pub fn has_pin(&self, host: &Host) -> bool {
        let irq = host
            .text(&format!("sys/bus/pci/devices/{}/irq", self.address))
            .and_then(|irq| irq.parse::<u32>().ok());
        irq.is_some_and(|irq| irq != 0)
    }
}

/// Whether `arena` bytes may be found among the free huge pages; opening the device looks whether
/// they lie in one piece.
pub(crate) fn check_huge_pages(host: &Host, arena: u64) -> Result<String, Obstacle> {
    let pages = huge_pages(host);
    let needed = arena.div_ceil(PAGE);
    if pages.free >= needed.max(1) {
        return Ok(format!("{} of {} are free, of 2 MiB each", pages.free, pages.total));
    }
    Err(Obstacle::NoHugePages {
        needed: needed.max(1),
        found: pages.free,
        below: u64::MAX,
        total: pages.total,
    })
}
