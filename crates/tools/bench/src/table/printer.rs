//! Columns below headings, by comfy-table: as text, or as a table of Markdown.

use std::fmt::Display;

use comfy_table::presets::{ASCII_MARKDOWN, NOTHING};
use comfy_table::{CellAlignment, Table as Comfy, TableStyle};

/// Lines of cells below a head. The first column is to the left, all others are to the right unless
/// it is said.
pub struct Table {
    head: Vec<String>,
    lines: Vec<Vec<String>>,
    left: Vec<usize>,
}

impl Table {
    /// Without lines, with `corner` over the first column and `heads` over the others.
    pub fn new<T: Display>(corner: &str, heads: impl IntoIterator<Item = T>) -> Self {
        let heads = heads.into_iter().map(|head| head.to_string());
        Self {
            head: std::iter::once(corner.to_owned()).chain(heads).collect(),
            lines: Vec::new(),
            left: vec![0],
        }
    }

    /// These columns are to the left, too.
    pub fn left(mut self, columns: &[usize]) -> Self {
        self.left.extend(columns);
        self
    }

    /// One more line, unless all that stands behind its name is empty.
    pub fn line<T: Display>(&mut self, name: impl ToString, cells: impl IntoIterator<Item = T>) {
        let cells: Vec<String> = cells.into_iter().map(|cell| cell.to_string()).collect();
        if cells.iter().any(|cell| !cell.is_empty()) {
            self.lines.push([vec![name.to_string()], cells].concat());
        }
    }

    /// As text, or nothing without a line.
    pub fn text(&self) -> String {
        if self.lines.is_empty() { String::new() } else { self.whole() }
    }

    /// As text, its head in any case.
    pub fn whole(&self) -> String {
        let mut table = self.comfy(NOTHING);
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        table.to_string().lines().map(|line| line.trim_end().to_owned() + "\n").collect()
    }

    /// As Markdown has tables. What would end a cell, or be a tag of HTML, is words there.
    pub fn markdown(&self) -> String {
        let words = |cell: &String| {
            cell.replace('|', "\\|").replace('<', "&lt;").replace(['\n', '\r'], " ")
        };
        let lines = self.lines.iter().map(|line| line.iter().map(words).collect());
        let table =
            Self { lines: lines.collect(), head: self.head.clone(), left: self.left.clone() };
        table.comfy(ASCII_MARKDOWN).to_string() + "\n"
    }

    fn comfy(&self, style: TableStyle) -> Comfy {
        let mut table = Comfy::new();
        table.load_style(style).set_header(&self.head).add_rows(&self.lines);
        for (number, column) in table.column_iter_mut().enumerate() {
            let is_left = self.left.contains(&number);
            let side = if is_left { CellAlignment::Left } else { CellAlignment::Right };
            column.set_cell_alignment(side);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new("", ["IOPS", "who"]).left(&[2]);
        table.line("kernel", ["43.0 k", "Linux"]);
        table.line("left out", ["", ""]);
        table.line("in process", ["7", ""]);
        table
    }

    #[test]
    fn names_are_to_the_left_and_figures_to_the_right_and_no_line_ends_with_spaces() {
        let wanted = "              IOPS  who\nkernel      43.0 k  Linux\nin process       7\n";
        assert_eq!(table().text(), wanted);
    }

    #[test]
    fn markdown_has_a_rule_below_its_head_and_as_many_cells_in_each_line() {
        let text = table().markdown();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].chars().all(|letter| "|-:".contains(letter)), "{text}");
        assert!(lines.iter().all(|line| line.matches('|').count() == 4), "{text}");
        assert_eq!(lines.len(), 4, "{text}");
    }

    #[test]
    fn a_table_without_lines_is_nothing_unless_its_head_is_wanted() {
        let table = Table::new("a", ["b"]);
        assert_eq!((table.text().as_str(), table.whole().as_str()), ("", "a  b\n"));
    }
}
