//! The driver of virtio network cards and a model that misbehaves.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ring3_class::net::{Filter, Nic, Packet, Queue, QueueSettings};
use ring3_device::dma::{Dma, StaticIommu};
use ring3_device::{Access, Bar, Deadline, Decorator, Device, Error};
use ring3_driver::registry::{Driver, Offer, Settings};
use ring3_driver::virtio::net::{Card, Options};
use ring3_model::virtio::net::{InjectedFault, SimVirtioNet, VirtioNetHandle, open};
use ring3_spec::virtio::common::QUEUE_SIZE;

const SETTINGS: QueueSettings =
    QueueSettings { rx_depth: 16, tx_depth: 16, mtu: 1500, rx_room: 1536 };

/// Both layouts of virtqueues.
const LAYOUTS: [&str; 2] = ["", ",packed=on"];

fn device(options: &str) -> SimVirtioNet {
    open(&format!("sim:virtio-net{options}").parse().unwrap(), Default::default()).unwrap()
}

struct Rig {
    card: Card,
    handle: VirtioNetHandle,
    queue: Box<dyn Queue>,
}

/// A card with an open queue and four buffers in it.
fn rig() -> Rig {
    rig_of("")
}

fn rig_of(options: &str) -> Rig {
    let device = device(options);
    let handle = device.handle();
    let card = Card::open(Arc::new(device), Options::default()).unwrap();
    let mut queue = card.open_queues(1, &SETTINGS).unwrap().remove(0);
    let mut batch: Vec<_> = (0..4).map(|_| buffer(&card)).collect();
    assert_eq!(queue.rx_provide(&mut batch).count, 4);
    Rig { card, handle, queue }
}

fn buffer(card: &Card) -> Packet {
    Packet::new(card.dma().arena().alloc(1600, 64).unwrap(), 64)
}

fn frame(card: &Card, len: usize) -> Vec<u8> {
    let mut frame = vec![7; len];
    frame[..6].copy_from_slice(&card.info().mac.0);
    frame
}

fn receive(rig: &mut Rig) -> Result<Option<Packet>, Error> {
    let mut batch = [Packet::default()];
    let count = rig.queue.rx_return(&mut batch)?;
    Ok(batch.into_iter().next().filter(|_| count == 1))
}

/// The queue still receives, with the card behaving again.
fn receives(rig: &mut Rig) {
    rig.handle.misbehave(None);
    assert_eq!(rig.queue.rx_provide(&mut [buffer(&rig.card), buffer(&rig.card)]).count, 2);
    let bytes = frame(&rig.card, 99);
    rig.handle.send(&bytes);
    let packet = (0..8).find_map(|_| receive(rig).ok().flatten()).expect("a packet");
    assert_eq!((packet.len, rig.handle.fault_count()), (99, 0));
}

#[test]
fn the_registry_opens_it_by_its_ids() {
    let opened = Driver::open(Arc::new(device("")), None, &Settings::default()).unwrap();
    let [Offer::Nic(nic)] = &opened.offers[..] else { panic!("one card") };
    let info = nic.info();
    assert_eq!(
        (info.mac.to_string().as_str(), info.mtu, info.max_queues),
        ("52:54:00:12:34:56", (68, 9000), 1)
    );
    assert!(
        info.offloads.tx_checksum
            && info.offloads.tso4
            && !info.offloads.tso6
            && info.receives_pieces
    );
}

#[test]
fn descriptors_that_the_card_does_not_have_are_an_error_and_the_queue_lives() {
    for (how, layout) in [InjectedFault::UsesWhatIsNot, InjectedFault::UsesTwice]
        .into_iter()
        .flat_map(|how| LAYOUTS.map(|layout| (how, layout)))
    {
        let mut rig = rig_of(layout);
        rig.handle.misbehave(Some(how));
        rig.handle.send(&frame(&rig.card, 60));
        let errors =
            (0..3).filter(|_| matches!(receive(&mut rig), Err(Error::Protocol(_)))).count();
        assert_eq!(errors, 1, "{how:?} {layout}");
        // A card that gives a packed descriptor back twice has written over its next one.
        if (how, layout) != (InjectedFault::UsesTwice, ",packed=on") {
            receives(&mut rig);
        }
    }
}

#[test]
fn a_packet_that_the_card_never_had_does_not_come_back_and_the_queue_lives() {
    for layout in LAYOUTS {
        let mut rig = rig_of(layout);
        let mut send = |how| {
            rig.handle.misbehave(how);
            let mut packet = Packet { token: 7, ..buffer(&rig.card) };
            packet.fill(&frame(&rig.card, 60)).unwrap();
            assert_eq!(rig.queue.tx_provide(&mut [packet]).count, 1, "{layout}");
            let mut back: Vec<_> = (0..4).map(|_| Packet::default()).collect();
            let returned: Vec<_> = (0..3).map(|_| rig.queue.tx_return(&mut back)).collect();
            (returned, rig.queue.outstanding().1)
        };
        let (returned, held) = send(Some(InjectedFault::UsesOneMore));
        assert!(matches!(returned[0], Ok(1)) && held == 0, "{layout}: {returned:?}, {held}");
        // Of packed descriptors, one that nobody has is not looked at; and the card has written
        // over its next one.
        if layout.is_empty() {
            assert!(matches!(returned[1], Err(Error::Protocol(_))), "{returned:?}");
            assert!(matches!(send(None), (returned, 0) if matches!(returned[0], Ok(1))));
        }
    }
}

/// What was received, by its length and its buffer's token.
fn received(rig: &mut Rig) -> (u32, u32) {
    let packet = receive(rig).unwrap().expect("a packet");
    let mut bytes = vec![0; packet.len as usize];
    packet.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, frame(&rig.card, bytes.len()));
    (packet.len, packet.token)
}

#[test]
fn buffers_that_come_back_out_of_order_are_the_right_ones_and_so_are_those_that_go_afterwards() {
    for layout in LAYOUTS {
        let mut rig = rig_of(layout);
        let named = |rig: &Rig, token| Packet { token, ..buffer(&rig.card) };
        let mut more: Vec<_> = (10..22).map(|token| named(&rig, token)).collect();
        assert_eq!(rig.queue.rx_provide(&mut more).count, 12);
        let send = |rig: &Rig, len| rig.handle.send(&frame(&rig.card, len));
        (60..63).for_each(|len| send(&rig, len));
        assert_eq!(
            (0..3).map(|_| received(&mut rig)).collect::<Vec<_>>(),
            [(60, 0), (61, 0), (62, 0)]
        );
        // The fourth is overtaken by all others, and stays the card's while they come again and
        // again.
        rig.handle.misbehave(Some(InjectedFault::UsesOutOfOrder));
        for lap in 0..40_u32 {
            send(&rig, 64 + lap as usize);
            let (len, token) = received(&mut rig);
            assert_eq!((len, token), (64 + lap, 10 + lap), "{layout}");
            let next = named(&rig, 22 + lap);
            assert_eq!(rig.queue.rx_provide(&mut [next]).count, 1);
        }
        assert_eq!(rig.queue.outstanding().0, 13);
        rig.handle.misbehave(None);
        (0..13).for_each(|_| send(&rig, 99));
        let tokens: Vec<_> = (0..13).map(|_| received(&mut rig).1).collect();
        assert_eq!((tokens[0], &tokens[1..]), (0, &(50..62).collect::<Vec<_>>()[..]));
        // It has none now, and numbers go round again.
        let mut again: Vec<_> = (0..16).map(|token| named(&rig, token)).collect();
        assert_eq!(rig.queue.rx_provide(&mut again).count, 16);
        (0..16).for_each(|_| send(&rig, 70));
        assert!((0..16).map(|_| received(&mut rig).1).eq(0..16));
    }
}

#[test]
fn packets_that_come_back_out_of_order_come_back_once_each_among_whole_ones_and_pieces() {
    for layout in LAYOUTS {
        let mut rig = rig_of(layout);
        for lap in 0..30_u32 {
            let how = (lap % 3 == 1).then_some(InjectedFault::UsesOutOfOrder);
            rig.handle.misbehave(how);
            let mut batch: Vec<_> =
                (0..1 + lap % 7).map(|token| Packet { token, ..buffer(&rig.card) }).collect();
            let count = batch.len();
            for (index, packet) in batch.iter_mut().enumerate() {
                packet.fill(&frame(&rig.card, 100 + index)).unwrap();
                packet.meta.set_more(lap % 4 == 2 && index + 1 < count);
            }
            assert_eq!(rig.queue.tx_provide(&mut batch).count, count);
            let mut back: Vec<_> = (0..16).map(|_| Packet::default()).collect();
            let mut returned = 0;
            while returned < count {
                let more = rig.queue.tx_return(&mut back[returned..]).unwrap();
                assert!(more > 0, "{layout} {lap}: {returned} of {count}");
                returned += more;
            }
            let mut tokens: Vec<_> = back
                .iter()
                .filter(|packet| packet.buffer.is_some())
                .map(|packet| packet.token)
                .collect();
            tokens.sort_unstable();
            assert!(tokens.into_iter().eq(0..count as u32), "{layout} {lap}");
            let sent: usize = rig.handle.sent().iter().map(Vec::len).sum();
            assert_eq!(
                (sent, rig.queue.outstanding().1),
                ((0..count).map(|index| 100 + index).sum(), 0)
            );
        }
    }
}

#[test]
fn an_index_that_leaps_is_an_error_until_the_card_is_given_up_and_a_queue_that_is_opened_anew_works()
 {
    let mut rig = rig();
    rig.handle.misbehave(Some(InjectedFault::LeapsAhead));
    rig.handle.send(&frame(&rig.card, 60));
    for _ in 0..3 {
        assert!(matches!(receive(&mut rig), Err(Error::Protocol(why)) if why.contains("1001")));
    }
    assert!(matches!(
        rig.queue.tick(Instant::now()),
        Err(Error::Fatal(why)) if why.contains("damaged a virtqueue")
    ));
    assert!(matches!(receive(&mut rig), Err(Error::Fatal(_))));
    let Rig { card, handle, queue } = rig;
    drop(queue);
    handle.misbehave(None);
    let queue = card.open_queues(1, &SETTINGS).unwrap().remove(0);
    receives(&mut Rig { card, handle, queue });
}

#[test]
fn what_cannot_be_said_of_a_packet_is_counted_and_its_buffer_lent_again() {
    use InjectedFault as M;
    let lies = [
        M::WritesTooMuch,
        M::WritesTooLittle,
        M::CountsNoBuffers,
        M::CountsManyBuffers,
        M::LiesAboutChecksums,
    ];
    for (how, layout) in lies
        .into_iter()
        .chain([M::LiesAboutSegments])
        .flat_map(|how| LAYOUTS.map(|layout| (how, layout)))
    {
        let mut rig = rig_of(layout);
        rig.handle.misbehave(Some(how));
        rig.handle.send(&frame(&rig.card, 60));
        assert!(receive(&mut rig).unwrap().is_none(), "{how:?}");
        assert_eq!((rig.queue.counters().rx_errors, rig.queue.outstanding().0), (1, 4), "{how:?}");
        receives(&mut rig);
    }
}

#[test]
fn a_lost_interrupt_is_found_at_the_deadline() {
    let mut rig = rig();
    rig.handle.misbehave(Some(InjectedFault::LosesInterrupts));
    let (handle, bytes) = (rig.handle.clone(), frame(&rig.card, 60));
    let sender = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        handle.send(&bytes);
    });
    assert!(rig.queue.wait(Deadline::after(Duration::from_millis(200))).unwrap());
    sender.join().unwrap();
    assert!(receive(&mut rig).unwrap().is_some());
}

#[test]
fn a_card_that_needs_a_reset_is_given_up_and_opened_anew() {
    let mut rig = rig();
    rig.handle.need_reset();
    assert!(matches!(
        rig.queue.tick(Instant::now()),
        Err(Error::Fatal(why)) if why.contains("DEVICE_NEEDS_RESET")
    ));
    assert!(matches!(receive(&mut rig), Err(Error::Fatal(_))) && rig.queue.pending());
    let Rig { card, handle, queue } = rig;
    drop(queue);
    let queue = card.open_queues(1, &SETTINGS).unwrap().remove(0);
    receives(&mut Rig { card, handle, queue });
}

/// Sends a packet, and looks at the card every second for a minute.
fn a_minute_after_a_packet(rig: &mut Rig) -> Result<(), Error> {
    let mut packet = buffer(&rig.card);
    packet.fill(&frame(&rig.card, 60)).unwrap();
    assert_eq!(rig.queue.tx_provide(&mut [packet]).count, 1);
    let start = Instant::now();
    (0..60).try_for_each(|second| rig.queue.tick(start + Duration::from_secs(second)).map(drop))
}

#[test]
fn a_wire_that_takes_nothing_for_a_minute_is_no_fault_and_what_waited_is_sent_when_it_does() {
    let mut rig = rig();
    rig.handle.misbehave(Some(InjectedFault::WireIsFull));
    a_minute_after_a_packet(&mut rig).unwrap();
    assert_eq!((rig.queue.outstanding().1, rig.handle.sent().len()), (1, 0));
    receives(&mut rig);
    a_minute_after_a_packet(&mut rig).unwrap();
    assert_eq!(
        (
            rig.queue.tx_return(&mut [Packet::default(), Packet::default()]).unwrap(),
            rig.handle.sent().len()
        ),
        (2, 2)
    );
}

#[test]
fn a_card_that_sends_nothing_and_answers_no_command_is_given_up() {
    let mut rig = rig();
    rig.handle.misbehave(Some(InjectedFault::Hangs));
    let ended = a_minute_after_a_packet(&mut rig);
    assert!(matches!(ended, Err(Error::Timeout { .. })), "{ended:?}");
    assert!(matches!(receive(&mut rig), Err(Error::Fatal(_))));
}

#[test]
fn a_card_that_is_pulled_out_is_gone() {
    let mut rig = rig();
    rig.handle.remove();
    assert!(matches!(rig.queue.tick(Instant::now()), Err(Error::Gone)));
    assert!(matches!(receive(&mut rig), Err(Error::Gone)));
    assert!(matches!(rig.queue.tx_return(&mut [Packet::default()]), Err(Error::Gone)));
}

#[test]
fn a_card_that_does_not_stop_is_reset_as_a_function_and_its_buffers_come_back() {
    let rig = rig();
    let free = rig.card.dma().arena().free_bytes();
    rig.handle.misbehave(Some(InjectedFault::NeverResets));
    drop(rig.queue);
    assert!(rig.card.dma().arena().free_bytes() > free && rig.handle.status() == 0);
}

#[test]
fn filters_of_a_control_queue_that_does_not_answer_fail_in_time() {
    let rig = rig();
    rig.handle.misbehave(Some(InjectedFault::IgnoresControl));
    let filter = Filter::own(rig.card.info().mac);
    assert!(matches!(rig.card.set_filter(&filter), Err(Error::Timeout { .. })));
    assert!(matches!(rig.card.set_filter(&filter), Err(Error::Fatal(_))));
    assert!(matches!(rig.card.open_queues(1, &SETTINGS), Err(Error::Busy(_))));
}

#[test]
fn addresses_beyond_the_table_let_everything_of_the_kind_through() {
    let mut rig = rig();
    let many = (0..65).map(|last| ring3_class::net::Mac([2, 0, 0, 0, 1, last])).collect();
    rig.card.set_filter(&Filter { unicast: many, ..Filter::own(rig.card.info().mac) }).unwrap();
    let mut bytes = frame(&rig.card, 60);
    bytes[..6].copy_from_slice(&[2, 0, 0, 0, 1, 64]);
    rig.handle.send(&bytes);
    assert!(receive(&mut rig).unwrap().is_some());
}

#[test]
fn a_dropped_card_is_left_reset() {
    let rig = rig();
    assert_ne!(rig.handle.status(), 0);
    let Rig { card, handle, queue } = rig;
    drop(card);
    assert_ne!(handle.status(), 0);
    drop(queue);
    assert_eq!(handle.status(), 0);
}

#[test]
fn a_device_without_virtio_structures_is_refused() {
    let other = ring3_model::edu::open(&"sim:edu".parse().unwrap(), Default::default()).unwrap();
    let error = Card::open(Arc::new(other) as Arc<dyn Device>, Options::default()).err().unwrap();
    assert!(
        matches!(&error, Error::Unsupported(why) if why.contains("disable-legacy=on")),
        "{error}"
    );
}

#[test]
fn a_card_has_the_address_that_its_user_gives_it_and_no_address_of_a_group() {
    let card = Card::open(Arc::new(device(",mac=02:00:00:00:00:07")), Options::default()).unwrap();
    assert_eq!(card.info().mac.to_string(), "02:00:00:00:00:07");
    assert!(
        open(&"sim:virtio-net,mac=01:00:00:00:00:07".parse().unwrap(), Default::default()).is_err()
    );
}

#[test]
fn a_short_frame_is_filled_up_on_the_wire() {
    let mut rig = rig();
    let buffer = buffer(&rig.card);
    buffer.buffer.as_ref().unwrap().write(64, &frame(&rig.card, 20)).unwrap();
    let mut batch = [Packet { len: 20, ..buffer }];
    assert_eq!(rig.queue.tx_provide(&mut batch).count, 1);
    let [sent] = &rig.handle.sent()[..] else { panic!("one frame") };
    assert_eq!(
        (sent.len(), &sent[..20], &sent[20..]),
        (60, &frame(&rig.card, 20)[..], &[0; 40][..])
    );
}

/// A device behind an IOMMU that it might go around.
struct Translated(SimVirtioNet, Dma);

impl Decorator for Translated {
    fn inner(&self) -> &dyn Device {
        &self.0
    }
    fn dma(&self) -> &Dma {
        &self.1
    }
}

/// A device whose queues have `size` entries, once that is said.
struct Shrinking {
    inner: SimVirtioNet,
    size: Arc<OnceLock<u16>>,
}

struct ShrinkingBar {
    inner: Bar,
    size: Arc<OnceLock<u16>>,
}

impl Access for ShrinkingBar {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read(&self, offset: u64, width: usize) -> u64 {
        match self.size.get() {
            // The model has the common structure at the start of its BAR.
            Some(&size) if offset == QUEUE_SIZE.offset() => size.into(),
            _ => self.inner.read(offset, width),
        }
    }
    fn write(&self, offset: u64, width: usize, value: u64) {
        self.inner.write(offset, width, value);
    }
}

impl Decorator for Shrinking {
    fn inner(&self) -> &dyn Device {
        &self.inner
    }
    fn bar(&self, index: u8) -> Result<Bar, Error> {
        let (inner, size) = (self.inner.bar(index)?, self.size.clone());
        Ok(Bar::new(Arc::new(ShrinkingBar { inner, size })))
    }
}

#[test]
fn queues_that_have_lost_their_entries_since_the_card_was_opened_are_an_error() {
    for entries in [0, 1] {
        let size = Arc::new(OnceLock::new());
        let device = Shrinking { inner: device(""), size: size.clone() };
        let card = Card::open(Arc::new(device), Options::default()).unwrap();
        size.set(entries).unwrap();
        let error = card.open_queues(1, &SETTINGS).map(drop).unwrap_err();
        assert!(matches!(&error, Error::Protocol(text) if text.contains("queue 0")), "{error}");
    }
}

#[test]
fn a_card_that_may_go_around_its_iommu_is_refused() {
    let device = device("");
    let iommu = StaticIommu { range: 0..=u64::MAX, bypassable: true };
    let dma = Dma::new(device.dma().arena().clone(), Arc::new(iommu));
    let refused = Card::open(Arc::new(Translated(device, dma)), Options::default())
        .err()
        .map(|error| error.to_string());
    assert!(
        refused.as_ref().is_some_and(|refused| refused.contains("iommu_platform=on")),
        "{refused:?}"
    );
}
