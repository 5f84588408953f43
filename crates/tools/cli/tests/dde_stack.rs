//! Who has a hosted card's frames in the driver's own process: the reflector and lwIP. QEMU's cable
//! ends in the test.

mod hosted;

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::{Duration, Instant};

use hosted::{can_build, program};
use serde_json::Value;

/// Flags of a segment.
const SYN: u8 = 2;
const ACK: u8 = 16;

/// A driver of Linux that has QEMU's card to itself, whose cable ends in this test.
struct Alone {
    driver: std::process::Child,
    wire: UnixDatagram,
    card: String,
    mac: [u8; 6],
    _folder: tempfile::TempDir,
}

/// Who is at this end of the cable.
const HERE: [u8; 6] = [2, 0, 0, 0, 0, 9];

impl Alone {
    fn start(words: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let wire = UnixDatagram::bind(path("wire")).unwrap();
        wire.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let device = format!("qtest:e1000e,wire={}", path("wire"));
        let mut driver = program()
            .args(["dde", "run", "e1000e", "--device", &device])
            .args(words)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines().map_while(Result::ok);
        let served: Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
        let mac = served["mac"]
            .as_str()
            .unwrap()
            .split(':')
            .map(|byte| u8::from_str_radix(byte, 16).unwrap());
        let mac = mac.collect::<Vec<_>>().try_into().unwrap();
        assert!(lines.any(|line| line.contains(r#""link":true"#)));
        Self { driver, wire, card: path("wire.card"), mac, _folder: folder }
    }

    /// What comes back for a frame, if something does.
    fn ask(&self, frame: &[u8]) -> Option<Vec<u8>> {
        self.wire.send_to(frame, &self.card).unwrap();
        let mut answer = vec![0; 2000];
        let length = self.wire.recv(&mut answer).ok()?;
        answer.truncate(length);
        Some(answer)
    }

    /// Asks by ARP who has 10.9.0.1, so that we know each other. Returns the answer.
    fn meet(&self) -> Vec<u8> {
        let asked = [
            &[0xff; 6][..],
            &HERE,
            &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
            &HERE,
            &[10, 9, 0, 2, 0, 0, 0, 0, 0, 0, 10, 9, 0, 1],
        ];
        let is_arp = |frame: &Vec<u8>| frame[12..14] == [8, 6] && frame[20..22] == [0, 2];
        // What it says of itself by itself comes before.
        let answer = (0..10)
            .filter_map(|_| self.ask(&asked.concat()))
            .find(is_arp)
            .expect("no answer of ARP's");
        while self.wire.recv(&mut [0; 2000]).is_ok() {}
        answer
    }

    /// A frame of IPv4 with `payload` in it from 10.9.0.2 to 10.9.0.1.
    fn ip(&self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let length = (20 + payload.len() as u16).to_be_bytes();
        let mut header = [
            0x45, 0, length[0], length[1], 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 9, 0, 2, 10, 9,
            0, 1,
        ];
        let check = (!sum(&header)).to_be_bytes();
        header[10..12].copy_from_slice(&check);
        [&self.mac[..], &HERE, &[8, 0], &header, payload].concat()
    }

    fn end(mut self) {
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.driver),
            rustix::process::Signal::TERM,
        )
        .unwrap();
        let status = self.driver.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // It has ended, unless its test has failed.
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// The sum of the Internet's protocols. [RFC 1071]
fn sum(bytes: &[u8]) -> u16 {
    let words =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut total: u32 = words.sum();
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

/// A segment without data from port 12345 to `port`, with the sum of its header that is not in it.
/// A SYN says that 1460 bytes are the most at once.
fn segment(port: u8, sequence: u32, acknowledged: u32, flags: u8) -> Vec<u8> {
    let option: &[u8] = if flags & SYN != 0 { &[2, 4, 0x05, 0xb4] } else { &[] };
    let words = 0x50 + 4 * option.len() as u8;
    let header =
        [0x30, 0x39, 0, port, 0, 0, 0, 0, 0, 0, 0, 0, words, flags, 0xff, 0xff, 0, 0, 0, 0];
    let mut segment = [&header, option].concat();
    segment[4..8].copy_from_slice(&sequence.to_be_bytes());
    segment[8..12].copy_from_slice(&acknowledged.to_be_bytes());
    let check = (!sum_of_tcp(&[10, 9, 0, 2, 10, 9, 0, 1], &segment)).to_be_bytes();
    segment[16..18].copy_from_slice(&check);
    segment
}

/// The sum of a segment between `addresses`.
fn sum_of_tcp(addresses: &[u8], segment: &[u8]) -> u16 {
    sum(&[addresses, &[0, 6], &(segment.len() as u16).to_be_bytes(), segment].concat())
}

/// An echo request of ICMP with so many bytes behind its header.
fn echo_request(number: u16, bytes: usize) -> Vec<u8> {
    let number = number.to_be_bytes();
    let data = (0..bytes).map(|at| at as u8 ^ number[1]);
    let mut request: Vec<u8> =
        [8, 0, 0, 0, 0, 7, number[0], number[1]].into_iter().chain(data).collect();
    let check = (!sum(&request)).to_be_bytes();
    request[2..4].copy_from_slice(&check);
    request
}

/// What is asked, and answered, of whoever has the card: the answer has the same bytes, its sum is
/// right, and its ends are swapped.
fn must_answer_echo_requests(card: &Alone, count: u16) {
    for number in 0..count {
        let asked = card.ip(1, &echo_request(number, if number % 2 == 0 { 56 } else { 1472 }));
        let answer = card.ask(&asked).unwrap_or_else(|| panic!("no answer to request {number}"));
        assert_eq!((&answer[..6], &answer[6..12]), (&HERE[..], &card.mac[..]));
        assert_eq!((&answer[26..30], &answer[30..34]), (&[10, 9, 0, 1][..], &[10, 9, 0, 2][..]));
        assert_eq!(
            (answer[34], sum(&answer[14..34]), sum(&answer[34..])),
            (0, 0xffff, 0xffff),
            "request {number}"
        );
        assert!(answer[38..] == asked[38..], "request {number}");
    }
}

#[test]
fn frames_come_back_from_the_reflector_with_their_ends_swapped_whether_buffers_are_copied_or_polled()
 {
    if !can_build() {
        return;
    }
    for words in [
        &["--reflect"][..],
        &["--reflect", "--dma", "copy"],
        &["--reflect", "--poll", "2000", "--no-msix"],
    ] {
        let card = Alone::start(words);
        must_answer_echo_requests(&card, 300);
        let datagram = |port: u8| card.ip(17, &[0x30, 0x39, 0, port, 0, 12, 0, 0, 1, 2, 3, 4]);
        let answer = card.ask(&datagram(7)).unwrap();
        assert_eq!(
            (&answer[34..38], &answer[42..46]),
            (&[0, 7, 0x30, 0x39][..], &[1, 2, 3, 4][..]),
            "{words:?}"
        );
        assert_eq!(card.ask(&datagram(9)), None, "the port that discards has answered");
        let mut others = datagram(7);
        others[..6].copy_from_slice(&[0xff; 6]);
        assert_eq!(card.ask(&others), None, "what was for everybody was sent back");
        card.end();
    }
}

#[test]
fn lwip_in_the_drivers_process_answers_arp_echo_requests_udp_and_tcp() {
    if !can_build() {
        return;
    }
    for words in [&["--lwip", "10.9.0.1/24"][..], &["--lwip", "10.9.0.1/24", "--dma", "copy"]] {
        let card = Alone::start(words);
        let answer = card.meet();
        assert_eq!((&answer[22..28], &answer[28..32]), (&card.mac[..], &[10, 9, 0, 1][..]));
        must_answer_echo_requests(&card, 300);
        let answer = card.ask(&card.ip(17, &[0x30, 0x39, 0, 7, 0, 12, 0, 0, 1, 2, 3, 4])).unwrap();
        assert_eq!(
            (&answer[34..38], &answer[42..46]),
            (&[0, 7, 0x30, 0x39][..], &[1, 2, 3, 4][..])
        );
        let answer = card.ask(&card.ip(6, &segment(7, 1, 0, SYN))).unwrap();
        assert_eq!((answer[47] & 0x3f, &answer[42..46]), (0x12, &[0, 0, 0, 2][..]), "SYN and ACK");
        let end = 14 + usize::from(u16::from_be_bytes([answer[16], answer[17]]));
        assert_eq!(
            sum_of_tcp(&answer[26..34], &answer[34..end]),
            0xffff,
            "the sum that the card makes"
        );
        card.end();
    }
}

/// The acknowledgements that come for `segments` of 1460 bytes to the port that discards, which the
/// driver finds all at once.
fn acknowledged(card: &Alone, segments: impl Iterator<Item = u32>) -> Vec<u32> {
    const BYTES: u32 = 1460;
    card.wire.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let answer = card.ask(&card.ip(6, &segment(9, 1, 0, SYN))).unwrap();
    let word = |frame: &[u8], at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
    let first = word(&answer, 38) + 1;
    card.wire.send_to(&card.ip(6, &segment(9, 2, first, ACK)), &card.card).unwrap();
    let driver = rustix::process::Pid::from_child(&card.driver);
    std::thread::sleep(Duration::from_millis(200));
    rustix::process::kill_process(driver, rustix::process::Signal::STOP).unwrap();
    for number in segments {
        let mut whole = segment(9, 2 + number * BYTES, first, ACK);
        whole[16..18].fill(0);
        whole.resize(20 + BYTES as usize, 7);
        let check = (!sum_of_tcp(&[10, 9, 0, 2, 10, 9, 0, 1], &whole)).to_be_bytes();
        whole[16..18].copy_from_slice(&check);
        card.wire.send_to(&card.ip(6, &whole), &card.card).unwrap();
    }
    std::thread::sleep(Duration::from_millis(500));
    rustix::process::kill_process(driver, rustix::process::Signal::CONT).unwrap();
    card.wire.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let mut frame = [0; 2000];
    std::iter::from_fn(|| {
        card.wire.recv(&mut frame).ok()?;
        assert_eq!(
            (frame[47], sum(&frame[14..34]), sum_of_tcp(&frame[26..34], &frame[34..54])),
            (ACK, 0xffff, 0xffff)
        );
        Some((word(&frame, 42) - 2) / BYTES)
    })
    .collect()
}

#[test]
fn what_came_together_is_acknowledged_together_and_what_is_missing_as_often_as_it_is_missed() {
    if !can_build() {
        return;
    }
    for words in [&["--lwip", "10.9.0.1/24"][..], &["--lwip", "10.9.0.1/24", "--dma", "copy"]] {
        let card = Alone::start(words);
        card.meet();
        let together = acknowledged(&card, 0..16);
        // Every second one, as they come one by one, would be eight.
        assert!(together.last() == Some(&16) && together.len() < 8, "{words:?}: {together:?}");
        card.end();
        let card = Alone::start(words);
        card.meet();
        // The second one is missing: each of the six that come behind it says so, and the first one
        // perhaps by itself.
        let missing = acknowledged(&card, (0..8).filter(|number| *number != 1));
        assert!(
            missing.iter().all(|number| *number == 1) && (6..8).contains(&missing.len()),
            "{words:?}: {missing:?}"
        );
        card.end();
    }
}

/// Begins a connection with the port that sends without end, and acknowledges what comes until
/// `bytes` have. What comes in one go after the first `whole` bytes is seen up to the twentieth
/// frame. Returns the bytes, and the longest frame.
fn take_text(card: &Alone, whole: usize, bytes: usize) -> (Vec<u8>, usize) {
    let answer = card.ask(&card.ip(6, &segment(19, 1, 0, SYN))).unwrap();
    let word = |frame: &[u8], at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
    let first = word(&answer, 38) + 1;
    let send = |next: usize| {
        card.wire
            .send_to(&card.ip(6, &segment(19, 2, first + next as u32, ACK)), &card.card)
            .unwrap()
    };
    // What is lost is sent again after seconds.
    card.wire.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    send(0);
    let (mut text, mut longest, mut frame, mut run) = (Vec::new(), 0, [0; 2000], 0);
    loop {
        let since = Instant::now();
        let length = card
            .wire
            .recv(&mut frame)
            .unwrap_or_else(|_| panic!("no more comes after {} bytes", text.len()));
        let end = 14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]));
        assert_eq!(
            (frame[23], sum(&frame[14..34]), sum_of_tcp(&frame[26..34], &frame[34..end])),
            (6, 0xffff, 0xffff)
        );
        longest = longest.max(length);
        run = if since.elapsed() > Duration::from_millis(100) { 1 } else { run + 1 };
        if text.len() >= whole && run > 20 {
            continue;
        }
        // What is not next is acknowledged as what is.
        if word(&frame, 38) == first + text.len() as u32 {
            text.extend_from_slice(&frame[54..end]);
        }
        if text.len() >= bytes {
            break;
        }
        send(text.len());
    }
    (text, longest)
}

/// What the port sends that sends without end.
fn is_text(text: &[u8]) -> bool {
    let endless = (0..).flat_map(|_| (0..32_120).map(|at| b' ' + (at % 95) as u8));
    text.iter().copied().eq(endless.take(text.len()))
}

#[test]
fn what_lwip_has_the_card_cut_comes_as_frames_with_all_bytes_in_their_order() {
    if !can_build() {
        return;
    }
    for (words, frame) in [
        (&["--lwip", "10.9.0.1/24"][..], 1514),
        (&["--lwip", "10.9.0.1/24", "--mtu", "1000"], 1014),
    ] {
        let card = Alone::start(words);
        card.meet();
        let (text, longest) = take_text(&card, 1 << 20, 1 << 20);
        assert!(longest == frame && is_text(&text), "{longest}");
        card.end();
    }
}

#[test]
fn a_wire_that_never_takes_all_that_the_card_cuts_at_once_is_filled_nevertheless() {
    if !can_build() {
        return;
    }
    let card = Alone::start(&["--lwip", "10.9.0.1/24", "--mtu", "4500"]);
    card.meet();
    // The card cuts 22 frames from one packet, when what was queued before is gone.
    let (text, longest) = take_text(&card, 600_000, 920_000);
    // What is left of a packet is cut for its receiver, also where the wire would take it whole.
    assert!(longest == 1514 && is_text(&text), "{longest}");
    card.end();
}

#[test]
fn a_datagram_that_is_longer_than_the_wire_takes_is_echoed_in_fragments() {
    if !can_build() {
        return;
    }
    for (words, mtu) in [
        (&["--lwip", "10.9.0.1/24"][..], 1500),
        (&["--lwip", "10.9.0.1/24", "--mtu", "1000"], 1000),
    ] {
        let card = Alone::start(words);
        let arp = [
            &[0xff; 6][..],
            &HERE,
            &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
            &HERE,
            &[10, 9, 0, 2, 0, 0, 0, 0, 0, 0, 10, 9, 0, 1],
        ];
        card.ask(&arp.concat()).unwrap();
        while card.wire.recv(&mut [0; 2000]).is_ok() {}
        let bytes: Vec<u8> = (0..2000).map(|at| (at % 251) as u8).collect();
        let datagram = [&[0x30, 0x39, 0, 7, 0x07, 0xd8, 0, 0][..], &bytes].concat();
        for (at, more) in [(0, true), (1000, false)] {
            let piece = &datagram[at..if more { 1000 } else { datagram.len() }];
            let mut frame = card.ip(17, piece);
            frame[20..22]
                .copy_from_slice(&((at as u16 / 8) | (u16::from(more) << 13)).to_be_bytes());
            frame[24..26].fill(0);
            let check = (!sum(&frame[14..34])).to_be_bytes();
            frame[24..26].copy_from_slice(&check);
            card.wire.send_to(&frame, &card.card).unwrap();
        }
        let mut echoed = vec![0; datagram.len()];
        let mut left = datagram.len();
        while left > 0 {
            let mut frame = [0; 2000];
            let length = card.wire.recv(&mut frame).expect("a fragment is missing");
            assert!(length <= mtu + 14, "{length} bytes");
            let end = 14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]));
            let at = usize::from(u16::from_be_bytes([frame[20], frame[21]]) & 0x1fff) * 8;
            echoed[at..at + end - 34].copy_from_slice(&frame[34..end]);
            left -= end - 34;
        }
        assert!(echoed[8..] == bytes[..]);
        card.end();
    }
}
