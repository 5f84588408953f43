//! docs/tutorial-c.md as its reader goes through it: each change of `edu.c`, each command, and what
//! the page says that it prints.

use std::path::Path;

/// What the page has its reader do.
pub enum Act {
    /// `edu.c` is new, or changes in one place.
    Edit(Edit),
    /// The compiler is called with these words.
    Build(String),
    /// The program is run with this device.
    Run(String),
    /// The last run has ended with `code`; what it has printed, with its errors behind it.
    Prints { code: i32, text: String },
}

/// A change of `edu.c`; `line` is the one line that reads so.
pub enum Edit {
    New { code: String },
    Above { line: String, code: String },
    Below { line: String, code: String },
    Replace { line: String, code: String },
}

/// The steps of the page, each with its title.
pub fn steps() -> Vec<(String, Vec<Act>)> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/tutorial-c.md");
    let text = std::fs::read_to_string(page).unwrap();
    let step = |step: &str| {
        let found = blocks(step).into_iter().flat_map(|(paragraph, code)| acts(&paragraph, code));
        (step.lines().next().unwrap_or_default().to_owned(), found.collect())
    };
    text.split("\n## Step ").skip(1).map(step).collect()
}

/// The indented blocks of a text, each with the paragraph before it on one line.
fn blocks(text: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let (mut paragraph, mut after) = (Vec::new(), "");
    for line in text.lines() {
        match (line.strip_prefix("    "), found.last_mut()) {
            (Some(line), Some((_, code))) if paragraph.is_empty() => {
                *code += &format!("{}{line}\n", if after.is_empty() { "\n" } else { "" });
            }
            (Some(line), _) => {
                found.push((paragraph.join(" "), format!("{line}\n")));
                paragraph.clear();
            }
            (None, _) if line.is_empty() => {}
            (None, _) => {
                if after.is_empty() {
                    paragraph.clear();
                }
                paragraph.push(line);
            }
        }
        after = line;
    }
    found
}

/// What a block of code is, by the paragraph before it and by its first words.
fn acts(paragraph: &str, code: String) -> Vec<Act> {
    let named = |before: &str, behind: &str| {
        let line = paragraph.rsplit_once(before)?.1.strip_suffix(behind)?;
        Some(line.to_owned()).filter(|line| !line.contains('`'))
    };
    if let Some(line) = named("Add above `", "`:") {
        vec![Act::Edit(Edit::Above { line, code })]
    } else if let Some(line) = named("Add below `", "`:") {
        vec![Act::Edit(Edit::Below { line, code })]
    } else if let Some(line) = named("Replace `", "` by") {
        vec![Act::Edit(Edit::Replace { line, code })]
    } else if paragraph.ends_with("a new file `edu.c`:") {
        vec![Act::Edit(Edit::New { code })]
    } else if paragraph.ends_with("prints") {
        vec![Act::Prints { code: paragraph.contains("exit code 1").into(), text: code }]
    } else if code.starts_with("sudo ring3 bind ") {
        // It needs a PCI function behind an IOMMU. tests/documents checks the words of the command.
        Vec::new()
    } else {
        code.lines().map(|line| command(paragraph, line)).collect()
    }
}

fn command(paragraph: &str, line: &str) -> Act {
    match line.split_once(' ') {
        Some(("cc", words)) => Act::Build(words.into()),
        Some(("./edu", device)) => Act::Run(device.into()),
        _ => panic!("no test knows what this is: {paragraph}\n{line}"),
    }
}

impl Edit {
    /// The program after the change.
    #[track_caller]
    pub fn apply(self, program: &str) -> String {
        // Whether the line stays in front of the code, and behind it.
        let (line, code, (front, end)) = match self {
            Self::New { code } => return code,
            Self::Above { line, code } => (line, code, (false, true)),
            Self::Below { line, code } => (line, code, (true, false)),
            Self::Replace { line, code } => (line, code, (false, false)),
        };
        let mut places = program.split_inclusive('\n').filter(|each| each.trim() == line);
        let (place, more) = (places.next(), places.next());
        let place = place.filter(|_| more.is_none());
        let place = place.unwrap_or_else(|| panic!("not one line of edu.c is {line}"));
        let (before, behind) = program.split_once(&format!("\n{place}")).unwrap();
        let kept = |kept: bool| if kept { place } else { "" };
        format!("{before}\n{}{code}{}{behind}", kept(front), kept(end))
    }
}
