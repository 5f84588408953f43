//! What a conformance suite has found, for people and for programs.

use std::process::ExitCode;

use ring3_conformance::{Finding, Report, Verdict};
use serde_json::{Value, json};

/// One check, when it is done.
pub fn show(finding: &Finding, json: bool) {
    if json { outln!("{}", line(finding)) } else { outln!("{finding}") }
}

/// All of them, about the `kind` of device that it was; the exit code says whether it passed.
pub fn conclude(report: &Report, kind: &str, json: bool) -> ExitCode {
    let (failed, all) = (report.failures().count(), report.findings.len());
    match json {
        true => outln!(
            "{}",
            json!({
                kind: report.subject, "checks": all, "failed": failed, "skipped": report.skipped(),
            })
        ),
        false => outln!("{}", report.summary()),
    }
    if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn line(finding: &Finding) -> Value {
    let (verdict, detail) = match &finding.verdict {
        Verdict::Passed => ("passed", None),
        Verdict::Failed(what) => ("failed", Some(what)),
        Verdict::Skipped(why) => ("skipped", Some(why)),
    };
    json!({
        "check": finding.name, "verdict": verdict, "detail": detail,
        "ms": finding.took.as_millis() as u64,
    })
}
