//! What every 82574L does, register by register: the model and QEMU's say the same.

mod raw_e1000;

use raw_e1000::{Client, MAC, OTHER, frame, is_sound, pseudo, tcp};
use ring3_spec::e1000::general::{self, Control};
use ring3_spec::e1000::receive::{self, AddressHigh, error, status};
use ring3_spec::e1000::transmit::{Context, command};
use ring3_spec::e1000::{nvm, phy, statistics};

/// The model, and QEMU's with the same address.
fn each(test: impl Fn(Client)) {
    for uri in ["sim:e1000", "qtest:e1000e,mac=52:54:00:12:34:56"] {
        println!("{uri}");
        test(Client::open(uri));
    }
}

/// Both with all they send coming back to them.
fn looped(test: impl Fn(Client)) {
    each(|mut client| {
        client.start();
        let control = client.get(receive::CONTROL).with_loopback(1);
        client.set(receive::CONTROL, control);
        test(client);
    });
}

#[test]
fn the_nvm_holds_the_address_and_its_words_add_up() {
    each(|client| {
        client.reset();
        let words: Vec<u16> = (0..nvm::CHECKED_WORDS).map(|word| client.nvm(word)).collect();
        let address: Vec<u8> = words[..3].iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(address, MAC);
        assert_eq!(words.iter().fold(0u16, |sum, word| sum.wrapping_add(*word)), nvm::SUM);
        client.is_blameless();
    });
}

#[test]
fn a_reset_loads_the_address_and_forgets_the_mask_and_the_filters() {
    each(|client| {
        client.set(receive::CONTROL, receive::Control(0).with_unicast_promiscuous(1));
        client.reset();
        assert_eq!(
            client.get(receive::address_low(0)),
            u32::from_le_bytes(MAC[..4].try_into().unwrap())
        );
        let high = AddressHigh(u32::from_le_bytes([MAC[4], MAC[5], 0, 0])).with_valid(1);
        assert_eq!(
            (client.get(receive::address_high(0)), client.get(receive::CONTROL).0),
            (high, 0)
        );
        client.is_blameless();
    });
}

#[test]
fn the_phy_names_itself_and_the_link_and_another_one_is_not_there() {
    each(|mut client| {
        client.start();
        assert_eq!(
            (client.phy(phy::ID_HIGH).data(), client.phy(phy::ID_HIGH).error()),
            (0x0141, 0)
        );
        client.wait_for(|client| phy::Status(client.phy(phy::STATUS).data() as u16).link() == 1);
        assert_eq!(
            (client.get(general::STATUS).megabits(), client.get(general::STATUS).full_duplex()),
            (1000, 1)
        );
    });
}

#[test]
fn a_frame_that_is_sent_in_loopback_is_received_as_it_was() {
    looped(|mut client| {
        for len in [60, 61, 590, 1514] {
            let sent = frame(MAC, OTHER, len);
            client.send(&sent, |data| data);
            client.wait_for(Client::is_sent);
            let (word, bytes) = client.await_frame();
            assert_eq!(word.status() & (status::DONE | status::END), status::DONE | status::END);
            assert_eq!(bytes, sent, "{len}");
        }
        assert_eq!((client.get(statistics::SENT), client.get(statistics::RECEIVED)), (4, 4));
        assert_eq!(client.get(statistics::SENT), 0);
        client.is_blameless();
    });
}

#[test]
fn checksums_are_put_in_and_found_right_or_wrong() {
    looped(|mut client| {
        let mut sent = tcp(100, 0);
        let sum = pseudo(&sent, 120);
        sent[50..52].copy_from_slice(&sum.to_be_bytes());
        sent[24..26].fill(0);
        client.context(Context(0));
        client.send(&sent, |data| data.with_insert_ip(1).with_insert_transport(1));
        let (word, bytes) = client.await_frame();
        assert!(is_sound(&bytes));
        let checked = status::IP | status::TCP;
        assert_eq!(word.status() & (checked | error::IP | error::TRANSPORT), checked);
        client.send(&tcp(100, 0xbad), |data| data);
        let (word, _) = client.await_frame();
        assert_eq!(
            word.status() & (checked | error::IP | error::TRANSPORT),
            checked | error::TRANSPORT
        );
        client.is_blameless();
    });
}

#[test]
fn a_large_send_is_cut_into_frames_with_headers_of_their_own() {
    looped(|mut client| {
        let mut sent = tcp(2500, 0);
        let sum = pseudo(&sent, 0);
        sent[50..52].copy_from_slice(&sum.to_be_bytes());
        sent[16..18].fill(0);
        sent[24..26].fill(0);
        client.context(
            Context(0).with_segmentation(1).with_headers(54).with_segment(1000).with_payload(2500),
        );
        client.send(&sent, |data| {
            data.with_command(data.command() | command::SEGMENTATION)
                .with_insert_ip(1)
                .with_insert_transport(1)
        });
        let frames: Vec<Vec<u8>> = (0..3).map(|_| client.await_frame().1).collect();
        assert_eq!(frames.iter().map(Vec::len).collect::<Vec<_>>(), [1054, 1054, 554]);
        assert!(frames.iter().all(|frame| is_sound(frame)));
        let sequences: Vec<u32> =
            frames.iter().map(|f| u32::from_be_bytes(f[38..42].try_into().unwrap())).collect();
        assert_eq!(sequences, [7, 1007, 2007]);
        let payload: Vec<u8> = frames.iter().flat_map(|frame| frame[54..].to_vec()).collect();
        assert_eq!(payload, sent[54..]);
        // FIN and PSH are the last one's. QEMU's card clears them there, too.
        assert_eq!(frames[..2].iter().map(|frame| frame[47] & 9).collect::<Vec<_>>(), [0, 0]);
        client.is_blameless();
    });
}

#[test]
fn a_tag_is_put_in_and_taken_out_again() {
    looped(|mut client| {
        client.set(general::VLAN_TYPE, 0x8100);
        client.set(
            general::CONTROL,
            Control(0).with_full_duplex(1).with_link_up(1).with_auto_speed(1).with_vlan(1),
        );
        let sent = frame(MAC, OTHER, 100);
        client.send(&sent, |data| {
            data.with_command(data.command() | command::VLAN).with_vlan(0x2007)
        });
        let (word, bytes) = client.await_frame();
        assert_eq!((word.status() & status::VLAN, word.vlan()), (status::VLAN, 0x2007));
        assert_eq!(bytes, sent);
        client.is_blameless();
    });
}

#[test]
fn a_frame_for_somebody_else_passes_only_promiscuously() {
    looped(|mut client| {
        client.send(&frame(OTHER, MAC, 64), |data| data);
        client.wait_for(Client::is_sent);
        assert!(client.receive().is_none());
        let control = client.get(receive::CONTROL).with_unicast_promiscuous(1);
        client.set(receive::CONTROL, control);
        client.send(&frame(OTHER, MAC, 70), |data| data);
        assert_eq!(client.await_frame().1, frame(OTHER, MAC, 70));
        client.is_blameless();
    });
}

#[test]
fn a_group_passes_by_its_hash() {
    looped(|mut client| {
        let group = [0x01, 0x00, 0x5e, 0x12, 0x34, 0x56];
        client.send(&frame(group, OTHER, 64), |data| data);
        client.wait_for(Client::is_sent);
        assert!(client.receive().is_none());
        let bit = receive::multicast_hash(&group, 0);
        client.set(receive::multicast(bit / 32), 1 << (bit % 32));
        client.send(&frame(group, OTHER, 70), |data| data);
        assert_eq!(client.await_frame().1.len(), 70);
        client.is_blameless();
    });
}

#[test]
fn causes_interrupt_by_their_vectors() {
    looped(|mut client| {
        client.vectors();
        client.send(&frame(MAC, OTHER, 64), |data| data);
        client.wait_for(|client| client.irqs[0].take().unwrap() > 0);
        client.wait_for(|client| client.irqs[1].take().unwrap() > 0);
        client.await_frame();
        client.is_blameless();
    });
}
