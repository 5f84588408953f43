//! `ring3 bench forward`: a card's packets forwarded by ring3 and by DPDK, in one guest, in turns.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use ring3_bench::disk::Event;
use ring3_bench::net::{Forwarding, Wire, circle};
use ring3_bench::report::{Lab, Measurement};
use ring3_bench::table::render_forward;
use ring3_class::net::Mac;
use ring3_lab::{Guest, Mode};
use serde_json::Value;

use super::cards::guest::{INSTRUCTION_NS as NS, SHIFT};
use super::cards::{self, Card, Mode as Clock, Options, dpdk};
use super::guest::NAME;
use crate::leave;

/// Nanoseconds of an instruction.
const INSTRUCTION_NS: f64 = NS as f64;
/// The card's address.
const CARD: Mac = Mac([0x52, 0x54, 0, 9, 0, 2]);

/// Seconds of a turn that are not counted: testpmd is asked five seconds after its start, of which
/// its own start takes some.
const WARM_UP: u32 = 5;

/// Options of `ring3 bench forward`.
#[derive(clap::Args)]
pub struct Args {
    /// The card in the guest.
    #[arg(long, value_enum, default_value = "e1000e")]
    card: Card,
    /// Seconds of each turn, by the guest's clock, from 1 to 600; 1 with --quick.
    #[arg(
        long, conflicts_with = "quick", default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(1..=600),
    )]
    seconds: u32,
    #[command(flatten)]
    options: Options,
}

/// Functions of the step. A line that begins with `forwarded` is a turn's result.
const PRELUDE: &str = r#"set -e
mkfifo /tmp/say
# Both of testpmd's threads are on the one processor; that of its prompt sleeps.
dpdk() {
    chroot /dpdk /usr/bin/dpdk-testpmd --lcores '(0,1)@0' --no-telemetry --in-memory \
        --iova-mode=va -m 64 -a $CARD -- --forward-mode=$1 --record-core-cycles \
        --total-num-mbufs=4096 --nb-cores=1 --rxd=256 --txd=256 -i \
        </tmp/say >/tmp/pmd 2>&1 & pmd=$!
    # It writes when its buffer is full, and at its end: nothing can be waited for.
    {
        echo start; sleep 5; echo 'show port info 0'; echo 'clear fwd stats all'
        echo 'show port stats 0'; sleep $2; echo 'show port stats 0'; echo stop; echo quit
    } >/tmp/say
    wait $pmd && grep -q 'Link status: up' /tmp/pmd || { cat /tmp/pmd; return 1; }
    echo "forwarded dpdk $1 {\"packets_s\": $(
        sed -n 's/.*Rx-pps: *\([0-9]*\).*/\1/p' /tmp/pmd | tail -n 1
    ), \"ticks_per_packet\": $(
        sed -n 's/.*CPU cycles\/packet=\([0-9.]*\) .*/\1/p' /tmp/pmd | tail -n 1
    )}"
}
ring3s() {
    echo "forwarded process-polled $1 $(
        ring3 net bench --device vfio:$CARD --irq poll --forward $1 --warm-up 3 --seconds $2 --json
    )"
}
"#;

/// Measures, and writes the report.
pub fn run(args: &Args) -> Result<ExitCode> {
    leave::nothing_behind()?;
    let folder = tempfile::tempdir()?;
    let wire = circle(folder.path(), CARD)?;
    let (rounds, seconds) =
        (args.options.rounds(), if args.options.quick { 1 } else { args.seconds });
    let guest = guest(args, &wire, rounds * (seconds + WARM_UP))?;
    let command =
        |first| Ok(format!("{NAME}{}{PRELUDE}{}", dpdk::ROOT, turns(first, rounds, seconds)));
    let report =
        cards::guest::run("forward", &args.options, args.card, guest, &command, &|line| {
            event(line, args.options.mode)
        })?;
    args.options.write(&report, false, render_forward)?;
    Ok(ExitCode::SUCCESS)
}

fn guest(args: &Args, wire: &Wire, seconds: u32) -> Result<Guest> {
    let card = args.card.device("card", CARD, wire).bound("vfio-pci");
    let mut guest = dpdk::with(Guest::new("forward").device(card))?;
    guest.kernel.clone_from(&args.options.kernel);
    guest.vcpus = Some(1);
    if args.options.instructions() {
        (guest.mode, guest.instruction_shift) = (Mode::Instructions, Some(SHIFT));
    }
    // A second of the guest's may take several of the host's.
    guest.time_limit = Duration::from_secs(600) + seconds * Duration::from_secs(40);
    Ok(guest)
}

/// Every other round goes the other way round, so that nobody always follows the same one.
fn turns(first: u32, rounds: u32, seconds: u32) -> String {
    let each = |round: u32| {
        let who = if round % 2 == 1 { ["ring3s", "dpdk"] } else { ["dpdk", "ring3s"] };
        let all = Forwarding::ALL.map(|forwarding| {
            who.map(|who| format!("{who} {} {seconds}\n", forwarding.name())).concat()
        });
        format!("{}echo 'round {round}'\n", all.concat())
    };
    "echo \"begin $(uname -r)\"\n".to_owned() + &(first..=rounds).map(each).collect::<String>()
}

/// What a line of the guest's says.
fn event(line: &str, mode: Clock) -> Option<Event> {
    let (word, rest) = line.split_once(' ')?;
    match word {
        "begin" => Some(Event::Begin(Lab {
            kernel: rest.into(),
            mode: mode.name().into(),
            vcpus: 1,
            ..Lab::default()
        })),
        "round" => Some(Event::Round { round: rest.parse().ok()? }),
        "forwarded" => turn(rest, mode == Clock::Instructions).map(Event::Measured),
        _ => None,
    }
}

/// What a turn has come to. By the instruction clock an instruction takes the same time whoever
/// executes it, and the host that emulates the card runs beside it: packets a second by that clock
/// compare nothing, and only instructions are told.
fn turn(line: &str, instructions: bool) -> Option<Measurement> {
    let mut words = line.splitn(3, ' ');
    let (placement, forwarding) = (words.next()?, words.next()?);
    let said: Value = serde_json::from_str(words.next()?).ok()?;
    let packets = said["packets_s"].as_f64()?;
    let measured = Measurement::new(1, forwarding, placement);
    if !instructions {
        errln!("{forwarding}, {placement}: {packets:.0} packets a second");
        return Some(measured.with("packets_s", packets));
    }
    // By this clock the counter of time stamps counts nanoseconds.
    let per_packet = said["ticks_per_packet"].as_f64()? / INSTRUCTION_NS;
    errln!("{forwarding}, {placement}: {per_packet:.0} instructions per packet");
    Some(measured.with("instructions_per_op", per_packet))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turns_line_is_read_and_others_are_none() {
        let line = "forwarded dpdk io {\"packets_s\": 1000, \"ticks_per_packet\": 1600.5}";
        let event = |line| event(line, Clock::Instructions);
        let Some(Event::Measured(one)) = event(line) else { panic!("{line}") };
        assert_eq!((one.placement.as_str(), one.workload.as_str()), ("dpdk", "io"));
        assert_eq!((one.values.len(), one.values["instructions_per_op"]), (1, 1600.5 / 16.0));
        assert_eq!(event("round 3"), Some(Event::Round { round: 3 }));
        for line in [
            "",
            "forwarded",
            "forwarded dpdk io {}",
            "forwarded dpdk io {\"packets_s\": , }",
            "else dpdk io {}",
            "round x",
        ] {
            assert!(event(line).is_none(), "{line}");
        }
    }

    #[test]
    fn by_the_wall_clock_packets_a_second_are_told_and_no_instructions() {
        let line = "forwarded dpdk io {\"packets_s\": 1000, \"ticks_per_packet\": 1600.5}";
        let Some(Event::Measured(one)) = event(line, Clock::Wall) else { panic!("{line}") };
        assert_eq!((one.values["packets_s"], one.values.len()), (1000.0, 1));
    }

    #[test]
    fn both_begin_equally_often_and_what_is_done_is_left_out() {
        let [first, second] = [
            "ring3s io 3\ndpdk io 3\nring3s macswap 3\ndpdk macswap 3\necho 'round 1'\n",
            "dpdk io 3\nring3s io 3\ndpdk macswap 3\nring3s macswap 3\necho 'round 2'\n",
        ];
        assert!(turns(1, 2, 3).ends_with(&format!("{first}{second}")));
        assert!(turns(2, 2, 3).ends_with(second) && !turns(2, 2, 3).contains(first));
    }
}
