//! What `ring3 --version` says.

/// The version, and the commit with its date where the program was built in a repository, as
/// `0.1.0 (68f6b9e 2026-11-29)`. The date is the commit's and not the build's, so that two builds
/// of one commit are equal.
pub const LONG: &str = match option_env!("RING3_LONG_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_long_version_is_the_short_one_and_in_a_repository_a_commit_and_a_day() {
        let rest = LONG.strip_prefix(env!("CARGO_PKG_VERSION")).unwrap();
        let Some(commit) = option_env!("RING3_COMMIT") else {
            return assert_eq!(rest, "");
        };
        let inner = rest.strip_prefix(" (").unwrap().strip_suffix(')').unwrap();
        let (short, day) = inner.split_once(' ').unwrap();
        assert!(commit.starts_with(short) && short.len() >= 7, "{LONG}");
        assert!(day.len() == 10 && day.split('-').count() == 3, "{LONG}");
    }
}
