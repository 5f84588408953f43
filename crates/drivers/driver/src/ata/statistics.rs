//! How often a drive was powered on, by its own count: the statistic Lifetime Power-On Resets of
//! [ACS-4 9.5]. A power-on is what empties a drive's volatile cache; resets of other kinds do not
//! count.
//!
//! # Which drives are asked
//! Some drives do not take it well to be asked for a log that they do not have. So the drive must
//! say that it has logs (IDENTIFY DEVICE) and list this one in the directory of its logs. One that
//! refuses, or whose value does not hold, does not count; it is not asked again.

use ring3_device::Error;
use ring3_spec::ata::log::{self, Directory, GeneralStatistics};
use ring3_spec::ata::{Identify, SECTOR};

use super::command::{Command, read_log};
use crate::disk::write_cache::PowerCount;

/// How often the drive that describes itself by `data` was powered on. `read` gives it a command
/// that reads a page, which is `None` if the drive refuses.
pub(super) fn first_power_count(
    data: &Identify,
    mut read: impl FnMut(Command) -> Result<Option<[u8; SECTOR]>, Error>,
) -> Result<PowerCount, Error> {
    if !data.has_general_logs() {
        return Ok(PowerCount::UNKNOWN);
    }
    let directory = read(read_log(log::DIRECTORY, 0))?;
    let pages = directory.map_or(0, |page| Directory(page).pages(log::STATISTICS));
    // They are counted from 0, the list of the pages.
    if pages > log::GENERAL { power_count(read) } else { Ok(PowerCount::UNKNOWN) }
}

/// The same of a drive that has said so before.
pub(super) fn power_count(
    mut read: impl FnMut(Command) -> Result<Option<[u8; SECTOR]>, Error>,
) -> Result<PowerCount, Error> {
    let page = read(read_log(log::STATISTICS, log::GENERAL))?;
    let said = page.and_then(|page| GeneralStatistics(page).power_on_resets());
    Ok(said.map_or(PowerCount::UNKNOWN, |count| PowerCount([count.into(), 0])))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A drive with logs that is asked how often it was powered on, answers `directory` and then
    /// `statistics`, and refuses what is `None`.
    fn ask(directory: Option<u16>, statistics: Option<GeneralStatistics>) -> (PowerCount, usize) {
        let mut data = Identify::zeroed();
        data.set_sets83(1 << 14 | 1 << 10).set_sets84(1 << 14 | 1 << 5);
        let mut asked = 0;
        let count = first_power_count(&data, |command| {
            asked += 1;
            Ok(match log::at_address(command.task.lba) {
                (log::DIRECTORY, 0) => directory.map(|pages| {
                    let mut directory = Directory([0; SECTOR]);
                    directory.set_pages(log::DIRECTORY, Directory::VERSION);
                    directory.set_pages(log::STATISTICS, pages);
                    directory.0
                }),
                _ => statistics.map(|page| page.0),
            })
        });
        (count.unwrap(), asked)
    }

    fn statistics(raw: u64) -> Option<GeneralStatistics> {
        let mut page = GeneralStatistics::zeroed();
        page.set_page(log::GENERAL as u8).set_power_on_resets_raw(raw);
        Some(page)
    }

    #[test]
    fn a_drive_that_lists_the_log_says_how_often_it_was_powered_on() {
        let valid = log::SUPPORTED | log::VALID;
        assert_eq!(ask(Some(2), statistics(valid | 77)), (PowerCount([77, 0]), 2));
        for said in [statistics(log::SUPPORTED | 77), statistics(valid), None] {
            assert_eq!(ask(Some(2), said), (PowerCount::UNKNOWN, 2));
        }
    }

    #[test]
    fn a_drive_that_does_not_list_the_log_is_not_asked_for_it() {
        for directory in [None, Some(0), Some(1)] {
            assert_eq!(ask(directory, statistics(u64::MAX)), (PowerCount::UNKNOWN, 1));
        }
        let without_logs = first_power_count(&Identify::zeroed(), |_| unreachable!());
        assert_eq!(without_logs.unwrap(), PowerCount::UNKNOWN);
    }

    #[test]
    fn a_drive_that_does_not_answer_is_an_error() {
        assert!(power_count(|_| Err(Error::Gone)).is_err());
    }
}
