//! Network and sound cards: what stands behind them, and how long the kernel's own drivers are
//! awaited.

use crate::device::Device;
use crate::error::Error;
use serde_json::{Value, json};

/// A card of QEMU's that a driver of the kernel takes.
struct Card {
    model: &'static str,
    module: &'static str,
    /// What appears at its place in /sys once the driver is done with it.
    sign: &'static str,
}

const fn net(model: &'static str, module: &'static str) -> Card {
    Card { model, module, sign: "net/*" }
}

const fn virtio_net(model: &'static str) -> Card {
    Card { model, module: "virtio_net", sign: "virtio*/net/*" }
}

const fn sound(model: &'static str, module: &'static str) -> Card {
    Card { model, module, sign: "sound/card*" }
}

const CARDS: &[Card] = &[
    net("e1000", "e1000"),
    net("e1000e", "e1000e"),
    net("i82557b", "e100"),
    net("igb", "igb"),
    net("ne2k_pci", "ne2k-pci"),
    net("pcnet", "pcnet32"),
    net("rtl8139", "8139cp"),
    net("rtl8139", "8139too"),
    net("tulip", "tulip"),
    net("vmxnet3", "vmxnet3"),
    virtio_net("virtio-net-pci"),
    virtio_net("virtio-net-pci-non-transitional"),
    sound("AC97", "snd-intel8x0"),
    sound("ES1370", "snd-ens1370"),
    sound("ich9-intel-hda", "snd-hda-intel"),
    sound("intel-hda", "snd-hda-intel"),
];

/// Whether it is a network card.
pub(crate) fn is_network(model: &str) -> bool {
    CARDS.iter().any(|card| card.model == model && card.sign.contains("net/"))
}

/// What appears at the place of a card of `model` in /sys once its driver, if that is one of
/// `modules`, is done with it.
pub(crate) fn sign(model: &str, modules: &[&str]) -> Option<&'static str> {
    let same = |one: &str, other: &str| one.replace('-', "_") == other.replace('-', "_");
    let card = CARDS.iter().find(|card| {
        card.model == model && modules.iter().any(|module| same(module, card.module))
    })?;
    Some(card.sign)
}

/// Says what is wrong with what stands behind `device`.
pub(crate) fn check(device: &Device) -> Result<(), String> {
    if device.audio.is_none()
        && CARDS.iter().any(|card| card.model == device.model && card.sign.starts_with("sound/"))
    {
        return Err("a sound card needs something to play to: audio = \"none\"".into());
    }
    Ok(())
}

/// What QEMU is told about the network called `node`.
pub(crate) fn network(node: &str, net: &Value) -> Result<Value, Error> {
    let mut value = match net {
        // Cut off: the guest reaches nothing but its own gateway.
        Value::String(word) if word == "user" => json!({ "type": "user", "restrict": true }),
        // Frames go from card to card inside QEMU, and nowhere else.
        Value::String(word) if word == "hub" => json!({ "type": "hubport", "hubid": 0 }),
        Value::Object(_) => net.clone(),
        _ => {
            return Err(Error::Request(
                "netdev is \"user\", \"hub\" or a table such as { type = \"user\" }".into(),
            ));
        }
    };
    value["id"] = json!(node);
    Ok(value)
}

/// What QEMU is told about the sound's end called `node`.
pub(crate) fn audio(node: &str, audio: &Value) -> Result<Value, Error> {
    let mut value = match audio {
        Value::String(word) if word == "none" => json!({ "driver": "none" }),
        Value::Object(_) => audio.clone(),
        _ => {
            return Err(Error::Request(
                "audio is \"none\" or a table such as { driver = \"wav\", path = \"out.wav\" }"
                    .into(),
            ));
        }
    };
    value["id"] = json!(node);
    Ok(value)
}

/// The codec of a High Definition Audio controller, on its link; other cards are whole without.
pub(crate) fn codec(device: &Device, node: &str) -> Option<Value> {
    device.model.ends_with("intel-hda").then(
        || json!({ "driver": "hda-duplex", "bus": format!("{}.0", device.id), "audiodev": node }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_audio(model: &str) -> Device {
        Device { audio: Some(json!("none")), ..Device::new("s", model) }
    }

    #[test]
    fn a_user_network_is_cut_off_from_the_world() {
        assert_eq!(network("n", &json!("user")).unwrap()["restrict"], true);
    }

    #[test]
    fn cards_on_the_hub_share_one_wire() {
        let (one, other) =
            (network("a", &json!("hub")).unwrap(), network("b", &json!("hub")).unwrap());
        assert_eq!((&one["type"], &one["hubid"]), (&other["type"], &other["hubid"]));
        assert_eq!(one["id"], "a");
    }

    #[test]
    fn an_unknown_network_or_sound_is_an_error_that_shows_a_known_one() {
        assert!(network("n", &json!("usr")).unwrap_err().to_string().contains("\"hub\""));
        assert!(audio("n", &json!("alsa")).unwrap_err().to_string().contains("\"none\""));
    }

    #[test]
    fn a_card_plays_itself_and_a_controller_has_a_codec_that_does() {
        let parts = |device: &Device| {
            device
                .parts(
                    &crate::machine::Machine::Q35.place(device, 0),
                    &crate::folder::Folder::scratch(),
                )
                .unwrap()
        };
        let (card, controller) = (parts(&with_audio("ES1370")), parts(&with_audio("intel-hda")));
        assert_eq!(card.devices[0]["audiodev"], card.audios[0]["id"]);
        assert_eq!(controller.devices[0]["audiodev"], Value::Null);
        assert_eq!(
            (&controller.devices[1]["bus"], &controller.devices[1]["audiodev"]),
            (&json!("s.0"), &json!("s-audio"))
        );
    }

    #[test]
    fn a_sound_card_that_plays_to_nothing_is_refused() {
        assert!(
            Device::new("s", "ES1370")
                .check()
                .unwrap_err()
                .to_string()
                .contains("audio = \"none\"")
        );
        assert!(with_audio("ES1370").check().is_ok());
    }

    #[test]
    fn a_driver_is_awaited_where_its_kind_of_device_appears() {
        assert_eq!(sign("virtio-net-pci", &["virtio_net"]), Some("virtio*/net/*"));
        assert_eq!(sign("ES1370", &["snd_ens1370"]), Some("sound/card*"));
        assert_eq!(sign("rtl8139", &["8139too"]), Some("net/*"));
        assert_eq!(sign("rtl8139", &["e1000"]), None);
    }
}
