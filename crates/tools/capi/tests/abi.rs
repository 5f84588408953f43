//! What `libring3.so` promises to programs that were linked with it: its functions, and the layout
//! of the structs that they share with it. `tests/abi.txt` has both. After a change that is meant:
//! `RING3_RENEW=1 cargo test -p ring3-capi --test abi`; one that is more than an addition wants
//! another minor version.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

mod c;

/// The header without comments and directives.
fn code() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/ring3.h");
    let text = std::fs::read_to_string(path).unwrap();
    let mut code = String::new();
    let mut rest = &text[..];
    while let Some((before, comment)) = rest.split_once("/*") {
        code += before;
        rest = comment.split_once("*/").expect("each comment ends").1;
    }
    code += rest;
    let lines = code.lines().filter(|line| !line.starts_with('#') && *line != "extern \"C\" {");
    lines.collect::<Vec<_>>().join("\n")
}

/// A declaration on one line.
fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The functions' declarations.
fn functions(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for part in code.split(';') {
        // What ends the struct before it belongs to that.
        let part = part.rsplit('}').next().unwrap_or_default();
        let declaration = on_one_line(part);
        if declaration.contains("ring3_") && declaration.ends_with(')') {
            found.push(declaration);
        }
    }
    found.sort();
    found
}

/// The name of a declared function.
fn name(declaration: &str) -> &str {
    declaration.split('(').next().and_then(|head| head.rsplit([' ', '*']).next()).unwrap()
}

/// The structs that programs see into, and the names of their fields.
fn structs(code: &str) -> Vec<(String, Vec<String>)> {
    let bodies = code.split("\nstruct ").skip(1).filter_map(|part| {
        let (name, body) = part.split_once(" {\n")?;
        let (fields, _) = body.split_once("\n};")?;
        let names = fields.split(';').map(str::trim).filter(|field| !field.is_empty());
        // `const char *model`, `uint8_t mac[6]`, `const uint8_t (*unicast)[6]`
        let names = names.map(|field| {
            let word = |letter: char| letter.is_alphanumeric() || letter == '_';
            let end = field.find(['[', ')']).unwrap_or(field.len());
            field[..end].rsplit(|letter| !word(letter)).next().unwrap().to_owned()
        });
        (!name.contains(';')).then(|| (name.to_owned(), names.collect()))
    });
    bodies.collect()
}

/// Where the C compiler puts each field.
fn layouts(structs: &[(String, Vec<String>)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut program = String::from("#include <stdio.h>\n#include \"ring3.h\"\nint main(void)\n{\n");
    for (name, fields) in structs {
        writeln!(program, "printf(\"struct {name} %zu\\n\", sizeof(struct {name}));").unwrap();
        for field in fields {
            writeln!(
                program,
                "printf(\"\\t{field} %zu+%zu\\n\", offsetof(struct {name}, {field}), \
                sizeof(((struct {name} *)0)->{field}));"
            )
            .unwrap();
        }
    }
    program += "}\n";
    let source = folder.path().join("layouts.c");
    std::fs::write(&source, program).unwrap();
    let made = c::build(source.to_str().unwrap(), folder.path());
    String::from_utf8(Command::new(made).output().unwrap().stdout).unwrap()
}

#[test]
fn the_library_exports_what_the_header_declares_and_nothing_else_of_its_name() {
    let output = Command::new("nm")
        .args(["-D", "--defined-only", "--format=posix"])
        .arg(c::library().join("libring3.so"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let exported: BTreeSet<_> = text
        .lines()
        .filter_map(|line| line.split(' ').next())
        .filter(|name| name.starts_with("ring3_"))
        .collect();
    let declared = functions(&code());
    let declared: BTreeSet<_> = declared.iter().map(|declaration| name(declaration)).collect();
    assert_eq!(exported, declared);
    assert!(declared.len() > 80, "{declared:?}");
}

#[test]
fn functions_and_layouts_are_those_that_programs_were_linked_with() {
    let code = code();
    let structs = structs(&code);
    assert!(structs.iter().any(
        |(name, fields)| name == "ring3_card_filter" && fields.contains(&"unicast".to_owned())
    ));
    let declared = functions(&code).join("\n").replace(", ", ",\n\t");
    let now = format!("{declared}\n{}", layouts(&structs));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/abi.txt");
    if std::env::var_os("RING3_RENEW").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    let changed: Vec<_> = stored
        .lines()
        .filter(|line| !now.lines().any(|other| other == *line))
        .map(|line| format!("-{line}"))
        .chain(
            now.lines()
                .filter(|line| !stored.lines().any(|other| other == *line))
                .map(|line| format!("+{line}")),
        )
        .collect();
    assert!(stored == now, "tests/abi.txt is out of date:\n{}", changed.join("\n"));
}
