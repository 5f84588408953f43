//! What is read of manifests, and what is refused.

use std::fs;
use std::time::Duration;

use ring3_export::ublk::Scheduler;

use super::*;

const SCRATCH: &str = r#"
    [device.scratch]
    match = { address = "0000:01:00.0" }
    driver = "nvme"
    bind = true
    [device.scratch.export]
    kind = "ublk"
    id = 0
    queues = 2
    [device.scratch.restart]
    burst = 9
    deadline_s = 30
"#;

#[test]
fn the_scheduler_and_commands_for_many_requests_are_a_disks_and_the_usual_ones_if_nothing_is_said()
{
    let export = |text: &str| {
        let text = format!("[device.a]\nmatch = {{ class = \"nvme\" }}\n[device.a.export]\n{text}");
        parse(&text).map(|devices| (devices[0].export.scheduler, devices[0].export.batch))
    };
    assert_eq!(export(""), Ok((Scheduler::None, false)));
    assert_eq!(
        export("scheduler = \"mq-deadline\"\nbatch = true"),
        Ok((Scheduler::MqDeadline, true))
    );
    assert!(export("scheduler = \"fast\"").is_err());
}

#[test]
fn what_is_not_said_has_a_default() {
    let devices = parse(SCRATCH).unwrap();
    let [device] = &devices[..] else { panic!("{devices:?}") };
    assert_eq!(
        (&*device.name, device.link(), device.bind, device.export.queues),
        ("scratch", "scratch", true, 2)
    );
    assert_eq!((device.export.depth, device.max_bytes(), device.limits.pids), (64, 256 << 10, 64));
    assert_eq!(
        (device.restart.burst, device.restart.policy().io_timeout),
        (9, Duration::from_secs(30))
    );
}

#[test]
fn a_controllers_own_memory_and_its_power_states_are_an_nvme_drivers_to_limit() {
    let with = |more: &str| {
        let text = SCRATCH.replace("bind = true", more);
        parse(&text).map(|devices| devices[0].clone())
    };
    let device = with("hmb_mib = 64\npower_latency_ms = 0").unwrap();
    assert_eq!((device.hmb_mib, device.power_latency_ms), (Some(64), Some(0)));
    let memory = |device: &Device, family| device.host_memory(family) >> 20;
    assert_eq!(
        [Some("nvme"), None, Some("ata")].map(|family| memory(&device, family)),
        [64, 64, 0]
    );
    assert_eq!(memory(&with("").unwrap(), Some("nvme")), 128);
    for (wrong, named) in [
        ("hmb_mib = 1025", "0 to 1024"),
        ("power_latency_ms = 60001", "0 to 60000"),
        ("hmb_mib = -1", "hmb_mib"),
    ] {
        let error = with(wrong).unwrap_err();
        assert!(error.contains(named), "{error}");
    }
    for driver in ["\"ata\"", "\"dde:nvme\""] {
        let text = SCRATCH.replace("\"nvme\"", driver).replace("bind = true", "hmb_mib = 64");
        let error = parse(&text).unwrap_err();
        assert!(error.contains("hmb_mib and power_latency_ms"), "{error}");
    }
}

#[test]
fn memory_is_lent_to_a_disk_within_what_is_said_and_to_nobody_else() {
    let with = |more: &str| parse(&SCRATCH.replace("id = 0", more));
    let devices = with("share = { socket = \"/run/x\", memory_mib = 64 }").unwrap();
    let share = devices[0].export.share.clone().unwrap();
    assert_eq!(
        (share.rights(), share.bytes(), devices[0].lent_bytes()),
        (Some(0o600), 64 << 20, 64 << 20)
    );
    assert!(devices[0].policy().lent);
    for (wrong, named) in [
        ("share = { socket = \"/run/x\" }", "memory_mib"),
        ("share = { socket = \"x\", memory_mib = 64 }", "begins with /"),
        ("share = { socket = \"/run/x\", memory_mib = 0 }", "1 to 65536"),
        ("share = { socket = \"/run/x\", memory_mib = 64, mode = \"rw\" }", "octal"),
        ("share = { socket = \"/run/x\", memory_mib = 64, user = 1 }", "user"),
    ] {
        let error = with(wrong).unwrap_err();
        assert!(error.contains(named), "{error}");
    }
    let shared = SCRATCH.replace("id = 0", "share = { socket = \"/run/x\", memory_mib = 64 }");
    assert!(
        parse(&shared.replace("burst = 9", "adopt = true")).unwrap_err().contains("restart.adopt")
    );
    assert!(
        parse(&shared.replace("kind = \"ublk\"", "kind = \"tap\"").replace("nvme", "e1000"))
            .unwrap_err()
            .contains("share")
    );
    assert!(
        parse(&shared.replace("\"nvme\"", "\"dde:nvme\"")).unwrap_err().contains("export.share")
    );
}

#[test]
fn a_word_that_nobody_knows_is_an_error_that_names_it_and_the_place() {
    for (from, to, named) in [
        ("burst", "bursts", "bursts"),
        ("bind", "bound", "bound"),
        ("device.scratch", "devices.scratch", "devices"),
        ("address", "addresses", "addresses"),
    ] {
        let error = parse(&SCRATCH.replace(from, to)).unwrap_err();
        assert!(error.contains(named) && error.contains("line"), "{error}");
    }
}

#[test]
fn a_value_that_makes_no_sense_is_an_error_that_says_what_would() {
    for (from, to, wanted) in [
        ("queues = 2", "queues = 0", "1 to 128"),
        ("0000:01:00.0", "01:00", "0000:01:00.0"),
        ("kind = \"ublk\"", "kind = \"nbd\"", "`ublk` or `tap`"),
        ("id = 0", "mtu = 1500", "export.mtu is of kind"),
        ("id = 0", "engine = \"tap\"", "export.engine is of kind"),
        ("deadline_s = 30", "deadline_s = 0", "1 to 86400"),
        ("device.scratch", "device.\"../etc\"", "letters"),
        ("address = \"0000:01:00.0\"", "class = \"toaster\"", "nvme"),
    ] {
        let error = parse(&SCRATCH.replace(from, to)).unwrap_err();
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn a_card_becomes_an_interface_of_its_name_or_of_another() {
    const CARD: &str = "[device.net0]\nmatch = \
                        { address = \"0000:01:00.0\" }\n[device.net0.export]\nkind = \"tap\"\n";
    let device = |more: &str| parse(&format!("{CARD}{more}")).map(|devices| devices[0].clone());
    let plain = device("").unwrap();
    assert_eq!((plain.export.kind, plain.interface()), (Kind::Tap, "net0"));
    let named =
        device("interface = \"lan\"\nmtu = 9000\nowner = \"nobody\"\nengine = \"vhost\"").unwrap();
    assert_eq!(
        (named.interface(), named.export.mtu, named.export.owner.map(|user| user.user)),
        ("lan", Some(9000), Some(65534))
    );
    for (more, wanted) in [
        ("id = 1", "export.id is of kind"),
        ("link = \"x\"", "export.link is of kind"),
        ("batch = true", "export.batch is of kind"),
        ("scheduler = \"keep\"", "export.scheduler is of kind"),
        ("interface = \"sixteen-letters-\"", "no name of an interface"),
        ("interface = \"a/b\"", "no name of an interface"),
    ] {
        assert!(device(more).unwrap_err().contains(wanted), "{more}");
    }
    let serial = CARD.replace("address = \"0000:01:00.0\"", "serial = \"7\"");
    assert!(parse(&serial).unwrap_err().contains("match.serial"));
}

#[test]
fn a_device_that_is_matched_by_two_things_or_by_none_is_an_error() {
    let two = SCRATCH.replace("\"0000:01:00.0\"", "\"0000:01:00.0\", serial = \"7\"");
    assert!(parse(&two).is_err());
    assert!(parse(&SCRATCH.replace("match = { address = \"0000:01:00.0\" }", "")).is_err());
}

#[test]
fn a_name_an_id_or_a_device_that_is_there_twice_is_an_error_that_names_both() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.toml"), SCRATCH).unwrap();
    fs::write(folder.path().join("b.toml"), SCRATCH).unwrap();
    let error = read(folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("scratch") && error.contains("a.toml") && error.contains("b.toml"),
        "{error}"
    );
    for (address, id) in [("01", "1"), ("02", "0")] {
        let other =
            SCRATCH.replace("scratch", "other").replace("0000:01", &format!("0000:{address}"));
        fs::write(folder.path().join("b.toml"), other.replace("id = 0", &format!("id = {id}")))
            .unwrap();
        let error = read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("scratch") && error.contains("other"), "{error}");
    }
}

#[test]
fn a_name_that_a_disk_or_a_partition_of_another_device_may_get_is_an_error() {
    let both = |one: &str, two: &str| {
        let device = |name: &str, place: u32, more: &str| {
            format!("[device.{name}]\nmatch = {{ address = \"0000:0{place}:00.0\" }}\n{more}\n")
        };
        let (one, more) = one.split_once(' ').unwrap_or((one, ""));
        read_all(&(device(one, 1, more) + &device(two, 2, "")))
            .map(drop)
            .map_err(|error| error.to_string())
    };
    for (one, two) in [
        ("data", "data-2"),
        ("data", "data-1"),
        ("data", "data-part1"),
        ("data", "data-2-part1"),
        ("data part = 1", "data-part1"),
    ] {
        let error = both(one, two).unwrap_err();
        assert!(
            error.contains("[device.data]") && error.contains(&format!("[device.{two}]")),
            "{error}"
        );
    }
    for (one, two) in [
        ("data", "data-02"),
        ("data", "data-0"),
        ("data", "data-old"),
        ("data", "data2"),
        ("data part = 1", "data-2"),
        ("data-1", "data-2"),
    ] {
        assert_eq!(both(one, two), Ok(()), "{one} {two}");
    }
    let linked = "[device.a]\nmatch = { class = \"nvme\" }\n[device.b]\nmatch = \
                  { class = \"ahci\" }\nexport.link = \"a-1\"";
    assert!(read_all(linked).is_err());
}

#[test]
fn a_driver_is_of_a_user_who_is_there_and_not_roots() {
    let with = |user: &str| {
        parse(&format!("[device.a]\nmatch = {{ class = \"nvme\" }}\nuser = \"{user}\""))
            .map(|devices| devices[0].user)
    };
    assert_eq!(with("nobody"), Ok(Some(User { user: 65534, group: 65534 })));
    assert_eq!(with("65534"), with("nobody"));
    for (user, why) in
        [("root", "is root"), ("0", "is root"), ("nobody-at-all", "there is no user")]
    {
        assert!(with(user).unwrap_err().contains(why), "{user}");
    }
}

#[test]
fn a_driver_without_a_user_has_one_of_its_own_which_is_the_same_each_time() {
    let own = |name: &str| User::own(name, |_| false).unwrap();
    assert_eq!(own("scratch"), own("scratch"));
    assert_ne!(own("scratch"), own("data"));
    let users: std::collections::BTreeSet<_> =
        (0..200).map(|number| own(&format!("disk{number}")).user).collect();
    assert!(
        users.len() > 190 && users.iter().all(|user| (61_184..=65_519).contains(user)),
        "{users:?}"
    );
    let scratch = own("scratch").user;
    let other = User::own("scratch", |user| user == scratch).unwrap();
    assert!(other.user != scratch && other.user == other.group);
    assert_eq!(User::own("scratch", |_| true), None);
    assert!(User::is_somebody(0) && !User::is_somebody(61_199));
}

#[test]
fn a_throttle_is_a_network_cards_and_has_a_range() {
    let with = |kind: &str, throttle: &str| {
        let text = format!(
            "[device.a]\nmatch = {{ class = \"ethernet\" }}\nthrottle = {throttle}\nexport.kind = \
            \"{kind}\""
        );
        parse(&text).map(|devices| devices[0].throttle)
    };
    assert_eq!(with("tap", "\"adaptive\""), Ok(Some(Throttle::Adaptive)));
    assert_eq!(with("tap", "50"), Ok(Some(Throttle::Fixed(Duration::from_micros(50)))));
    for (kind, throttle, why) in [
        ("ublk", "50", "left out with a disk"),
        ("tap", "0", "1 to 8191 microseconds"),
        ("tap", "\"8192\"", "1 to 8191 microseconds"),
        ("tap", "-1", "throttle"),
    ] {
        let error = with(kind, throttle).unwrap_err();
        assert!(error.contains(why), "{throttle}: {error}");
    }
}

#[test]
fn a_folder_has_several_files_and_an_empty_one_says_what_to_write() {
    let folder = tempfile::tempdir().unwrap();
    assert!(read(folder.path()).unwrap_err().to_string().contains("[device.NAME]"));
    fs::write(folder.path().join("a.toml"), SCRATCH).unwrap();
    let other =
        SCRATCH.replace("scratch", "other").replace("01:00", "02:00").replace("id = 0", "id = 1");
    fs::write(folder.path().join("b.toml"), other).unwrap();
    fs::write(folder.path().join("note.txt"), "no TOML").unwrap();
    let names: Vec<_> =
        read(folder.path()).unwrap().into_iter().map(|wanted| wanted.name().to_owned()).collect();
    assert_eq!(names, ["other", "scratch"]);
    let error = read(&folder.path().join("none.toml")).unwrap_err().to_string();
    assert!(error.contains("none.toml") && error.contains("--config"), "{error}");
}

#[test]
fn a_driver_of_linux_has_a_card_or_a_disk_and_is_told_nothing_that_it_would_not_hear() {
    let device = |more: &str, export: &str| {
        parse(&format!(
            "[device.a]\nmatch = {{ class = \"nvme\" }}\ndriver = \
            \"dde:nvme\"\n{more}\n[device.a.export]\n{export}"
        ))
    };
    assert_eq!(device("", "").unwrap()[0].export.kind, Kind::Ublk);
    assert!(device("", "depth = 128").is_ok() && device("", "kind = \"tap\"").is_ok());
    for (more, export, wanted) in [
        ("", "depth = 129", "128 at most"),
        ("part = 1", "", "part must be left out"),
        ("interrupts = \"msi\"", "", "chooses itself"),
        ("throttle = \"off\"", "kind = \"tap\"", "chooses itself"),
        ("restart = { adopt = true }", "", "starts its device"),
    ] {
        assert!(device(more, export).unwrap_err().contains(wanted), "{more} {export}");
    }
}

fn read_all(text: &str) -> Result<Vec<ManifestEntry>, Error> {
    let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    std::fs::write(&file, text).unwrap();
    read(file.path())
}

#[test]
fn the_user_half_of_a_split_driver_needs_no_device_and_has_the_usual_terms() {
    let all = read_all(
        "[split.e1000]\n[split.snd-ens1370]\nunpinned = true\n[split.snd-ens1370.restart]\nburst = \
         9\n",
    )
    .unwrap();
    let [ManifestEntry::UserHalf(card), ManifestEntry::UserHalf(sound)] = &all[..] else {
        panic!("{all:?}")
    };
    assert_eq!(
        (&*card.name, card.unpinned, card.policy()),
        ("e1000", false, Restart::default().policy())
    );
    assert_eq!((&*sound.name, sound.unpinned, sound.policy().burst), ("snd-ens1370", true, 9));
}

#[test]
fn a_user_half_and_a_device_of_one_name_are_an_error() {
    let error = read_all("[split.e1000]\n[device.e1000]\nmatch = { class = \"nvme\" }\n")
        .unwrap_err()
        .to_string();
    assert!(error.contains("name one of them otherwise"), "{error}");
}

#[test]
fn what_makes_no_sense_for_a_user_half_is_an_error() {
    for text in [
        "[split.\"a/b\"]",
        "[split.e1000]\nmatch = { class = \"nvme\" }",
        "[split.e1000]\nuser = \"0\"",
        "[split.e1000.limits]\npids = 1",
        "[split.e1000.limits]\nirqs_per_s = 1000",
        "[split.e1000.restart]\nadopt = false",
        "[split.e1000.restart]\ndeadline_s = 60",
    ] {
        assert!(read_all(text).is_err(), "{text}");
    }
}

#[test]
fn a_cards_driver_has_the_largest_weight_a_disks_the_usual_one_and_a_manifest_may_say_another() {
    let weight = |text: &str| read_all(text).unwrap()[0].device().unwrap().cpu_weight();
    let device = "[device.a]\nmatch = { address = \"0000:01:00.0\" }\n";
    assert_eq!(weight(device), 100);
    assert_eq!(weight(&format!("{device}[device.a.export]\nkind = \"tap\"\n")), 10_000);
    assert_eq!(weight(&format!("{device}[device.a.limits]\ncpu_weight = 7\n")), 7);
    for none in [0, 10_001] {
        assert!(read_all(&format!("{device}[device.a.limits]\ncpu_weight = {none}\n")).is_err());
    }
}
