//! `ring3 net` on two simulated cards and their cable: what a card must do is checked, and what
//! makes no sense is refused.

use std::process::{Command, Output};

use serde_json::Value;

fn net(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ring3")).arg("net").args(args).output().unwrap()
}

fn bad(args: &[&str]) -> String {
    let output = net(args);
    assert!(!output.status.success(), "{args:?} succeeded");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The last line of a check of `card` with `peer` at the other end.
fn checked(card: &str, peer: &str) -> Value {
    let [card, peer] = [(card, 1), (peer, 2)]
        .map(|(card, last)| format!("sim:{card},wire=cable/pair,mac=02:00:00:00:00:0{last}"));
    let output = net(&["check", "--device", &card, "--peer", &peer, "--packets", "50", "--json"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[test]
fn two_cards_on_a_cable_conform_of_one_kind_or_of_two() {
    for (card, peer) in [
        ("e1000", "e1000"),
        ("virtio-net", "virtio-net,packed=on"),
        ("virtio-net", "e1000"),
        ("e1000", "virtio-net"),
    ] {
        let result = checked(card, peer);
        assert_eq!(result["failed"], 0, "{result}");
        assert!(
            result["checks"].as_u64() > result["skipped"].as_u64().map(|skipped| 3 * skipped),
            "{result}"
        );
    }
}

#[test]
fn a_card_of_qemus_passes_and_what_its_model_cannot_show_is_said() {
    for (model, hidden) in [("e1000", 2), ("igb", 1)] {
        let output = net(&[
            "check",
            "--device",
            &format!("qtest:{model}"),
            "--packets",
            "20",
            "--patience",
            "5",
        ]);
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(
            (output.status.code(), said.matches("not shown here: ").count()),
            (Some(0), hidden),
            "{said}"
        );
        assert!(!String::from_utf8_lossy(&output.stderr).contains("took longer"), "{model}");
    }
}

#[test]
fn a_card_without_a_cable_fails_its_check() {
    let output = net(&[
        "check",
        "--device",
        "sim:e1000",
        "--peer",
        "sim:virtio-net",
        "--packets",
        "1",
        "--patience",
        "1",
    ]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_disk_is_no_card_and_a_check_of_nothing_is_none() {
    assert!(bad(&["info", "--device", "sim:nvme"]).contains("no network card"));
    for wrong in [["--packets", "0"], ["--patience", "0"], ["--patience", "18446744073709551615"]] {
        let words =
            [&["check", "--device", "sim:e1000", "--peer", "sim:e1000"], &wrong[..]].concat();
        assert!(bad(&words).contains("is not in"), "{wrong:?}");
    }
}

#[test]
fn nothing_to_forward_is_an_error_that_asks_for_a_sender() {
    let said = bad(&["bench", "--device", "sim:e1000", "--seconds", "1"]);
    assert!(said.contains("nothing came"), "{said}");
    assert!(
        bad(&["bench", "--device", "sim:e1000", "--forward", "5tswap"])
            .contains("neither io nor macswap")
    );
}

#[test]
fn what_a_card_is_is_said_for_programs_too() {
    let output = net(&["info", "--device", "sim:e1000", "--json"]);
    let card: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(card["model"], "82574L", "{card}");
}
