//! Contexts: what the card must know of a packet's headers before it does something with them.
//! [82574 7.2; 8254x 3.3.6; 82576 7.2.2.2]

use ring3_class::net::{Checksum, ETHERNET_HEADER, Kind, Meta, Refused, Segmentation};
use ring3_spec::e1000::advanced;
use ring3_spec::e1000::transmit::{Context, ContextPlaces};

/// Where the IPv4 header's checksum is in it. [RFC 791]
const IPV4_CHECKSUM: u64 = 10;
/// Where TCP's and UDP's are in theirs. [RFC 9293, 768]
const TCP_CHECKSUM: u16 = 16;
const UDP_CHECKSUM: u16 = 6;

/// The context descriptor that a packet of `total` bytes needs, if it needs one; in the advanced
/// form, or in that of the others.
pub(super) fn of(meta: &Meta, total: u64, advanced: bool) -> Result<Option<[u64; 2]>, Refused> {
    if let Some(Segmentation { headers, .. }) = meta.segmentation()
        && total <= headers.into()
    {
        return Err(Refused::Segmentation);
    }
    if advanced { by_lengths(meta) } else { by_places(meta, total) }
}

/// The form that says where things are. A tag stands in the data descriptor.
fn by_places(meta: &Meta, total: u64) -> Result<Option<[u64; 2]>, Refused> {
    let Checksum::Partial { start, offset } = meta.checksum() else { return Ok(None) };
    // The card's fields have 8 bits.
    let (Ok(_), Ok(_)) = (u8::try_from(start), u8::try_from(start + offset)) else {
        return Err(Refused::Checksum);
    };
    let places = ContextPlaces(0)
        .with_transport_start(start.into())
        .with_transport_offset((start + offset).into());
    let context =
        Context(0).with_extended(1).with_report(1).with_tcp((offset == TCP_CHECKSUM).into());
    let Some(Segmentation { kind, size, headers }) = meta.segmentation() else {
        return Ok(Some([places.0, context.0]));
    };
    let headers = u8::try_from(headers).map_err(|_| Refused::Segmentation)?;
    let (network, ipv4) = (u64::from(meta.network()), kind == Kind::Tcp4);
    let places = places.with_ip_start(network);
    let places = if ipv4 {
        places.with_ip_offset(network + IPV4_CHECKSUM).with_ip_end(u64::from(start) - 1)
    } else {
        places
    };
    let context = context.with_segmentation(1).with_ipv4(ipv4.into()).with_headers(headers.into());
    Ok(Some([
        places.0,
        context.with_segment(size.into()).with_payload(total - u64::from(headers)).0,
    ]))
}

/// The form that says how long headers are, and has the tag.
fn by_lengths(meta: &Meta) -> Result<Option<[u64; 2]>, Refused> {
    let places = advanced::ContextPlaces(0).with_vlan(meta.vlan().unwrap_or(0).into());
    let context = advanced::Context(0).with_kind(advanced::Context::TYPE).with_extended(1);
    let Checksum::Partial { start, offset } = meta.checksum() else {
        return Ok(meta.vlan().map(|_| [places.0, context.0]));
    };
    // What is no large send need not say where its network header is, and then the card must only
    // know the sum of both lengths.
    let ethernet = ETHERNET_HEADER as u16;
    let network = if (ethernet..start).contains(&meta.network().into()) {
        meta.network().into()
    } else {
        ethernet
    };
    let ip = start.checked_sub(network).filter(|ip| *ip < 1 << 9).ok_or(Refused::Checksum)?;
    if network >= 1 << 7 || ![TCP_CHECKSUM, UDP_CHECKSUM].contains(&offset) {
        return Err(Refused::Checksum);
    }
    let places = places.with_mac(network.into()).with_ip(ip.into());
    let context = context.with_tcp((offset == TCP_CHECKSUM).into());
    let Some(Segmentation { kind, size, headers }) = meta.segmentation() else {
        return Ok(Some([places.0, context.0]));
    };
    let transport = headers
        .checked_sub(start)
        .and_then(|bytes| u8::try_from(bytes).ok())
        .ok_or(Refused::Segmentation)?;
    let context = context.with_ipv4((kind == Kind::Tcp4).into()).with_transport(transport.into());
    Ok(Some([places.0, context.with_segment(size.into()).0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partial(start: u16, offset: u16) -> Meta {
        Meta::default().with_checksum(Checksum::Partial { start, offset })
    }

    fn cut() -> Meta {
        (partial(34, 16)).with_network(14).with_segmentation(Some(Segmentation {
            kind: Kind::Tcp4,
            size: 1460,
            headers: 54,
        }))
    }

    #[test]
    fn a_packet_that_asks_for_nothing_needs_no_context() {
        for advanced in [false, true] {
            assert_eq!(of(&Meta::default(), 60, advanced), Ok(None));
        }
    }

    #[test]
    fn a_tag_needs_a_context_in_the_advanced_form_only() {
        let tagged = Meta::default().with_vlan(Some(0x2064));
        assert_eq!(of(&tagged, 60, false), Ok(None));
        let [places, context] = of(&tagged, 60, true).unwrap().unwrap();
        assert_eq!(
            (advanced::ContextPlaces(places).vlan(), advanced::Context(context).kind()),
            (0x2064, 2)
        );
    }

    #[test]
    fn headers_are_said_by_their_lengths_or_by_their_places() {
        let [places, context] = of(&cut(), 4000, true).unwrap().unwrap();
        let (places, context) = (advanced::ContextPlaces(places), advanced::Context(context));
        assert_eq!(
            (places.mac(), places.ip(), context.transport(), context.segment()),
            (14, 20, 20, 1460)
        );
        assert_eq!((context.tcp(), context.ipv4(), context.extended()), (1, 1, 1));
        let [places, context] = of(&cut(), 4000, false).unwrap().unwrap();
        let (places, context) = (ContextPlaces(places), Context(context));
        assert_eq!(
            (places.ip_start(), places.ip_offset(), places.ip_end(), places.transport_start()),
            (14, 24, 33, 34)
        );
        assert_eq!((context.headers(), context.payload(), context.segment()), (54, 3946, 1460));
    }

    #[test]
    fn what_no_field_of_the_card_can_say_is_refused() {
        for advanced in [false, true] {
            assert_eq!(of(&cut(), 54, advanced), Err(Refused::Segmentation));
        }
        assert_eq!(of(&partial(240, 16), 2000, false), Err(Refused::Checksum));
        assert!(of(&partial(240, 16), 2000, true).is_ok());
        for (start, offset) in [(34, 10), (600, 16), (13, 16)] {
            assert_eq!(
                of(&partial(start, offset), 2000, true),
                Err(Refused::Checksum),
                "{start} {offset}"
            );
        }
    }
}
