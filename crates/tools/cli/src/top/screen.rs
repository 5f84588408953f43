//! The screen, and the same as lines.

use std::cmp::Ordering;

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};
use ring3_control::status::State;

use super::rates::Rates;

/// A column: its head, its width, and what it says.
struct Column {
    head: &'static str,
    width: u16,
    text: fn(&Rates) -> String,
    /// How busy a device is in this sense; `None` sorts by text.
    number: Option<fn(&Rates) -> f64>,
}

const fn number(
    head: &'static str,
    width: u16,
    text: fn(&Rates) -> String,
    number: fn(&Rates) -> f64,
) -> Column {
    Column { head, width, text, number: Some(number) }
}

/// The most important ones first: a narrow terminal shows as many as there is room for.
const COLUMNS: [Column; 11] = [
    Column { head: "DEVICE", width: 16, text: |row| row.name.clone(), number: None },
    Column { head: "STATE", width: 11, text: |row| state(row.state).into(), number: None },
    number("IOPS", 9, |row| format!("{:.0}", row.iops), |row| row.iops),
    number("MIB/S", 9, |row| format!("{:.1}", row.mib_per_s), |row| row.mib_per_s),
    number("LAT MS", 8, |row| optional(row.latency_ms, 3), |row| row.latency_ms.unwrap_or(-1.0)),
    number("CPU %", 6, |row| format!("{:.1}", row.cpu_percent), |row| row.cpu_percent),
    number("IRQ/S", 8, |row| format!("{:.0}", row.interrupts_per_s), |row| row.interrupts_per_s),
    number("RESTARTS", 8, |row| row.restarts.to_string(), |row| row.restarts as f64),
    number("OUTAGE MS", 9, |row| optional(row.outage_ms, 1), |row| row.outage_ms.unwrap_or(-1.0)),
    number("FAULTS", 7, |row| row.iommu_faults.to_string(), |row| row.iommu_faults as f64),
    number("LOST", 7, |row| row.lost.to_string(), |row| row.lost as f64),
];

fn optional(value: Option<f64>, places: usize) -> String {
    value.map_or("-".into(), |value| format!("{value:.places$}"))
}

fn state(state: State) -> &'static str {
    match state {
        State::Absent => "absent",
        State::Starting => "starting",
        State::Running => "running",
        State::Recovering => "recovering",
        State::BackingOff => "backing off",
        State::Upgrading => "upgrading",
        State::Failed => "failed",
        State::Stopping => "stopping",
        State::Stopped => "stopped",
        State::Sleeping => "sleeping",
    }
}

fn color(state: State) -> Color {
    match state {
        State::Running => Color::Green,
        State::Failed => Color::Red,
        State::Absent | State::Stopped | State::Sleeping => Color::DarkGray,
        State::Starting
        | State::Recovering
        | State::BackingOff
        | State::Upgrading
        | State::Stopping => Color::Yellow,
    }
}

/// What the user wants.
#[derive(Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing but the screen.
    Nothing,
    /// The end.
    Quit,
    /// A restart of this device, which he has confirmed.
    Restart(String),
}

/// What is shown.
#[derive(Default)]
pub struct Screen {
    rows: Vec<Rates>,
    /// The column by which rows are sorted.
    sort: usize,
    table: TableState,
    /// A restart of this device waits for a yes.
    asked: Option<String>,
    said: String,
    /// Why the rows are old.
    lost: Option<String>,
}

impl Screen {
    /// Shows `rows`; the device that was selected stays so.
    pub fn update(&mut self, rows: Vec<Rates>) {
        let selected = self.selected().map(str::to_owned);
        self.rows = rows;
        self.lost = None;
        self.arrange(selected.as_deref());
    }

    /// There are no newer rows, and why.
    pub fn lose(&mut self, why: &str) {
        self.lost = Some(why.into());
    }

    /// Shows a line until the next one.
    pub fn say(&mut self, text: &str) {
        self.said = text.into();
    }

    /// A key.
    pub fn press(&mut self, key: KeyEvent) -> Wish {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if matches!(key.code, KeyCode::Char('c')) && control {
            return Wish::Quit;
        }
        if let Some(name) = self.asked.take() {
            return if matches!(key.code, KeyCode::Char('y' | 'Y')) {
                Wish::Restart(name)
            } else {
                Wish::Nothing
            };
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Wish::Quit,
            KeyCode::Char('s') => {
                let selected = self.selected().map(str::to_owned);
                self.sort = (self.sort + 1) % COLUMNS.len();
                self.arrange(selected.as_deref());
            }
            KeyCode::Char('r') if self.lost.is_none() => {
                self.asked = self.selected().map(str::to_owned)
            }
            KeyCode::Down | KeyCode::Char('j') => self.table.select_next(),
            KeyCode::Up | KeyCode::Char('k') => self.table.select_previous(),
            KeyCode::PageDown => self.table.scroll_down_by(10),
            KeyCode::PageUp => self.table.scroll_up_by(10),
            KeyCode::Home => self.table.select_first(),
            KeyCode::End => self.table.select_last(),
            _ => {}
        }
        Wish::Nothing
    }

    fn selected(&self) -> Option<&str> {
        // Beyond the last row is what a key has asked for that went too far.
        let at = self.table.selected()?.min(self.rows.len().checked_sub(1)?);
        Some(&self.rows[at].name)
    }

    fn arrange(&mut self, selected: Option<&str>) {
        let column = &COLUMNS[self.sort];
        self.rows.sort_by(|one, other| match column.number {
            // The busiest first.
            Some(number) => number(other)
                .partial_cmp(&number(one))
                .unwrap_or(Ordering::Equal)
                .then_with(|| one.name.cmp(&other.name)),
            None => (column.text)(one)
                .cmp(&(column.text)(other))
                .then_with(|| one.name.cmp(&other.name)),
        });
        let at = selected.and_then(|name| self.rows.iter().position(|row| row.name == name));
        self.table.select(at.or((!self.rows.is_empty()).then_some(0)));
    }

    /// Draws all of it.
    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        let [title, table, foot] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
                .areas(frame.area());
        let running = self.rows.iter().filter(|row| row.state == State::Running).count();
        let iops: f64 = self.rows.iter().map(|row| row.iops).sum();
        let sum = format!(
            "ring3 top: {running} of {} devices running, {iops:.0} IOPS, by {}",
            self.rows.len(),
            COLUMNS[self.sort].head
        );
        frame.render_widget(
            Paragraph::new(sum).style(Style::new().add_modifier(Modifier::BOLD)),
            title,
        );
        let columns = &COLUMNS[..fitting(table.width)];
        let (old, plain) = (Style::new().fg(Color::DarkGray), Style::new());
        let rows = self.rows.iter().map(|row| {
            let cells = columns.iter().map(|column| {
                cell(column, (column.text)(row)).style(match column.head {
                    "STATE" => Style::new().fg(color(row.state)),
                    _ => plain,
                })
            });
            Row::new(cells).style(if self.lost.is_some() { old } else { plain })
        });
        let head = Row::new(columns.iter().map(|column| cell(column, column.head.into())))
            .style(Style::new().add_modifier(Modifier::REVERSED));
        let widths = columns.iter().map(|column| Constraint::Length(column.width));
        let drawn = Table::new(rows, widths)
            .header(head)
            .row_highlight_style(Style::new().add_modifier(Modifier::BOLD))
            .highlight_symbol(">");
        frame.render_stateful_widget(drawn, table, &mut self.table);
        frame.render_widget(self.foot(), foot);
    }

    fn foot(&self) -> Paragraph<'_> {
        match (&self.lost, &self.asked) {
            (Some(why), _) => {
                Paragraph::new(format!("old figures: {why}")).style(Style::new().fg(Color::Red))
            }
            (None, Some(name)) => {
                Paragraph::new(format!("restart {name}? its I/O waits meanwhile (y/n)"))
                    .style(Style::new().fg(Color::Yellow))
            }
            (None, None) if !self.said.is_empty() => Paragraph::new(self.said.as_str()),
            (None, None) => Paragraph::new("q quit  s sort  r restart  up/down select"),
        }
    }
}

fn cell(column: &Column, text: String) -> Cell<'static> {
    let alignment = if column.number.is_some() { Alignment::Right } else { Alignment::Left };
    Cell::from(Text::from(Line::from(text).alignment(alignment)))
}

/// How many of the columns have room in `width`, with the mark of the selected row; one at least.
fn fitting(width: u16) -> usize {
    let mut used = 0;
    let fits = |column: &&Column| {
        used += column.width + 1;
        used <= width
    };
    COLUMNS.iter().take_while(fits).count().max(1)
}

/// The same as lines, all columns: a head, and a line for each device.
pub fn lines(rows: &[Rates]) -> Vec<String> {
    let line = |text: &dyn Fn(&Column) -> String| {
        let pad = |column: &Column| {
            let (text, width) = (text(column), column.width.into());
            if column.number.is_some() {
                format!("{text:>width$}")
            } else {
                format!("{text:<width$}")
            }
        };
        COLUMNS.iter().map(pad).collect::<Vec<_>>().join(" ")
    };
    let head = line(&|column| column.head.into());
    std::iter::once(head).chain(rows.iter().map(|row| line(&|column| (column.text)(row)))).collect()
}
