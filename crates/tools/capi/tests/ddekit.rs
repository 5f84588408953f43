//! ddekit's own tests, which are in C: `dde/ddekit/tests`. Each is one here.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

fn kit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../dde/ddekit")
}

/// The programs `context`, `event` and `device`, each linked with all of ddekit.
fn built() -> &'static Path {
    static BUILT: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let library = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let mut sources: Vec<_> = std::fs::read_dir(kit().join("src"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        sources.retain(|path| {
            path.extension().is_some_and(|extension| extension == "c" || extension == "S")
        });
        for program in ["context", "event", "device"] {
            let mut command = Command::new("cc");
            command
                .args([
                    "-std=gnu11",
                    "-D_GNU_SOURCE",
                    "-Wall",
                    "-Wextra",
                    "-Werror",
                    "-O1",
                    "-g",
                    "-o",
                ])
                .arg(folder.path().join(program));
            command.arg(kit().join("tests").join(program).with_extension("c")).args(&sources);
            command
                .arg("-I")
                .arg(kit().join("include"))
                .arg("-I")
                .arg(kit().join("../../crates/tools/capi/include"));
            command
                .arg("-L")
                .arg(&library)
                .arg("-lring3")
                .arg("-lm")
                .arg(format!("-Wl,-rpath,{}", library.display()));
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        folder
    });
    folder.path()
}

macro_rules! tests {
    ($($program:ident: $($name:ident)*;)*) => {$($(
        #[test]
        fn $name() {
            let output = Command::new(built().join(stringify!($program)))
                .arg(stringify!($name))
                .output()
                .unwrap();
            assert!(
                output.status.success(), "{}\n{}", output.status,
                String::from_utf8_lossy(&output.stderr),
            );
        }
    )*)*

        #[test]
        fn every_test_in_c_is_one_here() {
            for (program, names) in [$((stringify!($program), &[$(stringify!($name)),*][..])),*] {
                let text = std::fs::read_to_string(
                    kit().join("tests").join(program).with_extension("c")
                ).unwrap();
                let there: Vec<_> = text.lines()
                    .filter_map(|line| line.trim().strip_prefix("TEST(")?.strip_suffix("),"))
                    .collect();
                assert_eq!(there, names, "{program}");
            }
        }
    };
}

tests! {
    context:
        contexts_go_on_where_they_have_left
        a_stack_begins_at_a_multiple_of_its_size_and_is_what_runs
        a_stack_that_is_none_is_refused
        who_overruns_his_stack_is_ended
        the_hosts_stack_has_room_for_the_host
        a_call_on_the_hosts_stack_may_make_another
        each_context_rounds_as_it_likes;
    event:
        timers_are_called_by_their_time_and_once
        a_timer_that_is_cancelled_by_another_one_of_its_time_is_not_called
        a_timer_that_sets_itself_to_now_does_not_keep_the_loop
        a_descriptor_is_served_while_it_is_readable
        a_watch_that_another_one_has_ended_is_not_called
        polling_ends_at_its_time
        who_polls_for_less_than_before_wakes_up_in_time
        who_polls_for_more_than_before_sleeps_on;
    device:
        an_address_and_what_the_device_is_told_are_one_addition_apart
        registers_of_the_backend_are_not_written
        a_register_that_is_absent_is_not_opened
        interrupts_call_their_function_from_the_loop
        one_that_comes_while_it_is_held_back_leaves_the_timers_whole
        a_device_that_is_none_is_an_error_that_says_so;
}
