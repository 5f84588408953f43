//! What a user writes behind `sim:MODEL`, read and checked.

use ring3_device::Error;

use super::fault::{FaultPlan, Vocabulary};
use super::{Model, Platform, SimDevice, Timing};
use ring3_device::{OpenOptions, Uri};
pub(super) use ring3_device::{
    parse_duration as duration, parse_number as number, parse_range as range,
};

/// What a device may say that wants to do something to a terminal: clear it, name its window, turn
/// the direction of writing.
pub(super) const WILD_TEXT: [&str; 3] = ["\x1b]0;S\x07", "\x1b[2Jdisk\u{202e}\r\n", "\x1b[0m"];

/// The address of one network card.
pub(super) fn mac(text: &str) -> Option<[u8; 6]> {
    let bytes: Option<Vec<u8>> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes?.try_into().ok().filter(|mac: &[u8; 6]| mac[0] & 1 == 0)
}

/// The options of a URI, whose keys are all known.
pub(super) struct Options<'a>(&'a Uri);

impl<'a> Options<'a> {
    /// The options of `uri`, which must name `model` and have no keys beyond those of every model
    /// and `own`.
    pub(super) fn of(uri: &'a Uri, model: &str, own: &[&str]) -> Result<Self, Error> {
        if uri.scheme != "sim" || uri.target != model {
            return Err(Error::Invalid(format!("{uri} is not the simulated model sim:{model}")));
        }
        let known: Vec<&str> =
            own.iter().chain(&OpenOptions::KEYS).chain(&["reserved", "delay"]).copied().collect();
        uri.only(&known)?;
        Ok(Self(uri))
    }

    /// What `read` makes of the value of `key`; `default` if the key is not there.
    pub(super) fn get<T>(
        &self,
        key: &str,
        wants: &str,
        default: T,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<T, Error> {
        let Some(text) = self.0.options.get(key) else { return Ok(default) };
        read(text)
            .ok_or_else(|| Error::Invalid(format!("{}: {key}={text}: it must be {wants}", self.0)))
    }

    pub(super) fn switch(&self, key: &str, default: bool) -> Result<bool, Error> {
        Ok(self.0.switch(key)?.unwrap_or(default))
    }

    /// The value of `key` as it stands, of `most` bytes at most.
    pub(super) fn text(&self, key: &str, most: usize) -> Result<Option<String>, Error> {
        self.get(key, &format!("a text of up to {most} bytes"), None, |text| {
            (text.len() <= most && text.is_ascii()).then(|| Some(text.to_owned()))
        })
    }

    /// `model=` and `firmware=`, with the lengths of both kinds of disks.
    pub(super) fn strings(&self) -> Result<(Option<String>, Option<String>), Error> {
        Ok((self.text("model", 40)?, self.text("firmware", 8)?))
    }

    /// `KEY=NAME+NAME`, of those that `known` names.
    pub(super) fn quirks<Q: Copy>(
        &self,
        key: &'static str,
        known: &[(&str, Q)],
    ) -> Result<Vec<Q>, Error> {
        let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
        let named =
            |name: &str| known.iter().find(|(one, _)| *one == name).map(|(_, quirk)| *quirk);
        let wants = format!("of {}, with + between", names.join(", "));
        self.get(key, &wants, Vec::new(), |text| text.split('+').map(named).collect())
    }

    /// `id=1234:0802`: PCI vendor and device.
    pub(super) fn id(&self, default: (u16, u16)) -> Result<(u16, u16), Error> {
        self.get("id", "PCI vendor and device, as 1234:0802", default, |text| {
            let (vendor, device) = text.split_once(':')?;
            let number = |text: &str| u16::from_str_radix(text, 16).ok();
            Some((number(vendor)?, number(device)?))
        })
    }

    /// `text=wild`: the device's strings are [`WILD_TEXT`].
    pub(super) fn wild_text(&self) -> Result<bool, Error> {
        self.get("text", "plain or wild", false, |text| {
            ["plain", "wild"].iter().position(|word| *word == text).map(|at| at == 1)
        })
    }

    pub(super) fn platform(&self, asked: OpenOptions) -> Result<Platform, Error> {
        let OpenOptions { arena, below, memory, .. } = asked.overridden_by(self.0)?;
        let reserved = self.get(
            "reserved",
            "a range of addresses, as 0x100000-0x1fffff",
            Vec::new(),
            |text| range(text).map(|range| vec![range]),
        )?;
        Ok(Platform { arena, memory, below, reserved })
    }

    /// The device that the URI names, around what `model` makes with the faults that it asks for.
    pub(super) fn open<M: Model>(
        &self,
        asked: OpenOptions,
        words: &'static Vocabulary,
        model: impl FnOnce(FaultPlan) -> M,
    ) -> Result<SimDevice<M>, Error> {
        let plan = FaultPlan::of(words);
        self.0.options.get("fault").map_or(Ok(()), |text| plan.read(text))?;
        SimDevice::new(self.0.to_string(), model(plan), &self.platform(asked)?)
    }

    pub(super) fn timing(&self) -> Result<Timing, Error> {
        self.get("delay", "a time up to 60s, as 100us or 5ms", Timing::Inline, |text| {
            duration(text).map(Timing::After)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_cannot_be_read_says_what_it_must_be() {
        let uri: Uri = "sim:edu,delay=long".parse().unwrap();
        let error = Options::of(&uri, "edu", &[]).unwrap().timing().unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid request: sim:edu,delay=long: delay=long: it must be a time up to 60s, as \
            100us or 5ms"
        );
    }
}
