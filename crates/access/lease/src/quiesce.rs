//! How a controller is made to stop, as data in its driver's manifest.

use serde::Deserialize;

/// What a fence does besides taking bus mastering away: steps in registers, one after the other. In
/// a manifest:
///
/// ```
/// let manifest = "
/// [quiesce]
/// bar = 0
/// [[quiesce.step]]
/// at = 0x14
/// clear = 1
/// until = { at = 0x1c, mask = 1, value = 0 }
/// limit_ms = 2000
/// limit_from = { at = 0, shift = 24, mask = 0xff, unit_ms = 500 }
/// ";
/// let quiesce = ring3_lease::Quiesce::from_manifest(manifest).unwrap().unwrap();
/// assert_eq!((quiesce.bar, quiesce.step[0].until.at, quiesce.step[0].width), (0, 0x1c, 32));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quiesce {
    /// The BAR that holds the registers; of a device with `structure`, where they usually are.
    pub bar: u8,
    /// The registers are those of the virtio structure of this type, which the device's
    /// capabilities place: in whichever BAR, and `at` counts from its begin. [virtio 4.1.4]
    pub structure: Option<u8>,
    /// What is seen of a device that runs as its driver has left it, before anything is done: all
    /// of these, and none of them if nobody knows. A
    /// disk that says otherwise may have lost what is in its cache.
    #[serde(default)]
    pub running: Vec<RegisterCheck>,
    /// In this order; one at least, as a controller that was not seen to stop has not.
    pub step: Vec<Step>,
}

/// What a register says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegisterCheck {
    /// The register, in bytes from the start of the BAR or of the structure.
    pub at: u64,
    /// Its bits: 8 or 32.
    #[serde(default = "usual_width")]
    pub width: u8,
    /// The bits that count.
    pub mask: u32,
    /// What they are.
    pub value: u32,
    /// So many registers say that, as far as the BAR has them.
    #[serde(default = "once")]
    pub times: u32,
    /// Each so many bytes behind the one before.
    #[serde(default)]
    pub stride: u64,
}

/// Changes bits of a register, and waits until another one says that it is so.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The register, in bytes from the start of the BAR or of the structure.
    pub at: u64,
    /// Bits of both registers: 8 or 32.
    #[serde(default = "usual_width")]
    pub width: u8,
    /// Bits to clear.
    #[serde(default)]
    pub clear: u32,
    /// Bits to set.
    #[serde(default)]
    pub set: u32,
    /// What is then seen.
    pub until: BitCondition,
    /// At the latest after this many milliseconds.
    pub limit_ms: u32,
    /// Or after what the device says itself, if that is longer.
    pub limit_from: Option<DeviceTimeout>,
}

/// Bits of a register that say how long a device may take, read before the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceTimeout {
    /// The register, in bytes from the BAR's start.
    pub at: u64,
    /// The lowest of the bits.
    pub shift: u8,
    /// What counts of the register, shifted by that.
    pub mask: u32,
    /// Milliseconds for each.
    pub unit_ms: u32,
}

impl DeviceTimeout {
    /// Milliseconds, where the register has `value`; no more than [`MAX_OWN_LIMIT_MS`], as it is
    /// the device's word.
    pub fn millis(&self, value: u32) -> u32 {
        let units = value.checked_shr(self.shift.into()).unwrap_or(0) & self.mask;
        units.saturating_mul(self.unit_ms).min(MAX_OWN_LIMIT_MS)
    }
}

/// Bits of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BitCondition {
    /// The register, in bytes from the BAR's start.
    pub at: u64,
    /// The bits that count.
    pub mask: u32,
    /// What they are.
    pub value: u32,
}

/// Longest wait of a step: a fence that takes longer is a reset.
const MAX_LIMIT_MS: u32 = 10_000;

/// Most registers that a look is at.
const MAX_TIMES: u32 = 64;

fn once() -> u32 {
    1
}
/// The same where the device asks for more. Users wait meanwhile, for a minute as a rule, and the
/// reset needs some of that.
pub const MAX_OWN_LIMIT_MS: u32 = 30_000;

fn usual_width() -> u8 {
    32
}

impl Quiesce {
    /// What `manifest`, a TOML document, says; `None` if it says nothing of a fence, so that the
    /// function is reset. The error says what is wrong.
    pub fn from_manifest(manifest: &str) -> Result<Option<Self>, String> {
        #[derive(Deserialize)]
        struct Manifest {
            quiesce: Option<Quiesce>,
        }
        let Manifest { quiesce } = toml::from_str(manifest).map_err(|error| error.to_string())?;
        quiesce.as_ref().map_or(Ok(()), Self::check)?;
        Ok(quiesce)
    }

    /// Whether it can stop anything; the error says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        if self.step.is_empty() {
            return Err("a fence without a step stops nothing: leave [quiesce] out, and the \
                        function is reset"
                .into());
        }
        if let Some(look) = self.running.iter().find(|look| !look.is_possible()) {
            return Err(format!("no such look at a device: {look:?}"));
        }
        match self.step.iter().find(|step| !step.is_possible()) {
            Some(step) => Err(format!("no such step of a fence: {step:?}")),
            None => Ok(()),
        }
    }
}

impl RegisterCheck {
    fn is_possible(&self) -> bool {
        let most = if self.width == 8 { u8::MAX.into() } else { u32::MAX };
        let fit = self.mask != 0 && self.mask <= most && self.value & !self.mask == 0;
        fit && [8, 32].contains(&self.width) && (1..=MAX_TIMES).contains(&self.times)
    }
}

impl Step {
    fn is_possible(&self) -> bool {
        let most = if self.width == 8 { u8::MAX.into() } else { u32::MAX };
        let fit = [self.clear, self.set, self.until.mask].iter().all(|&bits| bits <= most)
            && self.until.value & !self.until.mask == 0;
        fit && [8, 32].contains(&self.width)
            && self.until.mask != 0
            && self.limit_ms <= MAX_LIMIT_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_without_a_step_is_refused_because_nothing_would_be_seen_to_stop() {
        assert!(Quiesce::from_manifest("[quiesce]\nbar = 0\nstep = []").is_err());
    }

    #[test]
    fn a_device_says_itself_how_long_it_may_take_up_to_half_a_minute() {
        let own = DeviceTimeout { at: 0, shift: 24, mask: 0xff, unit_ms: 500 };
        assert_eq!([0, 0x0400_ffff, 0xff00_0000].map(|cap| own.millis(cap)), [0, 2000, 30_000]);
        assert_eq!(DeviceTimeout { shift: 40, unit_ms: u32::MAX, ..own }.millis(u32::MAX), 0);
    }

    #[test]
    fn a_manifest_without_a_fence_is_no_error_and_a_fence_that_makes_no_sense_is() {
        assert_eq!(Quiesce::from_manifest("[driver]\nname = \"x\""), Ok(None));
        let with = |step: &str| {
            Quiesce::from_manifest(&format!("[quiesce]\nbar = 0\n[[quiesce.step]]\n{step}"))
        };
        let good = "at = 0\nclear = 1\nuntil = { at = 2, mask = 1, value = 0 }\nlimit_ms = 5\n";
        assert!(with(good).unwrap().is_some());
        for (from, to) in [
            ("mask = 1", "mask = 0"),
            ("value = 0", "value = 2"),
            ("= 5", "= 10001"),
            ("clear", "clean"),
            ("limit", "width = 16\nlimit"),
        ] {
            assert!(with(&good.replace(from, to)).is_err(), "{to}");
        }
        let look = |look: &str| {
            Quiesce::from_manifest(&format!(
                "[quiesce]\nbar = 0\nrunning = [{{ {look} }}]\n[[quiesce.step]]\n{good}"
            ))
        };
        assert_eq!(look("at = 4, mask = 3, value = 1").unwrap().unwrap().running[0].times, 1);
        for wrong in [
            "at = 4, mask = 0, value = 0",
            "at = 4, mask = 1, value = 2",
            "at = 4, mask = 1, value = 1, times = 65",
        ] {
            assert!(look(wrong).is_err(), "{wrong}");
        }
        assert!(
            with(&format!("{good}width = 8\nset = 0x100\n")).is_err()
                && Quiesce::from_manifest("[quiesce").is_err()
        );
    }
}
