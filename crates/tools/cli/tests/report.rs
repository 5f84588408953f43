//! `ring3 report` and `ring3 bench places`: the page is made of stored reports, whatever they say.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ring3_bench::paper::PAPERS;
use ring3_bench::places::lines;
use ring3_bench::report::{Fact, Lab, Measurement, Report};
use scraper::{ElementRef, Html, Selector};
use tempfile::TempDir;

/// What no page may have as an element, nor end its script by.
const HOSTILE: &str =
    "</script><script src=//evil.example>alert(1)</script><img onerror=x>&\u{1b}[2J";

fn ring3(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ring3")).args(words).output().unwrap()
}

fn lab() -> Lab {
    Lab { kernel: "6.12".into(), mode: "instructions".into(), vcpus: 1, ..Lab::default() }
}

/// Small reports of some benchmarks: disks by size, echo, crossings and the four places.
fn stored() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, report: &Report| {
        report.write(&folder.path().join("parts").join(format!("{name}.json"))).unwrap();
    };
    let size = |load: &str, placement: &str, mib, busy| {
        let one = Measurement::new(1, load, placement);
        one.with("mib_s", mib).with("busy_percent", busy)
    };
    let sizes = [
        size("seqread-512-qd1", "kernel", 2.0, 48.0),
        size("seqread-4k-qd1", "kernel", 15.0, 49.0),
        size("seqread-512-qd1", "export", 1.8, 96.0),
        size("seqread-4k-qd1", "export", 14.0, 97.0),
    ];
    write("leslie-ahci", &Report::new("leslie-ahci", lab(), &sizes));
    let echo = |load: &str, placement: &str, mbit| {
        let one = Measurement::new(1, load, placement).with("mbit_s", mbit);
        one.with("offered_mbit_s", mbit).with("busy_percent", 50.0)
    };
    let echoes = [
        echo("udp-1024-echo-at10", "kernel", 10.0),
        echo("udp-1024-echo-at40", "kernel", 40.0),
        echo("udp-1024-echo-at40", "export", 30.0),
    ];
    write("udp-echo", &Report::new("udp-echo", lab(), &echoes));
    let slow = |placement: &str, ratio| {
        let one = Measurement::new(1, "tcp-out", placement);
        one.with("mbit_s_ratio", ratio).with("cpu_ratio", 1.0)
    };
    let delays = [slow("delay-0", 1.0), slow("delay-20000", 0.96)];
    write("split", &Report::new("split", lab(), &delays));
    let mut places = Report::new("places", lab(), &[]);
    places.facts.push(Fact {
        placement: "split".into(),
        fact: "NVMe: instructions for such a read".into(),
        value: HOSTILE.into(),
    });
    write("places", &places);
    folder
}

fn made(from: &Path) -> (PathBuf, Output) {
    let out = from.join("page.html");
    let words = ["report", "--from", from.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let output = ring3(&words);
    (out, output)
}

fn page(from: &Path) -> String {
    let (out, output) = made(from);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::read_to_string(out).unwrap()
}

fn all<'a>(html: &'a Html, what: &str) -> Vec<ElementRef<'a>> {
    html.select(&Selector::parse(what).unwrap()).collect()
}

#[test]
fn the_page_is_html_without_an_error_and_has_every_figure_row_and_line() {
    let folder = stored();
    let text = page(folder.path());
    let html = Html::parse_document(&text);
    assert!(html.errors.is_empty(), "{:?}", html.errors);
    for figure in &PAPERS.figures {
        assert_eq!(all(&html, &format!("h3#{}", figure.id)).len(), 1, "{}", figure.id);
        assert!(text.contains(&figure.title));
    }
    let shown: String = html.root_element().text().collect();
    for row in &PAPERS.rows {
        assert!(shown.contains(&row.test) && shown.contains(&row.command), "{}", row.id);
    }
    assert!(lines().all(|(_, what, _)| shown.contains(what)));
    let empty: Vec<_> = all(&html, "figure[data-plot]")
        .into_iter()
        .filter(|one| !one.html().contains("<svg"))
        .collect();
    assert!(empty.is_empty(), "{}", empty.len());
}

#[test]
fn the_papers_value_stands_beside_ours_and_what_was_not_measured_names_its_command() {
    let folder = stored();
    let text = page(folder.path());
    // 30 of 40 Mb/s, and the paper's 0.93.
    assert!(text.contains("ours 0.75") && text.contains("paper 0.93"));
    assert!(text.contains("paper 61.0") && text.contains("ours 96.0"));
    assert!(text.contains("Not measured. To measure it: <code>ring3 bench irq-delay</code>"));
    assert!(text.contains("ring3 bench loopback"));
}

#[test]
fn words_of_a_report_do_not_become_markup_and_nothing_is_loaded() {
    let folder = stored();
    let mut report = Report::new("irq-delay", Lab { disk: HOSTILE.into(), ..lab() }, &[]);
    let one = Measurement::new(1, HOSTILE, HOSTILE).with("process_us_mean", 1.0);
    report.rows = Report::new("irq-delay", lab(), &[one]).rows;
    report.provenance.command = HOSTILE.into();
    report.provenance.commit = Some(HOSTILE.into());
    report.provenance.date = HOSTILE.into();
    report.own.insert("other".into(), HOSTILE.into());
    report.write(&folder.path().join("irq-delay.json")).unwrap();
    let text = page(folder.path());
    let html = Html::parse_document(&text);
    assert!(html.errors.is_empty(), "{:?}", html.errors);
    // The data and the script of the page's own.
    assert_eq!(all(&html, "script").len(), 2);
    for what in ["img", "[onerror]", "[src]", "link", "iframe", "object", "[style*=url]"] {
        assert!(all(&html, what).is_empty(), "{what}");
    }
    let links = all(&html, "[href]");
    assert!(links.iter().all(|link| link.attr("href").unwrap().starts_with('#')));
    assert!(!text.contains('\u{1b}') && !text.contains("@import") && !text.contains("url("));
}

#[test]
fn the_raw_data_of_the_page_is_that_of_the_reports() {
    let folder = stored();
    let html = Html::parse_document(&page(folder.path()));
    let [data] = &all(&html, "script#report-data")[..] else { panic!("no data") };
    let data: Vec<Report> = serde_json::from_str(&data.inner_html()).unwrap();
    let read = Report::read(&folder.path().join("parts/udp-echo.json")).unwrap();
    assert!(data.len() == 4 && data.contains(&read));
}

#[test]
fn a_figure_of_another_commit_or_of_long_ago_says_so_and_a_short_one_is_grey() {
    let folder = stored();
    let path = folder.path().join("parts/udp-echo.json");
    let mut report = Report::read(&path).unwrap();
    report.provenance.commit = Some("0123456789abcdef".into());
    report.provenance.date = "2020-01-01T00:00:00Z".into();
    report.provenance.command = "ring3 bench udp-echo --quick".into();
    report.write(&path).unwrap();
    let text = page(folder.path());
    assert!(text.contains("Measured at commit <code>0123456789</code>"));
    assert!(text.contains("days ago: older than 30 days"));
    assert!(text.contains("too short to say") && text.contains("#BBBBBB"));
}

#[test]
fn a_file_that_is_no_report_is_named_and_the_others_are_shown() {
    let folder = stored();
    fs::write(folder.path().join("broken.json"), "{ \"bench\": <b>").unwrap();
    let (out, output) = made(folder.path());
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("left out: broken.json"));
    let text = fs::read_to_string(out).unwrap();
    assert!(text.contains("broken.json") && text.contains("ours 0.75"));
}

#[test]
fn a_missing_folder_is_an_error_that_says_what_to_do() {
    let output = ring3(&["report", "--from", "/nowhere/at/all", "--out", "/dev/null"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("ring3 report --run"), "{said}");
}

#[test]
fn nothing_succeeds_where_the_page_cannot_be_written_and_an_old_page_stays() {
    let folder = stored();
    let from = folder.path().to_str().unwrap();
    let output = ring3(&["report", "--from", from, "--out", "/dev/full"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("writing /dev/full"), "{said}");
    let full = File::options().write(true).open("/dev/full").unwrap();
    let out = folder.path().join("page.html");
    let words = ["report", "--from", from, "--out", out.to_str().unwrap()];
    let mut command = Command::new(env!("CARGO_BIN_EXE_ring3"));
    assert!(!command.args(words).stdout(full).stderr(Stdio::null()).status().unwrap().success());
    assert!(out.exists(), "the page was written, and only its name could not be printed");
    let below = out.join("page.html");
    let output = ring3(&["report", "--from", from, "--out", below.to_str().unwrap()]);
    assert!(!output.status.success() && out.is_file());
}

#[test]
fn two_at_once_leave_one_whole_page_and_no_other_file() {
    let folder = stored();
    let out = folder.path().join("page.html");
    let words =
        ["report", "--from", folder.path().to_str().unwrap(), "--out", out.to_str().unwrap()];
    let start = || Command::new(env!("CARGO_BIN_EXE_ring3")).args(words).spawn().unwrap();
    let children = [start(), start()];
    assert!(children.into_iter().all(|mut child| child.wait().unwrap().success()));
    assert!(fs::read_to_string(out).unwrap().ends_with("</html>"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn a_second_run_into_the_same_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let lock = File::create(folder.path().join("lock")).unwrap();
    lock.lock().unwrap();
    let out = folder.path().to_str().unwrap();
    for words in
        [&["bench", "places", "--quick", "--out", out][..], &["report", "--run", "--from", out]]
    {
        let output = ring3(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("another run measures into"), "{said}");
    }
}

/// The browser of the cache, which `lab/setup.sh chromium` fetches.
fn browser() -> PathBuf {
    let program = ring3_lab::Cache::open().unwrap().path("chromium/bin/chromium");
    // One that is there is used without waiting for whoever fetches something else.
    if !program.exists() {
        let setup = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../lab/setup.sh");
        assert!(Command::new(setup).arg("chromium").status().unwrap().success());
    }
    program
}

#[test]
#[ignore = "fetches a browser: make test"]
fn a_browser_loads_the_page_from_its_file_without_an_error_and_draws_every_plot() {
    let folder = stored();
    let text = page(folder.path());
    // What the browser has laid out is written where the test can read it.
    let look = "<script>addEventListener('load', () => { const plots = \
                [...document.querySelectorAll('figure[data-plot] svg')]; document.title = \
                `drawn ${plots.filter((one) => one.getBBox().width > 100).length} of \
                ${document.querySelectorAll('figure[data-plot]').length}, wide \
                ${document.documentElement.scrollWidth <= innerWidth}`; });</script>";
    let looked = folder.path().join("looked.html");
    fs::write(&looked, text.replace("</body>", &format!("{look}</body>"))).unwrap();
    for size in ["1200,900", "360,740"] {
        let mut browser = Command::new(browser());
        browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]);
        browser.args(["--virtual-time-budget=5000", "--dump-dom"]);
        browser.arg(format!("--window-size={size}"));
        browser.arg(format!("--user-data-dir={}", folder.path().join(size).display()));
        let output = browser.arg(format!("file://{}", looked.display())).output().unwrap();
        let dom = String::from_utf8_lossy(&output.stdout);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("CONSOLE"), "{said}");
        let html = Html::parse_document(&dom);
        let title: String = all(&html, "title")[0].text().collect();
        let plots = all(&html, "figure[data-plot]").len();
        assert_eq!(title, format!("drawn {plots} of {plots}, wide true"), "{size}: {said}");
    }
}

const MARKED: &str =
    "# A page\n\n<!-- ring3 report: L8 -->\nold\n<!-- end of L8 -->\n\nkept | it\n";

/// `ring3 report --pages` over a page with `text`; what it has then.
fn paged(from: &Path, text: &str, more: &[&str]) -> (String, Output) {
    let page = from.join("page.md");
    fs::write(&page, text).unwrap();
    let words = ["report", "--from", from.to_str().unwrap(), "--pages", page.to_str().unwrap()];
    let output = ring3(&[&words, more].concat());
    (fs::read_to_string(page).unwrap(), output)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_block_of_a_document_has_paper_ours_ratio_and_by_what_it_was_measured() {
    let folder = stored();
    let (text, output) = paged(folder.path(), MARKED, &[]);
    assert!(output.status.success(), "{}", said(&output));
    let plain: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(plain.starts_with("# A page <!-- ring3 report: L8 --> | "), "{text}");
    assert!(plain.ends_with("<!-- end of L8 --> kept | it"), "{text}");
    let line =
        "| processor at one sector, driver in a process | 61.0 % | 96.0 % | 1.57 | section 4.1 |";
    assert!(plain.contains(line), "{text}");
    assert!(plain.contains("| leslie-ahci | instructions | 20") && !text.contains("old"), "{text}");
}

#[test]
fn a_page_whose_blocks_are_as_they_shall_be_passes_the_check_and_is_not_written() {
    let folder = stored();
    let (text, _) = paged(folder.path(), MARKED, &[]);
    let (same, output) = paged(folder.path(), &text, &["--check"]);
    assert!(output.status.success() && same == text, "{}", said(&output));
}

#[test]
fn a_figure_changed_by_hand_fails_the_check_and_stays() {
    let folder = stored();
    let (text, _) = paged(folder.path(), MARKED, &[]);
    let changed = text.replace("96.0 %", "16.0 %");
    let (same, output) = paged(folder.path(), &changed, &["--check"]);
    assert!(!output.status.success() && same == changed);
    assert!(said(&output).contains("a block is not what the reports make"), "{}", said(&output));
}

#[test]
fn a_mark_without_its_end_and_a_figure_without_a_report_leave_the_page_as_it_is() {
    let folder = stored();
    for (text, why) in [
        ("<!-- ring3 report: L8 -->\nwords\n", "has no line <!-- end of L8 -->"),
        ("<!-- ring3 report: L8 -->\n<!-- end of L9 -->\n", "has no line <!-- end of L8 -->"),
        ("<!-- ring3 report: X1 -->\n<!-- end of X1 -->\n", "no figure has this name"),
        ("<!-- ring3 report: E5 -->\n<!-- end of E5 -->\n", "measure with ring3 bench loopback"),
    ] {
        let (same, output) = paged(folder.path(), text, &[]);
        assert!(!output.status.success() && same == text, "{same}");
        assert!(said(&output).contains(why), "{}", said(&output));
    }
}

/// A repository in which the code of `folder` was last changed `days` ago.
fn with_code(folder: &Path, days: i64) {
    let date = time::OffsetDateTime::now_utc() - time::Duration::days(days);
    let date = date.format(&time::format_description::well_known::Rfc3339).unwrap();
    fs::create_dir_all(folder.join("crates/drivers")).unwrap();
    fs::write(folder.join("crates/drivers/a.rs"), "").unwrap();
    for words in [&["init", "-q"][..], &["add", "crates"], &["commit", "-qm", "code"]] {
        let git = Command::new("git")
            .args(["-c", "user.name=a", "-c", "user.email=a@example.com"])
            .args(words)
            .current_dir(folder)
            .env("GIT_COMMITTER_DATE", &date)
            .status();
        assert!(git.unwrap().success(), "{words:?}");
    }
}

#[test]
fn a_block_says_that_its_code_is_newer_and_beyond_the_limit_there_is_none() {
    for (days, old, is_made) in [(8, true, true), (8, true, false), (-8, false, true)] {
        let folder = stored();
        // The reports are of now: the code is as many days newer as it is of the future.
        with_code(folder.path(), -days);
        let limit = if is_made { "30" } else { "7" };
        let (text, output) = paged(folder.path(), MARKED, &["--days", limit]);
        assert_eq!(output.status.success(), is_made, "{}", said(&output));
        assert_eq!(text.contains("**Older than the code**"), old && is_made, "{text}");
        assert_eq!(said(&output).contains("7 is the limit"), !is_made, "{}", said(&output));
    }
}
