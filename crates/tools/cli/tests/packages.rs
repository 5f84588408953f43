//! The Debian packages in fresh roots of Debian 12 and 13: installed, used, upgraded, removed and
//! purged, without the network. Needs root, for the roots.
//!
//! `cargo test -p ring3-cli --test packages -- --ignored`, or `tests/run guests packages`.

mod supervised;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::Instant;

use ring3_lab::Cache;

/// Debian 12 and 13.
const SUITES: [&str; 2] = ["bookworm", "trixie"];

/// Shell functions of every step. Nothing is asked, and no archive but the packages is there.
const PRELUDE: &str = r#"
export DEBIAN_FRONTEND=noninteractive HOME=/root
apt() { apt-get -y -q -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=/dev/null "$@"; }
nobody() {
    (cd / && setpriv --reuid=nobody --regid=nogroup --clear-groups env HOME=/nonexistent "$@")
}
# Every file of the system and every user and group; not what dpkg, apt and ldconfig keep for
# themselves.
everything() {
    find / -xdev \( -path /proc -o -path /sys -o -path /new -o -path /old -o -path /examples \
        -o -path /tmp -o -path /before -o -path /after -o -path /var/cache -o -path /var/log \
        -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /etc/ld.so.cache \
        -o -path '/etc/*-' -o -path /etc/.pwd.lock \) -prune -o -printf '%y %m %u:%g %p %l\n' | sort
    cat /etc/passwd /etc/group
}
"#;

/// Each step's name and script, in their order. They share the root.
const STEPS: [(&str, &str); 7] = [
    (
        "install",
        r#"
everything >/before
apt install /old/*.deb
ring3 --version
dpkg --verify
ring3 blk check --destroy --device sim:nvme
"#,
    ),
    (
        "nobody",
        r#"
nobody ring3 blk check --destroy --device sim:nvme
nobody ring3 bench kill --quick | grep -E 'mismatches +0$' && echo 'no block was wrong'
"#,
    ),
    (
        "parts",
        r#"
man=/usr/share/man/man1/ring3-blk-info.1.gz
gzip -t $man /usr/share/man/man8/ring3d.8.gz
grep -q . /usr/share/bash-completion/completions/ring3
ls -d /etc/ring3
ring3 dde list | grep e1000e
ring3 split --help | grep campaign
grep -c . /usr/share/doc/ring3/crates.txt
ls /usr/share/doc/ring3-doc/docs/README.md
"#,
    ),
    (
        "compile",
        r#"
cc -Wall -Werror -o /tmp/edu /examples/edu.c $(pkg-config --cflags --libs ring3)
# /lib is a link to /usr/lib, and which of the two ldd names is ld.so's own affair.
ldd /tmp/edu | sed 's| /lib/| /usr/lib/|' |
    grep -o 'libring3.so[.0-9]* => /usr/lib/x86_64-linux-gnu'
nobody /tmp/edu sim:edu
cc -o /tmp/static /examples/edu.c /usr/lib/x86_64-linux-gnu/libring3.a -lpthread -lm -ldl
nobody /tmp/static sim:edu
rm /tmp/edu /tmp/static
"#,
    ),
    (
        "group",
        r#"
printf '[device.scratch]\nmatch = { address = "0000:ff:1f.7" }\n' >/etc/ring3/scratch.toml
ring3d >/tmp/ring3d.log 2>&1 &
daemon=$!
for try in $(seq 100); do ring3 status >/dev/null 2>&1 && break; sleep 0.1; done
ring3 status || cat /tmp/ring3d.log
nobody ring3 status 2>&1 || echo "others may not ask"
# As ring3d.socket has it.
chgrp ring3 /run/ring3/control
chmod 660 /run/ring3/control
group=$(getent group ring3 | cut -d: -f3)
member() { setpriv --reuid=nobody --regid=nogroup --groups="$group" "$@"; }
member ring3 status --json && echo "the group may ask"
member ring3 reload 2>&1 || echo "the group may not command"
member ring3 restart scratch 2>&1 || echo "the group may not command"
kill $daemon
wait $daemon || true
"#,
    ),
    (
        "upgrade",
        r#"
apt install /new/*.deb
dpkg-query -W -f '${Version}\n' ring3 ring3-dde ring3-split libring3-dev ring3-doc | sort -u
dpkg --verify
ring3 blk check --destroy --device sim:nvme
cat /etc/ring3/scratch.toml
"#,
    ),
    (
        "remove",
        r#"
# As root has it after a use.
python3 -m compileall -q /usr/share/ring3/split/src
packages=$(dpkg-query -W -f '${Package}\n' | grep ring3)
apt remove $packages
ls /usr/bin/ring3 /usr/lib/systemd/system/ring3d.service /usr/share/ring3 2>&1 || true
ls /etc/ring3/scratch.toml
dpkg --purge $packages
everything >/after
diff /before /after && echo "nothing is left"
"#,
    ),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3).unwrap()
}

/// Builds the packages of this build's programs into `folder`, as `make deb` does.
fn build(folder: &Path, version: &str) {
    let bin = supervised::built();
    let mut deb = Command::new(root().join("packaging/deb"));
    deb.arg(folder).arg(bin).env_remove("MAKEFLAGS");
    // Half a minute less for each set.
    deb.env("RING3_PACKAGE_COMPRESSION", "gzip").env("RING3_PACKAGE_VERSION", version);
    succeed(&mut deb);
}

fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// The packages of an older version and those of this one, and where they lie.
struct Packages {
    old: tempfile::TempDir,
    new: tempfile::TempDir,
}

fn packages() -> &'static Packages {
    static PACKAGES: OnceLock<Packages> = OnceLock::new();
    PACKAGES.get_or_init(|| {
        let made =
            Packages { old: tempfile::tempdir().unwrap(), new: tempfile::tempdir().unwrap() };
        build(made.old.path(), &format!("{}~1", env!("CARGO_PKG_VERSION")));
        build(made.new.path(), &format!("{}~2", env!("CARGO_PKG_VERSION")));
        made
    })
}

/// What each step in a fresh root of `suite` has said.
fn said(suite: &str) -> &'static BTreeMap<&'static str, String> {
    static SAID: [OnceLock<BTreeMap<&str, String>>; SUITES.len()] = [const { OnceLock::new() }; 2];
    let at = SUITES.iter().position(|&name| name == suite).unwrap();
    SAID[at].get_or_init(|| {
        assert!(rustix::process::geteuid().is_root(), "a root of its own needs root");
        let packages = packages();
        succeed(Command::new(root().join("lab/setup.sh")).arg("roots"));
        let archive = Cache::open().unwrap().path(format!("roots/{suite}/root.tar"));
        let folder = tempfile::tempdir().unwrap();
        let mut tar = Command::new("tar");
        succeed(tar.arg("-C").arg(folder.path()).arg("-xpf").arg(archive));
        for (name, from) in [("old", packages.old.path()), ("new", packages.new.path())] {
            copy(from, &folder.path().join(name));
        }
        copy(&root().join("crates/tools/capi/examples"), &folder.path().join("examples"));
        STEPS
            .iter()
            .map(|(name, script)| (*name, step(folder.path(), suite, name, script)))
            .collect()
    })
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Runs a step in the root, with processes, mounts and network of its own.
fn step(root: &Path, suite: &str, name: &str, script: &str) -> String {
    let start = Instant::now();
    // A mount of its own, so that ring3d can have a view of its own of it.
    let inside = format!(
        "mount --bind {root} {root} && mount -t proc proc {root}/proc && mount -t tmpfs tmpfs \
         {root}/run && mount -t sysfs sysfs {root}/sys && exec chroot {root} /bin/sh -euc \"$1\"",
        root = root.display()
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--pid", "--fork", "--kill-child", "--net", "--uts", "--ipc"]);
    unshare.args(["sh", "-euc", &inside, "sh", &format!("{PRELUDE}{script}")]);
    unshare.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LANG", "C.UTF-8");
    let output = unshare.output().unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    println!("{suite}, {name}: {:.1} s", start.elapsed().as_secs_f64());
    // The program's name is in what apt says, too: what matters is how it ended.
    assert!(output.status.success(), "{suite}, {name}: {}\n{said}", output.status);
    said
}

#[track_caller]
fn assert_says(step: &str, wanted: &[&str]) {
    for suite in SUITES {
        let said = &said(suite)[step];
        for wanted in wanted {
            assert!(said.contains(wanted), "{suite}, {step}: {wanted:?} is not in:\n{said}");
        }
    }
}

#[test]
#[ignore = "makes fresh roots: tests/run guests packages"]
fn packages_are_installed_in_a_fresh_debian_and_every_block_of_a_model_is_read_back() {
    let version = concat!("ring3 ", env!("CARGO_PKG_VERSION"));
    assert_says("install", &[version, "sim:nvme namespace 1: 0 of 34 checks failed"]);
}

#[test]
#[ignore = "makes fresh roots: tests/run guests packages"]
fn nobody_reads_back_every_block_of_a_model_too_and_kills_drivers() {
    assert_says("nobody", &["sim:nvme namespace 1: 0 of 34 checks failed", "no block was wrong"]);
}

#[test]
#[ignore = "makes fresh roots: tests/run guests packages"]
fn pages_completions_hosted_drivers_splitter_and_documents_are_in_their_places() {
    assert_says("parts", &["/etc/ring3", "e1000e", "campaign", "docs/README.md"]);
}

#[test]
#[ignore = "makes fresh roots: tests/run guests packages"]
fn a_c_program_is_compiled_by_pkg_config_and_runs_with_the_library_of_the_package() {
    let library = concat!(
        "libring3.so.",
        env!("CARGO_PKG_VERSION_MAJOR"),
        ".",
        env!("CARGO_PKG_VERSION_MINOR"),
        " => /usr/lib/x86_64-linux-gnu"
    );
    assert_says("compile", &[library]);
}

#[test]
#[ignore = "makes fresh roots: tests/run guests packages"]
fn members_of_the_group_may_ask_for_the_status_and_command_nothing() {
    assert_says("group", &["others may not ask", "the group may ask", "\"scratch\"", "only root"]);
    for suite in SUITES {
        let refused = said(suite)["group"].matches("the group may not command").count();
        assert_eq!(refused, 2, "{}", said(suite)["group"]);
    }
}

#[test]
#[ignore = "makes fresh roots: tests/run guests packages"]
fn an_upgrade_brings_every_package_to_the_new_version_and_keeps_the_manifest() {
    let version = concat!(env!("CARGO_PKG_VERSION"), "~2-1\n");
    assert_says("upgrade", &[version, "0 of 34 checks failed", "[device.scratch]"]);
    for suite in SUITES {
        assert!(!said(suite)["upgrade"].contains(concat!(env!("CARGO_PKG_VERSION"), "~1-1\n")));
    }
}

#[test]
#[ignore = "makes fresh roots: tests/run guests packages"]
fn a_removal_keeps_the_manifest_and_a_purge_leaves_nothing() {
    assert_says(
        "remove",
        &[
            "'/usr/bin/ring3': No such file",
            "'/usr/share/ring3': No such file",
            "/etc/ring3/scratch.toml\n",
            "nothing is left",
        ],
    );
}

#[test]
#[ignore = "packs everything three times: tests/run guests packages"]
fn two_builds_of_one_version_have_the_same_bytes() {
    let again = tempfile::tempdir().unwrap();
    build(again.path(), &format!("{}~2", env!("CARGO_PKG_VERSION")));
    let bytes = |folder: &Path| -> BTreeMap<PathBuf, Vec<u8>> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| (path.file_name().unwrap().into(), fs::read(path).unwrap())).collect()
    };
    let (first, second) = (bytes(packages().new.path()), bytes(again.path()));
    assert_eq!(first.keys().collect::<Vec<_>>(), second.keys().collect::<Vec<_>>());
    assert_eq!(first.len(), 6);
    let differ: Vec<_> = first.iter().filter(|(name, bytes)| second[*name] != **bytes).collect();
    assert!(differ.is_empty(), "{:?}", differ.iter().map(|(name, _)| name).collect::<Vec<_>>());
}
