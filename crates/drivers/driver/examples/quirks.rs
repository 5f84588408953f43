//! What drivers know of devices that are otherwise than their specification: `page` prints
//! docs/quirks.md, and `compare TREE` says what a kernel's source has otherwise, with exit code 1
//! if there is anything.

use std::path::Path;
use std::process::ExitCode;

use ring3_driver::registry;
use ring3_quirks::{linux, page};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["page"] => {
            print!("{}", page(registry::quirks()));
            ExitCode::SUCCESS
        }
        ["compare", tree] => compare(Path::new(tree)),
        _ => {
            eprintln!("quirks page, or quirks compare TREE");
            ExitCode::FAILURE
        }
    }
}

fn compare(tree: &Path) -> ExitCode {
    let mut same = true;
    for (driver, table) in registry::quirks() {
        match linux::read(tree, &table.linux) {
            Ok(theirs) => {
                for line in linux::differences(&linux::facts_of(table), &theirs) {
                    println!("{driver}: {line}");
                    same = false;
                }
            }
            Err(why) => {
                eprintln!("{driver}: {why}");
                return ExitCode::FAILURE;
            }
        }
    }
    if same {
        println!("the tables have what the kernel's have");
        return ExitCode::SUCCESS;
    }
    ExitCode::FAILURE
}
